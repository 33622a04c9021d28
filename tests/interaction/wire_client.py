"""A client for tests that behaves the same over every binding and version.

A WireClient encodes and decodes with our own dialects, which `tests/protocol` compares with the official libraries.
It does not hide how a request was rejected.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import httpx
from msgspec.structs import replace

from apcore_a2a.errors import WIRE
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.model import (
    CancelTask,
    Event,
    GetExtendedCard,
    GetTask,
    ListPushConfigs,
    ListTasks,
    Message,
    Operation,
    PushConfig,
    PushConfigPage,
    PushConfigRef,
    Role,
    SendConfiguration,
    SendMessage,
    SubscribeToTask,
    Task,
    TaskPage,
    Value,
)
from apcore_a2a.protocol.sse import ServerSentEvent, SSEDecoder
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import rest as v03_rest
from tests.fakes import says

CODES: Final = {row.reason: row.code for row in WIRE.values()}
PATHS: Final = {
    Operation.SEND: ("POST", "/message:send"),
    Operation.STREAM: ("POST", "/message:stream"),
    Operation.GET: ("GET", "/tasks/{id}"),
    Operation.LIST: ("GET", "/tasks"),
    Operation.CANCEL: ("POST", "/tasks/{id}:cancel"),
    Operation.SUBSCRIBE: ("POST", "/tasks/{id}:subscribe"),
    Operation.CREATE_PUSH: ("POST", "/tasks/{task_id}/pushNotificationConfigs"),
    Operation.GET_PUSH: ("GET", "/tasks/{task_id}/pushNotificationConfigs/{id}"),
    Operation.LIST_PUSH: ("GET", "/tasks/{task_id}/pushNotificationConfigs"),
    Operation.DELETE_PUSH: ("DELETE", "/tasks/{task_id}/pushNotificationConfigs/{id}"),
    Operation.EXTENDED_CARD: ("GET", "/extendedAgentCard"),
}


class Refused(Exception):
    """A request was rejected: the JSON-RPC code, the HTTP status, the message and the error data."""

    def __init__(self, code: int, status: int, message: str, data: Any) -> None:
        super().__init__(f"{code} (HTTP {status}): {message}")
        self.code, self.status, self.message, self.data = code, status, message, data


class ReceivedEvent(NamedTuple):
    """One event of a stream, with its SSE id."""

    id: str
    event: Event


class Stream:
    """An open stream. Iterate over its events. Leaving its context disconnects."""

    def __init__(self, client: "WireClient", response: httpx.Response) -> None:
        self._speaker, self._response = client, response
        self._heard = self._listen()
        self.status, self.headers = response.status_code, response.headers

    async def _listen(self) -> AsyncGenerator[ReceivedEvent, None]:
        decoder = SSEDecoder()
        async for data in self._response.aiter_bytes():
            for event in decoder.feed(data):
                yield self._speaker.read_event(event)

    def __aiter__(self) -> AsyncIterator[ReceivedEvent]:
        return self._heard

    async def next(self) -> Event:
        return (await anext(self._heard)).event

    async def rest(self) -> list[Event]:
        return [received.event async for received in self._heard]


class WireClient:
    """A client with a binding, a version and an address."""

    stream_media = "text/event-stream"
    has_event_ids = True
    is_grpc = False

    def __init__(self, http: httpx.AsyncClient, *, rest: bool, version: str) -> None:
        self.http, self.rest, self.version = http, rest, version
        self.dialect: Dialect = v1 if version == "1.0" else v03_rest if rest else v03
        self.headers = {"A2A-Version": version} if version == "1.0" else {}

    def as_caller(self, name: str) -> "WireClient":
        """Return the same client with the API key of a caller that `Keys` knows."""
        other = WireClient(self.http, rest=self.rest, version=self.version)
        other.headers |= {"X-API-Key": f"key of {name}"}
        return other

    # ---- operations -----------------------------------------------------------------------------------------------

    async def send(self, text: str, **said: Any) -> Task:
        answer = await self.call(Operation.SEND, self.message(text, **said))
        assert isinstance(answer, Task)
        return answer

    async def ask(self, text: str, **said: Any) -> Message:
        """Send a message that is answered with a message."""
        answer = await self.call(Operation.SEND, self.message(text, **said))
        assert isinstance(answer, Message)
        return answer

    @staticmethod
    def message(
        text: str, *, id: str = "", task_id: str = "", context_id: str = "", **configuration: Any
    ) -> SendMessage:
        plain = says(text, Role.USER, message_id=id or f"m-{text}")
        message = Message(
            message_id=plain.message_id, role=plain.role, parts=plain.parts, task_id=task_id, context_id=context_id
        )
        return SendMessage(message=message, configuration=SendConfiguration(**configuration))

    async def get(self, task_id: str, history_length: int | None = None) -> Task:
        task = await self.call(Operation.GET, GetTask(id=task_id, history_length=history_length))
        assert isinstance(task, Task)
        return task

    async def list(self, **filters: Any) -> TaskPage:
        page = await self.call(Operation.LIST, ListTasks(**filters))
        assert isinstance(page, TaskPage)
        return page

    async def cancel(self, task_id: str) -> Task:
        task = await self.call(Operation.CANCEL, CancelTask(id=task_id))
        assert isinstance(task, Task)
        return task

    async def set_webhook(self, task_id: str, url: str, **fields: Any) -> PushConfig:
        config = await self.call(Operation.CREATE_PUSH, PushConfig(task_id=task_id, url=url, **fields))
        assert isinstance(config, PushConfig)
        return config

    async def get_webhook(self, task_id: str, config_id: str) -> PushConfig:
        config = await self.call(Operation.GET_PUSH, PushConfigRef(task_id=task_id, id=config_id))
        assert isinstance(config, PushConfig)
        return config

    async def list_webhooks(self, task_id: str) -> tuple[PushConfig, ...]:
        page = await self.call(Operation.LIST_PUSH, ListPushConfigs(task_id=task_id))
        assert isinstance(page, PushConfigPage)
        return page.configs

    async def delete_webhook(self, task_id: str, config_id: str) -> None:
        assert await self.call(Operation.DELETE_PUSH, PushConfigRef(task_id=task_id, id=config_id)) is None

    async def extended_card(self) -> Any:
        return await self.call(Operation.EXTENDED_CARD, GetExtendedCard())

    @asynccontextmanager
    async def stream(self, text: str, **said: Any) -> AsyncIterator[Stream]:
        async with self._open(Operation.STREAM, self.message(text, **said), {}) as stream:
            yield stream

    @asynccontextmanager
    async def subscribe(self, task_id: str, **headers: str) -> AsyncIterator[Stream]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._open(Operation.SUBSCRIBE, SubscribeToTask(id=task_id), names) as stream:
            yield stream

    # ---- the wire -------------------------------------------------------------------------------------------------

    def request(self, operation: Operation, value: Value) -> httpx.Request:
        params = json.loads(self.dialect.encode_request(operation, value))
        if not self.rest:
            body = {"jsonrpc": "2.0", "id": 7, "method": self.dialect.NAMES[operation], "params": params}
            return self.http.build_request("POST", "/", json=body, headers=self.headers)
        method, path = PATHS[operation]
        if operation is Operation.EXTENDED_CARD and self.version == "0.3":
            path = "/card"
        task_id = getattr(value, "task_id", "")
        config_id = getattr(value, "id", "")
        url = self.dialect.REST_PREFIX + path.format(id=config_id or params.get("id", ""), task_id=task_id)
        if operation is not Operation.CREATE_PUSH:
            for name in ("id", "taskId", "pushNotificationConfigId"):
                params.pop(name, None)
        if method in ("GET", "DELETE"):
            query = {name: json.dumps(one) if isinstance(one, bool) else one for name, one in params.items()}
            return self.http.build_request(method, url, params=query, headers=self.headers)
        return self.http.build_request(method, url, json=params, headers=self.headers)

    def anything(self, operation: Operation) -> httpx.Request:
        """Return some request for an operation."""
        values = {Operation.SEND: self.message("hi"), Operation.STREAM: self.message("hi"), Operation.LIST: ListTasks()}
        return self.request(operation, values.get(operation, GetTask(id="any")))

    async def call(self, operation: Operation, value: Value) -> Any:
        response = await self.http.send(self.request(operation, value))
        if self.rest:
            self._check(response)
            result = self.dialect.decode_result(operation, response.content)
            if "next" in response.links:  # in 0.3 a page is a bare array
                token = httpx.URL(response.links["next"]["url"]).params["pageToken"]
                result = replace(result, next_page_token=token)
            return result
        body = response.json()
        assert body["id"] == 7
        if "error" in body:
            raise self._refusal(response.status_code, body["error"])
        return self.dialect.decode_result(operation, json.dumps(body["result"]).encode())

    @asynccontextmanager
    async def _open(self, operation: Operation, value: Value, headers: dict[str, str]) -> AsyncIterator[Stream]:
        request = self.request(operation, value)
        request.headers.update({"Accept": "text/event-stream"} | headers)
        response = await self.http.send(request, stream=True)
        try:
            if not response.headers["content-type"].startswith("text/event-stream"):
                await response.aread()
                self._check(response)
                raise self._refusal(response.status_code, response.json()["error"])
            yield Stream(self, response)
        finally:
            await response.aclose()

    def read_event(self, event: ServerSentEvent) -> ReceivedEvent:
        data = event.data.encode()
        if self.rest:
            return ReceivedEvent(event.id, self.dialect.decode_event(data))
        body = json.loads(data)
        assert body["jsonrpc"] == "2.0" and body["id"] == 7
        if "error" in body:
            raise self._refusal(200, body["error"])
        return ReceivedEvent(event.id, self.dialect.decode_event(json.dumps(body["result"]).encode()))

    def _check(self, response: httpx.Response) -> None:
        if self.rest and response.status_code != 200:
            body = response.json()
            raise self._refusal(response.status_code, body["error"] if self.version == "1.0" else body)

    def _refusal(self, status: int, error: dict[str, Any]) -> Refused:
        data: Any = error.get("data", error.get("details"))
        code = CODES[data[0]["reason"]] if self.rest and self.version == "1.0" else error["code"]
        return Refused(code, status, error["message"], data)
