"""What a command prints: the result on standard output, what a person should know besides on standard error.

Rule: with `-o json`, standard output holds the protocol's own types, nothing else (a2a-cli specification §11.1, §11.3).
"""

import asyncio
import shlex
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.cli import rendering
from apcore_a2a.cli.downloads import save_artifacts
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import AT_REST, copy, fold
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Event,
    Message,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    encode,
)
from apcore_a2a.protocol.operations import Operation

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
        click.echo(rendering.format_json(document))
        return
    for line in lines:
        click.echo(line)


def print_task(common: CommonOptions, task: Task, *, document: bytes | None = None, save_to: str | None = None) -> None:
    """Print a task, save its artifacts, and say what can be done next."""
    print_result(common, document or encode(task), rendering.task_lines(task, verbose=common.verbose))
    _print_after_task(common, task, save_to)


def print_answer(common: CommonOptions, answer: Task | Message, save_to: str | None = None) -> None:
    """Print what a message was answered with: a SendMessageResponse, which holds a task or a message."""
    document = v1.encode_result(Operation.SEND, answer)
    if isinstance(answer, Task):
        print_task(common, answer, document=document, save_to=save_to)
    else:
        print_result(common, document, rendering.message_lines(answer))


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
        click.echo(f"Warning: {warning} ({rendering.state_name(task.status.state)})", err=True)


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


class Progress:
    """Shows a person that something is going on; shows nothing where nobody is looking."""

    def __init__(self, spinner: "Status | None") -> None:
        self._spinner = spinner

    def show_state(self, state: TaskState) -> None:
        if self._spinner is not None:
            self._spinner.update(f"{rendering.state_name(state).lower()} …")

    def end(self) -> None:
        """Leave the line to whoever has something to say."""
        if self._spinner is not None:
            self._spinner.stop()


@contextmanager
def show_progress() -> Iterator[Progress]:
    """A sign of life on standard error, if that is a terminal; it is gone when the result is printed."""
    if not sys.stderr.isatty():
        yield Progress(None)
        return
    from rich.console import Console  # only for people: scripts need not wait until it is loaded

    console = Console(stderr=True)
    with console.status("connecting …") as spinner:
        yield Progress(spinner)


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
            click.echo(rendering.escape_json(v1.encode_event(event)))  # on one line: this is JSON Lines
            return
        if isinstance(event, ArtifactUpdate):
            self._print_artifact(event)
            return
        self.end_text()
        match event:
            case Task():
                lines = rendering.task_lines(event, verbose=self._common.verbose)
            case Message():
                lines = rendering.message_lines(event)
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
            yield from rendering.task_fields(self.task.id, self.task.context_id, event.status.state)
        else:
            yield rendering.field("State", rendering.state_name(event.status.state))
        if event.status.message is not None:
            yield from rendering.parts_lines(event.status.message.parts)

    def _print_artifact(self, event: ArtifactUpdate) -> None:
        artifact = event.artifact
        text = rendering.only_text(artifact.parts)
        if text is None:
            self.end_text()
            for line in rendering.artifact_lines(artifact):
                click.echo(line)
            return
        if not event.append or self._growing_artifact != artifact.artifact_id:
            self.end_text()
            click.echo(rendering.field("Artifact", artifact.name or artifact.artifact_id))
            click.echo(f"Text:\n{rendering.INDENT}", nl=False)
            self._growing_artifact = artifact.artifact_id
        # Not rendering.indent: the chunk may begin in the middle of a line, and its last line end counts.
        click.echo(clean_text(text).replace("\n", f"\n{rendering.INDENT}"), nl=False)

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
