"""The output of commands: results on standard output, notes for a person on standard error.

Invariant: with `-o json`, standard output has only the protocol's own types (a2a-cli specification §11.1, §11.3).
"""

import asyncio
import mimetypes
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from apcore_a2a.clean_text import CONTROL, clean_line, clean_text
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.client.bindings import WebhookStatus
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCard, AgentSkill
from apcore_a2a.protocol.lifecycle import AT_REST, copy, fold, repeats_answer
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Operation,
    Part,
    PushConfig,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    encode,
)

if TYPE_CHECKING:
    from rich.status import Status


# Outcomes that are not failures of the command, which exits with 0, but that a person should notice (§11.6).
WARNINGS: Final = {
    TaskState.FAILED: "the task failed",
    TaskState.REJECTED: "the agent rejected the task",
    TaskState.CANCELED: "the task was canceled",
    TaskState.INPUT_REQUIRED: "the agent waits for your reply",
    TaskState.AUTH_REQUIRED: "the agent waits for authorization. Grant it as its message says, then wait again",
}
# Reasons to stop waiting for a task: Ctrl-C, the time limit, a lost connection, or an error of the agent.
WAIT_ENDS: Final = (asyncio.CancelledError, A2AError)


# ---- results --------------------------------------------------------------------------------------------------------


def print_result(common: CommonOptions, document: bytes, lines: Iterable[str]) -> None:
    """Print one result: as a JSON document, or as lines of text."""
    if common.json:
        click.echo(format_json(document))
        return
    for line in lines:
        click.echo(line)


def print_task(common: CommonOptions, task: Task, *, document: bytes | None = None, save_to: str | None = None) -> None:
    """Print a task, save its artifacts, and print the next command."""
    print_result(common, document or encode(task), task_lines(task, verbose=common.verbose))
    _print_after_task(common, task, save_to)


def print_answer(common: CommonOptions, answer: Task | Message, save_to: str | None = None) -> None:
    """Print the answer to a message: a SendMessageResponse, which contains a task or a message."""
    document = v1.encode_result(Operation.SEND, answer)
    if isinstance(answer, Task):
        print_task(common, answer, document=document, save_to=save_to)
    else:
        print_result(common, document, message_lines(answer))


def _print_after_task(common: CommonOptions, task: Task, save_to: str | None) -> None:
    """Save artifacts if requested, and print the next command."""
    lines = []
    if save_to is not None:
        lines += _save(common, task, save_to)
    next_command = _next_command(common, task)
    if next_command:
        lines.append(f"Next: {next_command}")
    for line in lines:
        # Fields of the text output. With JSON they go to standard error, because the document must be alone on standard
        # output.
        click.echo(line, err=common.json)
    warning = WARNINGS.get(task.status.state)
    if warning:
        click.echo(f"Warning: {warning} ({state_name(task.status.state)})", err=True)


def _save(common: CommonOptions, task: Task, save_to: str) -> list[str]:
    try:
        return save_artifacts(task.artifacts, save_to)
    except click.ClickException as error:
        if not common.json:
            raise
        # The task is already printed, and its document must stay alone on standard output.
        error.show()
        raise click.exceptions.Exit(error.exit_code) from error


def _next_command(common: CommonOptions, task: Task) -> str:
    """Return the command that continues the task (a2a-cli §8.2), or an empty string if it cannot continue."""
    agent = shlex.quote(common.agent)
    # The agent chose the id, and a user pastes this line into a shell.
    task_id = shlex.quote(clean_line(task.id))
    state = task.status.state
    if state is TaskState.INPUT_REQUIRED:
        return f"apcore-a2a send {agent} --task-id {task_id} 'your reply'"
    # AUTH_REQUIRED is at rest too, but it does not continue with a message: the authorization is granted elsewhere.
    if state is TaskState.AUTH_REQUIRED or state not in AT_REST:
        return f"apcore-a2a task get {agent} {task_id} --wait"
    return ""


def print_command_to_wait(common: CommonOptions, task_id: str, reason: BaseException) -> None:
    """Print how to find a task that this command stops waiting for, and that may keep running."""
    if not task_id:
        return
    agent = shlex.quote(common.agent)
    task = shlex.quote(clean_line(task_id))
    verb = "may keep running"  # an agent that is gone may have lost the task
    if isinstance(reason, asyncio.CancelledError):
        verb = "keeps running"
    click.echo(f"Task {task} {verb}: apcore-a2a task get {agent} {task} --wait (or: task cancel)", err=True)


# ---- progress -------------------------------------------------------------------------------------------------------


class Spinner:
    """Shows a person that work is in progress. Shows nothing if standard error is not a terminal."""

    def __init__(self, spinner: "Status | None") -> None:
        self._spinner = spinner

    def show_state(self, state: TaskState) -> None:
        if self._spinner is not None:
            self._spinner.update(f"{state_name(state).lower()} …")

    def end(self) -> None:
        """Remove the spinner, so that other output can be printed."""
        if self._spinner is not None:
            self._spinner.stop()


@contextmanager
def show_progress() -> Iterator[Spinner]:
    """Show a spinner on standard error if that is a terminal. It is removed before the result is printed."""
    if not sys.stderr.isatty():
        yield Spinner(None)
        return
    from rich.console import Console  # only at a terminal: scripts need not wait for the import

    console = Console(stderr=True)
    with console.status("connecting …") as spinner:
        yield Spinner(spinner)


# ---- streams --------------------------------------------------------------------------------------------------------


async def print_events(common: CommonOptions, events: AsyncGenerator[Event], save_to: str | None) -> None:
    """Print events as they arrive until the stream ends, then the next command."""
    printer = EventPrinter(common)
    try:
        async with aclosing(events):
            async for event in events:
                printer.print(event)
    except WAIT_ENDS as reason:
        printer.end_text()
        print_command_to_wait(common, printer.task.id, reason)
        raise
    printer.end_text()
    if printer.task.id:  # otherwise the answer was a message
        _print_after_task(common, printer.task, save_to)


class EventPrinter:
    """Prints events as they arrive, and growing text piece by piece. Keeps the resulting task."""

    def __init__(self, common: CommonOptions) -> None:
        self._common = common
        # The id of the artifact whose text is being printed on an open line. Empty if there is none.
        self._growing_artifact = ""
        self._printed: list[str] = []  # the pieces of that text
        self.task = Task(id="", status=TaskStatus(state=TaskState.UNSPECIFIED))

    def print(self, event: Event) -> None:
        """Print one event, and apply it to the task."""
        self._apply(event)
        if self._common.json:
            click.echo(escape_json(v1.encode_event(event)))  # on one line: this is JSON Lines
            return
        if isinstance(event, ArtifactUpdate):
            self._print_artifact(event)
            return
        self.end_text()
        match event:
            case Task():
                lines = task_lines(event, verbose=self._common.verbose)
            case Message():
                lines = message_lines(event)
            case StatusUpdate():
                lines = self._status_lines(event)
        for line in lines:
            click.echo(line)

    def end_text(self) -> None:
        """End the text that is being printed: its line, and the blank line that ends a block."""
        if self._growing_artifact:
            click.echo("\n")
            self._growing_artifact = ""

    def _status_lines(self, event: StatusUpdate) -> Iterator[str]:
        if event.status.state in AT_REST:
            # The last lines of the output must contain all that the next command needs (a2a-cli §11.2).
            yield from task_fields(self.task.id, self.task.context_id, event.status.state)
        else:
            yield field("State", state_name(event.status.state))
        message = event.status.message
        if message is not None and not repeats_answer(message):
            yield from parts_lines(message.parts)

    def _print_artifact(self, event: ArtifactUpdate) -> None:
        artifact = event.artifact
        text = only_text(artifact.parts)
        if text is None:
            self.end_text()
            for line in artifact_lines(artifact):
                click.echo(line)
            return
        if not event.append and self._growing_artifact == artifact.artifact_id and "".join(self._printed) == text:
            return  # the whole text once more, for clients that do not join its pieces
        if not event.append or self._growing_artifact != artifact.artifact_id:
            self.end_text()
            click.echo(field("Artifact", artifact.name or artifact.artifact_id))
            click.echo(f"Text:\n{INDENT}", nl=False)
            self._growing_artifact = artifact.artifact_id
            self._printed = []
        self._printed.append(text)
        # Not `indent`: the chunk may begin in the middle of a line, and its last line end must stay.
        click.echo(clean_text(text).replace("\n", f"\n{INDENT}"), nl=False)

    def _apply(self, event: Event) -> None:
        match event:
            case Task():
                self.task = copy(event)
            case StatusUpdate():
                self._apply_status(event)
            case ArtifactUpdate():
                self._apply_artifact(event)

    def _apply_status(self, event: StatusUpdate) -> None:
        # A resumed stream may begin with one of these, which then identifies the task.
        task_id = event.task_id or self.task.id
        context_id = event.context_id or self.task.context_id
        self.task = replace(self.task, id=task_id, context_id=context_id, status=event.status)

    def _apply_artifact(self, event: ArtifactUpdate) -> None:
        # A task that has ended accepts no further artifacts. An artifact that the agent sends nevertheless must be
        # saved too, so it is added to a working task.
        status = self.task.status
        at_work = replace(self.task, status=TaskStatus(state=TaskState.WORKING))
        fold(at_work, event)
        self.task = replace(at_work, status=status)


# ---- rendering ------------------------------------------------------------------------------------------------------
# The protocol's values as text: fields and blocks (a2a-cli specification §11.2), without colours.
#
# Invariant: one `Label: value` per line. A longer value is indented below its label and ends with a blank line.

INDENT: Final = "  "


# ---- fields and blocks ----------------------------------------------------------------------------------------------


def field(label: str, value: object) -> str:
    """Format one line. Text of an agent is sanitized, so that it cannot begin a line of its own."""
    return f"{label}: {clean_line(str(value))}"


def block(label: str, text: str) -> str:
    """Format a label, the indented text below it, and a blank line."""
    return f"{label}:\n{indent(text)}\n"


def indent(text: str) -> str:
    """Indent sanitized text, so that none of its lines looks like a field of ours."""
    return INDENT + clean_text(text).rstrip("\n").replace("\n", f"\n{INDENT}")


def escape_json(document: bytes) -> str:
    """Escape JSON so that a terminal displays control characters and does not interpret them.

    Unlike text, JSON must arrive complete, so they are escaped instead of removed. JSON allows a raw U+009B, which a
    terminal interprets as the start of an escape sequence.
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode())


def format_json(document: bytes) -> str:
    """Return escaped JSON on several lines, for people."""
    return escape_json(msgspec.json.format(document, indent=2))


def state_name(state: TaskState) -> str:
    """Return the short name of a state (a2a-cli §9.1): COMPLETED, not TASK_STATE_COMPLETED."""
    return state.removeprefix("TASK_STATE_")


# ---- messages and tasks ---------------------------------------------------------------------------------------------


def parts_lines(parts: Iterable[Part]) -> Iterator[str]:
    """Yield all parts in their order, of every kind (a2a-cli §10.2)."""
    # Consecutive texts are one text: they are the chunks of a stream, split at any point.
    texts: list[str] = []
    for part in parts:
        if part.text is not UNSET:
            texts.append(str(part.text))
            continue
        if texts:
            yield block("Text", "".join(texts))
            texts = []
        yield file_or_data(part)
    if texts:
        yield block("Text", "".join(texts))


def only_text(parts: Sequence[Part]) -> str | None:
    """Return the text of parts that are only text, or None if there is another part or none at all."""
    texts: list[str] = []
    for part in parts:
        if part.text is UNSET:
            return None
        texts.append(str(part.text))
    if not texts:
        return None
    return "".join(texts)


def file_or_data(part: Part) -> str:
    name = part.filename or "(no name)"
    media_type = part.media_type or "unknown type"
    if part.raw is not UNSET:
        return field("File", f"{name} ({media_type}, {len(part.raw):,} bytes)")
    if part.url is not UNSET:
        return field("File", f"{name} ({media_type}) at {part.url}")
    return block("Data", format_json(encode(part.data)))


def artifact_lines(artifact: Artifact) -> Iterator[str]:
    yield field("Artifact", artifact.name or artifact.artifact_id)
    if artifact.description:
        yield field("Description", artifact.description)
    yield from parts_lines(artifact.parts)


def message_lines(message: Message) -> Iterator[str]:
    yield field("Message", message.message_id)
    if message.context_id:
        yield field("Context", message.context_id)
    yield field("Role", message.role.removeprefix("ROLE_").lower())
    yield from parts_lines(message.parts)


def task_fields(task_id: str, context_id: str, state: TaskState) -> Iterator[str]:
    """Yield the ids that the next command may need (a2a-cli §8.2)."""
    yield field("Task", task_id)
    yield field("Context", context_id)
    yield field("State", state_name(state))


def task_lines(task: Task, *, verbose: bool = False) -> Iterator[str]:
    yield from task_fields(task.id, task.context_id, task.status.state)
    if task.status.timestamp:
        yield field("Updated", task.status.timestamp)
    message = task.status.message
    if message is not None and not repeats_answer(message):
        yield from parts_lines(message.parts)
    for artifact in task.artifacts:
        yield from artifact_lines(artifact)
    if verbose:
        for message in task.history:
            yield from message_lines(message)
        if task.metadata:
            yield block("Metadata", format_json(encode(task.metadata)))


def summary_lines(task: Task) -> Iterator[str]:
    """Yield the lines of a task in a list."""
    yield from task_fields(task.id, task.context_id, task.status.state)
    if task.status.timestamp:
        yield field("Updated", task.status.timestamp)
    yield ""


# ---- cards and webhooks ---------------------------------------------------------------------------------------------


def card_lines(card: AgentCard, *, signatures: str) -> Iterator[str]:
    yield field("Agent", card.name)
    yield field("Description", card.description)
    yield field("Version", card.version)
    if card.provider is not None:
        yield field("Provider", f"{card.provider.organization} {card.provider.url}")
    if card.documentation_url:
        yield field("Documentation", card.documentation_url)
    for interface in card.supported_interfaces:
        line = f"{interface.protocol_binding} {interface.protocol_version} {interface.url}"
        if interface.tenant:
            line += f" tenant {interface.tenant}"
        yield field("Interface", line)
    yield field("Capabilities", ", ".join(_capabilities(card)) or "none")
    for extension in card.capabilities.extensions:
        line = extension.uri
        if extension.required:
            line += " (required)"
        yield field("Extension", line)
    yield field("Input", ", ".join(card.default_input_modes))
    yield field("Output", ", ".join(card.default_output_modes))
    for name, scheme in (card.security_schemes or {}).items():
        # A scheme is an object with one key, which names its kind.
        yield field("Security", f"{name} ({', '.join(scheme)})")
    yield field("Signatures", signatures)
    for skill in card.skills:
        yield field("Skill", f"{skill.id}: {skill.description}")


def _capabilities(card: AgentCard) -> Iterator[str]:
    if card.capabilities.streaming:
        yield "streaming"
    if card.capabilities.push_notifications:
        yield "push notifications"
    if card.capabilities.extended_agent_card:
        yield "extended card"


def skill_lines(skill: AgentSkill, card: AgentCard) -> Iterator[str]:
    yield field("Skill", skill.id)
    yield field("Name", skill.name)
    yield field("Description", skill.description)
    if skill.tags:
        yield field("Tags", ", ".join(skill.tags))
    # A skill without modes of its own has those of the agent (A2A 1.0 §4.4.5).
    yield field("Input", ", ".join(skill.input_modes or card.default_input_modes))
    yield field("Output", ", ".join(skill.output_modes or card.default_output_modes))
    for example in skill.examples:
        yield field("Example", example)
    yield ""


def push_lines(config: PushConfig) -> Iterator[str]:
    """Yield the lines of a webhook, without its secrets."""
    yield field("Config", config.id)
    yield field("Task", config.task_id)
    yield field("URL", config.url)
    if config.authentication is not None:
        yield field("Authentication", config.authentication.scheme)
    yield ""


def webhook_lines(webhook: WebhookStatus) -> Iterator[str]:
    """Yield the delivery status of a webhook."""
    yield field("Config", webhook.id)
    yield field("Task", webhook.task_id)
    yield field("URL", webhook.url)
    yield field("State", webhook.state)
    yield field("Delivered", webhook.delivered)
    yield field("Undelivered", webhook.undelivered)
    if webhook.reason:
        yield field("Reason", webhook.reason)
    yield ""


# ---- downloads ------------------------------------------------------------------------------------------------------
# Artifacts on disk.
#
# Invariant: an agent chooses neither the directory of a file nor which file it replaces.

MAX_NAME: Final = 200  # bytes; a number may be appended, and most file systems allow 255
MAX_NUMBER: Final = 10_000
_UNFIT: Final = re.compile(r"[^\w.\- ()]+")
# Device names on Windows, where `NUL.txt` is one as well.
_RESERVED: Final = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def save_artifacts(artifacts: Iterable[Artifact], directory: str) -> list[str]:
    """Write every part that has content to a file of its own. Return a line about each file.

    Raises:
        click.ClickException: a file or the directory cannot be written.
    """
    folder = Path(directory)
    lines = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for artifact in artifacts:
            for name, content in _files(artifact):
                path = _write_new(folder, name, content)
                lines.append(f"Saved: {path}")
    except OSError as error:
        raise click.ClickException(f"Artifacts not saved: {error.strerror or error}: {error.filename}") from error
    return lines


def _files(artifact: Artifact) -> Iterator[tuple[str, bytes]]:
    """Yield the agent's name and the content of each file."""
    base = artifact.name or artifact.artifact_id
    # Texts without a name are the chunks of one streamed text: they become one file.
    chunks = [part for part in artifact.parts if _is_chunk(part)]
    if chunks:
        text = "".join(str(part.text) for part in chunks)
        media_type = chunks[0].media_type or "text/plain"
        yield base + _suffix(base, media_type, otherwise=".txt"), text.encode()
    for part in artifact.parts:
        # A part that is only an address is not fetched: the agent would choose the address, and it may be in an
        # internal network.
        if part.url is UNSET and not _is_chunk(part):
            yield _file_name(part, base), _content(part)


def _is_chunk(part: Part) -> bool:
    return part.text is not UNSET and not part.filename


def _file_name(part: Part, base: str) -> str:
    if part.filename:
        return part.filename
    if part.data is not UNSET:
        return base + _suffix(base, part.media_type, otherwise=".json")
    return base + _suffix(base, part.media_type, otherwise=".bin")


def _suffix(base: str, media_type: str, *, otherwise: str) -> str:
    if Path(base).suffix:
        return ""
    without_parameters = media_type.partition(";")[0]
    return mimetypes.guess_extension(without_parameters) or otherwise


def _content(part: Part) -> bytes:
    if part.text is not UNSET:
        return str(part.text).encode()
    if part.raw is not UNSET:
        return bytes(part.raw)
    return encode(part.data)


def safe_name(name: str) -> str:
    """Convert a remote name to a safe file name: no path, not hidden, and no unusual characters."""
    last = name.replace("\\", "/").rpartition("/")[2]
    # Dots and spaces at the end are removed again after truncation: Windows ignores them, which would give another
    # name.
    safe = _cut(_UNFIT.sub("_", last).strip(" .")).rstrip(" .")
    if not safe or _RESERVED.fullmatch(safe):
        return f"_{safe}"
    return safe


def _cut(name: str) -> str:
    """Truncate a name to the length that file systems allow, and keep its suffix."""
    path = Path(name)
    room = MAX_NAME - len(path.suffix.encode())
    if room < MAX_NAME // 2:  # too long for a suffix
        return name.encode()[:MAX_NAME].decode(errors="ignore")
    return path.stem.encode()[:room].decode(errors="ignore") + path.suffix


def _write_new(folder: Path, name: str, content: bytes) -> Path:
    """Write a file with that name, or with a number appended if the name is taken."""
    wanted = Path(safe_name(name))
    file_name = wanted.name
    for number in range(1, MAX_NUMBER + 1):
        path = folder / file_name
        try:
            # "x" fails if a file or link exists. Between a separate check and the opening, another process could create
            # one.
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            file_name = f"{wanted.stem}-{number}{wanted.suffix}"
            continue
        return path
    raise FileExistsError(0, "no free file name", str(folder / wanted))
