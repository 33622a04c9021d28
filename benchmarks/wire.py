"""The requests in the names and shapes of each A2A version."""

import json
from typing import Any

from benchmarks.peers.serving import FILLED
from benchmarks.servers import Server

METHODS = {
    "1.0": {"send": "SendMessage", "stream": "SendStreamingMessage", "get": "GetTask", "list": "ListTasks",
            "subscribe": "SubscribeToTask"},
    "0.3": {"send": "message/send", "stream": "message/stream", "get": "tasks/get", "subscribe": "tasks/resubscribe"},
}  # fmt: skip
SKILL = {"skillId": "math.add"}
TASK_ID = FILLED.replace("%012d", "@")  # request.lua inserts a number


def message(server: Server, text: str) -> dict[str, Any]:
    old = server.version == "0.3"
    if server.kind in ("apcore", "call_async"):
        part: dict[str, Any] = {"data": {"a": 1.5, "b": 2.5}}
    else:
        part = {"text": text}
    if old:
        part["kind"] = "data" if "data" in part else "text"
    said: dict[str, Any] = {"messageId": "m", "role": "user" if old else "ROLE_USER", "parts": [part]}
    if "data" in part:
        said["metadata"] = SKILL
    return {**said, "kind": "message"} if old else said


def body(server: Server, operation: str, params: dict[str, Any]) -> str:
    method = METHODS[server.version][operation]
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, separators=(",", ":"))


def send(server: Server, text: str = "echo") -> str:
    return body(server, "send", {"message": message(server, text)})


def stream(server: Server, text: str, tenant: str = "") -> str:
    params: dict[str, Any] = {"message": message(server, text)}
    return body(server, "stream", {**params, "tenant": tenant} if tenant else params)


def get(server: Server, task_id: str = TASK_ID) -> str:
    return body(server, "get", {"id": task_id})


def list_tasks(server: Server) -> str:
    return body(server, "list", {"pageSize": 50})


def subscribe(server: Server, task_id: str) -> str:
    return body(server, "subscribe", {"id": task_id})
