"""`task`: get, list, cancel, subscribe, download; `tasks`, `cancel` and `subscribe` are short for the same commands."""

from typing import Any, Final

import click

from apcore_a2a.cli import options, output, rendering
from apcore_a2a.cli.connection import QUICK, run
from apcore_a2a.cli.downloads import save_artifacts
from apcore_a2a.cli.main import DefaultGroup
from apcore_a2a.cli.options import Connection
from apcore_a2a.cli.push import group as push_group
from apcore_a2a.cli.send import tick
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import ListOptions
from apcore_a2a.protocol.model import TaskPage, TaskState, encode

STATES: Final = {state.removeprefix("TASK_STATE_").lower().replace("_", "-"): state for state in TaskState}

saving: Final = click.option(
    "--save", metavar="DIR", type=click.Path(file_okay=False), help="Save artifacts in this directory."
)
polling: Final = options.flag(
    "--poll-interval", type=options.duration, default=2.0, show_default=True, help="Seconds between two looks."
)
named: Final = click.argument("words", nargs=-1, metavar="AGENT TASK")


@click.group("task", cls=DefaultGroup, default="get")
def group() -> None:
    """An agent's tasks; `task AGENT TASK` is `task get AGENT TASK`."""


@group.command("get", epilog=options.example("apcore-a2a task get http://localhost:8000 TASK --wait"))
@click.option("--history", type=click.IntRange(0), help="Messages of the history to show.")
@click.option("--wait", "--watch", is_flag=True, help="Wait until the task ends or asks for something.")
@saving
@polling
@options.common
@named
def get(history: int | None, wait: bool, save: str | None, **given: Any) -> int:
    """Show a task: its state, its artifacts and, with --history, what was said."""
    connection, (task_id,) = options.read(given, "TASK")

    async def work(client: A2AClient) -> None:
        if wait:
            with output.watching() as watch:
                watch.state((await client.get_task(task_id, history_length=0)).status.state)
                await client.wait(task_id)
        task = await client.get_task(task_id, history_length=history)
        output.tell_task(connection, task, save=save)

    return run(connection, work, within=None if wait else QUICK)


@group.command("list", epilog=options.example("apcore-a2a tasks http://localhost:8000 --state working"))
@click.option("--context-id", help="Only tasks of this conversation.")
@click.option("--state", "--status", type=click.Choice(list(STATES)), help="Only tasks in this state.")
@click.option("--after", metavar="TIME", default="", help="Only tasks whose state changed after this time (ISO 8601).")
@click.option("--limit", "--page-size", type=click.IntRange(1, 100), default=50, show_default=True)
@click.option("--page-token", default="", help="The page that the last answer named.")
@click.option("--all", "everything", is_flag=True, help="All pages.")
@options.common
@click.argument("words", nargs=-1, metavar="AGENT")
def list_tasks(**given: Any) -> int:
    """List your tasks, the latest first."""
    connection, _ = options.read(given)
    filters: ListOptions = {"page_size": given["limit"], "page_token": given["page_token"]}
    if given["state"]:
        filters["status"] = STATES[given["state"]]
    if given["after"]:
        filters["status_timestamp_after"] = given["after"]

    async def work(client: A2AClient) -> None:
        if given["everything"]:
            tasks = tuple([task async for task in client.iter_tasks(given["context_id"], **filters)])
            _tell_page(connection, TaskPage(tasks=tasks, page_size=len(tasks), total_size=len(tasks)))
        else:
            _tell_page(connection, await client.list_tasks(given["context_id"], **filters))

    return run(connection, work)


def _tell_page(connection: Connection, page: TaskPage) -> None:
    lines = [line for task in page.tasks for line in rendering.summary_lines(task)]
    lines.append(rendering.field("Tasks", f"{len(page.tasks)} of {max(page.total_size, len(page.tasks))}"))
    if page.next_page_token:
        lines.append(rendering.field("Page-Token", page.next_page_token))
    output.say(connection, encode(page), lines)


@group.command("cancel", epilog=options.example("apcore-a2a cancel http://localhost:8000 TASK"))
@options.common
@named
def cancel(**given: Any) -> int:
    """Cancel a task that is under way."""
    connection, (task_id,) = options.read(given, "TASK")

    async def work(client: A2AClient) -> None:
        task = await client.cancel_task(task_id)
        output.say(connection, encode(task), rendering.task_lines(task, verbose=connection.verbose))

    return run(connection, work)


@group.command("subscribe", epilog=options.example("apcore-a2a subscribe http://localhost:8000 TASK"))
@click.option("--stream", "streams", is_flag=True, help="Print each event; with --json, one object a line.")
@saving
@polling
@options.common
@named
def subscribe(streams: bool, save: str | None, **given: Any) -> int:
    """Follow a task that is under way, until it ends or asks for something.

    With --json it prints the task once it has come to rest; with --json --stream, each event as it comes.
    """
    connection, (task_id,) = options.read(given, "TASK")

    async def work(client: A2AClient) -> None:
        if connection.json and not streams:
            task = await client.wait(task_id)
            output.tell_task(connection, task, save=save)
        else:
            await tick(client.resubscribe(task_id), connection, save)

    return run(connection, work, within=None)


@group.command("download", epilog=options.example("apcore-a2a task download http://localhost:8000 TASK --save ./out"))
@click.option("--save", metavar="DIR", type=click.Path(file_okay=False), default=".", show_default=True)
@options.common
@named
def download(save: str, **given: Any) -> int:
    """Save a task's artifacts. No file is replaced: names that are taken get a number."""
    connection, (task_id,) = options.read(given, "TASK")

    async def work(client: A2AClient) -> None:
        task = await client.get_task(task_id, history_length=0)
        lines = list(save_artifacts(task.artifacts, save))
        for line in lines if connection.json else ():
            click.echo(line, err=True)
        fields = rendering.task_fields(task.id, task.context_id, task.status.state)
        output.say(connection, encode(task), [*fields, *lines])

    return run(connection, work)


group.add_command(push_group)
