"""What an agent yields, made fit to be kept.

Rule: an event is complete, checked and out of the agent's reach where it is yielded; what happens to it later cannot
change, and what is not valid A2A changes nothing.
"""

from typing import Any, Final, TypeVar

from msgspec import json
from msgspec.structs import replace

from apcore_a2a.agent import AgentEvent, Remember
from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Event,
    Message,
    Part,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    encode,
)
from apcore_a2a.server.stamps import new_id, utc_now

E = TypeVar("E", bound=Event)
Kept = tuple[AgentEvent, bytes]  # an event and its 1.0 JSON; a Remember has none, and its memo is JSON itself

WORKING: Final = StatusUpdate(status=TaskStatus(state=TaskState.WORKING))

_DECODERS: Final[dict[type, json.Decoder[Any]]] = {
    kind: json.Decoder(kind) for kind in (Task, Message, StatusUpdate, ArtifactUpdate)
}


def keep(event: AgentEvent, task: Task) -> Kept:
    """An event of this task's agent, to be folded when its turn comes."""
    if isinstance(event, Remember):
        return Remember(encode(event.memo)), b""
    if isinstance(event, StatusUpdate | ArtifactUpdate):
        event = complete(event, task)
    elif isinstance(event, Task) and not event.status.timestamp:
        event = replace(event, status=replace(event.status, timestamp=utc_now()))
    elif isinstance(event, Message) and not event.message_id:
        event = replace(event, message_id=new_id())
    return taken(event)


def complete(event: StatusUpdate | ArtifactUpdate, task: Task) -> StatusUpdate | ArtifactUpdate:
    """Fill in what an agent may leave out: ids and times."""
    if event.task_id not in ("", task.id):
        raise InvalidAgentResponseError("The agent published an event that is not its task's")
    if isinstance(event, ArtifactUpdate):
        return replace(event, task_id=task.id, context_id=task.context_id)
    status = event.status
    if not status.timestamp or (status.message and not status.message.task_id):
        status = replace(status, timestamp=status.timestamp or utc_now(), message=_owned(status.message, task))
    return replace(event, status=status, task_id=task.id, context_id=task.context_id)


def _owned(message: Message | None, task: Task) -> Message | None:
    if message is None or message.task_id:
        return message
    return replace(message, task_id=task.id, context_id=task.context_id, message_id=message.message_id or new_id())


def taken(event: E) -> tuple[E, bytes]:
    """An event as its JSON says it: checked, and shared with nobody who could still change it."""
    try:
        body = v1.encode_event(event)
        inner = memoryview(body)[body.index(b":") + 1 : -1]  # without the member's name around it
        return _DECODERS[type(event)].decode(inner), body
    except (TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise InvalidAgentResponseError("The agent's output is not valid A2A") from error


def says_nothing(event: Event) -> bool:
    """Whether an agent only repeats that it works."""
    return (
        isinstance(event, StatusUpdate)
        and event.status.state is TaskState.WORKING
        and event.status.message is None
        and not event.metadata
    )


def says(text: str, **metadata: object) -> Message:
    """A message of the agent with one text; the task it belongs to is filled in when it is kept."""
    return Message(message_id=new_id(), role=Role.AGENT, parts=(Part(text=text),), metadata=metadata or None)
