"""A2A 0.3 in its REST form: ProtoJSON, which is not the JSON of its JSON-RPC form.

Rule: input may have either form, for agents and clients of both kinds exist; output is ProtoJSON, for the official
clients refuse a field they do not know. `jsonrpc` (here called `v03`) has what both forms share, `proto_json` rewrites
one form into the other.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import decode
from apcore_a2a.protocol.jsonrpc import EMPTY
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Document,
    Event,
    Message,
    PushConfig,
    PushConfigPage,
    StatusUpdate,
    Task,
    TaskPage,
    Value,
    encode,
)
from apcore_a2a.protocol.operations import Operation
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import proto_json, writing
from apcore_a2a.protocol.v03.proto_json import Json
from apcore_a2a.protocol.v1 import Result

# What the two forms share. A dialect is a module, so each name stands here once more.
VERSION: Final = v03.VERSION
METHODS: Final = v03.METHODS
NAMES: Final = v03.NAMES
REST_PREFIX: Final = v03.REST_PREFIX
EXTENSIONS_HEADER: Final = v03.EXTENSIONS_HEADER
RULES: Final = v03.RULES
SENDS_EVENTS_AS_STORED: Final = v03.SENDS_EVENTS_AS_STORED

encode_push: Final = v03.encode_push
encode_card: Final = v03.encode_card
encode_error: Final = v03.encode_error
encode_rest_error: Final = v03.encode_rest_error
decode_card: Final = v03.decode_card
decode_violations: Final = v03.decode_violations

_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)

# ---- the server's half -------------------------------------------------------------------------------------------

_REQUEST_READERS: Final[dict[Operation, Callable[[Any], Any]]] = {  # the others have no body, or the same in both forms
    Operation.SEND: proto_json.read_send,
    Operation.STREAM: proto_json.read_send,
    Operation.CREATE_PUSH: proto_json.read_push,
}


class _EventWriter(NamedTuple):
    """How an event is written: from the model's JSON, which is 1.0, to that of 0.3, and from there to ProtoJSON."""

    member: str
    """The member of a StreamResponse that holds it."""
    to_v03: Callable[[Json], Json]
    to_proto: Callable[[Json], Json]

    def write(self, event: Event) -> Json:
        return self.to_proto(self.to_v03(msgspec.to_builtins(event)))


_WRITERS: Final = {
    Task: _EventWriter("task", writing.task, proto_json.write_task),
    Message: _EventWriter("message", writing.message, proto_json.write_message),
    StatusUpdate: _EventWriter("statusUpdate", writing.status_update, proto_json.write_status_update),
    ArtifactUpdate: _EventWriter("artifactUpdate", writing.artifact_update, proto_json.write_artifact_update),
}


def decode_request(operation: Operation, params: bytes | Raw) -> Value:
    """The typed request of an operation; a wrong field is an InvalidParamsError that names it."""
    to_v03 = _REQUEST_READERS.get(operation)
    if to_v03 is not None:
        # Encoded once more, so that one decoder reads both forms, and says of both in the same way what is wrong.
        params = encode(to_v03(decode(params, _ANY)))
    return v03.decode_request(operation, params)


def convert_request(operation: Operation, params: dict[str, Any]) -> Value:
    """The typed request made of path and query values, all of which may be strings."""
    if "status" in params:  # the only enum that a query has
        params = params | {"status": proto_json.read_state(params["status"])}
    return v03.convert_request(operation, params)


def encode_event(event: Event) -> bytes:
    """A StreamResponse: one member, named for the kind of event."""
    writer = _WRITERS[type(event)]
    return encode({writer.member: writer.write(event)})


def encode_result(operation: Operation, result: Result) -> bytes:
    match result:
        case Document():
            return encode_result(operation, result.task())
        case Task() | Message():
            if operation is Operation.SEND:  # SendMessageResponse has the members of a StreamResponse
                return encode_event(result)
            return encode(_WRITERS[type(result)].write(result))
        case TaskPage():  # [Task], as 0.3.0 §7 says; the next page has its place in a header (docs/decisions/0046)
            page = writing.task_page(msgspec.to_builtins(result))
            return encode([proto_json.write_task(task) for task in page["tasks"]])
        case PushConfig():
            return encode(proto_json.write_push(writing.task_push(msgspec.to_builtins(result))))
        case PushConfigPage():
            pushes = writing.push_page(msgspec.to_builtins(result))
            return encode({"configs": [proto_json.write_push(push) for push in pushes]})
        case AgentCard():
            return encode_card(result)
    return EMPTY


# ---- the client's half -------------------------------------------------------------------------------------------

_KINDS: Final = {  # by the member of a StreamResponse: what the JSON-RPC form calls such an event
    "task": "task",
    "message": "message",
    "statusUpdate": "status-update",
    "artifactUpdate": "artifact-update",
}


def encode_request(operation: Operation, request: Value) -> bytes:
    body: Json = decode(v03.encode_request(operation, request), _ANY)
    match operation:
        case Operation.SEND | Operation.STREAM:
            body = proto_json.write_send(body)
        case Operation.CREATE_PUSH:
            body = proto_json.write_create_push(body)
    return encode(body)


def decode_event(data: bytes | Raw, left_out: list[str] | None = None) -> Event:
    """One event of a stream, or what SendMessage answered."""
    body = proto_json.with_camel_names(decode(data, _ANY))
    if isinstance(body, dict):
        if "kind" in body:  # the JSON-RPC form, which some agents also speak over REST
            return v03.decode_event(data, left_out)
        for member, kind in _KINDS.items():
            if member in body:
                return v03.decode_event(encode(proto_json.read_event(body[member], kind)), left_out)
    raise InvalidAgentResponseError("The agent answered with none of task, message, statusUpdate, artifactUpdate")


def decode_result(operation: Operation, data: bytes | Raw, left_out: list[str] | None = None) -> Any:
    """The typed answer of a remote agent."""
    if operation is Operation.DELETE_PUSH:
        return None  # whatever the agent says; a2a-go says 204, and nothing else
    body = decode(data, _ANY)
    match operation:
        case Operation.SEND:
            return decode_event(data, left_out)
        case Operation.GET | Operation.CANCEL:
            body = proto_json.read_task(body)
        case Operation.LIST:
            body = _read_task_page(body)
        case Operation.CREATE_PUSH | Operation.GET_PUSH:
            body = proto_json.read_push(body)
        case Operation.LIST_PUSH:
            if isinstance(body, dict):
                body = body.get("configs", [])
            body = proto_json.each(body, proto_json.read_push)
    return v03.decode_result(operation, encode(body), left_out)


def _read_task_page(body: Any) -> Any:
    if isinstance(body, list):  # as 0.3.0 §7 has it
        page = {"tasks": body}
    else:
        page = proto_json.with_camel_names(body)
        if not isinstance(page, dict):
            return page  # to be refused by its type
    return page | {"tasks": proto_json.each(page.get("tasks", []), proto_json.read_task)}
