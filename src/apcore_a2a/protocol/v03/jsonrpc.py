"""A2A 0.3 in its JSON-RPC form: tables of the functions that decode and encode each operation, event and result.

Invariant: input is decoded with tolerance (`values`, `requests`), output is official 0.3.0 (`values`, `card`).
A decoded message may have an empty `message_id`, which the engine fills in.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from apcore_a2a.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InvalidAgentResponseError,
    InvalidParamsError,
    SkillNotFoundError,
    Violation,
    wire,
)
from apcore_a2a.protocol import decoding, v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import inverted
from apcore_a2a.protocol.jsonrpc import NULL, ErrorObject
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    CancelTask,
    Document,
    Event,
    GetExtendedCard,
    GetTask,
    Message,
    Operation,
    PushConfig,
    PushConfigPage,
    Rules,
    StatusUpdate,
    SubscribeToTask,
    Task,
    TaskPage,
    Value,
    encode,
)
from apcore_a2a.protocol.v03 import card as card_module
from apcore_a2a.protocol.v03 import requests, values
from apcore_a2a.protocol.v1 import Result

VERSION: Final = "0.3"
NAMES: Final = {
    Operation.SEND: "message/send",
    Operation.STREAM: "message/stream",
    Operation.GET: "tasks/get",
    Operation.LIST: "tasks/list",  # from the requirements: 0.3 lists tasks only over REST and gRPC
    Operation.CANCEL: "tasks/cancel",
    Operation.SUBSCRIBE: "tasks/resubscribe",
    Operation.CREATE_PUSH: "tasks/pushNotificationConfig/set",
    Operation.GET_PUSH: "tasks/pushNotificationConfig/get",
    Operation.LIST_PUSH: "tasks/pushNotificationConfig/list",
    Operation.DELETE_PUSH: "tasks/pushNotificationConfig/delete",
    Operation.EXTENDED_CARD: "agent/getAuthenticatedExtendedCard",
}
METHODS: Final = {
    **inverted(NAMES),
    "agentCard/get": Operation.EXTENDED_CARD,  # from the requirements
}
REST_PREFIX: Final = "/v1"
EXTENSIONS_HEADER: Final = "X-A2A-Extensions"
RULES: Final = Rules(
    version="0.3",
    resume_by_context=True,
    stream_keeps_task=True,
    subscribe_when_ended=True,
    replay=True,
    list_by_creation=True,
    page_is_array=True,
    without_extended_card=ExtendedAgentCardNotConfiguredError,
    unnamed_push="default",
    deleted_push_must_exist=True,
    stream_errors_as_events=True,
)
SENDS_EVENTS_AS_STORED: Final = False  # events are stored as 1.0

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


def _unchanged(value: Any) -> Any:
    """Return the value, for types that are the same in 0.3 and 1.0."""
    return value


class _WireDecoder:
    """Decodes JSON into a wire type of 0.3, and converts that to a value of the model."""

    def __init__(self, shape: Any, to_model: Callable[[Any], Any] = _unchanged) -> None:
        self._decoder: decoding.LooseDecoder[Any] = decoding.LooseDecoder(shape)
        self._to_model = to_model

    def decode(self, data: bytes | Raw, left_out: list[str] | None = None) -> Any:
        return self._to_model(self._decoder.decode(data, left_out))

    def convert(self, params: dict[str, Any]) -> Any:
        """Convert path and query values, all of which may be strings."""
        return self._to_model(self._decoder.convert(params))


# ---- for the server ----------------------------------------------------------------------------------------------

_SEND: Final = _WireDecoder(requests.WireSend, requests.to_send)
_PUSH: Final = _WireDecoder(requests.WireTaskPush, requests.to_task_push)
_PUSH_REF: Final = _WireDecoder(requests.WireTaskRef, requests.to_push_ref)
_REQUESTS: Final = {
    Operation.SEND: _SEND,
    Operation.STREAM: _SEND,
    Operation.GET: _WireDecoder(GetTask),
    Operation.LIST: _WireDecoder(requests.WireListTasks, requests.to_list_tasks),
    Operation.CANCEL: _WireDecoder(CancelTask),
    Operation.SUBSCRIBE: _WireDecoder(SubscribeToTask),
    Operation.CREATE_PUSH: _PUSH,
    Operation.GET_PUSH: _PUSH_REF,
    Operation.LIST_PUSH: _WireDecoder(requests.WireTaskRef, requests.to_list_pushes),
    Operation.DELETE_PUSH: _PUSH_REF,
    Operation.EXTENDED_CARD: _WireDecoder(GetExtendedCard),
}
_WRITERS: Final[dict[type, Callable[[Any], object]]] = {
    Task: values.task,
    Message: values.message,
    StatusUpdate: values.status_update,
    ArtifactUpdate: values.artifact_update,
    TaskPage: values.task_page,
    PushConfig: values.task_push,
    PushConfigPage: values.push_page,
}


def decode_request(operation: Operation, params: bytes | Raw) -> Value:
    """Return the typed request of an operation. A wrong field is an InvalidParamsError that names it."""
    request: Value = _REQUESTS[operation].decode(params)
    return request


def convert_request(operation: Operation, params: dict[str, Any]) -> Value:
    """Return the typed request from path and query values, all of which may be strings."""
    request: Value = _REQUESTS[operation].convert(params)
    return request


def encode_result(operation: Operation, result: Result) -> bytes:
    match result:
        case None:
            return NULL
        case Document():
            # Converting its 1.0 JSON is cheaper than decoding a task first.
            return encode(values.task(msgspec.json.decode(result.body)))
        case AgentCard():
            return encode_card(result)
    return _write(result)


def _write(value: Value | Task) -> bytes:
    return encode(_WRITERS[type(value)](msgspec.to_builtins(value)))


def encode_event(event: Event) -> bytes:
    return _write(event)


def encode_push(event: Event, task: Task) -> bytes:
    """Return the body for a webhook: the whole task (0.3.0 §9.5)."""
    return _write(task)


def encode_card(card: AgentCard) -> bytes:
    return encode(card_module.to_json(card))


def encode_hybrid_card(card: AgentCard) -> bytes:
    """Return a card for the official SDKs of both generations: 1.0, with the fields of 0.3 added."""
    return encode(card_module.to_hybrid_json(card))


def _code(error: A2AError) -> int:
    if isinstance(error, SkillNotFoundError):
        return -32601  # FR-ERR-001: an unknown skill is an unknown method
    return wire(error).code


def error_data(error: A2AError) -> dict[str, object]:
    data: dict[str, object] = {"type": error.kind, **error.metadata}
    if isinstance(error, InvalidParamsError) and error.violations:
        errors: list[dict[str, str]] = []
        for violation in error.violations:
            entry = {"field": violation.field, "code": violation.code, "message": violation.message}
            errors.append(entry)
        data["errors"] = errors
    return data


def encode_error(error: A2AError, *, typed: bool = False) -> ErrorObject:
    """Return the `error` of a JSON-RPC response. If `typed`, its data is the list of 1.0 (docs/decisions/0043)."""
    if typed:
        return ErrorObject(_code(error), error.message, v1.error_details(error))
    return ErrorObject(_code(error), error.message, error_data(error))


def encode_rest_error(error: A2AError, status: int, *, typed: bool = False) -> bytes:
    """Return the body of a REST error.

    0.3.0 does not specify it, and each SDK reads another part: Python the name in `type`, JavaScript `code` and
    `message`, the conformance kit the name in `error`. The Go SDK reads the object of 1.0 under `error`, and receives
    it: `typed` means that the client knows 1.0 (docs/decisions/0052).
    """
    code = _code(error)
    name = ERROR_NAMES.get(code, error.kind)  # 0.3 has no name for the codes that 1.0 added
    described: object = name
    if typed:
        described = v1.rest_status(error, status)
    return encode(
        {
            "error": described,
            "type": name,
            "message": error.message,
            "code": code,
            "data": error_data(error),
        }
    )


# ---- for the client ----------------------------------------------------------------------------------------------


class _Tagged(Value, frozen=True):
    kind: str


_KIND: Final = msgspec.json.Decoder(_Tagged)
_TASK: Final = _WireDecoder(values.WireTask, values.to_task)
_EVENTS: Final = {
    "task": _TASK,
    "message": _WireDecoder(values.WireMessage, values.to_message),
    "status-update": _WireDecoder(values.WireStatusUpdate, values.to_status_update),
    "artifact-update": _WireDecoder(values.WireArtifactUpdate, values.to_artifact_update),
}
_RESULTS: Final = {
    Operation.GET: _TASK,
    Operation.LIST: _WireDecoder(requests.WireTaskPage, requests.to_task_page),
    Operation.CANCEL: _TASK,
    Operation.CREATE_PUSH: _PUSH,
    Operation.GET_PUSH: _PUSH,
    Operation.LIST_PUSH: _WireDecoder(list[requests.WireTaskPush], requests.to_push_page),
}
_REQUEST_WRITERS: Final[dict[Operation, Callable[[Any], object]]] = {  # all others are the same as in 1.0
    Operation.SEND: values.send,
    Operation.STREAM: values.send,
    Operation.LIST: values.list_tasks,
    Operation.CREATE_PUSH: values.task_push,
    Operation.GET_PUSH: values.push_ref,
    Operation.LIST_PUSH: values.push_ref,
    Operation.DELETE_PUSH: values.push_ref,
}


def encode_request(operation: Operation, request: Value) -> bytes:
    body: dict[str, Any] = msgspec.to_builtins(request)
    body.pop("tenant", None)  # 0.3 has no tenants
    writer = _REQUEST_WRITERS.get(operation)
    if writer is None:
        return encode(body)
    return encode(writer(body))


def decode_event(data: bytes | Raw, left_out: list[str] | None = None) -> Event:
    """Return an event of a stream, or the result of message/send. `kind` is its type."""
    kind = decoding.decode(data, _KIND).kind
    if kind not in _EVENTS:
        raise InvalidAgentResponseError("The agent answered with none of task, message, status-update, artifact-update")
    event: Event = _EVENTS[kind].decode(data, left_out)
    return event


def decode_result(operation: Operation, data: bytes | Raw, left_out: list[str] | None = None) -> Any:
    """Return the typed result of a remote agent."""
    match operation:
        case Operation.SEND:
            return decode_event(data, left_out)
        case Operation.EXTENDED_CARD:
            return decode_card(bytes(data))
        case Operation.DELETE_PUSH:
            return None  # the result is ignored
    return _RESULTS[operation].decode(data, left_out)


def decode_card(data: bytes) -> AgentCard:
    """Return the card from any form: 0.3, 1.0, or a hybrid."""
    return card_module.decode(data)


def decode_violations(data: object) -> list[Violation]:
    """Return the wrong fields in the data of an error, in the form of 1.0, this package, or pydantic (a2a-sdk)."""
    typed = v1.decode_violations(data)
    if typed:
        return typed
    if isinstance(data, dict):
        data = data.get("errors")
    if not isinstance(data, list):
        return []
    return [_violation(item) for item in data if isinstance(item, dict) and "@type" not in item]


def _violation(item: dict[str, Any]) -> Violation:
    # `loc` and `msg` come from pydantic. Its location is a list of names and indexes.
    place = item.get("field", item.get("loc", ""))
    if isinstance(place, list):
        place = ".".join(map(str, place))
    message = item.get("message", item.get("msg", ""))
    code = item.get("code", "invalid")
    return Violation(str(place), str(message), str(code))
