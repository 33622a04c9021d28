"""MCP servers as agents."""

from pathlib import Path


def fast_toolbox_path() -> Path:
    """Return the program that needs FastMCP, which this environment does not have."""
    return Path(__file__).with_name("fast_toolbox.py")
