"""`send` and `stream`: a message to an agent, and what becomes of it."""

import asyncio
import shlex
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import click
from msgspec import Struct

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli import options, output
from apcore_a2a.cli.connection import run_with_client
from apcore_a2a.cli.downloads import save_artifacts
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.cli.parts import OrderedCommand, part_options, read_parts
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import SendOptions
from apcore_a2a.errors import MethodNotFoundError, UnsupportedOperationError
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Event, Message, Part, SendConfiguration, StatusUpdate, Task, TaskState

message_options: Final = options.combine(
    part_options,
    click.option("--skill", help="The skill that is to answer (metadata.skillId)."),
    options.env_option(
        "--metadata", type=options.json_object, metavar="JSON", help="Metadata of the request: a JSON object."
    ),
    options.env_option("--context-id", help="The conversation that the message belongs to."),
    options.env_option("--task-id", help="The task that the message continues, one that asks for input say."),
    options.env_option("--history", type=click.IntRange(0), help="Messages of the history to answer with."),
    options.poll_interval_option,
    options.save_option,
    options.common_options,
    click.argument("words", nargs=-1, metavar="AGENT [TEXT|-|@FILE]"),
)


class Sending(Struct, frozen=True):
    """One message, and what to do about the answer."""

    common: CommonOptions
    parts: list[Part]
    options: SendOptions
    save: str | None = None


def _read(given: dict[str, Any], *, later: bool = False) -> Sending:
    common, text = options.read_common(given, "[TEXT]")
    configuration = SendConfiguration(return_immediately=later, history_length=given["history"])
    send: SendOptions = {
        "skill": given["skill"],
        "metadata": given["metadata"],
        "context_id": given["context_id"],
        "task_id": given["task_id"],
        "configuration": configuration,
    }
    return Sending(common, read_parts(text, given), send, given["save"])


@click.command(
    "send",
    cls=OrderedCommand,
    epilog=options.example('apcore-a2a send http://localhost:8000 "Summarize this" --file report.pdf --save ./out'),
)
@message_options
@options.env_option(
    "--async", "--no-wait", "--return-immediately", "later", is_flag=True, help="Do not wait for the task."
)
@click.option("--wait", is_flag=True, help="Wait for the task; this is the default.")
@click.option("--stream", "streams", is_flag=True, help="Follow what happens; with --json, one object a line.")
def send(later: bool, wait: bool, streams: bool, **given: Any) -> int:
    """Send a message, to begin a task or to go on with one, and wait until it ends or asks for something."""
    if streams and later:
        raise click.UsageError("--stream and --async exclude each other.")
    if streams:
        return follow(_read(given))
    sending = _read(given, later=later and not wait)
    if sending.options["configuration"].return_immediately:
        return run_with_client(sending.common, lambda client: _begin(client, sending))
    return run_with_client(sending.common, lambda client: _conduct(client, sending), time_limit=None)


@click.command(
    "stream", cls=OrderedCommand, epilog=options.example('apcore-a2a stream http://localhost:8000 "Tell me a story"')
)
@message_options
def stream(**given: Any) -> int:
    """Send a message and print what happens as it happens; the same as send --stream."""
    return follow(_read(given))


async def _begin(client: A2AClient, sending: Sending) -> None:
    answer = await client.send_message(sending.parts, **sending.options)
    output.tell_answer(sending.common, answer, sending.save)


async def _conduct(client: A2AClient, sending: Sending) -> None:
    """Send and wait: over a stream if the agent has one, because a stream tells how it goes."""
    with output.watching() as watch:
        if (await client.agent_card).capabilities.streaming:
            answer = await _watch_stream(client, sending, watch)
        else:
            answer = await client.send_message(sending.parts, **sending.options)
        if isinstance(answer, Task) and answer.status.state not in AT_REST:
            watch.state(answer.status.state)
            answer = await _wait(client, sending.common, answer)
    output.tell_answer(sending.common, answer, sending.save)


async def _watch_stream(client: A2AClient, sending: Sending, watch: output.Watch) -> Task | Message:
    task_id = ""
    try:
        async with aclosing(client.stream_message(sending.parts, **sending.options)) as events:
            async for event in events:
                if isinstance(event, Message) and not task_id:
                    return event
                if isinstance(event, Task | StatusUpdate):
                    task_id = event.id if isinstance(event, Task) else event.task_id
                    watch.state(event.status.state)
                    if event.status.state is TaskState.AUTH_REQUIRED:
                        break  # the stream goes on, but the caller has to act (specification §9.1)
    except (UnsupportedOperationError, MethodNotFoundError):
        if task_id:
            raise
        return await client.send_message(sending.parts, **sending.options)  # it does not stream, whatever its card says
    except asyncio.CancelledError:
        _remind(sending.common, task_id)
        raise
    history = sending.options["configuration"].history_length
    return await client.get_task(task_id, history_length=history)


async def _wait(client: A2AClient, common: CommonOptions, task: Task) -> Task:
    try:
        return await client.wait(task)
    except asyncio.CancelledError:
        _remind(common, task.id)
        raise


def _remind(common: CommonOptions, task_id: str) -> None:
    """We stop waiting; the task does not stop."""
    if task_id:
        agent, task = shlex.quote(common.agent), shlex.quote(clean_line(task_id))
        click.echo(f"Task {task} goes on: apcore-a2a task get {agent} {task} --wait (or: task cancel)", err=True)


def follow(sending: Sending) -> int:
    """Send, and print each event."""

    async def work(client: A2AClient) -> None:
        if (await client.agent_card).capabilities.streaming:
            await tick(client.stream_message(sending.parts, **sending.options), sending.common, sending.save)
            return
        click.echo("Note: the agent does not stream; this is the outcome", err=True)
        answer: Task | Message = await client.send_message(sending.parts, **sending.options)
        if isinstance(answer, Task):
            answer = await _wait(client, sending.common, answer)
        await tick(_once(answer), sending.common, sending.save)

    return run_with_client(sending.common, work, time_limit=None)


async def tick(events: AsyncGenerator[Event], common: CommonOptions, save: str | None) -> None:
    """Print events as they come, to the end of the stream, and then what can be done next."""
    ticker = output.Ticker(common)
    try:
        async with aclosing(events):
            async for event in events:
                ticker.show(event)
    except asyncio.CancelledError:
        ticker.end_block()
        _remind(common, ticker.task.id)
        raise
    ticker.end_block()
    if not ticker.task.id:
        return
    lines = [] if save is None else list(save_artifacts(ticker.task.artifacts, save))
    for line in (*lines, output.next_line(common, ticker.task.id, ticker.task.status.state)):
        if line:
            click.echo(line, err=common.json)
    output.warn(ticker.task.status.state)


async def _once(event: Event) -> AsyncGenerator[Event]:
    yield event
