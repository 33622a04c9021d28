"""The forms of an answer for clients that show only a part of it: data as text, and streamed text as a whole.

Invariant: the answer itself is the same in every form. What is added repeats it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from apcore_a2a.agent import AgentEvent
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.lifecycle import INTERRUPTED, REPEATS_ANSWER, StreamFinal, join_texts
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Message,
    Part,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    check_finite,
    encode,
    to_plain_text,
)
from apcore_a2a.protocol.questions import is_repeated_in_words

# ---- data as text ---------------------------------------------------------------------------------------------------

ANY_MODE: Final = frozenset({"*", "*/*", "application/*", "json", "data"})  # clients write these, too, to accept JSON


class DataForm(Enum):
    """The form in which a caller reads the data of an answer."""

    DATA = "data parts"
    TEXT = "text parts instead of data parts"
    BOTH = "data parts, each followed by a text part"


DATA: Final = DataForm.DATA


def data_form(accepted_modes: Iterable[str], *, as_text: bool) -> DataForm:
    """Return the form for a caller that accepts these media types. `as_text` adds text where data is accepted.

    Example:
        >>> data_form(["text/plain"], as_text=False)
        <DataForm.TEXT: 'text parts instead of data parts'>
    """
    accepted = {mode.partition(";")[0].strip().lower() for mode in accepted_modes}
    reads_text = any(mode == "text" or mode.startswith("text/") for mode in accepted)
    reads_data = any(mode in ANY_MODE or mode.endswith(("/json", "+json")) for mode in accepted)
    if reads_text and not reads_data:
        return DataForm.TEXT
    if as_text:
        return DataForm.BOTH
    return DataForm.DATA


def with_data_as_text(event: AgentEvent, form: DataForm) -> AgentEvent:
    """Return an event with its data in this form.

    Raises:
        ValueError: the data holds NaN or infinity.
        AttributeError, TypeError: the event is not valid, or the data has no JSON form.
    """
    match event:
        case ArtifactUpdate():
            return replace(event, artifact=_convert_artifact(event.artifact, form))
        case Message():
            return _convert_message(event, form)
        case StatusUpdate():
            return replace(event, status=_convert_status(event.status, form))
        case Task():
            artifacts = [_convert_artifact(artifact, form) for artifact in event.artifacts]
            return replace(event, status=_convert_status(event.status, form), artifacts=artifacts)
    return event


def _convert_status(status: TaskStatus, form: DataForm) -> TaskStatus:
    if status.message is None:
        return status
    return replace(status, message=_convert_message(status.message, form))


def _convert_message(message: Message, form: DataForm) -> Message:
    return replace(message, parts=tuple(_convert_parts(message.parts, form)))


def _convert_artifact(artifact: Artifact, form: DataForm) -> Artifact:
    return replace(artifact, parts=_convert_parts(artifact.parts, form))


def _convert_parts(parts: Sequence[Part], form: DataForm) -> list[Part]:
    converted: list[Part] = []
    for part in parts:
        if part.data is UNSET:
            converted.append(part)
            continue
        if is_repeated_in_words(part):  # it needs no text of its own
            if form is DataForm.BOTH:
                converted.append(part)
            continue
        if form is DataForm.BOTH:
            converted.append(part)
        converted.append(Part(text=_text_of_data(part.data), metadata=part.metadata))
    return converted or [*parts]


def _text_of_data(data: Any) -> str:
    """Return data as text: a text as it is, anything else as compact JSON."""
    if isinstance(data, str):
        return data
    body = encode(data)
    if b"null" in body:
        check_finite(to_builtins(data, enc_hook=to_plain_text))
    return body.decode()


# ---- streamed text --------------------------------------------------------------------------------------------------

ENDS_TEXTS: Final = frozenset({TaskState.COMPLETED}) | INTERRUPTED
"""The states after which a client shows the texts that it has received."""


def repeat_texts(
    end: AgentEvent, task: Task, in_pieces: Mapping[str, bool], *, final: StreamFinal
) -> Iterator[AgentEvent]:
    """Yield the events that repeat the texts of a run, and replace its last status.

    `in_pieces` has the artifacts of the run, and whether the last event of each appended to it. The pieces of its texts
    are folded into the task.
    """
    join_texts(task)
    if final == "status":
        if isinstance(end, StatusUpdate) and end.status.state is TaskState.COMPLETED and end.status.message is None:
            texts = [artifact.text for artifact in task.artifacts if artifact.artifact_id in in_pieces]
            text = "\n".join(text for text in texts if text)
            if text:
                yield _with_answer(end, text)
        return
    for artifact in task.artifacts:
        has_only_text = all(type(part.text) is str for part in artifact.parts)
        if in_pieces.get(artifact.artifact_id) and has_only_text:
            yield ArtifactUpdate(artifact=artifact, last_chunk=True)


def _with_answer(end: StatusUpdate, text: str) -> StatusUpdate:
    message = Message(message_id=new_id(), role=Role.AGENT, parts=(Part(text=text),), metadata={REPEATS_ANSWER: True})
    return replace(end, status=replace(end.status, message=message))
