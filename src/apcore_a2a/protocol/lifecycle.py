"""The life of a task: which state may follow which, and how an event changes a task.

    SUBMITTED ──► WORKING ◄──► INPUT_REQUIRED · AUTH_REQUIRED               INTERRUPTED: it waits for its user
                     └───────► COMPLETED · FAILED · CANCELED · REJECTED     TERMINAL: it has ended

Without WORKING before it, each of the first four may become FAILED or CANCELED, and SUBMITTED also REJECTED. A task
that is INTERRUPTED or TERMINAL is *at rest*: nothing happens to it by itself.

A task is the sum of its events. `fold` adds one: the engine folds what an agent yields into the live task before the
event is stored and sent, and a store that has to rebuild a task folds its kept events in the same way.

Rule: everything that decides about states is here, as data. `fold` costs the size of the event, never of the task.
"""

from typing import Final, assert_never

from msgspec.structs import replace

from apcore_a2a.errors import InvalidAgentResponseError, InvalidStateTransitionError
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Metadata,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)

TERMINAL: Final = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED})
INTERRUPTED: Final = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})
AT_REST: Final = TERMINAL | INTERRUPTED

STATE_TRANSITIONS: Final = "apcore.stateTransitions"
"""Where the metadata of a task holds the states it has passed through, the oldest first, if it records them."""
MAX_TRANSITIONS: Final = 100  # of the latest
PROGRESS: Final = "apcore.progress"
"""In the metadata of a message that says how far a task is: the share that is done, or null. It is no answer."""

_S: Final = TaskState  # short, for the table
TRANSITIONS: Final[dict[TaskState, frozenset[TaskState]]] = {
    _S.UNSPECIFIED: frozenset(),  # no task of ours is in it; a remote agent's may be
    # A state may follow itself where an agent reports progress: its message changes, its state does not.
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
    """Whether `new` may follow `old` only by way of WORKING: agents may leave that step out, the record does not."""
    if new in TRANSITIONS[old]:
        return False
    return TaskState.WORKING in TRANSITIONS[old] and new in TRANSITIONS[TaskState.WORKING]


def fold(task: Task, event: Event) -> Event:
    """Apply one event to the task, in place; answer the event as applied (`append` is false on a first chunk).

    Raises:
        InvalidStateTransitionError: the event may not follow the task's state; the task is unchanged.
        InvalidAgentResponseError: the event is a task that is not this one.
    """
    match event:
        case StatusUpdate():
            _check(task, event.status.state)
            # What a status said would be lost with the next one: the history keeps it, unless it is out of date then.
            said = task.status.message
            if said is not None and not is_progress(said):
                task.history.append(said)
            before = task.status
            task.status = event.status
            if event.metadata:
                task.metadata = _merge(task.metadata, event.metadata)
            if task.metadata is not None:  # nearly always it is None, and costs nothing more
                _note_transition(task.metadata, before, event.status)
        case ArtifactUpdate():
            return _extend(task, event)
        case Message():
            # A message changes no state, so the table says nothing about it; but nothing is added after the end.
            if task.status.state in TERMINAL:
                raise InvalidStateTransitionError(task.status.state, "message")
            task.history.append(event)
        case Task():
            _replace(task, event)
        case _:
            assert_never(event)
    return event


def is_progress(message: Message) -> bool:
    """Whether a message only says how far a task is."""
    return message.metadata is not None and PROGRESS in message.metadata


def _check(task: Task, state: TaskState) -> None:
    if state not in TRANSITIONS[task.status.state]:
        raise InvalidStateTransitionError(task.status.state, state)


def keep_transitions(old: Task, new: Task) -> Task:
    """A task that takes another one's place: the states it has passed through stay those that were recorded."""
    if old.metadata is not None and STATE_TRANSITIONS in old.metadata:
        new.metadata = {**(new.metadata or {}), STATE_TRANSITIONS: old.metadata[STATE_TRANSITIONS]}
    return new


def _note_transition(metadata: Metadata, before: TaskStatus, after: TaskStatus) -> None:
    """Record the state that a task leaves, if it has a list for that: it is there from the start, or never."""
    passed = metadata.get(STATE_TRANSITIONS)
    if not isinstance(passed, list) or before.state is after.state:
        return
    # The words of 0.3: it is the version that has a capability for this.
    left = {"state": before.state.word, "timestamp": before.timestamp}
    metadata[STATE_TRANSITIONS] = [*passed[1 - MAX_TRANSITIONS :], left]  # a new list: a snapshot may have the old one


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
        # A client that is told to append to an artifact it has never seen may refuse the event.
        return replace(update, append=False)
    if not update.append:
        artifacts[index] = _own(new)
        return update
    old = artifacts[index]
    old.parts.extend(new.parts)  # frozen, but its list is not: the thousandth chunk costs what the first did
    if new.metadata:
        artifacts[index] = replace(old, metadata=_merge(old.metadata, new.metadata))
    return update


def _position(task: Task, artifact_id: str) -> int:
    """Where an artifact is, or is to be: mostly it is the last one, or the first; else a table knows."""
    last = len(task.artifacts) - 1
    if last < 0 or task.artifacts[last].artifact_id == artifact_id:
        return max(last, 0)  # without the table: a task with one artifact, as most have, never makes it
    return task.positions.setdefault(artifact_id, last + 1)


def _merge(old: Metadata | None, new: Metadata) -> Metadata:
    if old is None:
        return dict(new)
    old.update(new)  # in place: what is there already is not copied again with each event
    return old


def _own(artifact: Artifact) -> Artifact:
    # The event keeps its own list and its own metadata.
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
    vars(task).pop("positions", None)  # the cached table is that of the old artifacts


def copy(task: Task) -> Task:
    """A snapshot that later folds do not change."""
    return replace(
        task,
        artifacts=[_own(artifact) for artifact in task.artifacts],
        history=list(task.history),
        metadata=_copied(task.metadata),
    )
