"""From the model to the JSON of A2A 0.3: the 1.0 JSON of a value is rewritten.

Rule: each function rewrites in place the objects it is given, which are its own, and answers them. What comes out is
official 0.3.0; the one addition is `tasks/list`, which 0.3 does not have.
"""

from typing import Any, Final

from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Role
from apcore_a2a.protocol.tables import inverted
from apcore_a2a.protocol.v03.reading import FILENAME, MEDIA_TYPE, STATES, WRAPPED

Json = dict[str, Any]  # the JSON of one value of the model: strings for enums and bytes

# 0.3 has two roles. One that is not said is the agent's: users' messages are refused without it.
_ROLES: Final[dict[str, str]] = {Role.UNSPECIFIED: "agent", Role.USER: "user", Role.AGENT: "agent"}
_STATES: Final[dict[str, str]] = inverted(STATES)
_NOTHING: Final = [{"data": None, "mediaType": "application/json"}]  # of a module; 1.0 requires a part for it, too


def _part(part: Json) -> None:
    if "text" in part:
        part["kind"] = "text"
    elif "data" in part:
        part["kind"] = "data"
        if not isinstance(part["data"], dict):  # all that 0.3 takes; `reading` unwraps it again
            part["data"] = {"value": part["data"]}
            part.setdefault("metadata", {})[WRAPPED] = True
    else:
        part["kind"] = "file"
        file: Json = {}
        part["file"] = file
        _move(part, "raw", file, "bytes")
        _move(part, "url", file, "uri")
        _move(part, "filename", file, "name")
        _move(part, "mediaType", file, "mimeType")
        return
    # 0.3 has these fields for files alone.
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


def _artifact(artifact: Json) -> None:
    if artifact["parts"] == _NOTHING:
        artifact["parts"] = []  # FR-MSG-004
    for part in artifact["parts"]:
        _part(part)


def task(task: Json) -> Json:
    task["kind"] = "task"
    task.setdefault("contextId", "")  # required in 0.3
    _status(task["status"])
    for artifact in task.get("artifacts", ()):
        _artifact(artifact)
    for entry in task.get("history", ()):
        message(entry)
    return task


def status_update(update: Json) -> Json:
    # The last event of a stream in 0.3: a task that waits for its user ends the stream, too.
    update["final"] = update["status"]["state"] in AT_REST
    _status(update["status"])
    update["kind"] = "status-update"
    return update


def artifact_update(update: Json) -> Json:
    _artifact(update["artifact"])
    update["kind"] = "artifact-update"
    return update


def _push(push: Json) -> Json:
    if "authentication" in push:
        authentication = push["authentication"]
        scheme = authentication.pop("scheme")
        authentication["schemes"] = [scheme] if scheme else []
    push.pop("tenant", None)  # 0.3 has none
    return push


def task_push(push: Json) -> Json:
    return {"taskId": push.pop("taskId", ""), "pushNotificationConfig": _push(push)}


def push_page(page: Json) -> list[Json]:
    return [task_push(push) for push in page["configs"]]


def task_page(page: Json) -> Json:
    for entry in page["tasks"]:
        task(entry)
    if page["nextPageToken"]:
        page["nextCursor"] = page["nextPageToken"]  # the requirements' name for it
    return page


# ---- requests: the client's half ---------------------------------------------------------------------------------


def send(request: Json) -> Json:
    message(request["message"])
    configuration = request.setdefault("configuration", {})
    configuration["blocking"] = not configuration.pop("returnImmediately", False)
    if "taskPushNotificationConfig" in configuration:
        push = _push(configuration.pop("taskPushNotificationConfig"))
        push.pop("taskId", None)  # there is no task yet
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
    # In this order: `id` must be out of the way before the task's id takes its name.
    _move(ref, "id", ref, "pushNotificationConfigId")
    _move(ref, "taskId", ref, "id")
    return ref
