"""A server of HTTP/2 that sends the exact frames of a test. Of the client's libraries it uses only hpack.

Each connection runs the script of the test: a coroutine that reads requests and sends frames.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import hpack

from apcore_a2a.protocol.protobuf import v1
from tests.fakes import PATIENCE
from tests.http2_peer import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Frame,
    frame,
    message,
    split_frames,
)

OK: Final = {"grpc-status": "0"}


class Call(NamedTuple):
    """A request of the client."""

    stream: int
    headers: dict[str, str]
    body: bytes

    @property
    def method(self) -> str:
        return self.headers[":path"].rpartition("/")[2]


class Connection:
    """A connection of the client. Its settings are acknowledged, and its PINGs are answered if `answers_pings`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.frames: list[Frame] = []  # all that were received
        self.answers_pings = True
        self.writer = writer
        self._reader = reader
        self._rest = b""
        self._unread: list[Frame] = []
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def begin(self, settings: bytes = b"") -> None:
        assert await self._reader.readexactly(len(PREFACE)) == PREFACE
        self.send(frame(SETTINGS, settings))

    async def read(self) -> Frame:
        """Return the next frame. Raise ConnectionError at the end of the connection."""
        while not self._unread:
            data = await self._reader.read(65_536)
            if not data:
                raise ConnectionError
            self._unread, self._rest = split_frames(self._rest + data)
        received = self._unread.pop(0)
        self.frames.append(received)
        if received.kind == SETTINGS and not received.flags & ACK:
            self.send(frame(SETTINGS, flags=ACK))
        if received.kind == PING and not received.flags & ACK and self.answers_pings:
            self.send(frame(PING, received.payload, flags=ACK))
        return received

    async def until(self, kind: int) -> Frame:
        """Return the next frame of this kind."""
        received = await self.read()
        while received.kind != kind:
            received = await self.read()
        return received

    async def request(self) -> Call:
        """Return the next request, when it is complete."""
        head = await self.until(HEADERS)
        headers = {str(name): str(value) for name, value in self._decoder.decode(head.payload)}
        body = b""
        last = head
        while not last.flags & END_STREAM:
            last = await self.until(DATA)
            body += last.payload
        return Call(head.stream, headers, body)

    def head(self, stream: int, headers: Mapping[str, str], *, ends: bool = False) -> bytes:
        flags = END_HEADERS | END_STREAM if ends else END_HEADERS
        return frame(HEADERS, self._encoder.encode(list(headers.items())), flags=flags, stream=stream)

    def answer_head(self, stream: int) -> bytes:
        return self.head(stream, {":status": "200", "content-type": "application/grpc"})

    def answer(self, call: Call, *messages: bytes, trailers: Mapping[str, str] = OK) -> None:
        """Send a whole response."""
        self.send(self.answer_head(call.stream), *(data(item, call.stream) for item in messages))
        self.send(self.head(call.stream, trailers, ends=True))

    def refuse(self, stream: int, headers: Mapping[str, str]) -> None:
        """Send a response that consists of headers only."""
        self.send(self.head(stream, {":status": "200", "content-type": "application/grpc", **headers}, ends=True))


def data(encoded: bytes, stream: int) -> bytes:
    """Return a message in frames of DATA."""
    framed = message(encoded)
    pieces = [framed[start : start + 16_384] for start in range(0, len(framed), 16_384)]
    return b"".join(frame(DATA, piece, stream=stream) for piece in pieces)


def goaway(last_stream: int, code: int = 0) -> bytes:
    return frame(GOAWAY, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big"))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, code.to_bytes(4, "big"), stream=stream)


def a_task(state: str = "COMPLETED") -> dict[str, object]:
    return {"id": "t-1", "contextId": "c-1", "status": {"state": f"TASK_STATE_{state}"}}


TASK: Final = v1.MESSAGES["Task"].encode(a_task())
SENT: Final = v1.MESSAGES["SendMessageResponse"].encode({"task": a_task()})


def an_event(state: str) -> bytes:
    """Return an event: the task in this state."""
    return v1.MESSAGES["StreamResponse"].encode({"task": a_task(state)})


Script = Callable[[Connection], Awaitable[None]]


class ScriptedHTTP2:
    """A server whose connections run these scripts in turn. The last one repeats."""

    def __init__(self, *scripts: Script) -> None:
        self.connections: list[Connection] = []
        self.port = 0
        self._scripts = scripts

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        script = self._scripts[min(len(self.connections), len(self._scripts) - 1)]
        self.connections.append(connection)
        try:
            async with asyncio.timeout(PATIENCE):
                await script(connection)
                while await connection.read():
                    pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed the connection
        finally:
            writer.close()


@asynccontextmanager
async def serving_frames(*scripts: Script) -> AsyncIterator[ScriptedHTTP2]:
    scripted = ScriptedHTTP2(*scripts)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()
        for connection in scripted.connections:
            connection.writer.close()


def answering(*answers: bytes) -> Script:
    """Return a script that answers each call with the next of these messages. The last one repeats."""

    async def script(connection: Connection) -> None:
        await connection.begin()
        left = list(answers)
        while True:
            call = await connection.request()
            connection.answer(call, left.pop(0) if len(left) > 1 else left[0])

    return script
