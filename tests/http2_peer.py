"""A client that writes and reads single frames of HTTP/2. Of the server's libraries it uses only hpack."""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import hpack

from tests.fakes import PATIENCE

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = range(4)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 7, 8, 9, 11
HEADER_TABLE_SIZE, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME_SIZE = 1, 3, 4, 5
LARGEST: Final = 2**31 - 1


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        return int.from_bytes(self.payload[4:8] if self.kind == GOAWAY else self.payload[:4], "big")


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def setting(name: int, value: int) -> bytes:
    return struct.pack(">HI", name, value)


def window_update(size: int, stream: int = 0) -> bytes:
    return frame(WINDOW_UPDATE, size.to_bytes(4, "big"), stream=stream)


def split_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """Return the complete frames in the data, and the rest."""
    frames: list[Frame] = []
    while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
        size = int.from_bytes(data[:3], "big")
        frames.append(Frame(data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return frames, data


def message(body: bytes) -> bytes:
    """Return a message of gRPC with its prefix."""
    return b"\0" + len(body).to_bytes(4, "big") + body


class Response(NamedTuple):
    headers: dict[str, str]
    body: bytes
    trailers: dict[str, str]

    @property
    def status(self) -> int:
        return int(self.headers[":status"])


class FramePeer:
    """A connection. `read` returns frame by frame, `response` everything up to the end of a stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str) -> None:
        self.authority = authority
        self.frames: list[Frame] = []  # all that were received
        self.encoder = hpack.Encoder()
        self.next_stream = 1
        self.answers_pings = True
        self.writer = writer
        self._reader = reader
        self._rest = b""
        self._unread: deque[Frame] = deque()
        self._decoder = hpack.Decoder()
        self._blocks: dict[int, list[dict[str, str]]] = {}
        self._bodies: dict[int, bytes] = {}
        self._ended: set[int] = set()

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    def block(self, method: str, path: str, headers: Iterable[tuple[str, str]] = ()) -> bytes:
        fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", self.authority), *headers]
        return self.encoder.encode(fields)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()
    ) -> int:
        """Send a request with its whole body, and return the number of its stream."""
        stream = self.next_stream
        self.next_stream += 2
        flags = END_HEADERS if body else END_HEADERS | END_STREAM
        self.send(frame(HEADERS, self.block(method, path, headers), flags=flags, stream=stream))
        body = body or b""
        for start in range(0, len(body), 16_384):
            last = END_STREAM if start + 16_384 >= len(body) else 0
            self.send(frame(DATA, body[start : start + 16_384], flags=last, stream=stream))
        return stream

    def call(self, path: str, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> int:
        """Send a gRPC call."""
        fields = (("content-type", "application/grpc"), ("te", "trailers"), *headers)
        return self.request("POST", path, message(body), fields)

    async def read(self) -> Frame | None:
        """Return the next frame, or None at the end of the connection."""
        async with asyncio.timeout(PATIENCE):
            while not self._unread:
                try:
                    data = await self._reader.read(65_536)
                except OSError:
                    return None
                if not data:
                    return None
                frames, self._rest = split_frames(self._rest + data)
                self._unread += frames
        got = self._unread.popleft()
        self._note(got)
        return got

    def _note(self, got: Frame) -> None:
        self.frames.append(got)
        if got.kind == PING and not got.flags & ACK and self.answers_pings:
            self.send(frame(PING, got.payload, flags=ACK))
        if got.kind == HEADERS:
            assert got.flags & END_HEADERS
            fields = {
                name.decode(): value.decode("latin-1") for name, value in self._decoder.decode(got.payload, raw=True)
            }
            self._blocks.setdefault(got.stream, []).append(fields)
        if got.kind == DATA:
            self._bodies[got.stream] = self._bodies.get(got.stream, b"") + got.payload
        if got.kind in (HEADERS, DATA) and got.flags & END_STREAM:
            self._ended.add(got.stream)

    async def until(self, found: Callable[[Frame], bool]) -> Frame:
        """Read until a frame that fits."""
        while True:
            got = await self.read()
            assert got is not None, f"the connection closed after {self.frames[-5:]}"
            if found(got):
                return got

    async def response(self, stream: int) -> Response:
        while stream not in self._ended:
            got = await self.read()
            assert got is not None, f"the connection closed after {self.frames[-5:]}"
            assert (got.kind, got.stream) != (RST_STREAM, stream), f"reset with {got.code}"
        blocks = [block for block in self._blocks[stream] if block.get(":status") != "100"]
        trailers = blocks[1] if len(blocks) > 1 else {}
        return Response(blocks[0], self._bodies.get(stream, b""), trailers)

    def received(self, stream: int) -> bytes:
        """Return the part of a body that was read so far."""
        return self._bodies.get(stream, b"")

    async def goaway(self) -> Frame:
        return await self.until(lambda got: got.kind == GOAWAY)

    async def ends(self) -> None:
        """Read until the server closes the connection."""
        while await self.read() is not None:
            pass

    async def pings(self) -> None:
        """Return when the server has handled everything that was sent before."""
        self.send(frame(PING, b"in order"))
        await self.until(lambda got: got.kind == PING and bool(got.flags & ACK) and got.payload == b"in order")


@asynccontextmanager
async def connected(url: str, settings: bytes = b"", *, tls: SSLContext | None = None) -> AsyncIterator[FramePeer]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, ssl=tls)
    peer = FramePeer(reader, writer, address.netloc)
    peer.send(PREFACE, frame(SETTINGS, settings))
    try:
        yield peer
    finally:
        writer.transport.abort()
