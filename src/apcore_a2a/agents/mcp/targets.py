"""Recognizes MCP servers. Invariant: nothing of the MCP SDK is imported here, because most servers do not have it."""

import os
import shlex
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from apcore_a2a.agent import Agent

# The classes by module and name: FastMCP, the high-level and the low-level server of the MCP SDK, and the parameters of
# a server that is a program.
CLASSES: Final = frozenset(
    {
        ("fastmcp", "FastMCP"),
        ("mcp", "MCPServer"),
        ("mcp", "Server"),
        ("mcp", "StdioServerParameters"),
    }
)
MISSING: Final = "serving an MCP server needs the MCP SDK: pip install 'apcore-a2a[mcp]'"


class MCPServerURL(Struct, frozen=True):
    """The URL of an MCP server (Streamable HTTP), as the target of `serve`.

    Example:
        >>> MCPServerURL("https://tools.example.com/mcp").url
        'https://tools.example.com/mcp'
    """

    url: str


def is_mcp_server(thing: object) -> bool:
    """Return whether an object is an MCP server, or names one.

    Example:
        >>> is_mcp_server("a text")
        False
    """
    if isinstance(thing, MCPServerURL):
        return True
    for base in type(thing).__mro__:
        if (base.__module__.partition(".")[0], base.__name__) in CLASSES:
            return True
    return False


def serve_mcp(server: Any, *, retry_safe: bool = False, default_skill: str = "") -> Agent:
    """Return the agent that offers the tools of an MCP server as skills.

    Args:
        server: A FastMCP, an MCPServer or a low-level Server in this process, the `StdioServerParameters` of a program,
            or an `MCPServerURL`.
        retry_safe: Whether every tool may be called again after a crash. Tools that are read-only or idempotent may
            be in any case.
        default_skill: The id of the tool for messages without a skill id.

    Raises:
        ImportError: the MCP SDK is not installed.

    Example:
        >>> from mcp.server.mcpserver import MCPServer
        >>> serve_mcp(MCPServer("clock")).about.name
        'clock'
    """
    try:
        from apcore_a2a.agents.mcp.agent import MCPAgent
    except ImportError as error:
        raise ImportError(MISSING) from error
    if isinstance(server, MCPServerURL):
        server = server.url
    return MCPAgent(server, retry_safe=retry_safe, default_skill=default_skill)


def read_mcp_server(text: str, variables: Sequence[str] = ()) -> Any:
    """Return the MCP server that a URL names, or the command that starts it.

    Args:
        text: The URL, or the words of the command.
        variables: The names of environment variables that the command receives. Without them it receives only harmless
            ones such as PATH and HOME.

    Raises:
        ValueError: the text is empty, or a variable is not set.
        ImportError: the MCP SDK is not installed.

    Example:
        >>> read_mcp_server("https://tools.example.com/mcp").url
        'https://tools.example.com/mcp'
        >>> read_mcp_server("npx -y some-server").args
        ['-y', 'some-server']
    """
    if text.startswith(("http://", "https://")):
        return MCPServerURL(text)
    words = shlex.split(text)
    if not words:
        raise ValueError("the command of the MCP server is empty")
    missing = [name for name in variables if name not in os.environ]
    if missing:
        raise ValueError(f"the environment has no {', '.join(missing)}")
    try:
        from mcp import StdioServerParameters
    except ImportError as error:
        raise ImportError(MISSING) from error
    environment = {name: os.environ[name] for name in variables}
    return StdioServerParameters(command=words[0], args=words[1:], env=environment)
