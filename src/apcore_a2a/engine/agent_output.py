"""Checks, completes and copies the events that an agent yields.

Invariant: an event is complete, checked and independent of the agent's objects as soon as it is yielded. Later changes
of those objects have no effect on the task, and an event that is not valid A2A has none at all.

An event is encoded to JSON once, because the log and the store need the JSON anyway. It is decoded again, to a copy
that shares nothing with the agent's objects. Immutable events need no copy, and are not decoded again.
"""

from collections.abc import Callable
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any, Final, TypeVar

from msgspec import json, to_builtins
from msgspec.structs import replace

from apcore_a2a.agent import AgentEvent, Call, Remember
from apcore_a2a.clean_text import clean_line
from apcore_a2a.engine.answer_forms import DATA, DataForm, data_form, with_data_as_text
from apcore_a2a.engine.context import EngineOptions
from apcore_a2a.engine.conversation import common_length
from apcore_a2a.engine.event_log import Folded, LogEntry
from apcore_a2a.errors import A2AError, InvalidAgentResponseError, to_metadata
from apcore_a2a.ids_and_time import new_id, to_utc, utc_now
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.decoding import holds_more_values
from apcore_a2a.protocol.lifecycle import WORKING, fold
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
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

PACKAGE: Final = str(Path(__file__).parents[1])
MAX_CAUSES: Final = 10
MAX_DESCRIBED: Final = 500  # characters of an exception

E = TypeVar("E", bound=Event)
CheckedEvent = tuple[AgentEvent, bytes]  # an event and its 1.0 JSON; a Remember has none, and its memo is JSON itself

# In one event. To encode and decode that many values blocks the event loop for 100 ms, and so does each ListTasks whose
# page has the task.
MAX_VALUES: Final = 500_000
TOO_MANY_VALUES: Final = (
    f"The agent's output has more than {MAX_VALUES} JSON values at once; it should come in pieces, or as a file"
)
NOT_VALID: Final = "The agent's output is not valid A2A"
ANOTHER_TASK: Final = "The agent published an event that is not its task's"
SCOPES: Final = ("task", "conversation")  # of a memo
MEMO_NOT_VALID: Final = "The agent's memo has no JSON form"
UNANSWERED: Final = "The task ended before it was the turn of the messages that waited"
UNANSWERED_KEY: Final = "unansweredMessages"
EMPTY_TEXT: Final = Part(text="")
# How the JSON of an event begins (`v1.encode_event`): the name of the member of a StreamResponse.
_TASK: Final = v1.MEMBERS[Task]
_STATUS: Final = v1.MEMBERS[StatusUpdate]
_DECODE: Final[dict[type, Callable[[bytes], Any]]] = {
    Task: json.Decoder(Task).decode,
    Message: json.Decoder(Message).decode,
    StatusUpdate: json.Decoder(StatusUpdate).decode,
    ArtifactUpdate: json.Decoder(ArtifactUpdate).decode,
}


def check_event(event: AgentEvent, task: Task, data: DataForm = DATA) -> CheckedEvent:
    """Return an event of this task's agent with all fields that the agent may leave out, ready to be folded.

    `data` is the form in which the caller reads data.

    Raises:
        InvalidAgentResponseError: the event is not valid A2A, or belongs to another task.
    """
    try:
        if data is not DATA:
            event = with_data_as_text(event, data)
        if type(event) is ArtifactUpdate:  # not in a function of its own, because this runs for each chunk
            if event.task_id not in ("", task.id):
                raise InvalidAgentResponseError(ANOTHER_TASK)
            artifact = event.artifact
            if len(artifact.parts) > 1 and EMPTY_TEXT in artifact.parts:
                artifact = _without_empty_texts(artifact)
            return detach(replace(event, artifact=artifact, task_id=task.id, context_id=task.context_id))
        if type(event) is StatusUpdate:
            return _complete_status(event, task)
        return _complete_rare_event(event, task)
    except (AttributeError, TypeError, ValueError, RecursionError, OverflowError) as error:  # a value of a wrong type
        raise InvalidAgentResponseError(NOT_VALID) from error


def _complete_status(event: StatusUpdate, task: Task) -> CheckedEvent:
    if event.task_id not in ("", task.id):
        raise InvalidAgentResponseError(ANOTHER_TASK)
    if _says_only_its_state(event):
        return bare_status(event.status.state, task)
    return detach(complete_status(event, task))


def _complete_rare_event(event: Remember | Task | Message, task: Task) -> CheckedEvent:
    match event:
        case Remember():
            if event.scope not in SCOPES:
                raise InvalidAgentResponseError(f"The agent's memo has an unknown scope: {event.scope!r:.40}")
            return Remember(_encode_memo(event.memo), event.scope), b""
        case Task():
            status = complete_status(StatusUpdate(status=event.status), task).status
            event = replace(event, status=status, history=[address_message(said, task) for said in event.history])
        case Message() if not event.message_id:
            event = replace(event, message_id=new_id())
    return detach(event)


def _without_empty_texts(artifact: Artifact) -> Artifact:
    """Return an artifact without its empty texts. One remains if it has nothing else, because a part is required."""
    parts = [part for part in artifact.parts if part != EMPTY_TEXT]
    return replace(artifact, parts=parts or [EMPTY_TEXT])


def detach(event: E) -> tuple[E, bytes]:
    """Return a checked copy of an event, which shares nothing with the original, and its JSON."""
    try:
        body = encode(event)
        if len(body) > MAX_VALUES and holds_more_values(body, MAX_VALUES):
            raise InvalidAgentResponseError(TOO_MANY_VALUES)
        if b"null" in body:  # rare, because unset fields are left out
            _check_numbers(event, "output")
        return _DECODE[type(event)](body), v1.MEMBERS[type(event)] + body + b"}"
    except (TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise InvalidAgentResponseError(NOT_VALID) from error


def _check_numbers(value: Any, name: str) -> None:  # Any: an event or a memo
    """Reject NaN and infinity, which msgspec would encode as null without an error."""
    plain = to_builtins(value, enc_hook=to_plain_text)
    try:
        check_finite(plain)
    except ValueError as error:
        raise InvalidAgentResponseError(
            f"The agent's {name} holds NaN or infinity, which JSON cannot represent"
        ) from error


def _encode_memo(memo: Any) -> bytes:  # Any: what the agent wants to keep
    try:
        body = encode(memo)
        if len(body) > MAX_VALUES and holds_more_values(body, MAX_VALUES):
            raise InvalidAgentResponseError(f"The agent's memo has more than {MAX_VALUES} JSON values")
        if b"null" in body:
            _check_numbers(memo, "memo")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidAgentResponseError(MEMO_NOT_VALID) from error
    return body


class RunOutput:
    """The output of one run of an agent: checks its events, and applies the limits of bytes to them."""

    __slots__ = ("_bytes_left", "_max_bytes", "_max_event", "_memory", "artifacts", "data")

    def __init__(self, call: Call, options: EngineOptions) -> None:
        self.data = DATA
        accepted_modes = call.request.configuration.accepted_output_modes
        if accepted_modes or options.data_as_text:
            self.data = data_form(accepted_modes, as_text=options.data_as_text)
        self.artifacts: dict[str, bool] = {}  # of this run, and whether the last event appended to the artifact
        self._max_event = options.max_event_bytes
        self._max_bytes = options.max_output_bytes
        self._bytes_left = options.max_output_bytes
        self._memory = b""  # of the conversation, as the agent last yielded it

    @property
    def size(self) -> int:
        """Return the number of bytes that the agent has yielded."""
        return self._max_bytes - self._bytes_left

    def check(self, event: AgentEvent, task: Task) -> CheckedEvent:
        """Return a checked event, as `check_event` does, and count it.

        Raises:
            InvalidAgentResponseError: the event is not valid A2A, belongs to another task, or exceeds a limit.
        """
        checked = check_event(event, task, self.data)
        if type(event) is Remember:
            self.count_memo(checked)
            return checked
        size = len(checked[1])
        self._bytes_left -= size
        if size > self._max_event or self._bytes_left < 0:
            raise InvalidAgentResponseError("The agent's output is over its limit of bytes")
        if type(event) is ArtifactUpdate:
            self.artifacts[event.artifact.artifact_id] = event.append
        return checked

    def is_too_large(self, checked: CheckedEvent) -> bool:
        """Return whether an event is larger than an agent may yield at once."""
        return len(checked[1]) > self._max_event

    def count_memo(self, remembered: CheckedEvent) -> None:
        """Apply the limits of an event to a memo. What a memory of the conversation repeats is not written again."""
        event, _ = remembered
        assert type(event) is Remember
        size = len(event.memo)
        written = size
        if event.scope == "conversation":
            written -= common_length(self._memory, event.memo)
            self._memory = event.memo
        self._bytes_left -= written
        if self._bytes_left < 0 or size > self._max_event:
            raise InvalidAgentResponseError("The agent's memo is over its limit of bytes")


# ---- the first events of a task -------------------------------------------------------------------------------------


def begin_task(new: Task, *, working: bool) -> tuple[Task, Folded]:
    """Return a copy of a new task with its first events: the task itself, and the step to WORKING if `working`."""
    task, first = _detach_task(new)
    entry = LogEntry(1, task.status.state, first)
    if not working:
        return task, Folded([entry], [first])
    event, second = bare_status(WORKING, task)
    fold(task, event)
    return task, Folded([entry, LogEntry(2, WORKING, second)], [first, second])


def _detach_task(task: Task) -> tuple[Task, bytes]:
    """Return a copy of a new task, which shares nothing with the agent's objects, and its JSON."""
    if _is_one_text(task):
        # Only its two lists are mutable, so it is copied without decoding (2 µs less).
        return replace(task, history=[*task.history], artifacts=[]), _TASK + encode(task) + b"}"
    return detach(task)


def _is_one_text(task: Task) -> bool:
    """Return whether the task consists of one text message, as most new tasks do."""
    if task.metadata is not None or task.status.message is not None or task.artifacts or len(task.history) != 1:
        return False
    said = task.history[0]
    if said.metadata is not None or len(said.parts) != 1:
        return False
    return type(said.parts[0].text) is str and said.parts[0].metadata is None


def address_message(said: Message, task: Task) -> Message:
    """Return a message of the user or the agent with the ids of its task and context (1.0 §4.1.4)."""
    message_id = said.message_id or new_id()
    return replace(said, task_id=task.id, context_id=task.context_id, message_id=message_id)


def address_reply(reply: Message, task: Task) -> Message:
    """Return a reply without a task, which belongs to the context only."""
    message_id = reply.message_id or new_id()
    addressed, _ = detach(replace(reply, context_id=task.context_id, task_id="", message_id=message_id))
    return addressed


# ---- statuses -----------------------------------------------------------------------------------------------------


def bare_status(state: TaskState, task: Task) -> tuple[StatusUpdate, bytes]:
    """Return a status with nothing but its state. It is immutable, so it is not decoded again (2.5 µs less)."""
    status = TaskStatus(state=state, timestamp=utc_now())
    event = StatusUpdate(status=status, task_id=task.id, context_id=task.context_id)
    return event, _STATUS + encode(event) + b"}"


def _says_only_its_state(event: StatusUpdate) -> bool:
    status = event.status
    if event.metadata is not None or status.message is not None or status.timestamp != "":
        return False
    return type(status.state) is TaskState  # an agent may put anything there, and `detach` rejects it


def complete_status(event: StatusUpdate, task: Task) -> StatusUpdate:
    """Return a status with the ids and the time that an agent may leave out."""
    status = event.status
    if status.message is not None:
        status = replace(status, message=address_message(status.message, task))
    timestamp = to_utc(status.timestamp)
    if timestamp is not status.timestamp:
        status = replace(status, timestamp=timestamp)
    return replace(event, status=status, task_id=task.id, context_id=task.context_id)


def with_unanswered(end: StatusUpdate | Task, message_ids: list[str], task: Task) -> StatusUpdate | Task:
    """Return the end of a task with the ids of the messages that were rejected because their turn did not come."""
    status = end.status
    message = status.message
    if message is None:
        message = Message(message_id=new_id(), role=Role.AGENT, parts=(Part(text=UNANSWERED),))
    message = replace(message, metadata={**(message.metadata or {}), UNANSWERED_KEY: message_ids})
    if isinstance(end, StatusUpdate):
        return complete_status(replace(end, status=replace(status, message=message)), task)
    return replace(end, status=replace(status, message=message))


def status_with_text(state: TaskState, text: str, *, metadata: dict[str, object] | None = None) -> StatusUpdate:
    """Return a status with a message of this text, as if the agent had yielded it."""
    message = Message(message_id=new_id(), role=Role.AGENT, parts=(Part(text=text),), metadata=metadata)
    return StatusUpdate(status=TaskStatus(state=state, message=message))


def failed_status(error: A2AError, *, cause: BaseException | None = None) -> StatusUpdate:
    """Return the last status of a failed task: the error's text, and its type in the metadata (FR-ERR-004 to 008).

    With `cause`, an internal error also names that exception, which otherwise only the log contains.
    """
    metadata = to_metadata(error)
    if cause is not None and "reference" in metadata:
        metadata["exception"] = describe_exception(cause)
    return status_with_text(TaskState.FAILED, error.message, metadata=metadata)


def describe_exception(error: BaseException) -> str:
    """Return an exception of an agent in two lines: its type and text, and the line of the agent's code that raised it.

    A library may have wrapped the exception. The one that the agent's code raised counts.
    """
    for _ in range(MAX_CAUSES):
        if error.__cause__ is None:
            break
        error = error.__cause__
    described = clean_line(f"{type(error).__name__}: {error}", MAX_DESCRIBED)
    place = _find_place(error)
    if place is not None:
        name = Path(place.filename)
        if name.is_relative_to(Path.cwd()):
            name = name.relative_to(Path.cwd())
        described += f"\n{name}:{place.lineno}, in {place.name}: {clean_line(place.line or '', MAX_DESCRIBED)}"
    return described


def _find_place(error: BaseException) -> FrameSummary | None:
    """Return the last frame in code of the agent: below the working directory, or else outside of this package."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(PACKAGE)]
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts:
            return frame
    if not frames:
        return None
    return frames[-1]
