"""How an outcome is told: the result on standard output, what a person should know besides on standard error.

Rule: with `-o json`, standard output holds the protocol's own types, nothing else (a2a-cli specification §11.1, §11.3).
"""

import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import click
from msgspec import UNSET
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.cli import rendering
from apcore_a2a.cli.downloads import save_artifacts
from apcore_a2a.cli.options import CommonOptions
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import AT_REST, copy, fold
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, StatusUpdate, Task, TaskState, TaskStatus, encode
from apcore_a2a.protocol.operations import Operation

WARNINGS: Final = {
    TaskState.FAILED: "the task failed",
    TaskState.REJECTED: "the agent rejected the task",
    TaskState.CANCELED: "the task was canceled",
    TaskState.INPUT_REQUIRED: "the agent waits for your reply",
    TaskState.AUTH_REQUIRED: "the agent waits for an authorization; see what it says, give it there, then wait on",
}


def say(common: CommonOptions, payload: bytes, lines: Iterable[str]) -> None:
    """Print one result."""
    if common.json:
        click.echo(rendering.format_json(payload))
    else:
        for line in lines:
            click.echo(line)


def tell_task(common: CommonOptions, task: Task, *, payload: bytes | None = None, save: str | None = None) -> None:
    """Print a task, save its artifacts, and say what can be done next."""
    say(common, payload or encode(task), rendering.task_lines(task, verbose=common.verbose))
    saved = [] if save is None else list(save_artifacts(task.artifacts, save))
    follow_up = [line for line in (next_line(common, task.id, task.status.state),) if line]
    for line in saved + follow_up:
        click.echo(line, err=common.json)
    warn(task.status.state)


def tell_answer(common: CommonOptions, answer: Task | Message, save: str | None = None) -> None:
    """Print what a message was answered with: a SendMessageResponse."""
    payload = v1.encode_result(Operation.SEND, answer)
    if isinstance(answer, Task):
        tell_task(common, answer, payload=payload, save=save)
    else:
        say(common, payload, rendering.message_lines(answer))


def next_line(common: CommonOptions, task_id: str, state: TaskState) -> str:
    """The exact command that goes on from here; nothing where there is nothing to go on with."""
    agent, task = shlex.quote(common.agent), shlex.quote(clean_line(task_id))
    if state is TaskState.INPUT_REQUIRED:
        return f"Next: apcore-a2a send {agent} --task-id {task} 'your reply'"
    if state is TaskState.AUTH_REQUIRED or state not in AT_REST:
        return f"Next: apcore-a2a task get {agent} {task} --wait"
    return ""


def warn(state: TaskState) -> None:
    if text := WARNINGS.get(state):
        click.echo(f"Warning: {text} ({rendering.short(state)})", err=True)


class Watch(Protocol):
    """What shows a person that something is going on."""

    def state(self, state: TaskState) -> None: ...


class _Blind:
    def state(self, state: TaskState) -> None:
        """Nobody is looking."""


class _Spinner:
    def __init__(self, update: "Update") -> None:
        self._update = update

    def state(self, state: TaskState) -> None:
        self._update(f"{rendering.short(state).lower()} …")


class Update(Protocol):
    def __call__(self, status: str) -> None: ...


@contextmanager
def watching() -> Iterator[Watch]:
    """A sign of life on standard error, if that is a terminal; it is gone when the result is printed."""
    if not sys.stderr.isatty():
        yield _Blind()
        return
    from rich.console import Console  # only for people

    console = Console(stderr=True)
    with console.status("connecting …") as status:
        yield _Spinner(status.update)


class Ticker:
    """Prints events as they come; text that grows is printed as it grows. Keeps the task that they amount to."""

    def __init__(self, common: CommonOptions) -> None:
        self._common = common
        self._growing = ""
        """The artifact whose text block is open."""
        self.task = Task(id="", status=TaskStatus(state=TaskState.UNSPECIFIED))

    def show(self, event: Event) -> None:
        self._keep(event)
        if self._common.json:
            click.echo(rendering.escape_json(v1.encode_event(event)))
            return
        if isinstance(event, ArtifactUpdate):
            self._show_artifact(event)
            return
        self.end_block()
        match event:
            case Task():
                lines = rendering.task_lines(event, verbose=self._common.verbose)
            case Message():
                lines = rendering.message_lines(event)
            case StatusUpdate():
                lines = self._status_lines(event)
        for line in lines:
            click.echo(line)

    def _status_lines(self, event: StatusUpdate) -> Iterator[str]:
        if event.status.state in AT_REST:  # whoever watched only the tail has what the next command needs
            yield from rendering.task_fields(self.task.id, self.task.context_id, event.status.state)
        else:
            yield rendering.field("State", rendering.short(event.status.state))
        if event.status.message is not None:
            yield from rendering.parts_lines(event.status.message.parts)

    def _show_artifact(self, event: ArtifactUpdate) -> None:
        artifact, texts = event.artifact, [part.text for part in event.artifact.parts]
        if UNSET in texts or not texts:
            self.end_block()
            for line in rendering.artifact_lines(artifact):
                click.echo(line)
            return
        if not event.append or self._growing != artifact.artifact_id:
            self.end_block()
            click.echo(rendering.field("Artifact", artifact.name or artifact.artifact_id))
            click.echo(f"Text:\n{rendering.INDENT}", nl=False)
            self._growing = artifact.artifact_id
        grown = clean_text("".join(map(str, texts)))
        click.echo(grown.replace("\n", f"\n{rendering.INDENT}"), nl=False)

    def end_block(self) -> None:
        if self._growing:
            click.echo("\n")
            self._growing = ""

    def _keep(self, event: Event) -> None:
        match event:
            case Task():
                self.task = copy(event)
            case StatusUpdate():
                self.task = replace(self.task, id=event.task_id or self.task.id, status=event.status)
            case ArtifactUpdate():
                state, self.task = self.task.status, replace(self.task, status=_OPEN)
                fold(self.task, event)
                self.task = replace(self.task, status=state)


_OPEN: Final = TaskStatus(state=TaskState.WORKING)  # agents may send artifacts when they should not; they are kept
