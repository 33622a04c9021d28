"""A2A 1.0 on the wire. The model's own JSON is 1.0, so this dialect is little more than tables.

Stores keep events in the same form. A *record* is the 1.0 JSON of an event, with the message that caused it and the
trace to which it belongs, if any.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from apcore_a2a.errors import DOMAIN, A2AError, InvalidAgentResponseError, InvalidParamsError, Violation, wire
from apcore_a2a.protocol import decoding, lifecycle
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import LooseDecoder, inverted
from apcore_a2a.protocol.jsonrpc import EMPTY, ErrorObject
from apcore_a2a.protocol.model import (
    SHAPES,
    ArtifactUpdate,
    Document,
    Event,
    Message,
    Operation,
    PushConfig,
    PushConfigPage,
    PushConfigRef,
    Rules,
    StatusUpdate,
    Task,
    TaskPage,
    Value,
    encode,
)

VERSION: Final = "1.0"
METHODS: Final = {operation.value: operation for operation in Operation}
NAMES: Final = inverted(METHODS)
REST_PREFIX: Final = ""
EXTENSIONS_HEADER: Final = "A2A-Extensions"
RULES: Final = Rules()
SEND: Final = Operation.SEND
SENDS_EVENTS_AS_STORED: Final = True

Result = Task | Document | Message | TaskPage | PushConfig | PushConfigPage | AgentCard | None

_REQUESTS: Final[dict[Operation, LooseDecoder[Any]]] = {
    operation: LooseDecoder(shape.request) for operation, shape in SHAPES.items()
}
# The first bytes of a StreamResponse or a SendMessageResponse: an object with one member, named after the type of its
# value. As a prefix of encoded bytes, it saves building a wrapper and encoding the event a second time.
MEMBERS: Final[dict[type, bytes]] = {
    Task: b'{"task":',
    Document: b'{"task":',
    Message: b'{"message":',
    StatusUpdate: b'{"statusUpdate":',
    ArtifactUpdate: b'{"artifactUpdate":',
}
_TRACE: Final = b'{"trace":'  # the first member of a record with a trace
_PRIVATE: Final = (_TRACE, MEMBERS[Message])  # how records begin of which clients see only a part


def decode_request(operation: Operation, params: bytes | Raw) -> Value:
    """Return the typed request of an operation. A wrong field is an InvalidParamsError that names it."""
    request: Value = _REQUESTS[operation].decode(params)
    _check_push_config_id(request)
    return request


def convert_request(operation: Operation, params: dict[str, Any]) -> Value:
    """Return the typed request from path and query values, all of which may be strings."""
    request: Value = _REQUESTS[operation].convert(params)
    _check_push_config_id(request)
    return request


def convert_fields(operation: Operation, fields: dict[str, Any]) -> Value:
    """Return the typed request from the decoded fields of a message in protocol buffers."""
    request: Value = decoding.convert(fields, SHAPES[operation].request)
    _check_push_config_id(request)
    return request


def _check_push_config_id(request: Value) -> None:
    # The model does not require it, because it is optional in 0.3.
    if type(request) is PushConfigRef and not request.id:
        raise InvalidParamsError("Missing required parameter: id", [Violation("id", "is required", "required")])


def encode_result(operation: Operation, result: Result) -> bytes:
    if result is None:
        body = EMPTY
    elif type(result) is Document:
        body = result.body  # encoded already, as 1.0
    else:
        body = encode(result)
    if operation is not SEND:
        return body
    return MEMBERS[type(result)] + body + b"}"


def encode_event(event: Event) -> bytes:
    """Return a StreamResponse: an object with one member, named after the type of event."""
    return MEMBERS[type(event)] + encode(event) + b"}"


def encode_record(event: Event, cause: Message | None = None) -> bytes:
    """Return the record of an event: a StreamResponse, with the message that caused the event, if any."""
    body = encode_event(event)
    if cause is None:
        return body
    return encode_caused(cause, body)


def encode_caused(cause: Message, body: bytes) -> bytes:
    """Return the record of an event that a message caused. `body` is the StreamResponse of the event."""
    # Two objects merged: the first without its closing brace, a comma, the second without its opening brace.
    return MEMBERS[Message] + encode(cause) + b"," + body[1:]


def decode_record(data: bytes) -> tuple[Event, Message | None]:
    """Return the event of a record, and the message that caused it."""
    record = decoding.decode(data, _RECORD)
    event = record.task or record.status_update or record.artifact_update
    if event is None:
        raise InvalidAgentResponseError("A stored event has none of task, statusUpdate, artifactUpdate")
    return event, record.message


def encode_traced(trace: Mapping[str, str], record: bytes) -> bytes:
    """Return a record with the trace to which its event belongs."""
    return _TRACE + encode(trace) + b"," + record[1:]


def trace_of(record: bytes) -> dict[str, str]:
    """Return the trace of a record. Most records have none."""
    if not record.startswith(_TRACE):
        return {}
    return decoding.decode(record, _TRACED).trace


def time_of(record: bytes) -> str:
    """Return the time of the status in a record, or an empty string: chunks of an artifact have no time."""
    timed = decoding.decode(record, _TIMED)
    event = timed.status_update or timed.task
    return event.status.timestamp if event is not None else ""


def event_of(record: bytes, event: Event | None = None) -> bytes:
    """Return the StreamResponse of a record: without the message that caused the event, and without its trace.

    `event` is the event of the record, if it is decoded already.
    """
    if not record.startswith(_PRIVATE):
        return record
    if event is None:
        event, _ = decode_record(record)
    return encode_event(event)


def replay(task: Task, records: Iterable[bytes]) -> None:
    """Fold records into the task that they follow."""
    # The event before the message, as in the engine, because the order decides their places in the history.
    for record in records:
        event, cause = decode_record(record)
        lifecycle.fold(task, event)
        if cause is not None:
            lifecycle.fold(task, cause)


def encode_push(event: Event, task: Task) -> bytes:
    """Return the body for a webhook: the same StreamResponse as in a stream."""
    return encode_event(event)


def encode_card(card: AgentCard) -> bytes:
    return encode(card)


def error_details(error: A2AError) -> list[dict[str, object]]:
    """Return google.rpc details: ErrorInfo, and BadRequest if fields are wrong (1.0 §9.5, §11.6)."""
    info: dict[str, object] = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": wire(error).reason,
        "domain": DOMAIN,
        "metadata": {"type": error.kind, **error.metadata},
    }
    if not isinstance(error, InvalidParamsError) or not error.violations:
        return [info]
    fields: list[dict[str, str]] = []
    for violation in error.violations:
        field = {"field": violation.field, "description": violation.message}
        fields.append(field)
    return [info, {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": fields}]


def encode_error(error: A2AError, *, typed: bool = True) -> ErrorObject:
    """Return the `error` of a JSON-RPC response. Its details are always typed (1.0 §9.5)."""
    return ErrorObject(wire(error).code, error.message, error_details(error))


def rest_status(error: A2AError, status: int) -> dict[str, object]:
    """Return a google.rpc.Status."""
    return {"code": status, "status": wire(error).grpc, "message": error.message, "details": error_details(error)}


def encode_rest_error(error: A2AError, status: int, *, typed: bool = True) -> bytes:
    """Return the body of a REST error (1.0 §11.6), which is always typed."""
    return encode({"error": rest_status(error, status)})


# ---- for the client ----------------------------------------------------------------------------------------------


class _StreamResponse(Value, frozen=True):
    """A StreamResponse has exactly one member. A record may have `message` beside another one."""

    task: Task | None = None
    message: Message | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None


class _Traced(Value, frozen=True):
    """The trace of a record."""

    trace: dict[str, str]


class _TimedStatus(Value, frozen=True):
    timestamp: str = ""


class _TimedEvent(Value, frozen=True):
    status: _TimedStatus = _TimedStatus()


class _Timed(Value, frozen=True):
    """The time of the status in a record, without the rest of it."""

    status_update: _TimedEvent | None = None
    task: _TimedEvent | None = None


_STREAM_RESPONSE: Final = LooseDecoder(_StreamResponse)
_RECORD: Final = msgspec.json.Decoder(_StreamResponse)  # strict, because this package wrote the records
_TRACED: Final = msgspec.json.Decoder(_Traced)
_TIMED: Final = msgspec.json.Decoder(_Timed)
_TASK: Final = LooseDecoder(Task)
_PUSH_CONFIG: Final = LooseDecoder(PushConfig)
_CARD: Final = LooseDecoder(AgentCard)
_BODY: Final = msgspec.json.Decoder(dict[str, Any])  # Any: JSON
_RESULTS: Final[dict[Operation, LooseDecoder[Any]]] = {
    Operation.GET: _TASK,
    Operation.LIST: LooseDecoder(TaskPage),
    Operation.CANCEL: _TASK,
    Operation.CREATE_PUSH: _PUSH_CONFIG,
    Operation.GET_PUSH: _PUSH_CONFIG,
    Operation.LIST_PUSH: LooseDecoder(PushConfigPage),
}


def encode_request(operation: Operation, request: Value) -> bytes:
    return encode(request)


def decode_event(data: bytes | Raw, left_out: list[str] | None = None) -> Event:
    """Return an event of a stream, or the result of SendMessage: both are an object with one member."""
    wrapper = _STREAM_RESPONSE.decode(data, left_out)
    event = wrapper.task or wrapper.message or wrapper.status_update or wrapper.artifact_update
    if event is None and left_out:  # the only member was left out
        raise InvalidAgentResponseError(f"The agent's answer cannot be read: {left_out[-1]}")
    if event is None:
        raise InvalidAgentResponseError("The agent answered with none of task, message, statusUpdate, artifactUpdate")
    return event


def decode_result(operation: Operation, data: bytes | Raw, left_out: list[str] | None = None) -> Any:
    """Return the typed result of a remote agent."""
    if operation is Operation.SEND:
        return decode_event(data, left_out)
    if operation is Operation.DELETE_PUSH:
        return None  # the result is ignored. In 1.0 it is an empty message
    if operation is Operation.EXTENDED_CARD:
        return decode_card(bytes(data))
    return _RESULTS[operation].decode(data, left_out)


def decode_card(data: bytes) -> AgentCard:
    """Return a card of 1.0. The scopes of its requirements may be bare lists, as a2a-go writes them."""
    try:
        return _CARD.decode(data)
    except InvalidParamsError:
        body = decoding.decode(data, _BODY)
        _wrap_scopes(body)
        return _CARD.decode(encode(body))


def _wrap_scopes(card: dict[str, Any]) -> None:
    """Replace each bare list of scopes in the card and its skills by a StringList, `{"list": [scope]}`."""
    for holder in (card, *_items(card.get("skills"))):
        for requirement in _items(holder.get("securityRequirements")):
            schemes = requirement.get("schemes")
            if not isinstance(schemes, dict):
                continue
            for name, scopes in schemes.items():
                if isinstance(scopes, list):
                    schemes[name] = {"list": scopes}


def decode_violations(data: object) -> list[Violation]:
    """Return the wrong fields that the data of an error names."""
    # The data comes from another agent and may have any form. It must not hide the error itself.
    found: list[Violation] = []
    for detail in _items(data):
        for item in _items(detail.get("fieldViolations")):
            field = str(item.get("field", ""))
            description = str(item.get("description", ""))
            found.append(Violation(field, description))
    return found


def _items(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list, or an empty list for any other value."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]
