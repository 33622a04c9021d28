# mypy: ignore-errors
"""a2a-sdk 1.x: the parts of the stored task after a stream."""

from uuid import uuid4

import httpx
from a2a.client import ClientConfig, create_client
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToJson
from lines import serve

tasks = {}


def plain(part) -> str:
    match part.WhichOneof("content"):
        case "raw":
            return part.raw.decode()
        case "data":
            return MessageToJson(part.data, indent=None)
    return part.text


def shown(task) -> list:
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    return [plain(part) for part in parts or task.status.message.parts]


def message(text: str, task_id: str = ""):
    parts = [pb.Part(text=text)]
    return pb.SendMessageRequest(
        message=pb.Message(message_id=str(uuid4()), role=pb.Role.ROLE_USER, parts=parts, task_id=task_id)
    )


async def ask(url: str, text: str, talk: str) -> dict:
    async with httpx.AsyncClient(timeout=30) as http:
        client = await create_client(url, ClientConfig(httpx_client=http))
        pieces = []
        async for event in client.send_message(message(text, tasks.get((url, talk), ""))):
            if event.HasField("task"):
                tasks[url, talk] = event.task.id
            if event.HasField("artifact_update"):
                pieces += [plain(part) for part in event.artifact_update.artifact.parts]
        task = await client.get_task(pb.GetTaskRequest(id=tasks[url, talk]))
        return {"shown": shown(task), "pieces": pieces}


async def cancel(url: str) -> dict:
    async with httpx.AsyncClient(timeout=30) as http:
        client = await create_client(url, ClientConfig(httpx_client=http))
        async for event in client.send_message(message("go")):
            if event.HasField("artifact_update"):
                task = await client.cancel_task(pb.CancelTaskRequest(id=event.artifact_update.task_id))
                return {"shown": [pb.TaskState.Name(task.status.state)]}
    raise AssertionError("the task has ended by itself")


serve(ask=ask, cancel=cancel)
