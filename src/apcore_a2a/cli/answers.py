"""The answer of an agent for people and pipes: the answer alone on standard output, everything else beside it.

Invariant: standard output has only the answer: texts as they grow, data as JSON, the names of files. Progress, failures
and what a question is about go to standard error.
"""

import sys
from typing import Final

import click
from msgspec import UNSET
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.cli import rendering
from apcore_a2a.protocol.lifecycle import AT_REST, copy, fold, is_progress, repeats_answer
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Part,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    encode,
)
from apcore_a2a.protocol.questions import Question, is_repeated_in_words, questions_of

MAX_PROGRESS: Final = 70  # characters; a line that wraps could not be cleared
CLEAR_LINE: Final = "\r\x1b[K"
ENDINGS: Final = {
    TaskState.FAILED: "The task failed",
    TaskState.REJECTED: "The agent rejected the task",
    TaskState.CANCELED: "The task was canceled",
    TaskState.AUTH_REQUIRED: "The agent waits for authorization. Grant it where the agent says",
}


class ReceivedTask:
    """The task that results from the events received so far."""

    def __init__(self) -> None:
        self.task = Task(id="", status=TaskStatus(state=TaskState.UNSPECIFIED))

    def apply(self, event: Event) -> None:
        match event:
            case Task():
                self.task = copy(event)
            case StatusUpdate():
                # A resumed stream may begin with one of these, which then identifies the task.
                task_id = event.task_id or self.task.id
                context_id = event.context_id or self.task.context_id
                self.task = replace(self.task, id=task_id, context_id=context_id, status=event.status)
            case ArtifactUpdate():
                self._add_artifact(event)
            case Message():
                self.task = replace(self.task, context_id=event.context_id or self.task.context_id)

    def _add_artifact(self, event: ArtifactUpdate) -> None:
        # A task that has ended accepts no further artifacts. An artifact that the agent sends nevertheless must be
        # saved too, so it is added to a working task.
        status = self.task.status
        at_work = replace(self.task, status=TaskStatus(state=TaskState.WORKING))
        fold(at_work, event)
        self.task = replace(at_work, status=status)


class AnswerPrinter:
    """Prints the answer to one message as its events arrive, and keeps the resulting task.

    With `raw`, data is JSON on one line. A file that is the whole answer is its bytes, unless they go to a terminal.
    With `is_past`, the answer is an earlier one, which goes to standard error as well. With `asks`, the caller asks the
    questions of a task that waits, so they are not printed.
    """

    def __init__(self, *, raw: bool = False, is_past: bool = False, asks: bool = False) -> None:
        self._asks = asks
        self._raw = raw
        self._is_past = is_past
        self._received = ReceivedTask()
        self._printed: dict[str, str] = {}  # printed text by artifact
        self._unprinted: dict[str, Artifact] = {}  # artifacts other than text, in their latest form
        self._line_is_open = False
        self._has_answered = False  # whether anything was printed
        self._said: list[str] = []  # texts of the agent while it works, without reports of progress
        self._progress_is_shown = False

    @property
    def task(self) -> Task:
        """The task so far. Its id is empty if the answer is a message."""
        return self._received.task

    def print(self, event: Event) -> None:
        self._received.apply(event)
        match event:
            case Task():
                for artifact in event.artifacts:
                    self._print_artifact(ArtifactUpdate(artifact=artifact))
                self._print_status(event.status)
            case StatusUpdate():
                self._print_status(event.status)
            case ArtifactUpdate():
                self._print_artifact(event)
                if event.artifact.artifact_id in self._unprinted:
                    self._show_progress(event.artifact.parts)
            case Message():
                self._print_parts(list(event.parts))

    def end(self) -> None:
        """Print the parts that were held back until now, and end the line."""
        artifacts = list(self._unprinted.values())
        self._unprinted.clear()
        if self._raw and len(artifacts) == 1 and self._print_bytes(artifacts[0].parts):
            return
        for artifact in artifacts:
            self._print_parts(artifact.parts)
        self._end_line()

    # ---- statuses ---------------------------------------------------------------------------------------------------

    def _print_status(self, status: TaskStatus) -> None:
        state = status.state
        message = status.message
        if message is not None and self._has_answered and repeats_answer(message):
            message = None
        if state not in AT_REST:
            if message is not None:  # a progress message is not part of the answer
                self._end_line()
                click.echo(f"… {rendering.progress_text(message)}", err=True)
                self._keep_text(message)
            return
        self.end()
        if state in ENDINGS:
            self._report_ending(ENDINGS[state], message)
        elif message is not None:
            self._print_message(message)
        elif state is TaskState.COMPLETED and not self._has_answered:
            self._print_text("\n\n".join(self._said))
            if not self._has_answered:
                click.echo("Completed without output", err=True)
            self._end_line()

    def _keep_text(self, message: Message) -> None:
        """Keep a text that is the answer if the agent sends nothing else. Some agents repeat a growing text."""
        text = message.text
        if not text or is_progress(message) or any(is_repeated_in_words(part) for part in message.parts):
            return
        if self._said and text.startswith(self._said[-1]):
            self._said.pop()
        self._said.append(text)

    def _report_ending(self, ending: str, message: Message | None) -> None:
        """Report an end that is not an answer, with the agent's reason."""
        reason = ""
        if message is not None:
            reason = clean_text("\n".join(str(part.text) for part in message.parts if part.text is not UNSET)).strip()
        if reason:
            ending = f"{ending}: {reason}"
        click.echo(ending, err=True)
        if message is None:
            return
        for line in rendering.failure_lines(message):
            click.echo(line, err=True)

    def _print_message(self, message: Message) -> None:
        questions = questions_of(message)
        if questions:  # not an answer, so a pipe does not receive them
            if not self._asks:
                self._print_questions(message, questions)
            return
        # With -o raw, a script that reads an artifact does not need the agent's remark about it.
        if self._raw and self._has_answered and self.task.status.state is TaskState.COMPLETED:
            return
        self._print_parts(list(message.parts))
        self._end_line()

    def _print_questions(self, message: Message, questions: list[Question]) -> None:
        click.echo(clean_text(message.text), err=True)
        for question in questions:
            if question.kind == "approval":
                click.echo(f"It would run: {rendering.planned_call(question, self.task)}", err=True)

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _print_artifact(self, update: ArtifactUpdate) -> None:
        artifact = update.artifact
        text = rendering.only_text(artifact.parts)
        append = update.append
        if text is None and not self._raw:
            text = _text_of_object(artifact.parts)
            append = False  # each object has a whole text, not a chunk of one
        if text is None:
            # An update without `append` replaces the earlier data, because a person needs only the last state.
            if not update.append or artifact.artifact_id not in self._unprinted:
                self._unprinted[artifact.artifact_id] = replace(artifact, parts=list(artifact.parts))
            else:
                self._unprinted[artifact.artifact_id].parts.extend(artifact.parts)
            return
        before = self._printed.get(artifact.artifact_id)
        if before is None:
            self._end_line()
            self._print_text(text)
        elif append:
            self._print_text(text)
            text = before + text
        elif text.startswith(before):  # the whole text again, with new text at its end
            self._print_text(text[len(before) :])
        else:
            self._end_line()
            self._print_text(text)
        self._printed[artifact.artifact_id] = text

    def _show_progress(self, parts: list[Part]) -> None:
        """Show text that is held back on a temporary line, if standard error is a terminal."""
        if not sys.stderr.isatty():
            return
        self._end_line()
        click.echo(f"{CLEAR_LINE}… {rendering.shorten(parts, MAX_PROGRESS)}", nl=False, err=True)
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
        click.echo(clean_text(text), nl=False, err=self._is_past)
        self._line_is_open = not text.endswith("\n")

    def _print_parts(self, parts: list[Part]) -> None:
        for part in parts:
            if is_repeated_in_words(part):
                continue
            self._end_line()
            if part.text is not UNSET:
                self._print_text(str(part.text))
                continue
            self._has_answered = True
            if part.data is not UNSET:
                self._print_data(part)
            elif self._raw and part.url is not UNSET:
                click.echo(clean_line(str(part.url)))
            else:
                # With -o raw, a line about a file would be taken for the answer.
                click.echo(rendering.file_line(part), err=self._raw or self._is_past)

    def _print_bytes(self, parts: list[Part]) -> bool:
        """Print the bytes of a file that is the whole answer. Return whether it was."""
        if len(parts) != 1 or parts[0].raw is UNSET or self._has_answered or sys.stdout.isatty():
            return False
        self._has_answered = True
        click.echo(bytes(parts[0].raw), nl=False)
        return True

    def _print_data(self, part: Part) -> None:
        document = encode(part.data)
        if self._raw:
            click.echo(rendering.escape_json(document), err=self._is_past)
        else:
            click.echo(rendering.format_json(document), err=self._is_past)

    def _end_line(self) -> None:
        self._clear_progress()
        if self._line_is_open:
            click.echo(err=self._is_past)
            self._line_is_open = False


def _text_of_object(parts: list[Part]) -> str | None:
    """Return the text of an object whose only field is a text: modules that only return objects answer like this."""
    if len(parts) != 1 or not isinstance(parts[0].data, dict):
        return None
    values = list(parts[0].data.values())
    if len(values) != 1 or not isinstance(values[0], str):
        return None
    return values[0]
