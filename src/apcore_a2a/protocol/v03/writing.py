"""A2A 0.3, written: the 1.0 JSON of a value becomes its 0.3 JSON.

Rule: each function rewrites in place the objects it is given, which are its own, and answers them. What comes out is
official 0.3.0; the one addition is `tasks/list`, which 0.3 does not have.
"""

from typing import Any, Final

from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Role
from apcore_a2a.protocol.v03.reading import FILENAME, MEDIA_TYPE, ROLES, STATES, WRAPPED

Json = dict[str, Any]  # the JSON of one value of the model: strings for enums and bytes

_ROLES: Final[dict[str, str]] = {Role.UNSPECIFIED: "agent", **{role: name for name, role in ROLES.items()}}
_STATES: Final[dict[str, str]] = {state: name for name, state in STATES.items()}
_AT_REST: Final = frozenset(_STATES[state] for state in AT_REST)


def _part(part: Json) -> None:
    if "text" in part:
        part["kind"] = "text"
    elif "data" in part:
        part["kind"] = "data"
        if not isinstance(part["data"], dict):
            part["data"] = {"value": part["data"]}
            part.setdefault("metadata", {})[WRAPPED] = True
    else:
        part["kind"] = "file"
        part["file"] = file = {"bytes": part.pop("raw")} if "raw" in part else {"uri": part.pop("url")}
        _move(part, "filename", file, "name")
        _move(part, "mediaType", file, "mimeType")
        return
    if "filename" in part or "mediaType" in part:
        metadata = part.setdefault("metadata", {})
        _move(part, "filename", metadata, FILENAME)
        _move(part, "mediaType", metadata, MEDIA_TYPE)


def _move(source: Json, name: str, target: Json, new_name: str) -> None:
    if name in source:
        target[new_name] = source.pop(name)


def message(message: Json) -> Json:
    message["kind"] = "message"
    message["role"] = _ROLES[message["role"]]
    for part in message["parts"]:
        _part(part)
    return message


def _status(status: Json) -> None:
    status["state"] = _STATES[status["state"]]
    if "message" in status:
        message(status["message"])


def task(task: Json) -> Json:
    task["kind"] = "task"
    task.setdefault("contextId", "")
    _status(task["status"])
    for artifact in task.get("artifacts", ()):
        for part in artifact["parts"]:
            _part(part)
    for entry in task.get("history", ()):
        message(entry)
    return task


def status_update(update: Json) -> Json:
    _status(update["status"])
    update["final"] = update["status"]["state"] in _AT_REST
    update["kind"] = "status-update"
    return update


def artifact_update(update: Json) -> Json:
    for part in update["artifact"]["parts"]:
        _part(part)
    update["kind"] = "artifact-update"
    return update


def _push(push: Json) -> Json:
    if "authentication" in push:
        authentication = push["authentication"]
        scheme = authentication.pop("scheme")
        authentication["schemes"] = [scheme] if scheme else []
    push.pop("tenant", None)
    return push


def task_push(push: Json) -> Json:
    return {"taskId": push.pop("taskId", ""), "pushNotificationConfig": _push(push)}


def push_page(page: Json) -> list[Json]:
    return [task_push(push) for push in page["configs"]]


def task_page(page: Json) -> Json:
    for entry in page["tasks"]:
        task(entry)
    if page["nextPageToken"]:
        page["nextCursor"] = page["nextPageToken"]
    return page


# ---- requests: the client's half ---------------------------------------------------------------------------------


def send(request: Json) -> Json:
    message(request["message"])
    configuration = request.setdefault("configuration", {})
    configuration["blocking"] = not configuration.pop("returnImmediately", False)
    if "taskPushNotificationConfig" in configuration:
        push = _push(configuration.pop("taskPushNotificationConfig"))
        push.pop("taskId", None)
        configuration["pushNotificationConfig"] = push
    return request


def list_tasks(request: Json) -> Json:
    _move(request, "pageToken", request, "cursor")
    _move(request, "pageSize", request, "limit")
    if "status" in request:
        request["status"] = _STATES[request["status"]]
    request.setdefault("includeArtifacts", False)  # the default of 1.0, but not of ours for 0.3
    return request


def push_ref(ref: Json) -> Json:
    _move(ref, "id", ref, "pushNotificationConfigId")
    _move(ref, "taskId", ref, "id")
    return ref
