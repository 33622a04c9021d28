# mypy: ignore-errors
"""A tool of FastMCP: another protocol, for comparison of the first steps."""

import sys

from fastmcp import FastMCP

mcp = FastMCP("shout")


@mcp.tool
def shout(text: str) -> str:
    """Return the text in upper case."""
    return text.upper()


mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
