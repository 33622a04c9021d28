"""A FastMCP server, served as an agent. Arguments: the URL of a store. Runs in the environment of FastMCP."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.types import Image
from pydantic import BaseModel

from apcore_a2a import serve

server: Any = FastMCP("toolbox", instructions="Tools of all kinds.", version="3")


class Seats(BaseModel):
    seats: int
    window: bool = False


def note(effect: str) -> None:
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{effect}\n")


@server.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@server.tool
async def book(city: str, ctx: Context) -> str:
    """Book."""
    seats: Any = await ctx.elicit("How many seats?", response_type=Seats)
    if seats.action != "accept":
        return f"not booked: {seats.action}"
    sure: Any = await ctx.elicit("Sure?", response_type=bool)
    if sure.action != "accept" or not sure.data:
        return "not booked"
    note("booked")
    return f"{seats.data.seats} seats to {city}, window {seats.data.window}"


@server.tool
async def slow(ctx: Context) -> str:
    """Take long."""
    try:
        for step in range(1000):
            await ctx.report_progress(step, 1000, f"step {step}")
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return "done"


@server.tool
def draw() -> Image:
    """Draw."""
    return Image(data=b"\x89PNG\r\n\x1a\n1", format="png")


@server.tool
def fail() -> str:
    """Fail."""
    raise ToolError("no such thing")


if __name__ == "__main__":
    serve(server, host="127.0.0.1", port=0, store=sys.argv[1])
