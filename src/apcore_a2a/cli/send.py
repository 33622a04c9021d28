"""`send` and `stream`: a message to an agent, and what becomes of it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import click
from msgspec import Struct

from apcore_a2a.cli import options, output
from apcore_a2a.cli.connection import run_with_client
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.cli.parts import OrderedCommand, part_options, read_parts
from apcore_a2a.cli.skills import complete_skill
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import SendOptions
from apcore_a2a.errors import MethodNotFoundError, UnsupportedOperationError
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Event, Message, Part, SendConfiguration, StatusUpdate, Task, TaskState

message_options: Final = options.combine(
    part_options,
    click.option("--skill", shell_complete=complete_skill, help="The skill that is to answer (metadata.skillId)."),
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


class SendRequest(Struct, frozen=True):
    """One message, and what to do about the answer."""

    common: CommonOptions
    parts: list[Part]
    options: SendOptions
    save_to: str | None = None


def _read_request(given: dict[str, Any], *, return_immediately: bool = False) -> SendRequest:
    common, text = options.read_common(given, "[TEXT]")
    send_options: SendOptions = {
        "skill": given["skill"],
        "metadata": given["metadata"],
        "context_id": given["context_id"],
        "task_id": given["task_id"],
        "configuration": SendConfiguration(return_immediately=return_immediately, history_length=given["history"]),
    }
    return SendRequest(common, read_parts(text, given), send_options, given["save"])


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
        return _send_and_follow(_read_request(given))
    # A2ACLI_ASYNC may say --async for every call; --wait overrules it for this one (a2a-cli §7.2).
    if later and not wait:
        return _send_and_leave(_read_request(given, return_immediately=True))
    return _send_and_wait(_read_request(given))


@click.command(
    "stream", cls=OrderedCommand, epilog=options.example('apcore-a2a stream http://localhost:8000 "Tell me a story"')
)
@message_options
def stream(**given: Any) -> int:
    """Send a message and print what happens as it happens; the same as send --stream."""
    return _send_and_follow(_read_request(given))


def _send_and_leave(request: SendRequest) -> int:
    """Send, and print the task as it is when it has just begun."""

    async def work(client: A2AClient) -> None:
        answer = await client.send_message(request.parts, **request.options)
        output.print_answer(request.common, answer, request.save_to)

    return run_with_client(request.common, work)


def _send_and_wait(request: SendRequest) -> int:
    """Send, wait, and print the outcome."""

    async def work(client: A2AClient) -> None:
        with output.show_progress() as progress:
            answer = await _send_until_rest(client, request, progress)
        # After the block: the spinner must be gone before the result is printed.
        output.print_answer(request.common, answer, request.save_to)

    return run_with_client(request.common, work, time_limit=None)


async def _send_until_rest(client: A2AClient, request: SendRequest, progress: output.Progress) -> Task | Message:
    # Over a stream if the agent has one, because a stream tells how it goes.
    if (await client.agent_card).capabilities.streaming:
        answer = await _send_over_stream(client, request, progress)
    else:
        answer = await client.send_message(request.parts, wait=False, **request.options)
    # An agent may answer before the task is at rest, and a stream may end early (a2a-cli §9.3: then poll).
    if isinstance(answer, Task) and answer.status.state not in AT_REST:
        progress.show_state(answer.status.state)
        answer = await _wait_for_rest(client, request.common, answer, progress)
    return answer


async def _send_over_stream(client: A2AClient, request: SendRequest, progress: output.Progress) -> Task | Message:
    """Send, watch the stream to its end, and then ask for the task as a whole."""
    task_id = ""
    try:
        async with aclosing(client.stream_message(request.parts, **request.options)) as events:
            async for event in events:
                if isinstance(event, Message) and not task_id:
                    return event
                if isinstance(event, Task):
                    task_id = event.id
                elif not isinstance(event, Message):
                    task_id = event.task_id or task_id  # some agents leave it out of updates
                if not isinstance(event, Task | StatusUpdate):
                    continue  # artifacts come with the task
                progress.show_state(event.status.state)
                if event.status.state is TaskState.AUTH_REQUIRED:
                    break  # the stream goes on, but the caller has to act (a2a-cli §9.1)
        return await client.get_task(task_id, history_length=request.options["configuration"].history_length)
    except output.LEAVING as reason:
        if task_id or not isinstance(reason, UnsupportedOperationError | MethodNotFoundError):
            progress.end()
            output.print_task_goes_on(request.common, task_id, reason)
            raise
    # It does not stream, whatever its card says; and it has not taken the message.
    return await client.send_message(request.parts, wait=False, **request.options)


async def _wait_for_rest(client: A2AClient, common: CommonOptions, task: Task, progress: output.Progress) -> Task:
    try:
        return await client.wait(task)
    except output.LEAVING as reason:
        progress.end()
        output.print_task_goes_on(common, task.id, reason)
        raise


def _send_and_follow(request: SendRequest) -> int:
    """Send, and print each event."""

    async def work(client: A2AClient) -> None:
        if (await client.agent_card).capabilities.streaming:
            events = client.stream_message(request.parts, **request.options)
            await output.print_events(request.common, events, request.save_to)
            return
        click.echo("Note: the agent does not stream; this is the outcome", err=True)
        answer: Task | Message = await client.send_message(request.parts, wait=False, **request.options)
        if isinstance(answer, Task):
            with output.show_progress() as progress:
                answer = await _wait_for_rest(client, request.common, answer, progress)
        # A stream of one event: who asked for JSON Lines gets one line (a2a-cli §11.3).
        await output.print_events(request.common, _one_event(answer), request.save_to)

    return run_with_client(request.common, work, time_limit=None)


async def _one_event(event: Event) -> AsyncGenerator[Event]:
    yield event
