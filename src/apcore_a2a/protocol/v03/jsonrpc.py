"""A2A 0.3 on the wire, and the requirements' dialect of it on input.

Rule: input is read with tolerance (`v03_decode`, `v03_requests`), output is official 0.3.0 (`v03_encode`, `v03_card`).
A decoded message may have an empty `message_id`, which the engine fills.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, inspect

from apcore_a2a.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InvalidAgentResponseError,
    InvalidParamsError,
    SkillNotFoundError,
    Violation,
    wire,
)
from apcore_a2a.protocol import decoding
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.jsonrpc import NULL, ErrorObject
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    CancelTask,
    Document,
    Event,
    GetExtendedCard,
    GetTask,
    Message,
    PushConfig,
    PushConfigPage,
    StatusUpdate,
    SubscribeToTask,
    Task,
    TaskPage,
    Value,
    encode,
)
from apcore_a2a.protocol.operations import Operation, Rules
from apcore_a2a.protocol.v03 import agent_card, reading, requests, writing
from apcore_a2a.protocol.v1 import Result

VERSION: Final = "0.3"
NAMES: Final = {
    Operation.SEND: "message/send",
    Operation.STREAM: "message/stream",
    Operation.GET: "tasks/get",
    Operation.LIST: "tasks/list",  # the requirements': 0.3 lists tasks over REST and gRPC alone
    Operation.CANCEL: "tasks/cancel",
    Operation.SUBSCRIBE: "tasks/resubscribe",
    Operation.CREATE_PUSH: "tasks/pushNotificationConfig/set",
    Operation.GET_PUSH: "tasks/pushNotificationConfig/get",
    Operation.LIST_PUSH: "tasks/pushNotificationConfig/list",
    Operation.DELETE_PUSH: "tasks/pushNotificationConfig/delete",
    Operation.EXTENDED_CARD: "agent/getAuthenticatedExtendedCard",
}
METHODS: Final = {name: operation for operation, name in NAMES.items()} | {"agentCard/get": Operation.EXTENDED_CARD}
REST_PREFIX: Final = "/v1"
EXTENSIONS_HEADER: Final = "X-A2A-Extensions"
RULES: Final = Rules(
    resume_by_context=True,
    stream_keeps_task=True,
    subscribe_when_ended=True,
    replay=True,
    list_by_creation=True,
    without_extended_card=ExtendedAgentCardNotConfiguredError,
    stream_errors_as_events=True,
)
SENDS_EVENTS_AS_STORED: Final = False  # events are kept as 1.0 writes them

ERROR_NAMES: Final = {  # by code; 0.3.0 §8
    -32700: "JSONParseError",
    -32600: "InvalidRequestError",
    -32601: "MethodNotFoundError",
    -32602: "InvalidParamsError",
    -32603: "InternalError",
    -32001: "TaskNotFoundError",
    -32002: "TaskNotCancelableError",
    -32003: "PushNotificationNotSupportedError",
    -32004: "UnsupportedOperationError",
    -32005: "ContentTypeNotSupportedError",
    -32006: "InvalidAgentResponseError",
    -32007: "AuthenticatedExtendedCardNotConfiguredError",
}


class _Reader(Struct, frozen=True):
    """A shape, and what becomes of it."""

    decoder: msgspec.json.Decoder[Any]
    shape: inspect.Type
    to_model: Callable[[Any], Any]

    def __call__(self, data: bytes | Raw) -> Any:
        return self.to_model(decoding.decode_loosely(data, self.decoder, self.shape))


def _reader(shape: Any, to_model: Callable[[Any], Any] = lambda value: value) -> _Reader:
    return _Reader(msgspec.json.Decoder(shape), inspect.type_info(shape), to_model)


# ---- the server's half -------------------------------------------------------------------------------------------

_SEND: Final = _reader(requests.WireSend, requests.to_send)
_PUSH: Final = _reader(requests.WireTaskPush, requests.to_task_push)
_PUSH_REF: Final = _reader(requests.WireTaskRef, requests.to_push_ref)
_REQUESTS: Final = {
    Operation.SEND: _SEND,
    Operation.STREAM: _SEND,
    Operation.GET: _reader(GetTask),
    Operation.LIST: _reader(requests.WireListTasks, requests.to_list_tasks),
    Operation.CANCEL: _reader(CancelTask),
    Operation.SUBSCRIBE: _reader(SubscribeToTask),
    Operation.CREATE_PUSH: _PUSH,
    Operation.GET_PUSH: _PUSH_REF,
    Operation.LIST_PUSH: _reader(requests.WireTaskRef, requests.to_list_pushes),
    Operation.DELETE_PUSH: _PUSH_REF,
    Operation.EXTENDED_CARD: _reader(GetExtendedCard),
}
_WRITERS: Final[dict[type, Callable[[Any], object]]] = {
    Task: writing.task,
    Message: writing.message,
    StatusUpdate: writing.status_update,
    ArtifactUpdate: writing.artifact_update,
    TaskPage: writing.task_page,
    PushConfig: writing.task_push,
    PushConfigPage: writing.push_page,
}


def decode_request(operation: Operation, params: bytes | Raw) -> Value:
    """The typed request of an operation; a wrong field is an InvalidParamsError that names it."""
    request: Value = _REQUESTS[operation](params)
    return request


def convert_request(operation: Operation, params: dict[str, Any]) -> Value:
    """The same from path and query values, all of which may be strings."""
    reader = _REQUESTS[operation]
    try:
        request: Value = reader.to_model(msgspec.convert(params, reader.decoder.type, strict=False))
    except msgspec.ValidationError as error:
        raise decoding.invalid_params(error) from error
    return request


def encode_result(operation: Operation, result: Result) -> bytes:
    match result:
        case None:
            return NULL
        case Document():
            return encode(writing.task(msgspec.json.decode(result.body)))
        case AgentCard():
            return encode_card(result)
    return _write(result)


def _write(value: Value | Task) -> bytes:
    return encode(_WRITERS[type(value)](msgspec.to_builtins(value)))


def encode_event(event: Event) -> bytes:
    return _write(event)


def encode_push(event: Event, task: Task) -> bytes:
    """What a webhook receives: the whole task (0.3.0 §9.5)."""
    return _write(task)


def encode_card(card: AgentCard) -> bytes:
    return encode(agent_card.to_json(card))


def encode_hybrid_card(card: AgentCard) -> bytes:
    """A card that the official SDKs of both generations read: 1.0, with the fields of 0.3 beside its own."""
    return encode(agent_card.to_hybrid_json(card))


def _code(error: A2AError) -> int:
    return -32601 if isinstance(error, SkillNotFoundError) else wire(error).code  # FR-ERR-001: no skill, no method


def error_data(error: A2AError) -> dict[str, object]:
    data: dict[str, object] = {"type": error.kind, **error.metadata}
    if isinstance(error, InvalidParamsError) and error.violations:
        data["errors"] = [{"field": one.field, "code": one.code, "message": one.message} for one in error.violations]
    return data


def encode_error(error: A2AError) -> ErrorObject:
    """The `error` member of a JSON-RPC response."""
    return ErrorObject(_code(error), error.message, error_data(error))


def encode_rest_error(error: A2AError, status: int) -> bytes:
    """The body of a REST error. 0.3.0 leaves it open; SDKs read `message`, and a name in `type` (Python) or `error`."""
    code = _code(error)
    name = ERROR_NAMES.get(code, error.kind)
    return encode({"error": name, "type": name, "message": error.message, "code": code, "data": error_data(error)})


# ---- the client's half -------------------------------------------------------------------------------------------


class _Tagged(Value, frozen=True):
    kind: str


_KIND: Final = msgspec.json.Decoder(_Tagged)
_EVENTS: Final = {
    "task": _reader(reading.WireTask, reading.to_task),
    "message": _reader(reading.WireMessage, reading.to_message),
    "status-update": _reader(reading.WireStatusUpdate, reading.to_status_update),
    "artifact-update": _reader(reading.WireArtifactUpdate, reading.to_artifact_update),
}
_RESULTS: Final[dict[Operation, Callable[[bytes | Raw], Any]]] = {
    Operation.GET: _EVENTS["task"],
    Operation.LIST: _reader(requests.WireTaskPage, requests.to_task_page),
    Operation.CANCEL: _EVENTS["task"],
    Operation.CREATE_PUSH: _PUSH,
    Operation.GET_PUSH: _PUSH,
    Operation.LIST_PUSH: _reader(list[requests.WireTaskPush], requests.to_push_page),
    Operation.DELETE_PUSH: lambda _: None,
    Operation.EXTENDED_CARD: lambda data: decode_card(bytes(data)),
}
_REQUEST_WRITERS: Final[dict[Operation, Callable[[Any], object]]] = {
    Operation.SEND: writing.send,
    Operation.STREAM: writing.send,
    Operation.LIST: writing.list_tasks,
    Operation.CREATE_PUSH: writing.task_push,
    Operation.GET_PUSH: writing.push_ref,
    Operation.LIST_PUSH: writing.push_ref,
    Operation.DELETE_PUSH: writing.push_ref,
}


def encode_request(operation: Operation, request: Value) -> bytes:
    body: dict[str, Any] = msgspec.to_builtins(request)
    body.pop("tenant", None)  # 0.3 has none
    writer = _REQUEST_WRITERS.get(operation)
    return encode(body if writer is None else writer(body))


def decode_event(data: bytes | Raw) -> Event:
    """One event of a stream, or what message/send answered: `kind` says which."""
    kind = decoding.decode(data, _KIND).kind
    if kind not in _EVENTS:
        raise InvalidAgentResponseError("The agent answered with none of task, message, status-update, artifact-update")
    event: Event = _EVENTS[kind](data)
    return event


def decode_result(operation: Operation, data: bytes | Raw) -> Any:
    """The typed answer of a remote agent."""
    return decode_event(data) if operation is Operation.SEND else _RESULTS[operation](data)


def decode_card(data: bytes) -> AgentCard:
    """Any card: 0.3, 1.0, or a hybrid."""
    return agent_card.decode(data)


def decode_violations(data: object) -> list[Violation]:
    """The wrong fields that an error's data names: as we write them, or as a2a-sdk 0.3 does (pydantic's own list)."""
    items = data.get("errors") if isinstance(data, dict) else data
    return [_violation(item) for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _violation(item: dict[str, Any]) -> Violation:
    place = item.get("field", item.get("loc", ""))
    field = ".".join(map(str, place)) if isinstance(place, list) else str(place)
    return Violation(field, str(item.get("message", item.get("msg", ""))), str(item.get("code", "invalid")))
