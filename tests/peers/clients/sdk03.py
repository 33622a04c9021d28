# mypy: ignore-errors
"""a2a-sdk 0.3: the parts of the stored task after a stream."""

import base64
import json
from uuid import uuid4

import httpx
from a2a import types as t
from a2a.client import ClientConfig, ClientFactory
from lines import serve

tasks = {}


def plain(part) -> str:
    match part.root:
        case t.TextPart():
            return part.root.text
        case t.DataPart():
            return json.dumps(part.root.data)
    return base64.b64decode(part.root.file.bytes).decode()


def message(text: str, task_id: str | None = None):
    return t.Message(
        message_id=str(uuid4()), role=t.Role.user, parts=[t.Part(root=t.TextPart(text=text))], task_id=task_id
    )


async def ask(url: str, text: str, talk: str) -> dict:
    async with httpx.AsyncClient(timeout=30) as http:
        client = await ClientFactory.connect(url, ClientConfig(httpx_client=http))
        pieces = []
        async for task, update in client.send_message(message(text, tasks.get((url, talk)))):
            tasks[url, talk] = task.id
            if isinstance(update, t.TaskArtifactUpdateEvent):
                pieces += [plain(part) for part in update.artifact.parts]
        task = await client.get_task(t.TaskQueryParams(id=task.id))
        parts = [part for artifact in task.artifacts or () for part in artifact.parts]
        return {"shown": [plain(part) for part in parts or task.status.message.parts], "pieces": pieces}


async def cancel(url: str) -> dict:
    async with httpx.AsyncClient(timeout=30) as http:
        client = await ClientFactory.connect(url, ClientConfig(httpx_client=http))
        async for task, _ in client.send_message(message("go")):
            if task.artifacts:
                return {"shown": [(await client.cancel_task(t.TaskIdParams(id=task.id))).status.state.value]}
    raise AssertionError("the task has ended by itself")


serve(ask=ask, cancel=cancel)
