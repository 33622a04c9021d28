"""The client for tests over gRPC: the official library has the connection, and this package's codec the messages.

`tests/protocol` compares that codec with the official one.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from grpc import aio

from apcore_a2a.errors import WIRE
from apcore_a2a.protocol.grpc import PATHS, find_method, read_status
from apcore_a2a.protocol.model import Event, Operation, Value
from tests.fakes import PATIENCE
from tests.interaction.wire_client import CODES, ReceivedEvent, Refused, Stream, WireClient

STATUSES: Final = {row.reason: row.http for row in WIRE.values()}
UNLIMITED: Final = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class GRPCStream(Stream):
    """An open stream of a call."""

    def __init__(self, client: "GRPCClient", call: Any, first: bytes) -> None:
        self._client = client
        self._call = call
        self._first = first
        self._heard = self._listen()
        self.status = 200
        self.headers = httpx.Headers({"content-type": client.stream_media})

    async def _listen(self) -> AsyncGenerator[ReceivedEvent, None]:
        yield self._client.event_of(self._first)
        try:
            async for message in self._call:
                yield self._client.event_of(message)
        except aio.AioRpcError as error:
            raise refusal(error) from error


class GRPCClient(WireClient):
    """A WireClient over gRPC."""

    stream_media = "application/grpc+proto"
    has_event_ids = False
    is_grpc = True

    def __init__(self, http: httpx.AsyncClient, *, version: str, channel: aio.Channel | None = None) -> None:
        super().__init__(http, rest=True, version=version)
        self.headers = {}
        if channel is None:
            address = urlsplit(str(http.base_url))
            channel = aio.insecure_channel(address.netloc, options=UNLIMITED)
        self.channel = channel

    def as_caller(self, name: str) -> "GRPCClient":
        other = GRPCClient(self.http, version=self.version, channel=self.channel)
        other.headers |= {"X-API-Key": f"key of {name}"}
        return other

    def metadata(self, headers: dict[str, str]) -> list[tuple[str, str]]:
        return [(name.lower(), value) for name, value in (self.headers | headers).items()]

    async def call(self, operation: Operation, value: Value, headers: dict[str, str] | None = None) -> Any:
        if (self.version, operation) not in PATHS:  # 0.3 lists tasks over REST only
            return await super().call(operation, value)
        path, method = find_method(self.version, operation)
        unary = self.channel.unary_unary(path)
        try:
            message = await unary(method.encode_request(value), metadata=self.metadata(headers or {}), timeout=PATIENCE)
        except aio.AioRpcError as error:
            raise refusal(error) from error
        return self.dialect.decode_result(operation, method.decode_answer(message))

    @asynccontextmanager
    async def _open(self, operation: Operation, value: Value, headers: dict[str, str]) -> AsyncIterator[Stream]:
        path, method = find_method(self.version, operation)
        call = self.channel.unary_stream(path)(method.encode_request(value), metadata=self.metadata(headers))
        try:
            first = await anext(aiter(call))
        except aio.AioRpcError as error:
            raise refusal(error) from error
        try:
            yield GRPCStream(self, call, first)
        finally:
            call.cancel()

    def event_of(self, message: bytes) -> ReceivedEvent:
        _, method = find_method(self.version, Operation.STREAM)
        event: Event = self.dialect.decode_event(method.decode_answer(message))
        return ReceivedEvent("", event)


def refusal(error: aio.AioRpcError) -> Refused:
    """Return a rejection with the code and the status of the other bindings, by the reason in its details."""
    data: Any = []
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            data = _details(value)
    reason = data[0]["reason"] if data else ""
    return Refused(CODES.get(reason, 0), STATUSES.get(reason, 0), error.details() or "", data)


def _details(value: bytes) -> Any:
    status = read_status({"grpc-status": "0", "grpc-status-details-bin": b64encode(value).decode()})
    assert status is not None
    return status.details
