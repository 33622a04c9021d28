"""The client of a2a-sdk 1.x, in this process."""

from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar
from uuid import uuid4

import httpx
from a2a.client import Client, ClientCallContext, ClientConfig, create_client
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict, ParseDict
from grpc import aio

from tests.fakes import PATIENCE
from tests.interaction.peers import PeerError, Words

T = TypeVar("T")


def to_words(event: pb.StreamResponse | pb.Task) -> Words:
    if isinstance(event, pb.StreamResponse):
        match event.WhichOneof("payload"):
            case "task":
                return to_words(event.task)
            case "message":
                return {"says": event.message.parts[0].text}
            case "status_update":
                return {"state": _state(event.status_update.status)}
        update = event.artifact_update
        return {"chunk": update.artifact.parts[0].text, "append": update.append, "last": update.last_chunk}
    texts = [part.text for artifact in event.artifacts for part in artifact.parts]
    said = [message.parts[0].text for message in event.history]
    return {
        "task": event.id,
        "context": event.context_id,
        "state": _state(event.status),
        "texts": texts,
        "history": said,
    }


def _state(status: pb.TaskStatus) -> str:
    return pb.TaskState.Name(status.state).removeprefix("TASK_STATE_").lower().replace("_", "-")


async def _answer_of(call: Awaitable[T]) -> T:
    try:
        return await call
    except (A2AError, A2AClientError) as error:
        raise PeerError(f"{type(error).__name__}: {error}") from error  # over gRPC as 0.3 the text has the status


class Sdk1Stream:
    def __init__(self, events: AsyncGenerator[pb.StreamResponse, None]) -> None:
        self._events = events

    async def next(self) -> Words:
        try:
            return to_words(await _answer_of(anext(self._events)))
        except StopAsyncIteration:
            return {}

    async def close(self) -> None:
        await self._events.aclose()


class Sdk1:
    """One client with one connection pool. It uses the first interface of the card with its binding."""

    def __init__(self, url: str, binding: str, headers: dict[str, str] | None = None) -> None:
        self._url, self._binding = url, binding
        self._http = httpx.AsyncClient(timeout=PATIENCE, headers=headers)
        self._context = ClientCallContext(service_parameters=headers)  # over gRPC: its metadata
        self._channels: list[aio.Channel] = []

    async def _client(self, *, streaming: bool = False, polling: bool = False) -> Client:
        config = ClientConfig(
            streaming=streaming,
            polling=polling,
            httpx_client=self._http,
            supported_protocol_bindings=[self._binding],
            grpc_channel_factory=self._open_channel,
        )
        return await create_client(self._url, config)

    def _open_channel(self, url: str) -> aio.Channel:
        channel = aio.insecure_channel(url.removeprefix("http://"))
        self._channels.append(channel)
        return channel

    def _request(self, text: str, task_id: str = "", context_id: str = "") -> pb.SendMessageRequest:
        message = pb.Message(
            message_id=str(uuid4()),
            role=pb.Role.ROLE_USER,
            parts=[pb.Part(text=text)],
            task_id=task_id,
            context_id=context_id,
        )
        return pb.SendMessageRequest(message=message)

    async def send(self, text: str, *, task_id: str = "", context_id: str = "", wait: bool = True) -> Words:
        client = await self._client(polling=not wait)
        stream = Sdk1Stream(client.send_message(self._request(text, task_id, context_id), context=self._context))  # type: ignore[arg-type]  # it is
        return await stream.next()

    async def send_data(self, skill: str, data: Words) -> list[Words]:
        """Return the parts that a skill answers to data. This client sends a Struct, so all numbers are doubles."""
        client = await self._client()
        part = pb.Part()
        ParseDict(data, part.data.struct_value)
        message = pb.Message(message_id=str(uuid4()), role=pb.Role.ROLE_USER, parts=[part])
        message.metadata.update({"skillId": skill})
        async for event in client.send_message(pb.SendMessageRequest(message=message)):
            task = MessageToDict(event.task)
            assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
            return list(task["artifacts"][0]["parts"])
        raise AssertionError("the client received nothing")

    async def stream(self, text: str) -> Sdk1Stream:
        client = await self._client(streaming=True)
        return Sdk1Stream(client.send_message(self._request(text)))  # type: ignore[arg-type]  # an async generator

    async def subscribe(self, task_id: str) -> Sdk1Stream:
        client = await self._client(streaming=True)
        return Sdk1Stream(client.subscribe(pb.SubscribeToTaskRequest(id=task_id)))  # type: ignore[arg-type]  # the same

    async def get(self, task_id: str, history_length: int | None = None) -> Words:
        client = await self._client()
        return to_words(await _answer_of(client.get_task(pb.GetTaskRequest(id=task_id, history_length=history_length))))

    async def list(self, context_id: str, page_size: int, page_token: str = "") -> tuple[list[str], str]:
        client = await self._client()
        request = pb.ListTasksRequest(context_id=context_id, page_size=page_size, page_token=page_token)
        page = await _answer_of(client.list_tasks(request))
        return [task.id for task in page.tasks], page.next_page_token

    async def cancel(self, task_id: str) -> Words:
        client = await self._client()
        return to_words(await _answer_of(client.cancel_task(pb.CancelTaskRequest(id=task_id))))

    async def card(self) -> Words:
        client = await self._client()
        return MessageToDict(client._card)  # type: ignore[attr-defined]  # it shows the card it found nowhere else

    async def extended_card(self) -> Words:
        client = await self._client()
        return MessageToDict(
            await _answer_of(client.get_extended_agent_card(pb.GetExtendedAgentCardRequest(), context=self._context))
        )

    async def set_webhook(self, task_id: str, url: str) -> Words:
        client = await self._client()
        config = pb.TaskPushNotificationConfig(task_id=task_id, url=url)
        return MessageToDict(await _answer_of(client.create_task_push_notification_config(config)))

    async def get_webhook(self, task_id: str, config_id: str) -> Words:
        client = await self._client()
        wanted = pb.GetTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)
        return MessageToDict(await _answer_of(client.get_task_push_notification_config(wanted)))

    async def webhook_urls(self, task_id: str) -> tuple[str, ...]:
        client = await self._client()
        wanted = pb.ListTaskPushNotificationConfigsRequest(task_id=task_id)
        page = await _answer_of(client.list_task_push_notification_configs(wanted))
        return tuple(config.url for config in page.configs)

    async def delete_webhook(self, task_id: str, config_id: str) -> None:
        client = await self._client()
        wanted = pb.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=config_id)
        await _answer_of(client.delete_task_push_notification_config(wanted))

    async def close(self) -> None:
        await self._http.aclose()
        for channel in self._channels:
            await channel.close()
