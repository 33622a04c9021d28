"""`send` and `stream`: sending a message to an agent.

The message is a text, the inputs of a skill as `NAME=VALUE` words, or parts of any kind by options.
"""

import mimetypes
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli import options as options_module
from apcore_a2a.cli import output, schemas
from apcore_a2a.cli.completion import complete_skill
from apcore_a2a.cli.connection import run_with_client
from apcore_a2a.cli.options import NOT_JSON, CommonOptions, combine
from apcore_a2a.cli.questions import read_named_answers
from apcore_a2a.cli.schemas import read_file
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import SendOptions
from apcore_a2a.errors import MethodNotFoundError, UnsupportedOperationError
from apcore_a2a.protocol.card import AgentCard, advise
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Event, Message, Part, SendConfiguration, StatusUpdate, Task, TaskState
from apcore_a2a.protocol.questions import questions_of, to_answers

# ---- parts ----------------------------------------------------------------------------------------------------------
# The parts of a message. Invariant: parts keep the order in which they were given (a2a-cli §10.2).
#
# In place of a text or data, `-` is standard input, `@FILE` the content of a file, and `@@…` a text beginning with @.

ORDER: Final = "apcore_a2a.cli.order"
UNKNOWN: Final = "application/octet-stream"

part_options: Final = combine(
    click.option("--text", multiple=True, metavar="TEXT|-|@FILE", help="Text part."),
    click.option(
        "--file", multiple=True, metavar="PATH|URL", help="File part: a local file to send, or the URL of a file."
    ),
    click.option("--data", multiple=True, metavar="JSON|PATH|-|@FILE", help="Data part: JSON."),
    click.option("--media-type", multiple=True, metavar="TYPE", help="Media type of the preceding part."),
)


class OrderedCommand(click.Command):
    """A command that records the order of its options.

    click returns the values of each option in their order, but not the order among different options.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Parsed twice: click does not expose its parser's result, and parsing empties the list that it is given.
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[ORDER] = [param.name for param in order]
        return super().parse_args(ctx, args)


def read_parts(text: Sequence[str], given: dict[str, Any], *, may_be_empty: bool = False) -> list[Part]:
    """Return the parts of the message: the text argument, then the options in their order.

    Raises:
        click.UsageError: there are no parts, or one cannot be read.
    """
    parts = [_text_part(each) for each in text]
    values = {name: list(given[name]) for name in (*_MAKERS, "media_type")}
    for name in click.get_current_context().meta.get(ORDER, ()):
        if name == "media_type":
            # The text argument cannot have a media type: it may stand anywhere among the options, so "before" has no
            # meaning.
            if len(parts) == len(text):
                raise click.UsageError("Put --media-type after the part that it belongs to.")
            parts[-1] = replace(parts[-1], media_type=values[name].pop(0))
        elif name in _MAKERS:
            make_part = _MAKERS[name]
            parts.append(make_part(values[name].pop(0)))
    if not parts and not may_be_empty:
        raise click.UsageError("Missing message. Pass a text, --text, --file or --data.")
    return parts


def _text_part(value: str) -> Part:
    if value.startswith("@@"):
        return Part(text=value[1:])
    if value == "-":
        content = _read_stdin()
    elif value.startswith("@"):
        content = read_file(value[1:])
    else:
        return Part(text=value)
    try:
        return Part(text=content.decode())
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{value} is not UTF-8 text. Send it with --file.") from error


def file_part(value: str) -> Part:
    media_type = mimetypes.guess_type(value)[0] or UNKNOWN
    if value.startswith(("http://", "https://")):
        name = value.partition("?")[0].rpartition("/")[2]
        return Part(url=value, media_type=media_type, filename=name)
    path = value.removeprefix("@")
    if path == "-":
        return Part(raw=_read_stdin(), media_type=media_type, filename="")
    # Only its name: the agent must not learn its local directory.
    return Part(raw=read_file(path), media_type=media_type, filename=Path(path).name)


def _data_part(value: str) -> Part:
    source = value
    if value.lstrip().startswith(("{", "[")):
        content = value.encode()
        source = "JSON"
    elif value == "-":
        content = _read_stdin()
    else:
        content = read_file(value.removeprefix("@"))
    try:
        return Part(data=msgspec.json.decode(content), media_type="application/json")
    except NOT_JSON as error:
        raise click.UsageError(f"--data {source} is not JSON: {error}") from error


_MAKERS: Final[dict[str, Callable[[str], Part]]] = {"text": _text_part, "file": file_part, "data": _data_part}


def _read_stdin() -> bytes:
    return sys.stdin.buffer.read()


# ---- send -----------------------------------------------------------------------------------------------------------

message_options: Final = options_module.combine(
    part_options,
    click.option("--skill", shell_complete=complete_skill, help="Skill to invoke (metadata.skillId)."),
    options_module.env_option(
        "--metadata", type=options_module.json_object, metavar="JSON", help="Metadata of the request, as a JSON object."
    ),
    options_module.env_option("--context-id", help="Conversation of the message."),
    options_module.env_option("--task-id", help="Task to continue, for example one that waits for input."),
    options_module.env_option(
        "--history", type=click.IntRange(0), help="Maximum number of history messages to return."
    ),
    options_module.poll_interval_option,
    options_module.save_option,
    options_module.common_options,
    click.argument("words", nargs=-1, metavar="AGENT [TEXT|-|@FILE|NAME=VALUE...]"),
)


class SendRequest(Struct, frozen=True):
    """One message, and the options for its answer."""

    common: CommonOptions
    parts: list[Part]
    options: SendOptions
    inputs: list[str]
    """`NAME=VALUE` words, which become the inputs of a skill. Only its schema on the card shows their types."""
    started: float
    save_to: str | None = None


def _read_request(given: dict[str, Any], *, return_immediately: bool = False) -> SendRequest:
    common, words = options_module.read_common(given, "[TEXT]", "...")
    inputs: list[str] = []
    if schemas.looks_typed(words):
        inputs = words
    elif len(words) > 1:
        raise click.UsageError(
            f"Unexpected argument: {words[1]}. Put a text with spaces in quotes, or pass inputs as NAME=VALUE.",
            click.get_current_context(),
        )
    send_options: SendOptions = {
        "skill": given["skill"],
        "metadata": given["metadata"],
        "context_id": given["context_id"],
        "task_id": given["task_id"],
        "configuration": SendConfiguration(return_immediately=return_immediately, history_length=given["history"]),
    }
    parts = read_parts([] if inputs else words, given, may_be_empty=bool(inputs))
    return SendRequest(common, parts, send_options, inputs, time.monotonic(), given["save"])


async def _answer_part(client: A2AClient, request: SendRequest) -> Part:
    """Return the answers to the questions of a task that waits, from `NAME=VALUE` words with the ids of the questions.

    Raises:
        click.UsageError: an answer does not fit its question.
    """
    task = await client.get_task(request.options["task_id"] or "", history_length=0)
    asked = {question.id: question for question in questions_of(task.status.message)}
    names = [word.partition("=")[0] for word in request.inputs]
    if len(names) == 1 and names[0] not in asked:
        return _text_part(request.inputs[0])
    return to_answers(read_named_answers(request.inputs, asked))


async def _card_with_skill(client: A2AClient, common: CommonOptions, skill: str) -> AgentCard:
    """Return the public card, or the extended card for a skill that only authenticated callers see."""
    card = await client.agent_card
    is_shown = any(shown.id == skill for shown in card.skills)
    if skill and not is_shown and common.has_credentials and card.capabilities.extended_agent_card:
        return await client.extended_card()
    return card


async def _with_inputs(client: A2AClient, request: SendRequest) -> SendRequest:
    """Return the request with the part that its `NAME=VALUE` words mean.

    Raises:
        click.UsageError: they do not fit the skill.
    """
    if not request.inputs:
        return request
    if request.options["task_id"]:
        return replace(request, parts=[await _answer_part(client, request), *request.parts])
    wanted = request.options["skill"] or ""
    card = await _card_with_skill(client, request.common, wanted)
    skills = [skill for skill in card.skills if skill.id == wanted or (not wanted and len(card.skills) == 1)]
    values: dict[str, Any] | None = None
    if skills:
        values = schemas.read_inputs(request.inputs, skills[0], card)
    if values is not None:
        part = Part(data=values, media_type="application/json")
    elif len(request.inputs) == 1:
        part = _text_part(request.inputs[0])
    elif skills:
        name = clean_line(skills[0].id)
        raise click.UsageError(f"The card does not contain the input schema of {name}. Pass the inputs with --data.")
    else:
        advice = advise([clean_line(skill.id) for skill in card.skills], wanted)
        raise click.UsageError(f"Select the skill for these inputs with --skill: {advice}")
    return replace(request, parts=[part, *request.parts])


@click.command(
    "send",
    cls=OrderedCommand,
    epilog=options_module.example(
        'apcore-a2a send http://localhost:8000 "Summarize this" --file report.pdf --save ./out',
        "apcore-a2a send http://localhost:8000 --skill add a=2 b=3",
    ),
)
@message_options
@options_module.env_option(
    "--async", "--no-wait", "--return-immediately", "later", is_flag=True, help="Return as soon as the task exists."
)
@click.option("--wait", is_flag=True, help="Wait until the task rests (the default).")
@click.option(
    "--stream", "streams", is_flag=True, help="Print events as they arrive. With --json, one object per line."
)
def send(later: bool, wait: bool, streams: bool, **given: Any) -> int:
    """Send a message and wait until its task ends or waits for input."""
    if streams and later:
        raise click.UsageError("--stream and --async exclude each other.")
    if streams:
        return _send_and_follow(_read_request(given))
    # A2ACLI_ASYNC may set --async for every call. --wait overrides it for this one (a2a-cli §7.2).
    if later and not wait:
        return _send_without_waiting(_read_request(given, return_immediately=True))
    return _send_and_wait(_read_request(given))


@click.command(
    "stream",
    cls=OrderedCommand,
    epilog=options_module.example('apcore-a2a stream http://localhost:8000 "Tell me a story"'),
)
@message_options
def stream(**given: Any) -> int:
    """Send a message and print its events as they arrive. Short for send --stream."""
    return _send_and_follow(_read_request(given))


def _send_without_waiting(request: SendRequest) -> int:
    """Send the message, and print the task as soon as it exists."""

    async def work(client: A2AClient) -> None:
        complete = await _with_inputs(client, request)
        answer = await client.send_message(complete.parts, **complete.options)
        output.print_reply(request.common, answer, request.save_to, started=request.started)

    return run_with_client(request.common, work)


def _send_and_wait(request: SendRequest) -> int:
    """Send the message, wait, and print the outcome."""

    async def work(client: A2AClient) -> None:
        complete = await _with_inputs(client, request)
        with output.show_progress() as progress:
            answer = await _send_until_rest(client, complete, progress)
        # After the block, because the spinner must be removed before the result is printed.
        output.print_reply(request.common, answer, request.save_to, started=request.started)

    return run_with_client(request.common, work, time_limit=None)


async def _send_until_rest(client: A2AClient, request: SendRequest, progress: output.Spinner) -> Task | Message:
    # Use a stream if the agent supports it, because a stream shows progress.
    if (await client.agent_card).capabilities.streaming:
        answer = await _send_over_stream(client, request, progress)
    else:
        answer = await client.send_message(request.parts, wait=False, **request.options)
    # An agent may answer before the task rests, and a stream may end early (a2a-cli §9.3: then poll).
    if isinstance(answer, Task) and answer.status.state not in AT_REST:
        progress.show_status(answer.status)
        answer = await _wait_for_rest(client, request.common, answer, progress)
    return answer


async def _send_over_stream(client: A2AClient, request: SendRequest, progress: output.Spinner) -> Task | Message:
    """Send the message, read the stream to its end, and then fetch the whole task."""
    task_id = ""
    try:
        async with aclosing(client.stream_message(request.parts, **request.options)) as events:
            async for event in events:
                if isinstance(event, Message) and not task_id:
                    return event
                if isinstance(event, Task):
                    task_id = event.id
                elif not isinstance(event, Message):
                    task_id = event.task_id or task_id  # some agents omit it in updates
                if not isinstance(event, Task | StatusUpdate):
                    continue  # the task contains the artifacts
                progress.show_status(event.status)
                if event.status.state is TaskState.AUTH_REQUIRED:
                    break  # the stream continues, but the caller has to act (a2a-cli §9.1)
        return await client.get_task(task_id, history_length=request.options["configuration"].history_length)
    except output.WAIT_ENDS as reason:
        if task_id or not isinstance(reason, UnsupportedOperationError | MethodNotFoundError):
            progress.end()
            output.print_command_to_wait(request.common, task_id, reason)
            raise
    # The agent does not stream, whatever its card says, and it has not accepted the message.
    return await client.send_message(request.parts, wait=False, **request.options)


async def _wait_for_rest(client: A2AClient, common: CommonOptions, task: Task, progress: output.Spinner) -> Task:
    try:
        return await client.wait(task)
    except output.WAIT_ENDS as reason:
        progress.end()
        output.print_command_to_wait(common, task.id, reason)
        raise


def _send_and_follow(request: SendRequest) -> int:
    """Send the message, and print each event."""

    async def work(client: A2AClient) -> None:
        complete = await _with_inputs(client, request)
        if (await client.agent_card).capabilities.streaming:
            events = client.stream_message(complete.parts, **complete.options)
            await output.print_events(request.common, events, request.save_to)
            return
        click.echo("Note: the agent does not stream. This is the final result", err=True)
        answer: Task | Message = await client.send_message(complete.parts, wait=False, **complete.options)
        if isinstance(answer, Task):
            with output.show_progress() as progress:
                answer = await _wait_for_rest(client, request.common, answer, progress)
        # A stream of one event: a caller who asked for JSON Lines gets one line (a2a-cli §11.3).
        await output.print_events(request.common, _one_event(answer), request.save_to)

    return run_with_client(request.common, work, time_limit=None)


async def _one_event(event: Event) -> AsyncGenerator[Event]:
    yield event
