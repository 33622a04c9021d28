"""A2A 0.3 in its REST form: ProtoJSON, which differs from the JSON of its JSON-RPC form.

Invariant: input may have either form, because agents and clients of both kinds exist. Output is ProtoJSON, because the
official clients reject unknown fields. `jsonrpc` (here called `v03`) has the parts that both forms share.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import camel, decode, inverted
from apcore_a2a.protocol.jsonrpc import EMPTY
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Document,
    Event,
    Message,
    Operation,
    PushConfig,
    PushConfigPage,
    StatusUpdate,
    Task,
    TaskPage,
    Value,
    encode,
)
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import values
from apcore_a2a.protocol.v1 import Result

# ---- proto json -----------------------------------------------------------------------------------------------------
# Conversion between the JSON of A2A 0.3's protocol buffers (its REST form) and that of its JSON-RPC form.
#
# Invariant: `write_…` converts objects in place, which it owns. `read_…` receives untrusted input: it leaves unexpected
# values unchanged, and the decoder of the JSON-RPC form, which runs next, reports them.

Json = dict[str, Any]  # a JSON object. In untrusted input, its members may have any type

_ROLES: Final = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_STATES: Final = {
    "unknown": "TASK_STATE_UNSPECIFIED",
    "submitted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELLED",  # with two Ls, only in 0.3
    "rejected": "TASK_STATE_REJECTED",
    "input-required": "TASK_STATE_INPUT_REQUIRED",
    "auth-required": "TASK_STATE_AUTH_REQUIRED",
}
# By their forms on the wire: the name, or the number in the protocol buffers.
_ROLE_NAMES: Final[dict[Any, str]] = {**inverted(_ROLES), 1: "user", 2: "agent"}
_STATE_NAMES: Final[dict[Any, str]] = {
    **inverted(_STATES),
    0: "unknown",
    1: "submitted",
    2: "working",
    3: "completed",
    4: "failed",
    5: "canceled",
    6: "input-required",
    7: "rejected",
    8: "auth-required",
}
_IN_PATH: Final = "-"  # a placeholder for the task of a push config, which the binding replaces by the one in the path


# ---- encoding ----------------------------------------------------------------------------------------------------


def _write_part(part: Json) -> None:
    del part["kind"]
    if "data" in part:
        part["data"] = {"data": part["data"]}
    elif "file" in part:
        file = part["file"]
        if "uri" in file:
            file["fileWithUri"] = file.pop("uri")
        else:
            file["fileWithBytes"] = file.pop("bytes")  # base64 in both forms, once (docs/decisions/0044)


def write_message(message: Json) -> Json:
    del message["kind"]
    message.pop("referenceTaskIds", None)  # not in the protocol buffers of 0.3
    message["role"] = _ROLES[message["role"]]
    message["content"] = message.pop("parts")
    for part in message["content"]:
        _write_part(part)
    return message


def _write_status(status: Json) -> None:
    status["state"] = _STATES[status["state"]]
    if "message" in status:
        write_message(status["message"])


def _write_artifact(artifact: Json) -> None:
    for part in artifact["parts"]:
        _write_part(part)


def write_task(task: Json) -> Json:
    del task["kind"]
    _write_status(task["status"])
    for artifact in task.get("artifacts", ()):
        _write_artifact(artifact)
    for message in task.get("history", ()):
        write_message(message)
    return task


def write_status_update(update: Json) -> Json:
    del update["kind"]
    _write_status(update["status"])
    return update


def write_artifact_update(update: Json) -> Json:
    del update["kind"]
    _write_artifact(update["artifact"])
    return update


def write_push(push: Json) -> Json:
    # A resource name as in Google's API guidelines, with the ids of the task and of the config.
    config = push["pushNotificationConfig"]
    name = f"tasks/{push['taskId']}/pushNotificationConfigs/{config.get('id', '')}"
    return {"name": name, "pushNotificationConfig": config}


def write_send(body: Json) -> Json:
    write_message(body["message"])
    configuration = body["configuration"]
    if "pushNotificationConfig" in configuration:
        configuration["pushNotification"] = configuration.pop("pushNotificationConfig")
    return body


def write_create_push(push: Json) -> Json:
    config_id = push["pushNotificationConfig"].get("id", "")
    return {"parent": f"tasks/{push['taskId']}", "configId": config_id, "config": write_push(push)}


# ---- decoding ----------------------------------------------------------------------------------------------------


def with_camel_names(value: Any) -> Any:
    """Return a copy of an object with its names in camelCase, because ProtoJSON allows snake_case too."""
    if not isinstance(value, dict):
        return value
    named: Json = {}
    for name, item in value.items():
        named[camel(name)] = item
    return named


def each(value: Any, read: Callable[[Any], Any]) -> Any:
    """Return a list with each item converted, or any other value unchanged."""
    if not isinstance(value, list):
        return value
    return [read(item) for item in value]


def _read_part(part: Any) -> Any:
    part = with_camel_names(part)
    match part:
        case {"data": {"data": data}}:
            return part | {"kind": "data", "data": data}
        case {"file": dict(file)}:
            return part | {"kind": "file", "file": _read_file(file)}
        case {"text": _}:
            return part | {"kind": "text"}
    return part


def _read_file(file: Json) -> Json:
    file = with_camel_names(file)
    uri = file.pop("fileWithUri", None)
    content = file.pop("fileWithBytes", None)
    if content is None:
        file["uri"] = uri
    else:
        file["bytes"] = content
    return file


def _to_name(value: Any, names: dict[Any, str]) -> Any:
    """Return the name of an enum value in the JSON-RPC form, or an unknown value unchanged."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 3:  # a number may be a string
        return names.get(int(value), value)
    if isinstance(value, str) or type(value) is int:
        return names.get(value, value)
    return value


def read_state(state: Any) -> Any:
    return _to_name(state, _STATE_NAMES)


def is_proto_message(value: Any) -> bool:
    """Whether a message is ProtoJSON: with `content`, where the JSON-RPC form has `parts`."""
    if not isinstance(value, dict) or "parts" in value:
        return False
    role = value.get("role")
    return "content" in value or _to_name(role, _ROLE_NAMES) != role  # ProtoJSON omits an empty `content`


def read_message(message: Any) -> Any:
    message = with_camel_names(message)
    if not is_proto_message(message):
        return message
    message["parts"] = each(message.pop("content", None), _read_part)
    if "role" in message:
        message["role"] = _to_name(message["role"], _ROLE_NAMES)
    return message | {"kind": "message"}


def _read_status(status: Any) -> Any:
    status = with_camel_names(status)
    if not isinstance(status, dict):
        return status
    if "message" in status:
        status["message"] = read_message(status["message"])
    state = status.get("state", _STATES["unknown"])  # ProtoJSON omits defaults
    return status | {"state": read_state(state)}


def _read_artifact(artifact: Any) -> Any:
    artifact = with_camel_names(artifact)
    if isinstance(artifact, dict):
        artifact["parts"] = each(artifact.get("parts", []), _read_part)
    return artifact


_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    "status": _read_status,
    "artifact": _read_artifact,
    "artifacts": lambda artifacts: each(artifacts, _read_artifact),
    "history": lambda history: each(history, read_message),
}


def read_event(event: Any, kind: str) -> Any:
    """Convert a task or an event. `kind` is its type in the JSON-RPC form."""
    if not isinstance(event, dict) or "kind" in event:
        return event
    if kind == "message":
        return read_message(event)
    event = with_camel_names(event)
    for name, read in _FIELDS.items():
        if name in event:
            event[name] = read(event[name])
    event["kind"] = kind
    return event


def read_task(task: Any) -> Any:
    return read_event(task, "task")


def read_send(body: Any) -> Any:
    body = with_camel_names(body)
    if not isinstance(body, dict):
        return body
    if "request" in body:
        body["message"] = body.pop("request")  # the name of the field. `message` is its name in JSON
    message = with_camel_names(body.get("message"))
    if not is_proto_message(message):
        return body  # the JSON-RPC form, which needs no conversion
    body["message"] = read_message(message)
    if "configuration" in body:
        body["configuration"] = _read_configuration(body["configuration"])
    return body


def _read_configuration(configuration: Any) -> Any:
    configuration = with_camel_names(configuration)
    if not isinstance(configuration, dict):
        return configuration
    configuration.setdefault("blocking", False)  # ProtoJSON omits false
    if configuration.get("historyLength") in (0, "0"):
        del configuration["historyLength"]  # in the protocol buffers of 0.3, 0 means everything
    if "pushNotification" in configuration:
        configuration["pushNotificationConfig"] = configuration.pop("pushNotification")
    return configuration


def read_push(body: Any) -> Any:
    """Convert a push config, with or without the objects around it.

    Official: `{parent, configId, config: {name, pushNotificationConfig}}` to create one, and its `config` as a result.
    Also accepted: a bare config, with or without `taskId`.
    """
    outer = with_camel_names(body)
    if not isinstance(outer, dict):
        return outer
    wrapped = with_camel_names(outer.get("config", outer))
    if not isinstance(wrapped, dict):
        return wrapped
    config = with_camel_names(wrapped.get("pushNotificationConfig", wrapped))
    if isinstance(config, dict) and not config.get("id"):
        config = config | {"id": outer.get("configId", "")}
    return {"taskId": wrapped.get("taskId") or _task_of(wrapped), "pushNotificationConfig": config}


def _task_of(wrapped: Json) -> str:
    """Return the task in the name of a push config: tasks/{task}/pushNotificationConfigs/{id}."""
    steps = str(wrapped.get("name", "")).split("/")
    if len(steps) != 4:
        return _IN_PATH
    return steps[1]


# ---- rest -----------------------------------------------------------------------------------------------------------

# The parts that both forms share. A dialect is a module, so each name is repeated here.
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

# ---- for the server ----------------------------------------------------------------------------------------------

_REQUEST_READERS: Final[dict[Operation, Callable[[Any], Any]]] = {  # others: no body, or equal
    Operation.SEND: read_send,
    Operation.STREAM: read_send,
    Operation.CREATE_PUSH: read_push,
}


class _EventForm(NamedTuple):
    """The conversions of an event: from the model's JSON, which is 1.0, to that of 0.3, and then to ProtoJSON."""

    member: str
    """The member of a StreamResponse that holds the event."""
    to_v03: Callable[[Json], Json]
    to_proto: Callable[[Json], Json]

    def write(self, event: Event) -> Json:
        return self.to_proto(self.to_v03(msgspec.to_builtins(event)))


_WRITERS: Final = {
    Task: _EventForm("task", values.task, write_task),
    Message: _EventForm("message", values.message, write_message),
    StatusUpdate: _EventForm("statusUpdate", values.status_update, write_status_update),
    ArtifactUpdate: _EventForm("artifactUpdate", values.artifact_update, write_artifact_update),
}


def decode_request(operation: Operation, params: bytes | Raw) -> Value:
    """Return the typed request of an operation. A wrong field is an InvalidParamsError that names it."""
    to_v03 = _REQUEST_READERS.get(operation)
    if to_v03 is not None:
        # Encoded again, so that one decoder reads both forms and reports the same errors.
        params = encode(to_v03(decode(params, _ANY)))
    return v03.decode_request(operation, params)


def convert_request(operation: Operation, params: dict[str, Any]) -> Value:
    """Return the typed request from path and query values, all of which may be strings."""
    if "status" in params:  # the only enum in a query
        params = params | {"status": read_state(params["status"])}
    return v03.convert_request(operation, params)


def encode_event(event: Event) -> bytes:
    """Return a StreamResponse: an object with one member, named after the type of event."""
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
        case TaskPage():  # [Task], as in 0.3.0 §7. The link to the next page is in a header (docs/decisions/0046)
            page = values.task_page(msgspec.to_builtins(result))
            return encode([write_task(task) for task in page["tasks"]])
        case PushConfig():
            return encode(write_push(values.task_push(msgspec.to_builtins(result))))
        case PushConfigPage():
            pushes = values.push_page(msgspec.to_builtins(result))
            return encode({"configs": [write_push(push) for push in pushes]})
        case AgentCard():
            return encode_card(result)
    return EMPTY


# ---- for the client ----------------------------------------------------------------------------------------------

_KINDS: Final = {  # from the member of a StreamResponse to the type of event in the JSON-RPC form
    "task": "task",
    "message": "message",
    "statusUpdate": "status-update",
    "artifactUpdate": "artifact-update",
}


def encode_request(operation: Operation, request: Value) -> bytes:
    body: Json = decode(v03.encode_request(operation, request), _ANY)
    match operation:
        case Operation.SEND | Operation.STREAM:
            body = write_send(body)
        case Operation.CREATE_PUSH:
            body = write_create_push(body)
    return encode(body)


def decode_event(data: bytes | Raw, left_out: list[str] | None = None) -> Event:
    """Return an event of a stream, or the result of SendMessage."""
    body = with_camel_names(decode(data, _ANY))
    if isinstance(body, dict):
        if "kind" in body:  # the JSON-RPC form, which some agents also speak over REST
            return v03.decode_event(data, left_out)
        for member, kind in _KINDS.items():
            if member in body:
                return v03.decode_event(encode(read_event(body[member], kind)), left_out)
    raise InvalidAgentResponseError("The agent answered with none of task, message, statusUpdate, artifactUpdate")


def decode_result(operation: Operation, data: bytes | Raw, left_out: list[str] | None = None) -> Any:
    """Return the typed result of a remote agent."""
    if operation is Operation.DELETE_PUSH:
        return None  # the result is ignored. a2a-go sends only status 204
    body = decode(data, _ANY)
    match operation:
        case Operation.SEND:
            return decode_event(data, left_out)
        case Operation.GET | Operation.CANCEL:
            body = read_task(body)
        case Operation.LIST:
            body = _read_task_page(body)
        case Operation.CREATE_PUSH | Operation.GET_PUSH:
            body = read_push(body)
        case Operation.LIST_PUSH:
            if isinstance(body, dict):
                body = body.get("configs", [])
            body = each(body, read_push)
    return v03.decode_result(operation, encode(body), left_out)


def _read_task_page(body: Any) -> Any:
    if isinstance(body, list):  # as in 0.3.0 §7
        page = {"tasks": body}
    else:
        page = with_camel_names(body)
        if not isinstance(page, dict):
            return page  # the decoder rejects its type
    return page | {"tasks": each(page.get("tasks", []), read_task)}
