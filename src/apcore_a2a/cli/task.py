"""`task get`, `list`, `cancel`, `subscribe` and `download`, and the short forms `tasks`, `cancel` and `subscribe`."""

from typing import Any, Final

import click

from apcore_a2a.cli import options, output, rendering
from apcore_a2a.cli.connection import run_with_client
from apcore_a2a.cli.main import DefaultGroup
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.cli.output import save_artifacts
from apcore_a2a.cli.push import group as push_group
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import ListOptions
from apcore_a2a.protocol.model import TaskPage, TaskState, encode

# The names to type: input-required, not TASK_STATE_INPUT_REQUIRED.
STATES: Final = {state.removeprefix("TASK_STATE_").lower().replace("_", "-"): state for state in TaskState}
HISTORY: Final = 10  # messages of each listed task. A task with more is listed with a later message of its user

task_argument: Final = click.argument("words", nargs=-1, metavar="AGENT TASK")


@click.group("task", cls=DefaultGroup, default="get")
def group() -> None:
    """An agent's tasks. `task AGENT TASK` is short for `task get AGENT TASK`."""


@group.command("get", epilog=options.example("apcore-a2a task get http://localhost:8000 TASK --wait"))
@click.option("--history", type=click.IntRange(0), help="Maximum number of history messages to show.")
@click.option("--wait", "--watch", is_flag=True, help="Wait until the task ends or waits for input.")
@options.save_option
@options.poll_interval_option
@options.common_options
@task_argument
def get(history: int | None, wait: bool, save: str | None, **given: Any) -> int:
    """Show a task: its state, its artifacts and, with --history, its messages."""
    common, (task_id,) = options.read_common(given, "TASK")

    async def work(client: A2AClient) -> None:
        if wait:
            await _wait_for_rest(client, task_id)
        # Waiting ignores --history, so the task is fetched once more.
        task = await client.get_task(task_id, history_length=history)
        output.print_task(common, task, save_to=save)

    if wait:
        return run_with_client(common, work, time_limit=None)
    return run_with_client(common, work)


async def _wait_for_rest(client: A2AClient, task_id: str) -> None:
    with output.show_progress() as progress:
        task = await client.get_task(task_id, history_length=0)
        progress.show_status(task.status)
        await client.wait(task_id)


@group.command("list", epilog=options.example("apcore-a2a tasks http://localhost:8000 --state working"))
@click.option("--context-id", help="List only tasks of this conversation.")
@click.option("--state", "--status", type=click.Choice(list(STATES)), help="List only tasks in this state.")
@click.option(
    "--after", metavar="TIME", default="", help="List only tasks whose state changed after this time (ISO 8601)."
)
@click.option(
    "--limit",
    "--page-size",
    type=click.IntRange(1, 100),
    default=50,
    show_default=True,
    help="Maximum number of tasks on a page.",
)
@click.option("--page-token", default="", help="Token of the page to list, which the previous page shows.")
@click.option("--all", "everything", is_flag=True, help="List all pages.")
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT")
def list_tasks(**given: Any) -> int:
    """List your tasks, latest first."""
    common, _ = options.read_common(given)
    filters: ListOptions = {"page_size": given["limit"], "page_token": given["page_token"]}
    if given["state"]:
        filters["status"] = STATES[given["state"]]
    if given["after"]:
        filters["status_timestamp_after"] = given["after"]

    if not common.json:
        filters["history_length"] = HISTORY  # for the first words of each task

    async def work(client: A2AClient) -> None:
        if given["everything"]:
            tasks = [task async for task in client.iter_tasks(given["context_id"], **filters)]
            # All pages are printed as a single one: still a ListTasksResponse.
            page = TaskPage(tasks=tuple(tasks), page_size=len(tasks), total_size=len(tasks))
        else:
            page = await client.list_tasks(given["context_id"], **filters)
        _print_page(common, page)

    return run_with_client(common, work)


def _print_page(common: CommonOptions, page: TaskPage) -> None:
    lines: list[str] = []
    for task in page.tasks:
        if common.output == "answer":
            lines.append(rendering.task_row(task))
        else:
            lines += rendering.summary_lines(task)
    # Some agents send 0 instead of a count, and "2 of 0" would be misleading.
    total = max(page.total_size, len(page.tasks))
    lines.append(rendering.field("Tasks", f"{len(page.tasks)} of {total}"))
    if page.next_page_token:
        lines.append(rendering.field("Page-Token", page.next_page_token))
    output.print_result(common, encode(page), lines)


@group.command("cancel", epilog=options.example("apcore-a2a cancel http://localhost:8000 TASK"))
@options.common_options
@task_argument
def cancel(**given: Any) -> int:
    """Cancel a running task."""
    common, (task_id,) = options.read_common(given, "TASK")

    async def work(client: A2AClient) -> None:
        task = await client.cancel_task(task_id)
        if common.prints_answer:
            output.print_task(common, task)
        else:
            output.print_result(common, encode(task), rendering.task_lines(task, verbose=common.verbose))

    return run_with_client(common, work)


@group.command("subscribe", epilog=options.example("apcore-a2a subscribe http://localhost:8000 TASK"))
@click.option("--stream", "streams", is_flag=True, help="Print each event. With --json, one object per line.")
@options.save_option
@options.poll_interval_option
@options.common_options
@task_argument
def subscribe(streams: bool, save: str | None, **given: Any) -> int:
    """Subscribe to a running task, until it ends or waits for input.

    With --json, the task is printed when it rests. With --json --stream, each event is printed as it arrives.
    """
    common, (task_id,) = options.read_common(given, "TASK")

    async def work(client: A2AClient) -> None:
        # One document, unless --stream asks for lines (a2a-cli §11.3). Text is always printed as it arrives.
        if common.json and not streams:
            task = await client.wait(task_id)
            output.print_task(common, task, save_to=save)
        else:
            await output.print_events(common, client.resubscribe(task_id), save)

    return run_with_client(common, work, time_limit=None)


@group.command("download", epilog=options.example("apcore-a2a task download http://localhost:8000 TASK --save ./out"))
@click.option(
    "--save",
    metavar="DIR",
    type=click.Path(file_okay=False),
    default=".",
    show_default=True,
    help="Directory for the files.",
)
@options.common_options
@task_argument
def download(save: str, **given: Any) -> int:
    """Save a task's artifacts. Existing files are not replaced: a number is added to the new name."""
    common, (task_id,) = options.read_common(given, "TASK")

    async def work(client: A2AClient) -> None:
        task = await client.get_task(task_id, history_length=0)
        saved = save_artifacts(task.artifacts, save)
        if common.json:
            for line in saved:
                click.echo(line, err=True)
        fields = rendering.task_fields(task.id, task.context_id, task.status.state)
        output.print_result(common, encode(task), [*fields, *saved])

    return run_with_client(common, work)


# The a2a-cli specification calls it `task push-config`. `push` is in the table of commands.
group.add_command(push_group)
