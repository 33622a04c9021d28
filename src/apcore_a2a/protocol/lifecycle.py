"""The lifecycle of a task: the allowed state transitions, and how an event changes a task.

    SUBMITTED ──► WORKING ◄──► INPUT_REQUIRED · AUTH_REQUIRED               INTERRUPTED: it waits for the user
                     └───────► COMPLETED · FAILED · CANCELED · REJECTED     TERMINAL: it has ended

SUBMITTED, INPUT_REQUIRED and AUTH_REQUIRED may also become FAILED or CANCELED without WORKING before it, and SUBMITTED
also REJECTED. A task that is INTERRUPTED or TERMINAL is *at rest*: it does not change by itself.

A task is the sum of its events. `fold` adds one. The engine folds the events of an agent into the live task before it
stores and sends them. A store that rebuilds a task folds its stored events in the same way.

A text that an event appends to a text continues it: the stored task has one part for both, and the events keep their
pieces. `fold` only notes where a piece belongs, and `join_texts` joins all pieces when the task is encoded or copied.

Invariant: all decisions about states are here, as data. The cost of `fold` depends on the event, not on the task.
"""

from typing import Final, Literal, assert_never

from msgspec.structs import replace

from apcore_a2a.errors import InvalidAgentResponseError, InvalidStateTransitionError
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Document,
    Event,
    Message,
    Metadata,
    Part,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    encode,
)

# The states that every message reads, as module constants (STYLE.md, "Plain code").
SUBMITTED: Final = TaskState.SUBMITTED
WORKING: Final = TaskState.WORKING
AUTH_REQUIRED: Final = TaskState.AUTH_REQUIRED
COMPLETED: Final = TaskState.COMPLETED

TERMINAL: Final = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED})
INTERRUPTED: Final = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})
AT_REST: Final = TERMINAL | INTERRUPTED

STATE_TRANSITIONS: Final = "apcore.stateTransitions"
CALLER: Final = "apcore.caller"
"""The key in a task's metadata for its past states, the oldest first, if they are recorded."""
MAX_TRANSITIONS: Final = 100  # the latest ones are kept
PROGRESS: Final = "apcore.progress"
"""The key in the metadata of a progress message: the fraction that is done, or null. An answer does not have it."""

StreamFinal = Literal["append", "replace", "status"]
"""How a text that was sent in pieces ends: with its last piece, with one more event that replaces it by the whole text,
or with the whole text in the last status as well. Clients differ in what they show."""
REPEATS_ANSWER: Final = "apcore.repeatsAnswer"
"""The key in the metadata of a last status message that only repeats the text of the artifacts."""

_S: Final = TaskState  # a short name for the table
TRANSITIONS: Final[dict[TaskState, frozenset[TaskState]]] = {
    _S.UNSPECIFIED: frozenset(),  # only tasks of remote agents may have it
    # A state may follow itself when an agent reports progress: the message changes, and the state does not.
    _S.SUBMITTED: frozenset({_S.SUBMITTED, _S.WORKING, _S.CANCELED, _S.FAILED, _S.REJECTED}),
    _S.WORKING: frozenset({_S.WORKING} | TERMINAL | INTERRUPTED),
    _S.INPUT_REQUIRED: frozenset({_S.WORKING, _S.CANCELED, _S.FAILED}),
    _S.AUTH_REQUIRED: frozenset({_S.WORKING, _S.CANCELED, _S.FAILED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELED: frozenset(),
    _S.REJECTED: frozenset(),
}


def skips_working(old: TaskState, new: TaskState) -> bool:
    """Whether `new` may follow `old` only after WORKING. Agents may omit that step, but the event log contains it."""
    if new in TRANSITIONS[old]:
        return False
    return TaskState.WORKING in TRANSITIONS[old] and new in TRANSITIONS[TaskState.WORKING]


def repeats_state(event: StatusUpdate | Task, state: TaskState) -> bool:
    """Return whether an event only repeats the present state. Such an event is neither stored nor published."""
    if type(event) is not StatusUpdate or event.status.state is not state:
        return False
    return event.status.message is None and not event.metadata


def adds_nothing(update: ArtifactUpdate, task: Task) -> bool:
    """Return whether an artifact update has no content but empty text. Such an event is neither stored nor published.

    Clients show an empty part, and some take it for the whole answer. An event is kept if it carries anything else: a
    name or metadata of the artifact, or the fact that the artifact is empty now.
    """
    new = update.artifact
    for part in new.parts:
        if part.text != "" or part.metadata is not None or part.filename:
            return False
    if new.name or new.description or new.extensions or new.metadata is not None or update.metadata is not None:
        return False
    return update.append or all(artifact.artifact_id != new.artifact_id for artifact in task.artifacts)


def fold(task: Task, event: Event) -> Event:
    """Apply one event to the task in place. Return the event as applied (`append` is false on a first chunk).

    Raises:
        InvalidStateTransitionError: the state of the task does not allow the event. The task is unchanged.
        InvalidAgentResponseError: the event is a `Task` with another id or context id. The task is unchanged.
    """
    if type(event) is ArtifactUpdate:
        return _extend(task, event)
    if type(event) is StatusUpdate:
        _check(task, event.status.state)
        # The new status replaces the old one. The message of the old status moves to the history, unless it only
        # reported progress, which is outdated now.
        message = task.status.message
        if message is not None and not is_progress(message):
            task.history.append(message)
        before = task.status
        task.status = event.status
        if event.status.message is not None and repeats_answer(event.status.message):
            task.history.append(event.status.message)  # some clients read only the messages of the history
        if event.metadata:
            task.metadata = _merge(task.metadata, event.metadata)
        if task.metadata is not None:  # nearly always None
            _note_transition(task.metadata, before, event.status)
    elif type(event) is Message:
        # A message changes no state, so the table has no entry for it. But a task that has ended accepts none.
        if task.status.state in TERMINAL:
            raise InvalidStateTransitionError(task.status.state, "message")
        task.history.append(event)
    elif type(event) is Task:
        _replace(task, event)
    else:
        assert_never(event)
    return event


def is_progress(message: Message) -> bool:
    """Whether a message only reports progress."""
    return message.metadata is not None and PROGRESS in message.metadata


def repeats_answer(message: Message) -> bool:
    """Whether a status message only repeats the text of the artifacts."""
    return message.metadata is not None and REPEATS_ANSWER in message.metadata


def _check(task: Task, state: TaskState) -> None:
    if state not in TRANSITIONS[task.status.state]:
        raise InvalidStateTransitionError(task.status.state, state)


def keep_transitions(old: Task, new: Task) -> Task:
    """Return the task that replaces another one, with the past states that the old one has recorded."""
    if old.metadata is not None and STATE_TRANSITIONS in old.metadata:
        kept: Metadata = {name: old.metadata[name] for name in (STATE_TRANSITIONS, CALLER) if name in old.metadata}
        new.metadata = {**(new.metadata or {}), **kept}
    return new


def _note_transition(metadata: Metadata, before: TaskStatus, after: TaskStatus) -> None:
    """Record the state that a task leaves, if it has a list for that. The list exists from the start or never."""
    passed = metadata.get(STATE_TRANSITIONS)
    if not isinstance(passed, list) or before.state is after.state:
        return
    # In the spelling of 0.3, the version that has a capability for this.
    left = {"state": before.state.word, "timestamp": before.timestamp}
    metadata[STATE_TRANSITIONS] = [*passed[1 - MAX_TRANSITIONS :], left]  # a new list: a snapshot may share the old one


def _extend(task: Task, update: ArtifactUpdate) -> ArtifactUpdate:
    if task.status.state in TERMINAL:
        raise InvalidStateTransitionError(task.status.state, "artifact update")
    new = update.artifact
    artifacts = task.artifacts
    index = _position(task, new.artifact_id)
    if index == len(artifacts):
        artifacts.append(_own(new))
        if not update.append:
            return update
        # A client may reject an event that appends to an unknown artifact.
        return replace(update, append=False)
    if not update.append:
        artifacts[index] = _own(new)
        vars(task).get("pieces", {}).pop(index, None)
        return update
    old = artifacts[index]
    if new.parts and type(new.parts[0].text) is str:
        task.pieces.setdefault(index, []).append(len(old.parts))  # `join_texts` finds out whether it continues a text
    old.parts.extend(new.parts)  # its list is mutable, so the thousandth chunk costs as much as the first
    if new.metadata:
        artifacts[index] = replace(old, metadata=_merge(old.metadata, new.metadata))
    return update


def join_texts(task: Task) -> Task:
    """Join the pieces of each text into one part, in place, and return the task.

    It costs about as much as to encode the pieces, and is done before the task is encoded or copied. Without new
    pieces it costs nothing.
    """
    if "pieces" not in vars(task):  # `pieces` is created on demand
        return task
    for index, places in task.pieces.items():
        parts = task.artifacts[index].parts
        parts[:] = _joined(parts, set(places))
    task.pieces.clear()
    return task


def _joined(parts: list[Part], pieces: set[int]) -> list[Part]:
    """Return the parts with the texts at these places joined to the texts before them."""
    joined: list[Part] = []
    texts: list[str] = []  # of the last part in `joined`, and of the pieces that continue it
    for place, part in enumerate(parts):
        text = part.text
        if place in pieces and texts and type(text) is str:
            first = joined[-1]
            is_plain = first.metadata is None and part.metadata is None and not first.filename and not part.filename
            if is_plain and first.media_type == part.media_type:
                texts.append(text)
                continue
        _close_text(joined, texts)
        joined.append(part)
        texts = [text] if type(text) is str else []
    _close_text(joined, texts)
    return joined


def _close_text(joined: list[Part], texts: list[str]) -> None:
    """Give the last part the text of its pieces, if it has more than its own."""
    if len(texts) > 1:
        joined[-1] = replace(joined[-1], text="".join(texts))


def _position(task: Task, artifact_id: str) -> int:
    """Return the index of an artifact. A new artifact gets the next index, under which it has to be appended."""
    last = len(task.artifacts) - 1
    if last < 0 or task.artifacts[last].artifact_id == artifact_id:
        return max(last, 0)  # so `positions` is not built for a task with one artifact, which is the usual case
    return task.positions.setdefault(artifact_id, last + 1)


def _merge(old: Metadata | None, new: Metadata) -> Metadata:
    if old is None:
        return dict(new)
    old.update(new)  # in place, so that the cost does not grow with the metadata
    return old


def _own(artifact: Artifact) -> Artifact:
    # A copy, because the event keeps its own list and metadata.
    return replace(artifact, parts=list(artifact.parts), metadata=_copied(artifact.metadata))


def _copied(metadata: Metadata | None) -> Metadata | None:
    if metadata is None:
        return None
    return dict(metadata)


def _replace(task: Task, new: Task) -> None:
    if new.id != task.id or new.context_id != task.context_id:
        raise InvalidAgentResponseError("The agent published a task that is not its own")
    _check(task, new.status.state)
    before = task.status
    kept = keep_transitions(task, copy(new))
    task.status = kept.status
    task.artifacts = kept.artifacts
    task.history = kept.history
    task.metadata = kept.metadata
    if task.metadata is not None:
        _note_transition(task.metadata, before, task.status)
    for cached in ("positions", "pieces"):  # they belong to the old artifacts
        vars(task).pop(cached, None)


def document_of(task: Task, *, parsed: Task | None = None) -> Document:
    """Return the task, with its texts joined, as a document. It refers to `parsed`, which does not change later."""
    return Document(encode(join_texts(task)), parsed)


def copy(task: Task) -> Task:
    """Return a snapshot that later folds do not change. Its texts are joined, and so are those of the task."""
    join_texts(task)
    return replace(
        task,
        artifacts=[_own(artifact) for artifact in task.artifacts],
        history=list(task.history),
        metadata=_copied(task.metadata),
    )
