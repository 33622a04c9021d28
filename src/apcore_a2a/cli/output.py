"""What a command prints: the result on standard output, what a person should know besides on standard error.

Rule: with `-o json`, standard output holds the protocol's own types, nothing else (a2a-cli specification §11.1, §11.3).
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
from apcore_a2a.protocol.lifecycle import AT_REST, copy, fold
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


# Outcomes that are not failures of the command, which exits with 0, but that a person should not overlook (§11.6).
WARNINGS: Final = {
    TaskState.FAILED: "the task failed",
    TaskState.REJECTED: "the agent rejected the task",
    TaskState.CANCELED: "the task was canceled",
    TaskState.INPUT_REQUIRED: "the agent waits for your reply",
    TaskState.AUTH_REQUIRED: "the agent waits for an authorization; see what it says, give it there, then wait on",
}
# Why a command stops waiting for a task: Ctrl-C or the time limit; the agent, which is gone or answers in error.
LEAVING: Final = (asyncio.CancelledError, A2AError)


# ---- results --------------------------------------------------------------------------------------------------------


def print_result(common: CommonOptions, document: bytes, lines: Iterable[str]) -> None:
    """Print one result: the document for programs, or the lines for people."""
    if common.json:
        click.echo(format_json(document))
        return
    for line in lines:
        click.echo(line)


def print_task(common: CommonOptions, task: Task, *, document: bytes | None = None, save_to: str | None = None) -> None:
    """Print a task, save its artifacts, and say what can be done next."""
    print_result(common, document or encode(task), task_lines(task, verbose=common.verbose))
    _print_after_task(common, task, save_to)


def print_answer(common: CommonOptions, answer: Task | Message, save_to: str | None = None) -> None:
    """Print what a message was answered with: a SendMessageResponse, which holds a task or a message."""
    document = v1.encode_result(Operation.SEND, answer)
    if isinstance(answer, Task):
        print_task(common, answer, document=document, save_to=save_to)
    else:
        print_result(common, document, message_lines(answer))


def _print_after_task(common: CommonOptions, task: Task, save_to: str | None) -> None:
    """Save artifacts, if the caller wants them, and say what can be done next."""
    lines = []
    if save_to is not None:
        lines += _save(common, task, save_to)
    next_command = _next_command(common, task)
    if next_command:
        lines.append(f"Next: {next_command}")
    for line in lines:
        # Fields of text output; beside JSON, which must stay alone on standard output.
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
        # The task is printed already, and its document stays alone on standard output.
        error.show()
        raise click.exceptions.Exit(error.exit_code) from error


def _next_command(common: CommonOptions, task: Task) -> str:
    """The exact command that goes on from here (a2a-cli §8.2); nothing where there is nothing to go on with."""
    agent = shlex.quote(common.agent)
    # The agent chose the id, and the line is there to be pasted into a shell.
    task_id = shlex.quote(clean_line(task.id))
    state = task.status.state
    if state is TaskState.INPUT_REQUIRED:
        return f"apcore-a2a send {agent} --task-id {task_id} 'your reply'"
    # AUTH_REQUIRED is at rest, too, but nothing is sent to go on: the authorization is given elsewhere.
    if state is TaskState.AUTH_REQUIRED or state not in AT_REST:
        return f"apcore-a2a task get {agent} {task_id} --wait"
    return ""


def print_task_goes_on(common: CommonOptions, task_id: str, reason: BaseException) -> None:
    """Say how to find a task again: for that reason we stop waiting for it, and it does not stop."""
    if not task_id:
        return
    agent = shlex.quote(common.agent)
    task = shlex.quote(clean_line(task_id))
    verb = "may go on"  # an agent that is gone may have taken it along
    if isinstance(reason, asyncio.CancelledError):
        verb = "goes on"
    click.echo(f"Task {task} {verb}: apcore-a2a task get {agent} {task} --wait (or: task cancel)", err=True)


# ---- progress -------------------------------------------------------------------------------------------------------


class Spinner:
    """Shows a person that something is going on; shows nothing where nobody is looking."""

    def __init__(self, spinner: "Status | None") -> None:
        self._spinner = spinner

    def show_state(self, state: TaskState) -> None:
        if self._spinner is not None:
            self._spinner.update(f"{state_name(state).lower()} …")

    def end(self) -> None:
        """Leave the line to whoever has something to say."""
        if self._spinner is not None:
            self._spinner.stop()


@contextmanager
def show_progress() -> Iterator[Spinner]:
    """A sign of life on standard error, if that is a terminal; it is gone when the result is printed."""
    if not sys.stderr.isatty():
        yield Spinner(None)
        return
    from rich.console import Console  # only for people: scripts need not wait until it is loaded

    console = Console(stderr=True)
    with console.status("connecting …") as spinner:
        yield Spinner(spinner)


# ---- streams --------------------------------------------------------------------------------------------------------


async def print_events(common: CommonOptions, events: AsyncGenerator[Event], save_to: str | None) -> None:
    """Print events as they come, to the end of the stream, and then what can be done next."""
    printer = EventPrinter(common)
    try:
        async with aclosing(events):
            async for event in events:
                printer.print(event)
    except LEAVING as reason:
        printer.end_text()
        print_task_goes_on(common, printer.task.id, reason)
        raise
    printer.end_text()
    if printer.task.id:  # else it was a bare message
        _print_after_task(common, printer.task, save_to)


class EventPrinter:
    """Prints events as they come; text that grows is printed as it grows. Keeps the task that they amount to."""

    def __init__(self, common: CommonOptions) -> None:
        self._common = common
        # The id of the artifact whose text is being printed: the line is not ended yet. Empty if there is none.
        self._growing_artifact = ""
        self.task = Task(id="", status=TaskStatus(state=TaskState.UNSPECIFIED))

    def print(self, event: Event) -> None:
        """Print one event, and take it into the task."""
        self._keep(event)
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
            # Whoever watched only the tail has what the next command needs (a2a-cli §11.2).
            yield from task_fields(self.task.id, self.task.context_id, event.status.state)
        else:
            yield field("State", state_name(event.status.state))
        if event.status.message is not None:
            yield from parts_lines(event.status.message.parts)

    def _print_artifact(self, event: ArtifactUpdate) -> None:
        artifact = event.artifact
        text = only_text(artifact.parts)
        if text is None:
            self.end_text()
            for line in artifact_lines(artifact):
                click.echo(line)
            return
        if not event.append or self._growing_artifact != artifact.artifact_id:
            self.end_text()
            click.echo(field("Artifact", artifact.name or artifact.artifact_id))
            click.echo(f"Text:\n{INDENT}", nl=False)
            self._growing_artifact = artifact.artifact_id
        # Not rendering.indent: the chunk may begin in the middle of a line, and its last line end counts.
        click.echo(clean_text(text).replace("\n", f"\n{INDENT}"), nl=False)

    def _keep(self, event: Event) -> None:
        match event:
            case Task():
                self.task = copy(event)
            case StatusUpdate():
                self._keep_status(event)
            case ArtifactUpdate():
                self._keep_artifact(event)

    def _keep_status(self, event: StatusUpdate) -> None:
        # A stream that is taken up again may begin with one of these: then it says which task this is.
        task_id = event.task_id or self.task.id
        context_id = event.context_id or self.task.context_id
        self.task = replace(self.task, id=task_id, context_id=context_id, status=event.status)

    def _keep_artifact(self, event: ArtifactUpdate) -> None:
        # A task that has ended takes no more artifacts; an agent that sends one nevertheless shall not stop us from
        # saving it. So it is put into a task at work.
        status = self.task.status
        at_work = replace(self.task, status=TaskStatus(state=TaskState.WORKING))
        fold(at_work, event)
        self.task = replace(at_work, status=status)


# ---- rendering ------------------------------------------------------------------------------------------------------
# What the protocol's values look like to a person: fields and blocks (a2a-cli specification §11.2), no colours.
#
# Rule: one `Label: value` a line; what needs more lines stands set in below its label, and a blank line ends it.

INDENT: Final = "  "


# ---- fields and blocks ----------------------------------------------------------------------------------------------


def field(label: str, value: object) -> str:
    """One line. What an agent wrote is cleaned, so that it cannot begin a line of its own."""
    return f"{label}: {clean_line(str(value))}"


def block(label: str, text: str) -> str:
    """A label, the text set in below it, and a blank line."""
    return f"{label}:\n{indent(text)}\n"


def indent(text: str) -> str:
    """Cleaned text as lines that are set in, so that none of them can be taken for a field of ours."""
    return INDENT + clean_text(text).rstrip("\n").replace("\n", f"\n{INDENT}")


def escape_json(document: bytes) -> str:
    """JSON that a terminal shows and does not obey.

    Unlike text, JSON must arrive whole: what a terminal could obey is escaped (JSON lets U+009B stand as it is, and a
    terminal takes that for the start of an escape sequence), not taken out.
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode())


def format_json(document: bytes) -> str:
    """Escaped JSON, over as many lines as it takes to be read by people."""
    return escape_json(msgspec.json.format(document, indent=2))


def state_name(state: TaskState) -> str:
    """The name of a state as people write it (a2a-cli §9.1): COMPLETED, not TASK_STATE_COMPLETED."""
    return state.removeprefix("TASK_STATE_")


# ---- messages and tasks ---------------------------------------------------------------------------------------------


def parts_lines(parts: Iterable[Part]) -> Iterator[str]:
    """Parts in their order, whatever they are; none is left out (a2a-cli §10.2)."""
    # Texts that follow each other are one text: they are the chunks of a stream, cut anywhere.
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
    """The text of parts that are nothing but text; None if there is anything else, or nothing at all."""
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
    """What the next command may need (a2a-cli §8.2)."""
    yield field("Task", task_id)
    yield field("Context", context_id)
    yield field("State", state_name(state))


def task_lines(task: Task, *, verbose: bool = False) -> Iterator[str]:
    yield from task_fields(task.id, task.context_id, task.status.state)
    if task.status.timestamp:
        yield field("Updated", task.status.timestamp)
    if task.status.message is not None:
        yield from parts_lines(task.status.message.parts)
    for artifact in task.artifacts:
        yield from artifact_lines(artifact)
    if verbose:
        for message in task.history:
            yield from message_lines(message)
        if task.metadata:
            yield block("Metadata", format_json(encode(task.metadata)))


def summary_lines(task: Task) -> Iterator[str]:
    """A task in a list."""
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
        # A scheme is an object with one key, which says what kind it is.
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
    # A skill that names no modes of its own has the agent's (A2A 1.0 §4.4.5).
    yield field("Input", ", ".join(skill.input_modes or card.default_input_modes))
    yield field("Output", ", ".join(skill.output_modes or card.default_output_modes))
    for example in skill.examples:
        yield field("Example", example)
    yield ""


def push_lines(config: PushConfig) -> Iterator[str]:
    """A webhook; its secrets are not repeated."""
    yield field("Config", config.id)
    yield field("Task", config.task_id)
    yield field("URL", config.url)
    if config.authentication is not None:
        yield field("Authentication", config.authentication.scheme)
    yield ""


def webhook_lines(webhook: WebhookStatus) -> Iterator[str]:
    """How far a webhook has got."""
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
# Artifacts on disk. Rule: an agent chooses neither where a file goes nor which file it replaces.

MAX_NAME: Final = 200  # bytes; a number may follow, and most file systems take 255
MAX_NUMBER: Final = 10_000
_UNFIT: Final = re.compile(r"[^\w.\- ()]+")
# Names of devices on Windows, where `NUL.txt` is one as well.
_RESERVED: Final = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def save_artifacts(artifacts: Iterable[Artifact], directory: str) -> list[str]:
    """Write every part with content of its own to a file of its own; a line about each.

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
    """The name that the agent gives to each file, and what is in it."""
    base = artifact.name or artifact.artifact_id
    # Texts without a name are the chunks of one text that was streamed: they are one file.
    chunks = [part for part in artifact.parts if _is_chunk(part)]
    if chunks:
        text = "".join(str(part.text) for part in chunks)
        media_type = chunks[0].media_type or "text/plain"
        yield base + _suffix(base, media_type, otherwise=".txt"), text.encode()
    for part in artifact.parts:
        # What is only an address is not fetched: the agent would choose whom we call, and from inside our network.
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
    """A remote name as the name of a file in a directory of ours: no path, nothing hidden, nothing odd."""
    last = name.replace("\\", "/").rpartition("/")[2]
    # Dots and spaces at the end are dropped again after the cut: Windows ignores them, and would see another name.
    safe = _cut(_UNFIT.sub("_", last).strip(" .")).rstrip(" .")
    if not safe or _RESERVED.fullmatch(safe):
        return f"_{safe}"
    return safe


def _cut(name: str) -> str:
    """The name, as long as a file system takes it, with its suffix."""
    path = Path(name)
    room = MAX_NAME - len(path.suffix.encode())
    if room < MAX_NAME // 2:  # that is no suffix
        return name.encode()[:MAX_NAME].decode(errors="ignore")
    return path.stem.encode()[:room].decode(errors="ignore") + path.suffix


def _write_new(folder: Path, name: str, content: bytes) -> Path:
    """Write a file under that name, or a numbered one if a file has it already."""
    wanted = Path(safe_name(name))
    file_name = wanted.name
    for number in range(1, MAX_NUMBER + 1):
        path = folder / file_name
        try:
            # "x" fails if there is a file or a link: between a look whether there is one and the opening, one could
            # be put there.
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            file_name = f"{wanted.stem}-{number}{wanted.suffix}"
            continue
        return path
    raise FileExistsError(0, "no name is left", str(folder / wanted))
