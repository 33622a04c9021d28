"""A server of FastMCP, whose tools are those of the other agents."""

from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.types import Image
from pydantic import BaseModel

from tests.frameworks.agents import script


class Report(BaseModel):
    title: str
    pages: int


server: Any = FastMCP(script.NAME, instructions=script.DESCRIPTION, mask_error_details=True)
server.tool(script.slow)


@server.tool
async def pay(to: str, amount: int, ctx: Context) -> str:
    """Pay an amount, if the user approves."""
    answer: Any = await ctx.elicit(f"Pay {amount} to {to}?", response_type=bool)
    if answer.action != "accept" or not answer.data:
        return "not paid"
    return script.pay(to, amount)


@server.tool
async def two(ctx: Context) -> str:
    """Pay two amounts, each if the user approves."""
    return f"{await pay('Ada', 1, ctx)}, {await pay('Bob', 2, ctx)}"


@server.tool
async def look(query: str, ctx: Context) -> str:
    """Look something up."""
    await ctx.report_progress(1, 2, "half")
    return script.look(query)


@server.tool
def report() -> Report:
    """Write a report."""
    return Report(title="Sales", pages=3)


@server.tool
def draw() -> Image:
    """Draw a picture."""
    return Image(data=b"\x89PNG\r\n\x1a\n1", format="png")


@server.tool
def fail() -> str:
    """Fail with a text for the client."""
    raise ToolError("no such thing")


@server.tool
def crash() -> str:
    """Fail with an exception."""
    raise RuntimeError(script.SECRET)


if __name__ == "__main__":
    script.run(server)
