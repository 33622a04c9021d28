"""`explore`: the Explorer page for any agent, served on the loopback interface."""

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
@click.option("--port", type=int, default=0, help="Local port.  [default: any free port]")
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def command(port: int, no_browser: bool, **given: Any) -> int:
    """Open the Explorer page for any agent.

    A server on 127.0.0.1 forwards the requests of the page. Its address contains a secret, without which other users
    and programs cannot use it. Credentials given here are added to requests for which the page has none.
    """
    common, _ = options.read_common(given)
    address = agent_address(common.agent)
    if "://" not in address:
        raise click.UsageError("explore needs the address of an agent, not a card file.")
    try:
        network = open_network(common)
        proxy = ExplorerProxy(address, network, allowed=common.allowed_origins, auth=choose_auth(common))
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    def show(at: str) -> None:
        url = f"{at}{proxy.path}"
        click.echo(f"Explorer of {address}: {url}", err=True)
        click.echo("Keep this address secret: it can call the agent as you. Press Ctrl-C to stop.", err=True)
        if not no_browser:
            webbrowser.open(url)

    # If an agent aborts its response, the page reports it. A traceback of the server would add nothing.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    settings = Settings(host="127.0.0.1", port=port)
    why_not = run_at(proxy, settings, log_level="critical", log_config=None, on_started=show)
    if why_not:
        click.echo(f"Error: {why_not}", err=True)
        return EXIT_FAILED
    return 0
