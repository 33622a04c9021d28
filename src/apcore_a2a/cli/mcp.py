"""`mcp`: any A2A agent as an MCP server, on standard input and output or on the loopback interface.

Invariant: on standard output are only messages of MCP.
"""

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from apcore_a2a import __version__
from apcore_a2a.cli import options
from apcore_a2a.cli.connection import open_preferred_client, report_failures
from apcore_a2a.cli.failures import EXIT_FAILED
from apcore_a2a.settings import Settings
from apcore_a2a.toolkits.tools import TIMEOUT, RemoteTools

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

MISSING = "This command needs the MCP SDK: pip install 'apcore-a2a[mcp]'"


@click.command(
    "mcp",
    epilog=options.example("apcore-a2a mcp https://agent.example.com", "apcore-a2a mcp localhost:8000 --http 8080"),
)
@click.option(
    "--http", "port", type=click.IntRange(0, 65535), help="Serve http://127.0.0.1:PORT/mcp instead. 0: any free port."
)
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def command(port: int | None, **given: Any) -> int:
    """Offer an A2A agent as an MCP server: its skills as tools, its questions as elicitations.

    The server speaks MCP on standard input and output, as programs expect that start it. With --http it serves this
    machine only, because each caller acts with the credentials given here. --timeout is the limit of one call of
    a tool in seconds.
    """
    common, _ = options.read_common(given)
    try:
        from apcore_a2a.toolkits.mcp import to_mcp
    except ImportError as error:
        raise click.UsageError(MISSING) from error

    def run() -> int:
        with RemoteTools(open_preferred_client(common), common.timeout or TIMEOUT) as tools:
            server = to_mcp(tools, version=f"{tools.card.version} (apcore-a2a {__version__})")
            if port is None:
                asyncio.run(serve_stdio(server))
                return 0
            return serve_http(server, port)

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    return report_failures(common, run)


async def serve_stdio(server: "Server[Any]") -> None:
    """Serve until standard input ends."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def serve_http(server: "Server[Any]", port: int) -> int:
    """Serve on the loopback interface until a signal, and return the exit code."""
    from apcore_a2a.app.serve import run_at  # loads the server, which standard input and output do not need

    def show(address: str) -> None:
        click.echo(f"MCP server: {address}/mcp", err=True)
        click.echo("Every program of this machine can call the agent through it. Press Ctrl-C to stop.", err=True)

    app = server.streamable_http_app(host="127.0.0.1")
    why_not = run_at(app, Settings(host="127.0.0.1", port=port), log_level="warning", log_config=None, on_started=show)
    if why_not:
        click.echo(f"Error: {why_not}", err=True)
        return EXIT_FAILED
    return 0
