"""`apcore-a2a migrate`: creates or upgrades the tables of a task store, as their owner.

An agent does this itself when it starts. The command is for databases in which the agent's user can only read and
write. There the owner of the tables runs it before a new version starts.
"""

import asyncio

import click

from apcore_a2a.app.serve import NOT_STARTED
from apcore_a2a.app.stores import Retention, choose_store, why_not_open
from apcore_a2a.cli.options import example
from apcore_a2a.errors import A2AError
from apcore_a2a.storage.contract import Store


@click.command("migrate", epilog=example("apcore-a2a migrate --store postgresql://agent_owner@db.internal/agents"))
@click.option(
    "--store", envvar="APCORE_A2A_STORE", show_envvar=True, required=True, metavar="URL", help="URL of the task store."
)
def command(store: str) -> int:
    """Create or upgrade the tables of a task store.

    An agent does this itself when it starts, if its database user has the rights. Otherwise the owner of the tables
    runs this command first.
    """
    try:
        chosen = choose_store(store, None, Retention(None, None))
    except (ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from error
    if not chosen.durable:
        raise click.ClickException("A store in memory has no tables. Pass a durable store with --store.")
    try:
        asyncio.run(_open_and_close(chosen))
    except A2AError as error:
        click.echo(f"Error: {why_not_open(error)}", err=True)
        return NOT_STARTED
    click.echo("The tables are up to date.")
    return 0


async def _open_and_close(store: Store) -> None:
    await store.open()
    await store.close()
