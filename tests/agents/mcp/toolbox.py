"""An MCP server with tools of all kinds, by the MCP SDK. As a program it serves standard input and output.

`EFFECTS` in the environment names a file to which the tools write what they have done.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

PNG = b"\x89PNG\r\n\x1a\n1"
server = MCPServer("toolbox", instructions="Tools of all kinds.", version="3")


def note(effect: str) -> None:
    path = os.environ.get("EFFECTS")
    if path:
        with Path(path).open("a") as file:
            file.write(f"{effect}\n")


class Forecast(BaseModel):
    city: str
    days: int


class Seats(BaseModel):
    seats: int
    window: bool = False


class Sure(BaseModel):
    sure: bool


@server.tool(annotations=ToolAnnotations(read_only_hint=True), title="Weather")
def forecast(city: str, days: int = 1) -> Forecast:
    """Say what the weather will be."""
    return Forecast(city=city, days=days)


@server.tool()
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@server.tool()
async def book(city: str, ctx: Context) -> str:
    """Book."""
    seats: Any = await ctx.elicit("How many seats?", Seats)
    if seats.action != "accept":
        return f"not booked: {seats.action}"
    sure: Any = await ctx.elicit(f"Book {seats.data.seats} seats to {city}?", Sure)
    if sure.action != "accept" or not sure.data.sure:
        return "not booked"
    note("booked")
    return f"{seats.data.seats} seats to {city}, window {seats.data.window}"


@server.tool()
async def slow(ctx: Context) -> str:
    """Take long."""
    try:
        for step in range(1000):
            await ctx.report_progress(step, 1000, f"step {step}")
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    note("done")
    return "done"


@server.tool()
def draw() -> Image:
    """Draw."""
    return Image(data=PNG, format="png")


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no such thing")


@server.tool()
def process() -> int:
    """Return the process of this server."""
    return os.getpid()


if __name__ == "__main__":
    server.run(transport="stdio")
