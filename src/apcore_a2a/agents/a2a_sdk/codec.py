"""Converts the model to the protobuf messages of a2a-sdk 1.x, and back.

Invariant: each field is converted explicitly. protobuf's own JSON costs several times as much, and turns 1 into 1.0.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC
from typing import Any, Final

import msgspec
from a2a.server.events import EventQueue
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import UNSET

from apcore_a2a.agents import executors
from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol import model
from apcore_a2a.protocol.model import Role, TaskState

# ---- values ---------------------------------------------------------------------------------------------------------
# Converts JSON values and times to protobuf's well-known types, and back.
#
# Invariant: no number is rounded. `Struct` and `Value` hold doubles only: an integer up to ±2^53 is restored as an
# integer, and a number that no double can hold is rejected.

EXACT: Final = 2**53  # beyond it, doubles skip whole numbers


def to_struct(data: dict[str, Any] | None) -> Struct | None:
    if data is None:
        return None
    return Struct(fields={name: to_value(item) for name, item in data.items()})


def to_value(data: Any) -> Value:
    match data:
        case None:
            return Value(null_value=0)  # type: ignore[arg-type]  # the stubs do not name the value of the enum
        case bool():  # before int, because a bool is an int
            return Value(bool_value=data)
        case str():
            return Value(string_value=data)
        case float():
            return Value(number_value=data)
        case int():
            return Value(number_value=_to_double(data))
        case dict():
            return Value(struct_value=to_struct(data))
        case list() | tuple():
            return Value(list_value=ListValue(values=map(to_value, data)))
        case _:
            return to_value(msgspec.to_builtins(data))  # types that msgspec converts: times, dataclasses


def _to_double(number: int) -> float:
    with suppress(OverflowError):
        if int(float(number)) == number:
            return float(number)
    raise ValueError("protobuf holds whole numbers exactly up to 2^53 only: send a larger one as a string")


def to_time(text: str) -> Timestamp | None:
    if not text:
        return None
    moment = Timestamp()
    moment.FromJsonString(text)
    return moment


def from_time(moment: Timestamp) -> str:
    text = moment.ToDatetime(tzinfo=UTC).isoformat(timespec="milliseconds")  # A2A 1.0 §5.6.1
    return text.replace("+00:00", "Z")


def from_struct(struct: Struct) -> dict[str, Any]:
    return {name: from_value(value) for name, value in struct.fields.items()}


def _from_double(number: float) -> int | float:
    """Return an integer for 1.0. JSON does not distinguish 1 from 1.0, but Python and some validators do."""
    if number.is_integer() and abs(number) <= EXACT:
        return int(number)
    return number


def from_value(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            return _from_double(value.number_value)
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [from_value(item) for item in value.list_value.values]
        case _:  # null, or no value
            return None


# ---- codec ----------------------------------------------------------------------------------------------------------

ProtoEvent = pb.Message | pb.Task | pb.TaskStatusUpdateEvent | pb.TaskArtifactUpdateEvent

ERRORS: Final[tuple[type[Exception], ...]] = (A2AError,)

_STATES: Final = {number: TaskState(name) for name, number in pb.TaskState.items()}
_ROLES: Final = {pb.Role.ROLE_USER: Role.USER, pb.Role.ROLE_AGENT: Role.AGENT}


def error_text(error: A2AError) -> str:
    return error.message


class _EventQueue(EventQueue):
    """The queue to which the executor publishes. The interface in a2a-sdk has this single method."""

    def __init__(self, queue: executors.EventQueue) -> None:
        self._queue = queue

    async def enqueue_event(self, event: ProtoEvent) -> None:
        await self._queue.enqueue_event(from_event(event))


def make_queue(queue: executors.EventQueue) -> EventQueue:
    return _EventQueue(queue)


# ---- to protobuf: each function raises ValueError for a number that protobuf cannot hold -----------------------------


def to_request(request: model.SendMessage) -> pb.SendMessageRequest:
    given = request.configuration
    push_config = None
    if given.task_push_notification_config is not None:
        push_config = to_push_config(given.task_push_notification_config)
    configuration = pb.SendMessageConfiguration(
        accepted_output_modes=given.accepted_output_modes,
        task_push_notification_config=push_config,
        history_length=given.history_length,
        return_immediately=given.return_immediately,
    )
    return pb.SendMessageRequest(
        tenant=request.tenant,
        message=to_message(request.message),
        configuration=configuration,
        metadata=to_struct(request.metadata),
    )


def to_push_config(config: model.PushConfig) -> pb.TaskPushNotificationConfig:
    authentication = None
    if config.authentication is not None:
        authentication = pb.AuthenticationInfo(
            scheme=config.authentication.scheme, credentials=config.authentication.credentials
        )
    return pb.TaskPushNotificationConfig(
        tenant=config.tenant,
        id=config.id,
        task_id=config.task_id,
        url=config.url,
        token=config.token,
        authentication=authentication,
    )


def to_task(task: model.Task) -> pb.Task:
    return pb.Task(
        id=task.id,
        context_id=task.context_id,
        status=_to_status(task.status),
        artifacts=map(_to_artifact, task.artifacts),
        history=map(to_message, task.history),
        metadata=to_struct(task.metadata),
    )


def to_message(message: model.Message) -> pb.Message:
    return pb.Message(
        message_id=message.message_id,
        context_id=message.context_id,
        task_id=message.task_id,
        role=message.role.value,
        parts=map(_to_part, message.parts),
        metadata=to_struct(message.metadata),
        extensions=message.extensions,
        reference_task_ids=message.reference_task_ids,
    )


def _to_status(status: model.TaskStatus) -> pb.TaskStatus:
    message = None
    if status.message is not None:
        message = to_message(status.message)
    return pb.TaskStatus(state=status.state.value, message=message, timestamp=to_time(status.timestamp))


def _to_artifact(artifact: model.Artifact) -> pb.Artifact:
    return pb.Artifact(
        artifact_id=artifact.artifact_id,
        name=artifact.name,
        description=artifact.description,
        parts=map(_to_part, artifact.parts),
        metadata=to_struct(artifact.metadata),
        extensions=artifact.extensions,
    )


def _to_part(part: model.Part) -> pb.Part:
    content: dict[str, Any] = {}  # exactly one of four, a oneof in protobuf
    if part.text is not UNSET:
        content["text"] = part.text
    elif part.raw is not UNSET:
        content["raw"] = part.raw
    elif part.url is not UNSET:
        content["url"] = part.url
    elif part.data is not UNSET:
        content["data"] = to_value(part.data)
    return pb.Part(**content, metadata=to_struct(part.metadata), filename=part.filename, media_type=part.media_type)


# ---- from protobuf: each function raises InvalidAgentResponseError for values without a form in the model ------------


def from_event(event: ProtoEvent) -> model.Event:
    """Return a copy of an event that an executor published. Later changes by the executor have no effect on it."""
    decode = _FROM_EVENT.get(type(event))
    if decode is None:
        raise InvalidAgentResponseError(f"The agent published a {type(event).__name__}, which is not an event")
    return decode(event)


def from_task(task: pb.Task) -> model.Task:
    return model.Task(
        id=task.id,
        context_id=task.context_id,
        status=_from_status(task.status),
        artifacts=[_from_artifact(artifact) for artifact in task.artifacts],
        history=[from_message(message) for message in task.history],
        metadata=_from_metadata(task),
    )


def from_message(message: pb.Message) -> model.Message:
    return model.Message(
        message_id=message.message_id,
        role=_ROLES.get(message.role, Role.AGENT),  # without a role the executor speaks as the agent
        parts=tuple(_from_parts(message.parts)),
        context_id=message.context_id,
        task_id=message.task_id,
        metadata=_from_metadata(message),
        extensions=tuple(message.extensions),
        reference_task_ids=tuple(message.reference_task_ids),
    )


def _from_status_update(update: pb.TaskStatusUpdateEvent) -> model.StatusUpdate:
    return model.StatusUpdate(
        task_id=update.task_id,
        context_id=update.context_id,
        status=_from_status(update.status),
        metadata=_from_metadata(update),
    )


def _from_artifact_update(update: pb.TaskArtifactUpdateEvent) -> model.ArtifactUpdate:
    return model.ArtifactUpdate(
        task_id=update.task_id,
        context_id=update.context_id,
        artifact=_from_artifact(update.artifact),
        append=update.append,
        last_chunk=update.last_chunk,
        metadata=_from_metadata(update),
    )


def _from_status(status: pb.TaskStatus) -> model.TaskStatus:
    message = None
    if status.HasField("message"):  # an unset message field reads as an empty message
        message = from_message(status.message)
    timestamp = ""
    if status.HasField("timestamp"):
        timestamp = from_time(status.timestamp)
    state = _STATES.get(status.state, TaskState.UNSPECIFIED)  # protobuf accepts numbers outside the enum
    return model.TaskStatus(state=state, message=message, timestamp=timestamp)


def _from_artifact(artifact: pb.Artifact) -> model.Artifact:
    return model.Artifact(
        artifact_id=artifact.artifact_id,
        parts=_from_parts(artifact.parts),
        name=artifact.name,
        description=artifact.description,
        metadata=_from_metadata(artifact),
        extensions=tuple(artifact.extensions),
    )


def _from_parts(parts: Iterable[pb.Part]) -> list[model.Part]:
    return [_from_part(part) for part in parts]


def _from_part(part: pb.Part) -> model.Part:
    kind = part.WhichOneof("content")
    if kind is None:
        raise InvalidAgentResponseError("The agent published a part without content")
    content = getattr(part, kind)
    if kind == "data":
        content = from_value(content)
    return model.Part(
        **{kind: content},
        metadata=_from_metadata(part),
        filename=part.filename,
        media_type=part.media_type,
    )


def _from_metadata(owner: Any) -> model.Metadata | None:  # Any: every message type with metadata
    if not owner.HasField("metadata"):
        return None
    return from_struct(owner.metadata)


_FROM_EVENT: Final[dict[type, Callable[[Any], model.Event]]] = {
    pb.Task: from_task,
    pb.Message: from_message,
    pb.TaskStatusUpdateEvent: _from_status_update,
    pb.TaskArtifactUpdateEvent: _from_artifact_update,
}
