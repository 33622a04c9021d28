"""The JSON of A2A 0.3's protocol buffers, from and to that of its JSON-RPC (`v03`).

Rule: `write_…` rewrites in place objects that are its own. `read_…` is given what came from outside: whatever is not as
expected stays as it is, and the decoder of `v03`, which comes next, says what is wrong with it.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final

from apcore_a2a.protocol.decoding import camel

Json = dict[str, Any]  # one JSON object; when it comes from outside, any of its members may be anything

_ROLES: Final = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_STATES: Final = {
    "unknown": "TASK_STATE_UNSPECIFIED",
    "submitted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELLED",  # with two Ls, in 0.3 alone
    "rejected": "TASK_STATE_REJECTED",
    "input-required": "TASK_STATE_INPUT_REQUIRED",
    "auth-required": "TASK_STATE_AUTH_REQUIRED",
}
_ROLE_NAMES: Final = {role: name for name, role in _ROLES.items()}
_STATE_NAMES: Final = {state: name for name, state in _STATES.items()}
_IN_PATH: Final = "-"  # stands for the task of a push config until the binding puts in what the path says


# ---- out ---------------------------------------------------------------------------------------------------------


def _write_part(part: Json) -> None:
    del part["kind"]
    if "data" in part:
        part["data"] = {"data": part["data"]}
    elif "file" in part:
        file = part["file"]
        if "uri" in file:
            file["fileWithUri"] = file.pop("uri")
        else:
            # The official SDKs put base64 text into a field of bytes, so that it is base64 twice on the wire.
            file["fileWithBytes"] = base64.b64encode(file.pop("bytes").encode()).decode()


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
    task_id, config = push["taskId"], push["pushNotificationConfig"]
    name = f"tasks/{task_id}/pushNotificationConfigs/{config.get('id', '')}"
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


# ---- in ----------------------------------------------------------------------------------------------------------


def named(value: Any) -> Any:
    """A copy of an object with its names in camelCase: ProtoJSON allows snake_case, too."""
    return {camel(name): item for name, item in value.items()} if isinstance(value, dict) else value


def each(value: Any, read: Callable[[Any], Any]) -> Any:
    return [read(item) for item in value] if isinstance(value, list) else value


def _read_part(part: Any) -> Any:
    part = named(part)
    match part:
        case {"data": {"data": data}}:
            return part | {"kind": "data", "data": data}
        case {"file": dict(given)}:
            file = named(given)
            uri, content = file.pop("fileWithUri", None), file.pop("fileWithBytes", None)
            file |= {"uri": uri} if content is None else {"bytes": _unwrap(content)}
            return part | {"kind": "file", "file": file}
        case {"text": _}:
            return part | {"kind": "text"}
    return part


def _unwrap(content: Any) -> Any:
    """The base64 text of a file, which the official SDKs encode once more."""
    try:
        inner = base64.b64decode(content, validate=True).decode("ascii")
        base64.b64decode(inner, validate=True)
    except (binascii.Error, TypeError, ValueError):
        return content
    return inner


def is_message(value: Any) -> bool:
    """Whether a message is written in this way: it has `content` where the other has `parts`."""
    return (
        isinstance(value, dict)
        and "parts" not in value
        and ("content" in value or str(value.get("role")) in _ROLE_NAMES)
    )


def read_message(message: Any) -> Any:
    message = named(message)
    if not is_message(message):
        return message
    message["parts"] = each(message.pop("content", None), _read_part)
    if "role" in message:
        message["role"] = _ROLE_NAMES.get(str(message["role"]), message["role"])
    return message | {"kind": "message"}


def _read_status(status: Any) -> Any:
    status = named(status)
    if not isinstance(status, dict):
        return status
    if "message" in status:
        status["message"] = read_message(status["message"])
    state = status.get("state", _STATES["unknown"])  # ProtoJSON leaves out what is the default
    return status | {"state": _STATE_NAMES.get(str(state), state)}


def _read_artifact(artifact: Any) -> Any:
    artifact = named(artifact)
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
    """A task, or an event of one; `kind` is its name in `v03`."""
    if not isinstance(event, dict) or "kind" in event:
        return event
    if kind == "message":
        return read_message(event)
    event = named(event)
    return event | {name: read(event[name]) for name, read in _FIELDS.items() if name in event} | {"kind": kind}


def read_task(task: Any) -> Any:
    return read_event(task, "task")


def read_send(body: Any) -> Any:
    body = named(body)
    if not isinstance(body, dict):
        return body
    if "request" in body:
        body["message"] = body.pop("request")  # the field's name; `message` is its name in JSON
    message = named(body.get("message"))
    if not is_message(message):
        return body
    body["message"] = read_message(message)
    if "configuration" in body:
        body["configuration"] = _read_configuration(body["configuration"])
    return body


def _read_configuration(configuration: Any) -> Any:
    configuration = named(configuration)
    if not isinstance(configuration, dict):
        return configuration
    configuration.setdefault("blocking", False)  # ProtoJSON leaves out what is false
    if configuration.get("historyLength") == 0:
        del configuration["historyLength"]  # in the protocol buffers of 0.3, 0 means everything
    if "pushNotification" in configuration:
        configuration["pushNotificationConfig"] = configuration.pop("pushNotification")
    return configuration


def read_push(body: Any) -> Any:
    """A push config, from inside whatever it comes in."""
    outer = named(body)
    wrapped = named(outer.get("config", outer)) if isinstance(outer, dict) else outer
    if not isinstance(wrapped, dict):
        return wrapped
    name = str(wrapped.get("name", "")).split("/")
    config = named(wrapped.get("pushNotificationConfig", wrapped))
    if isinstance(config, dict) and not config.get("id"):
        config = config | {"id": outer.get("configId", "")}
    task_id = wrapped.get("taskId") or (name[1] if len(name) == 4 else _IN_PATH)
    return {"taskId": task_id, "pushNotificationConfig": config}
