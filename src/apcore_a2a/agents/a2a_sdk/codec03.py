"""Converts the model to the types of a2a-sdk 0.3.x, and back, through the JSON of A2A 0.3.

Invariant: names of a2a-sdk are read from its modules as `Any`, because mypy would look for them in the installed 1.x.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from a2a import types
from a2a.server import events
from a2a.utils import errors

from apcore_a2a.agents import executors
from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol import model
from apcore_a2a.protocol.v03 import values

_TYPES: Any = types
_EVENTS: Any = events
_ERRORS: Any = errors

ERRORS: Final[tuple[type[Exception], ...]] = (_ERRORS.ServerError,)


def _to_json(value: model.SendMessage | model.Task) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(model.encode(value))
    return made


def to_request(request: model.SendMessage) -> Any:
    made = _to_json(request)
    made.pop("tenant", None)  # 0.3 has no tenants
    return _TYPES.MessageSendParams.model_validate(values.send(made))


def to_task(task: model.Task) -> Any:
    return _TYPES.Task.model_validate(values.task(_to_json(task)))


_FROM_EVENT: Final[dict[str, tuple[Any, Callable[[Any], model.Event]]]] = {
    "task": (values.WireTask, values.to_task),
    "message": (values.WireMessage, values.to_message),
    "status-update": (values.WireStatusUpdate, values.to_status_update),
    "artifact-update": (values.WireArtifactUpdate, values.to_artifact_update),
}


def from_event(event: Any) -> model.Event:
    """Return a copy of an event that an executor published. Later changes by the executor have no effect on it."""
    kind = getattr(event, "kind", None)
    if kind not in _FROM_EVENT:
        raise InvalidAgentResponseError(f"The agent published a {type(event).__name__}, which is not an event")
    wire, to_event = _FROM_EVENT[kind]
    body = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    try:
        return to_event(msgspec.convert(body, wire))
    except msgspec.ValidationError as error:
        text = f"The agent published an invalid {type(event).__name__}: {error}"
        raise InvalidAgentResponseError(text) from error


def error_text(error: Any) -> str:
    wrapped = error.error  # the error of the protocol, or None
    return str(getattr(wrapped, "message", None) or "Internal error")


class _EventQueue03(_EVENTS.EventQueue):  # type: ignore[misc]  # the class is Any
    """The queue to which the executor publishes. The other methods of a 0.3 queue are for its server."""

    def __init__(self, queue: executors.EventQueue) -> None:
        super().__init__()
        self._ours = queue

    async def enqueue_event(self, event: Any) -> None:
        await self._ours.enqueue_event(from_event(event))


def make_queue(queue: executors.EventQueue) -> Any:
    return _EventQueue03(queue)
