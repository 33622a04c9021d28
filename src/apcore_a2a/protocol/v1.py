"""A2A 1.0 on the wire. The model's own JSON is 1.0, so this dialect is little more than tables.

It is also how events are kept: a *record* is the 1.0 JSON of an event, beside the message that caused it, if one did.
"""

from collections.abc import Iterable
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
SENDS_EVENTS_AS_STORED: Final = True

Result = Task | Document | Message | TaskPage | PushConfig | PushConfigPage | AgentCard | None

_REQUESTS: Final[dict[Operation, LooseDecoder[Any]]] = {
    operation: LooseDecoder(shape.request) for operation, shape in SHAPES.items()
}
# How a StreamResponse or a SendMessageResponse begins: an object with one member, named for what it holds. Put before
# bytes that are encoded already, it saves building a wrapper and encoding the event a second time.
MEMBERS: Final[dict[type, bytes]] = {
    Task: b'{"task":',
    Document: b'{"task":',
    Message: b'{"message":',
    StatusUpdate: b'{"statusUpdate":',
    ArtifactUpdate: b'{"artifactUpdate":',
}


def decode_request(operation: Operation, params: bytes | Raw) -> Value:
    """The typed request of an operation; a wrong field is an InvalidParamsError that names it."""
    request: Value = _REQUESTS[operation].decode(params)
    _check_push_config_id(request)
    return request


def convert_request(operation: Operation, params: dict[str, Any]) -> Value:
    """The typed request made of path and query values, all of which may be strings."""
    request: Value = _REQUESTS[operation].convert(params)
    _check_push_config_id(request)
    return request


def _check_push_config_id(request: Value) -> None:
    # The model does not ask for it: 0.3, which shares the model, may leave it out.
    if isinstance(request, PushConfigRef) and not request.id:
        raise InvalidParamsError("Missing required parameter: id", [Violation("id", "is required", "required")])


def encode_result(operation: Operation, result: Result) -> bytes:
    if result is None:
        body = EMPTY
    elif isinstance(result, Document):
        body = result.body  # encoded already, and 1.0 as everything that is kept
    else:
        body = encode(result)
    if operation is not Operation.SEND:
        return body
    return MEMBERS[type(result)] + body + b"}"


def encode_event(event: Event) -> bytes:
    """A StreamResponse: one member, named for the kind of event."""
    return MEMBERS[type(event)] + encode(event) + b"}"


def encode_record(event: Event, said: Message | None = None) -> bytes:
    """An event as stores keep it: a StreamResponse, and with it the message that caused the event, if one did."""
    body = encode_event(event)
    if said is None:
        return body
    return encode_heard(said, body)


def encode_heard(said: Message, body: bytes) -> bytes:
    """The record of an event that a message caused; `body` is the event's StreamResponse."""
    # Two objects made one: the first without its closing brace, a comma, the second without its opening one.
    return MEMBERS[Message] + encode(said) + b"," + body[1:]


def decode_record(data: bytes) -> tuple[Event, Message | None]:
    """A kept event, and the message that caused it."""
    record = decoding.decode(data, _RECORD)
    event = record.task or record.status_update or record.artifact_update
    if event is None:
        raise InvalidAgentResponseError("A kept event is none of task, statusUpdate, artifactUpdate")
    return event, record.message


def event_of(record: bytes) -> bytes:
    """A kept event as streams show it: its StreamResponse, without the message that caused it."""
    if not record.startswith(MEMBERS[Message]):
        return record
    event, _ = decode_record(record)
    return encode_event(event)


def replay(task: Task, records: Iterable[bytes]) -> None:
    """Fold kept events into the task they followed."""
    # The event first, the message after it, as the engine folded them: the order decides where both are in the history.
    for record in records:
        event, said = decode_record(record)
        lifecycle.fold(task, event)
        if said is not None:
            lifecycle.fold(task, said)


def encode_push(event: Event, task: Task) -> bytes:
    """What a webhook receives: the StreamResponse that a stream would."""
    return encode_event(event)


def encode_card(card: AgentCard) -> bytes:
    return encode(card)


def error_details(error: A2AError) -> list[dict[str, object]]:
    """google.rpc details: ErrorInfo always, BadRequest when fields are to blame (1.0 §9.5, §11.6)."""
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
    """The `error` member of a JSON-RPC response. Its details are always typed (1.0 §9.5)."""
    return ErrorObject(wire(error).code, error.message, error_details(error))


def rest_status(error: A2AError, status: int) -> dict[str, object]:
    """google.rpc.Status."""
    return {"code": status, "status": wire(error).grpc, "message": error.message, "details": error_details(error)}


def encode_rest_error(error: A2AError, status: int, *, typed: bool = True) -> bytes:
    """The body of a REST error (1.0 §11.6), which is always typed."""
    return encode({"error": rest_status(error, status)})


# ---- the client's half -------------------------------------------------------------------------------------------


class _StreamResponse(Value, frozen=True):
    """Exactly one member is there on the wire; in a record, `message` may stand beside another."""

    task: Task | None = None
    message: Message | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None


_STREAM_RESPONSE: Final = LooseDecoder(_StreamResponse)
_RECORD: Final = msgspec.json.Decoder(_StreamResponse)  # strict: records are of our own writing
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
    """One event of a stream, or what SendMessage answered: both are a wrapper with one member."""
    wrapper = _STREAM_RESPONSE.decode(data, left_out)
    event = wrapper.task or wrapper.message or wrapper.status_update or wrapper.artifact_update
    if event is None and left_out:  # the member itself: without it there is nothing left
        raise InvalidAgentResponseError(f"The agent's answer cannot be read: {left_out[-1]}")
    if event is None:
        raise InvalidAgentResponseError("The agent answered with none of task, message, statusUpdate, artifactUpdate")
    return event


def decode_result(operation: Operation, data: bytes | Raw, left_out: list[str] | None = None) -> Any:
    """The typed answer of a remote agent."""
    if operation is Operation.SEND:
        return decode_event(data, left_out)
    if operation is Operation.DELETE_PUSH:
        return None  # whatever the agent says: 1.0 answers with an empty message
    if operation is Operation.EXTENDED_CARD:
        return decode_card(bytes(data))
    return _RESULTS[operation].decode(data, left_out)


def decode_card(data: bytes) -> AgentCard:
    """A card of 1.0. Where a2a-go wrote it, the scopes of its requirements are bare lists, which are read as well."""
    try:
        return _CARD.decode(data)
    except InvalidParamsError:
        body = decoding.decode(data, _BODY)
        _wrap_scopes(body)
        return _CARD.decode(encode(body))


def _wrap_scopes(card: dict[str, Any]) -> None:
    """Make a StringList, `{"list": [scope]}`, of each bare list of scopes that the card and its skills require."""
    for holder in (card, *_items(card.get("skills"))):
        for requirement in _items(holder.get("securityRequirements")):
            schemes = requirement.get("schemes")
            if not isinstance(schemes, dict):
                continue
            for name, scopes in schemes.items():
                if isinstance(scopes, list):
                    schemes[name] = {"list": scopes}


def decode_violations(data: object) -> list[Violation]:
    """The wrong fields that an error's data names."""
    # Another agent's error: none of it need be what the specification says, and nothing in it may hide the error.
    found: list[Violation] = []
    for detail in _items(data):
        for item in _items(detail.get("fieldViolations")):
            field = str(item.get("field", ""))
            description = str(item.get("description", ""))
            found.append(Violation(field, description))
    return found


def _items(value: object) -> list[dict[str, Any]]:
    """The objects in a list; none when it is no list."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]
