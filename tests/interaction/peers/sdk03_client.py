# mypy: ignore-errors
# It is typed against a2a-sdk 0.3.x, which cannot be installed beside the 1.x that mypy sees.
"""The client of a2a-sdk 0.3.x, which does what the lines on its standard input say (`process.py`)."""

import asyncio
import json
import sys
import traceback
from uuid import uuid4

import httpx
from a2a import types as t
from a2a.client import ClientConfig, ClientFactory
from a2a.client.errors import A2AClientHTTPError, A2AClientJSONRPCError
from grpc import aio

NAMES = {
    -32001: "TaskNotFoundError",
    -32002: "TaskNotCancelableError",
    -32003: "PushNotificationNotSupportedError",
    -32004: "UnsupportedOperationError",
    -32007: "ExtendedAgentCardNotConfiguredError",
    -32602: "InvalidParamsError",
}


def words(event):
    if isinstance(event, tuple):
        task, update = event
        return words(task if update is None else update)
    match event:
        case t.Task():
            texts = [part.root.text for artifact in event.artifacts or [] for part in artifact.parts]
            said = [message.parts[0].root.text for message in event.history or []]
            state = event.status.state.value
            return {"task": event.id, "context": event.context_id, "state": state, "texts": texts, "history": said}
        case t.Message():
            return {"says": event.parts[0].root.text}
        case t.TaskStatusUpdateEvent():
            return {"state": event.status.state.value, "final": event.final}
    text = event.artifact.parts[0].root.text
    return {"chunk": text, "append": bool(event.append), "last": bool(event.last_chunk)}


def plain(part):
    match part:
        case t.TextPart():
            return {"text": part.text}
        case t.DataPart():
            return {"data": part.data}
    return {"raw": part.file.bytes, "filename": part.file.name}


class Worker:
    def __init__(self):
        self.http = httpx.AsyncClient(timeout=5)
        self.streams = {}

    async def client(self, ask, **options):
        self.http.headers.update(ask["headers"])
        config = ClientConfig(
            httpx_client=self.http,
            supported_transports=[ask["binding"]],
            use_client_preference=True,
            grpc_channel_factory=lambda url: aio.insecure_channel(url.removeprefix("http://")),
            **({"streaming": False} | options),
        )
        return await ClientFactory.connect(ask["url"], config)

    def message(self, ask):
        return t.Message(
            message_id=str(uuid4()),
            role=t.Role.user,
            parts=[t.Part(root=t.TextPart(text=ask["text"]))],
            task_id=ask.get("task_id") or None,
            context_id=ask.get("context_id") or None,
        )

    def keep(self, events):
        name = str(uuid4())
        self.streams[name] = events
        return name

    async def send(self, ask):
        client = await self.client(ask, polling=not ask["wait"])
        return words(await anext(client.send_message(self.message(ask))))

    async def send_data(self, ask):
        client = await self.client(ask)
        parts = [t.Part(root=t.DataPart(data=ask["data"]))]
        message = t.Message(message_id=str(uuid4()), role=t.Role.user, parts=parts, metadata={"skillId": ask["skill"]})
        task, _ = await anext(client.send_message(message))
        assert task.status.state == t.TaskState.completed, task.status
        return [plain(part.root) for part in task.artifacts[0].parts]

    async def send_file(self, ask):
        client = await self.client(ask)
        parts = [t.Part(root=t.FilePart(file=t.FileWithBytes(bytes=ask["content"], name="f")))]
        message = t.Message(message_id=str(uuid4()), role=t.Role.user, parts=parts)
        task, _ = await anext(client.send_message(message))
        return task.artifacts[0].parts[0].root.file.bytes

    async def stream(self, ask):
        client = await self.client(ask, streaming=True)
        return self.keep(client.send_message(self.message(ask)))

    async def subscribe(self, ask):
        client = await self.client(ask, streaming=True)
        return self.keep(client.resubscribe(t.TaskIdParams(id=ask["task_id"])))

    async def next(self, ask):
        try:
            return words(await anext(self.streams[ask["stream"]]))
        except StopAsyncIteration:
            return {}

    async def close(self, ask):
        await self.streams.pop(ask["stream"]).aclose()

    async def get(self, ask):
        client = await self.client(ask)
        return words(await client.get_task(t.TaskQueryParams(id=ask["task_id"], history_length=ask["history_length"])))

    async def cancel(self, ask):
        client = await self.client(ask)
        return words(await client.cancel_task(t.TaskIdParams(id=ask["task_id"])))

    async def card(self, ask):
        """Return the extended card, if the card announces one."""
        client = await self.client(ask)
        return (await client.get_card()).model_dump(mode="json", by_alias=True, exclude_none=True)

    async def set_webhook(self, ask):
        client = await self.client(ask)
        config = t.TaskPushNotificationConfig(
            task_id=ask["task_id"], push_notification_config=t.PushNotificationConfig(url=ask["webhook"])
        )
        return (await client.set_task_callback(config)).model_dump(mode="json", by_alias=True)

    async def get_webhook(self, ask):
        client = await self.client(ask)
        wanted = t.GetTaskPushNotificationConfigParams(id=ask["task_id"], push_notification_config_id=ask["config_id"])
        return (await client.get_task_callback(wanted)).model_dump(mode="json", by_alias=True)

    async def exit(self, ask):
        sys.exit(1)

    async def answer(self, ask):
        try:
            return {"ok": await getattr(self, ask["do"])(ask)}
        except A2AClientJSONRPCError as error:
            return {"error": NAMES.get(error.error.code, str(error.error.code))}
        except A2AClientHTTPError as error:
            return {"error": f"HTTP {error.status_code}"}
        except aio.AioRpcError as error:
            return {"error": f"gRPC Error {error.code().name}"}
        except Exception:  # the failure of one test: the process serves the others, too
            return {"failed": traceback.format_exc()}


async def main():
    worker = Worker()
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await worker.answer(json.loads(line))), flush=True)
    await worker.http.aclose()


if __name__ == "__main__":
    asyncio.run(main())
