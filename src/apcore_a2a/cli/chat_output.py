"""What a person reads in a conversation: text as it grows, other parts when they are complete, how a task ended."""

import sys
from typing import Final

import click
from msgspec import UNSET

from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.cli import rendering
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Part,
    StatusUpdate,
    Task,
    TaskState,
    encode,
)

MAX_PROGRESS: Final = 70  # characters: it must not wrap, or it could not be cleared
CLEAR_LINE: Final = "\r\x1b[K"
ENDINGS: Final = {
    TaskState.FAILED: "The task failed",
    TaskState.REJECTED: "The agent rejected the task",
    TaskState.CANCELED: "The task was canceled",
    TaskState.AUTH_REQUIRED: "The agent waits for an authorization; give it where the agent says (Ctrl-C cancels)",
}


class TurnPrinter:
    """Prints what an agent answers to one message, and keeps what the answer amounts to."""

    def __init__(self) -> None:
        self.task_id = ""
        self.context_id = ""
        self.state: TaskState | None = None  # of the task, if there is one
        self.asked: Message | None = None  # what the agent said when the task came to rest
        self._printed: dict[str, str] = {}  # text by artifact, as far as it has been printed
        self._unprinted: dict[str, Artifact] = {}  # what is not text, as it was last sent
        self._line_is_open = False
        self._has_answered = False  # whether anything was printed
        self._progress_is_shown = False

    def print(self, event: Event) -> None:
        match event:
            case Task():
                self._take_task(event)
            case StatusUpdate():
                self._take_id(event.task_id, event.context_id)
                self._take_status(event)
            case ArtifactUpdate():
                self._take_artifact(event)
            case Message():
                self._take_id("", event.context_id)
                self._print_parts(list(event.parts))

    def end(self) -> None:
        """Print what was held back, and end the line."""
        for artifact in self._unprinted.values():
            self._print_parts(artifact.parts)
        self._unprinted.clear()
        self._end_line()

    def _take_id(self, task_id: str, context_id: str) -> None:
        self.task_id = task_id or self.task_id
        self.context_id = context_id or self.context_id

    def _take_task(self, task: Task) -> None:
        self._take_id(task.id, task.context_id)
        self.state = task.status.state
        for artifact in task.artifacts:
            self._take_artifact(ArtifactUpdate(artifact=artifact))
        self._tell_state(task.status.state, task.status.message)

    def _take_status(self, event: StatusUpdate) -> None:
        self.state = event.status.state
        self._tell_state(event.status.state, event.status.message)

    def _tell_state(self, state: TaskState, message: Message | None) -> None:
        if state in AT_REST:
            self.end()
            self.asked = message
        if state in ENDINGS:
            self._end_line()
            click.echo(ENDINGS[state], err=True)
        elif state is TaskState.COMPLETED and not self._has_answered and message is None:
            click.echo("Done; the agent had nothing to say", err=True)
        if message is None:
            return
        if state in AT_REST:
            self._print_parts(list(message.parts))
            self._end_line()
        else:  # how it goes is no answer
            self._end_line()
            click.echo(f"… {shorten(list(message.parts))}", err=True)

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _take_artifact(self, update: ArtifactUpdate) -> None:
        artifact = update.artifact
        text = rendering.only_text(artifact.parts)
        append = update.append
        if text is None:
            text = _text_of_object(artifact.parts)
            append = False  # a piece of data is all there is so far
        if text is None:
            # Each piece of data replaces the one before: a person wants the last.
            if not update.append or artifact.artifact_id not in self._unprinted:
                self._unprinted[artifact.artifact_id] = artifact
            else:
                self._unprinted[artifact.artifact_id].parts.extend(artifact.parts)
            self._show_progress(artifact.parts)
            return
        before = self._printed.get(artifact.artifact_id)
        if before is None:
            self._end_line()
            self._print_text(text)
        elif append:
            self._print_text(text)
            text = before + text
        elif text.startswith(before):  # the whole once more, with what is new at its end
            self._print_text(text[len(before) :])
        else:
            self._end_line()
            self._print_text(text)
        self._printed[artifact.artifact_id] = text

    def _show_progress(self, parts: list[Part]) -> None:
        """Show what is held back on a line that goes away again, if there is a terminal to show it on."""
        if not sys.stderr.isatty():
            return
        self._end_line()
        click.echo(f"{CLEAR_LINE}… {shorten(parts)[:MAX_PROGRESS]}", nl=False, err=True)
        self._progress_is_shown = True

    def _clear_progress(self) -> None:
        if self._progress_is_shown:
            click.echo(CLEAR_LINE, nl=False, err=True)
            self._progress_is_shown = False

    def _print_text(self, text: str) -> None:
        if not text:
            return
        self._clear_progress()
        self._has_answered = True
        click.echo(clean_text(text), nl=False)
        self._line_is_open = not text.endswith("\n")

    def _print_parts(self, parts: list[Part]) -> None:
        for part in parts:
            self._end_line()
            if part.text is not UNSET:
                self._print_text(str(part.text))
            else:
                self._has_answered = True
                click.echo(rendering.file_or_data(part).rstrip("\n"))

    def _end_line(self) -> None:
        self._clear_progress()
        if self._line_is_open:
            click.echo()
            self._line_is_open = False


def _text_of_object(parts: list[Part]) -> str | None:
    """The text of an object that has one field, a text: what a module answers that can only answer with objects."""
    if len(parts) != 1 or not isinstance(parts[0].data, dict):
        return None
    values = list(parts[0].data.values())
    if len(values) != 1 or not isinstance(values[0], str):
        return None
    return values[0]


def shorten(parts: list[Part]) -> str:
    """Parts on one line, for a person to know them again."""
    words: list[str] = []
    for part in parts:
        if part.text is not UNSET:
            words.append(str(part.text))
        elif part.data is not UNSET:
            words.append(rendering.escape_json(encode(part.data)))
        else:
            words.append(f"@{part.filename or part.url or 'file'}")
    return clean_line(" ".join(words), 500)
