"""A2A 1.0 on the wire. The model's own JSON is 1.0, so this dialect is little more than tables."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw, inspect

from apcore_a2a.errors import DOMAIN, A2AError, InvalidAgentResponseError, InvalidParamsError, Violation, wire
from apcore_a2a.protocol import decoding, lifecycle
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.jsonrpc import EMPTY, ErrorObject
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Document,
    Event,
    Message,
    PushConfig,
    PushConfigPage,
    PushConfigRef,
    StatusUpdate,
    Task,
    TaskPage,
    Value,
    encode,
)
from apcore_a2a.protocol.operations import SHAPES, Operation, Rules

VERSION: Final = "1.0"
METHODS: Final = {operation.value: operation for operation in Operation}
NAMES: Final = {operation: method for method, operation in METHODS.items()}
REST_PREFIX: Final = ""
EXTENSIONS_HEADER: Final = "A2A-Extensions"
RULES: Final = Rules()
SENDS_EVENTS_AS_STORED: Final = True

Result = Task | Document | Message | TaskPage | PushConfig | PushConfigPage | AgentCard | None

_REQUESTS: Final[dict[Operation, tuple[msgspec.json.Decoder[Any], inspect.Type]]] = {
    operation: (msgspec.json.Decoder(shape.request), inspect.type_info(shape.request))
    for operation, shape in SHAPES.items()
}
MEMBERS: Final[dict[type, bytes]] = {
    Task: b'{"task":',
    Document: b'{"task":',
    Message: b'{"message":',
    StatusUpdate: b'{"statusUpdate":',
    ArtifactUpdate: b'{"artifactUpdate":',
}


def decode_request(operation: Operation, params: bytes | Raw) -> Value:
    """The typed request of an operation; a wrong field is an InvalidParamsError that names it."""
    decoder, shape = _REQUESTS[operation]
    return _checked(decoding.decode_loosely(params, decoder, shape))


def convert_request(operation: Operation, params: dict[str, Any]) -> Value:
    """The same from path and query values, all of which may be strings."""
    decoder, _ = _REQUESTS[operation]
    return _checked(decoding.convert(params, decoder.type, strict=False))


def _checked(request: Value) -> Value:
    if isinstance(request, PushConfigRef) and not request.id:  # only 0.3 may leave it out
        raise InvalidParamsError("Missing required parameter: id", [Violation("id", "is required", "required")])
    return request


def encode_result(operation: Operation, result: Result) -> bytes:
    body = EMPTY if result is None else result.body if isinstance(result, Document) else encode(result)
    return MEMBERS[type(result)] + body + b"}" if operation is Operation.SEND else body


def encode_event(event: Event) -> bytes:
    """A StreamResponse: one member, named for the kind of event."""
    return MEMBERS[type(event)] + encode(event) + b"}"


def encode_record(event: Event, said: Message | None = None) -> bytes:
    """An event as stores keep it: a StreamResponse, and with it the message that caused the event, if one did."""
    body = encode_event(event)
    return body if said is None else encode_heard(said, body)


def encode_heard(said: Message, body: bytes) -> bytes:
    """The record of an event that a message caused."""
    return MEMBERS[Message] + encode(said) + b"," + body[1:]


def decode_record(data: bytes) -> tuple[Event, Message | None]:
    """A kept event, and the message that caused it."""
    record = decoding.decode(data, _STREAM[0])
    event = record.task or record.status_update or record.artifact_update
    if event is None:
        raise InvalidAgentResponseError("A kept event is none of task, statusUpdate, artifactUpdate")
    return event, record.message


def replay(task: Task, records: Iterable[bytes]) -> None:
    """Fold kept events into the task they followed."""
    for record in records:
        event, said = decode_record(record)
        lifecycle.fold(task, event)
        if said is not None:
            lifecycle.fold(task, said)


def encode_push(event: Event, task: Task) -> bytes:
    """What a webhook receives: the same StreamResponse as a stream."""
    return encode_event(event)


def encode_card(card: AgentCard) -> bytes:
    return encode(card)


def error_details(error: A2AError) -> list[dict[str, object]]:
    """google.rpc details: ErrorInfo always, BadRequest when fields are to blame (1.0 §9.5, §11.6)."""
    info = {"type": error.kind, **error.metadata}
    details: list[dict[str, object]] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": wire(error).reason,
            "domain": DOMAIN,
            "metadata": info,
        }
    ]
    if isinstance(error, InvalidParamsError) and error.violations:
        fields = [{"field": field, "description": message} for field, message, _ in error.violations]
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": fields})
    return details


def encode_error(error: A2AError) -> ErrorObject:
    """The `error` member of a JSON-RPC response."""
    return ErrorObject(wire(error).code, error.message, error_details(error))


def encode_rest_error(error: A2AError, status: int) -> bytes:
    """google.rpc.Status, the body of a REST error (1.0 §11.6)."""
    row = wire(error)
    return encode(
        {"error": {"code": status, "status": row.grpc, "message": error.message, "details": error_details(error)}}
    )


# ---- the client's half -------------------------------------------------------------------------------------------


class _Stream(Value, frozen=True):
    task: Task | None = None
    message: Message | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None


_STREAM: Final = (msgspec.json.Decoder(_Stream), inspect.type_info(_Stream))
_RESULTS: Final[dict[Operation, tuple[msgspec.json.Decoder[Any], inspect.Type]]] = {
    operation: (msgspec.json.Decoder(kind), inspect.type_info(kind))
    for operation, kind in {
        Operation.GET: Task,
        Operation.LIST: TaskPage,
        Operation.CANCEL: Task,
        Operation.CREATE_PUSH: PushConfig,
        Operation.GET_PUSH: PushConfig,
        Operation.LIST_PUSH: PushConfigPage,
        Operation.EXTENDED_CARD: AgentCard,
    }.items()
}


def encode_request(operation: Operation, request: Value) -> bytes:
    return encode(request)


def decode_event(data: bytes | Raw) -> Event:
    """One event of a stream, or what SendMessage answered: both are a wrapper with one member."""
    decoder, shape = _STREAM
    wrapper = decoding.decode_loosely(data, decoder, shape)
    event = wrapper.task or wrapper.message or wrapper.status_update or wrapper.artifact_update
    if event is None:
        raise InvalidAgentResponseError("The agent answered with none of task, message, statusUpdate, artifactUpdate")
    return event


def decode_result(operation: Operation, data: bytes | Raw) -> Any:
    """The typed answer of a remote agent."""
    if operation is Operation.SEND:
        return decode_event(data)
    if operation is Operation.DELETE_PUSH:
        return None
    decoder, shape = _RESULTS[operation]
    return decoding.decode_loosely(data, decoder, shape)


def decode_card(data: bytes) -> AgentCard:
    decoder, shape = _RESULTS[Operation.EXTENDED_CARD]
    card: AgentCard = decoding.decode_loosely(data, decoder, shape)
    return card


def decode_violations(data: object) -> list[Violation]:
    """The wrong fields that an error's data names."""
    details = data if isinstance(data, list) else []
    named = [detail.get("fieldViolations") for detail in details if isinstance(detail, dict)]
    return [
        Violation(str(item.get("field", "")), str(item.get("description", "")))
        for violations in named
        if isinstance(violations, list)
        for item in violations
        if isinstance(item, dict)
    ]
