"""`explore`: the Explorer page for any agent, through a server that only this machine reaches."""

import logging
import webbrowser
from typing import Any

import click

from apcore_a2a.app.serve import run_at
from apcore_a2a.cli import options
from apcore_a2a.cli.connection import agent_address, choose_auth, open_network
from apcore_a2a.cli.failures import EXIT_FAILED
from apcore_a2a.explorer.proxy import ExplorerProxy
from apcore_a2a.settings import Settings


@click.command("explore", epilog=options.example("apcore-a2a explore https://agent.example.com"))
@click.option("--port", type=int, default=0, help="Port on this machine.  [default: any that is free]")
@click.option("--no-browser", is_flag=True, help="Print the address; do not open a browser.")
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def command(port: int, no_browser: bool, **given: Any) -> int:
    """Open the Explorer page for an agent, wherever it is.

    A server on 127.0.0.1 passes on what the page asks; nobody else on this machine or elsewhere can use it without the
    secret in its address. Credentials given here are added where the page has none.
    """
    common, _ = options.read_common(given)
    address = agent_address(common.agent)
    if "://" not in address:
        raise click.UsageError("explore needs the address of an agent; a card in a file has none to call.")
    try:
        network = open_network(common)
        proxy = ExplorerProxy(address, network, allowed=common.allowed_origins, auth=choose_auth(common))
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    def show(at: str) -> None:
        url = f"{at}{proxy.path}"
        click.echo(f"Explorer of {address}: {url}", err=True)
        click.echo("Whoever has this address can call the agent as you; it ends with Ctrl-C.", err=True)
        if not no_browser:
            webbrowser.open(url)

    # An agent that breaks off its answer is told by the page, not by a traceback of the server.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    settings = Settings(host="127.0.0.1", port=port)
    why_not = run_at(proxy, settings, log_level="critical", log_config=None, on_started=show)
    if why_not:
        click.echo(f"Error: {why_not}", err=True)
        return EXIT_FAILED
    return 0
