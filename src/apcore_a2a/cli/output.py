"""The output of commands: results on standard output, notes for a person on standard error.

Invariant: with `-o json`, standard output has only the protocol's own types (a2a-cli specification §11.1, §11.3). Which
form is printed depends on the options, and without an option on whether standard output is a terminal.
"""

import asyncio
import mimetypes
import re
import shlex
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec import UNSET

from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.cli import rendering
from apcore_a2a.cli.answers import MAX_PROGRESS, AnswerPrinter, ReceivedTask
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import AT_REST, repeats_answer
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Operation,
    Part,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    encode,
)
from apcore_a2a.protocol.questions import questions_of

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
        click.echo(rendering.format_json(document))
        return
    for line in lines:
        click.echo(line)


def print_task(
    common: CommonOptions, task: Task, *, document: bytes | None = None, save_to: str | None = None, took: str = ""
) -> None:
    """Print a task, save its artifacts, and print the next command.

    Args:
        common: The common options.
        task: The task.
        document: What is printed as JSON, if it is not the task.
        save_to: The directory for its artifacts.
        took: How long the task took, for people. Without it, its age is printed.
    """
    if common.prints_answer:
        _print_answer(common, task)
    else:
        print_result(common, document or encode(task), rendering.task_lines(task, verbose=common.verbose))
    _print_after_task(common, task, save_to, took)


def print_reply(common: CommonOptions, reply: Task | Message, save_to: str | None = None, *, started: float) -> None:
    """Print the reply to a message that was sent at `started`: a SendMessageResponse, that is a task or a message."""
    document = v1.encode_result(Operation.SEND, reply)
    took = f"in {rendering.seconds_text(time.monotonic() - started)}"
    if isinstance(reply, Task):
        print_task(common, reply, document=document, save_to=save_to, took=took)
    elif common.prints_answer:
        _print_answer(common, reply)
    else:
        print_result(common, document, rendering.message_lines(reply))


def _print_answer(common: CommonOptions, event: Event) -> None:
    printer = AnswerPrinter(raw=common.output == "raw")
    printer.print(event)
    printer.end()


def _print_after_task(common: CommonOptions, task: Task, save_to: str | None, took: str) -> None:
    """Save artifacts if requested, and print the task's state and the next command."""
    lines = []
    if save_to is not None:
        lines += _save(common, task, save_to)
    if common.output == "answer":
        when = took
        if not when and task.status.timestamp:
            when = rendering.age(task.status.timestamp)
        click.echo(rendering.dim(rendering.rest_line(task, when)), err=True)
    lines += [f"Next: {command}" for command in _next_commands(common, task)]
    for line in lines:
        # Fields of the text output. Otherwise they go to standard error, because the document or the answer must be
        # alone on standard output.
        click.echo(line, err=common.output != "text")
    warning = WARNINGS.get(task.status.state)
    if not warning or common.prints_answer:  # which has reported it together with the agent's reason
        return
    click.echo(f"Warning: {warning} ({rendering.state_name(task.status.state)})", err=True)
    if task.status.message is not None:
        for line in rendering.failure_lines(task.status.message):
            click.echo(line, err=True)


def _save(common: CommonOptions, task: Task, save_to: str) -> list[str]:
    try:
        return save_artifacts(task.artifacts, save_to)
    except click.ClickException as error:
        if not common.json:
            raise
        # The task is already printed, and its document must stay alone on standard output.
        error.show()
        raise click.exceptions.Exit(error.exit_code) from error


def _next_commands(common: CommonOptions, task: Task) -> list[str]:
    """Return the commands that continue the task (a2a-cli §8.2): several for a choice, none if it cannot continue."""
    agent = shlex.quote(common.agent)
    # The agent chose the id, and a user pastes this line into a shell.
    task_id = shlex.quote(clean_line(task.id))
    state = task.status.state
    if state is TaskState.INPUT_REQUIRED:
        replies = ["'your reply'"]
        questions = questions_of(task.status.message)
        if len(questions) > 1:
            replies = [" ".join(f"{shlex.quote(clean_line(question.id))}=…" for question in questions)]
        elif questions and questions[0].kind == "approval":
            replies = ["approve", "reject"]
        return [f"apcore-a2a send {agent} --task-id {task_id} {reply}" for reply in replies]
    # AUTH_REQUIRED is at rest too, but it does not continue with a message: the authorization is granted elsewhere.
    if state is TaskState.AUTH_REQUIRED or state not in AT_REST:
        return [f"apcore-a2a task get {agent} {task_id} --wait"]
    return []


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

    def show_status(self, status: TaskStatus) -> None:
        if self._spinner is None:
            return
        text = f"{rendering.state_name(status.state).lower()} …"
        if status.message is not None and status.state not in AT_REST:
            from rich.markup import escape  # only at a terminal, as below

            text += f" {escape(rendering.progress_text(status.message)[:MAX_PROGRESS])}"
        self._spinner.update(text)

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
    started = time.monotonic()
    printer: EventPrinter | AnswerPrinter = EventPrinter(common)
    if common.prints_answer:
        printer = AnswerPrinter(raw=common.output == "raw")
    try:
        async with aclosing(events):
            async for event in events:
                printer.print(event)
    except WAIT_ENDS as reason:
        printer.end()
        print_command_to_wait(common, printer.task.id, reason)
        raise
    printer.end()
    if printer.task.id:  # otherwise the answer was a message
        took = f"in {rendering.seconds_text(time.monotonic() - started)}"
        _print_after_task(common, printer.task, save_to, took)


class EventPrinter:
    """Prints events as they arrive, and growing text piece by piece. Keeps the resulting task."""

    def __init__(self, common: CommonOptions) -> None:
        self._common = common
        # The id of the artifact whose text is being printed on an open line. Empty if there is none.
        self._growing_artifact = ""
        self._printed: list[str] = []  # the pieces of that text
        self._received = ReceivedTask()

    @property
    def task(self) -> Task:
        """The task so far. Its id is empty if the answer is a message."""
        return self._received.task

    def print(self, event: Event) -> None:
        """Print one event, and apply it to the task."""
        self._received.apply(event)
        if self._common.json:
            click.echo(rendering.escape_json(v1.encode_event(event)))  # on one line: this is JSON Lines
            return
        if isinstance(event, ArtifactUpdate):
            self._print_artifact(event)
            return
        self.end()
        match event:
            case Task():
                lines = rendering.task_lines(event, verbose=self._common.verbose)
            case Message():
                lines = rendering.message_lines(event)
            case StatusUpdate():
                lines = self._status_lines(event)
        for line in lines:
            click.echo(line)

    def end(self) -> None:
        """End the text that is being printed: its line, and the blank line that ends a block."""
        if self._growing_artifact:
            click.echo("\n")
            self._growing_artifact = ""

    def _status_lines(self, event: StatusUpdate) -> Iterator[str]:
        if event.status.state in AT_REST:
            # The last lines of the output must contain all that the next command needs (a2a-cli §11.2).
            yield from rendering.task_fields(self.task.id, self.task.context_id, event.status.state)
        else:
            yield rendering.field("State", rendering.state_name(event.status.state))
        message = event.status.message
        if message is not None and not repeats_answer(message):
            yield from rendering.parts_lines(message.parts)

    def _print_artifact(self, event: ArtifactUpdate) -> None:
        artifact = event.artifact
        text = rendering.only_text(artifact.parts)
        if text is None:
            self.end()
            for line in rendering.artifact_lines(artifact):
                click.echo(line)
            return
        if not event.append and self._growing_artifact == artifact.artifact_id and "".join(self._printed) == text:
            return  # the whole text once more, for clients that do not join its pieces
        if not event.append or self._growing_artifact != artifact.artifact_id:
            self.end()
            click.echo(rendering.field("Artifact", artifact.name or artifact.artifact_id))
            click.echo(f"Text:\n{rendering.INDENT}", nl=False)
            self._growing_artifact = artifact.artifact_id
            self._printed = []
        self._printed.append(text)
        # Not `indent`: the chunk may begin in the middle of a line, and its last line end must stay.
        click.echo(clean_text(text).replace("\n", f"\n{rendering.INDENT}"), nl=False)


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
