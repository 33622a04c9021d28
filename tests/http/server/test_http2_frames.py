"""Conversations of HTTP/2 without a socket: in any split the answers are equal, and mutated ones harm nothing."""

import asyncio
import logging
import os
import random
from types import SimpleNamespace
from typing import Any, Final, cast

import hpack
import pytest
from starlette.types import Receive, Scope, Send

from apcore_a2a.http.server.exchange import AcceptedConnection
from apcore_a2a.http.server.http2 import HTTP2Connection
from apcore_a2a.http.traffic import Traffic
from tests.engine.driving import settle
from tests.http2_peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    PADDED,
    PREFACE,
    SETTINGS,
    Frame,
    frame,
    setting,
    split_frames,
    window_update,
)

MUTATED: Final = int(os.environ.get("MUTATED_CONVERSATIONS", "1500"))  # 25,000 take a minute


class Transport:
    """A transport in memory."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: asyncio.Protocol) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = b""
    while True:
        part = await receive()
        if part["type"] == "http.disconnect":
            return
        body += part["body"]
        if not part["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")], "trailers": True})
    await send({"type": "http.response.body", "body": body})
    await send({"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]})


class Opened:
    """A connection, its transport, and the running requests of its server."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.traffic = Traffic()
        self.tasks: set[asyncio.Task[None]] = set()
        self.connections: set[Any] = set()
        state = SimpleNamespace(default_headers=[], total_requests=0, tasks=self.tasks, connections=self.connections)
        self.connection = HTTP2Connection(
            AcceptedConnection(
                app=echo,
                loop=asyncio.get_running_loop(),
                transport=cast(asyncio.Transport, self.transport),
                client=("127.0.0.1", 1),
                server=("127.0.0.1", 2),
                scheme="http",
                root_path="",
                state={},
                server_state=state,
                traffic=self.traffic,
                address="127.0.0.1",
            )
        )

    def feed(self, data: bytes, size: int) -> None:
        for start in range(0, len(data), size):
            if not self.transport.is_closed:
                self.connection.data_received(data[start : start + size])

    async def close(self) -> None:
        self.connection.connection_lost(None)
        await settle()
        assert not self.tasks, "a request still runs"
        assert not self.connections
        assert (self.traffic.body_bytes, self.traffic.answer_bytes) == (0, 0)


def conversation(chance: random.Random, requests: int) -> tuple[bytes, dict[int, bytes]]:
    """Return the frames of some requests, and their bodies by stream."""
    encoder = hpack.Encoder()
    data = PREFACE + frame(SETTINGS, setting(INITIAL_WINDOW, 2**20)) + window_update(2**24)
    bodies: dict[int, bytes] = {}
    for index in range(requests):
        stream = 2 * index + 1
        body = chance.randbytes(chance.choice([0, 3, 500, 20_000]))
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/x"),
            (":authority", "a"),
            ("n", str(chance.random())),
        ]
        block = encoder.encode(fields)
        last = 0 if body else END_STREAM
        match chance.randrange(3):
            case 0:
                data += frame(HEADERS, block[:3], flags=last, stream=stream)
                data += frame(CONTINUATION, block[3:], flags=END_HEADERS, stream=stream)
            case 1:
                flags = last | END_HEADERS | PADDED
                data += frame(HEADERS, b"\3" + block + b"\0\0\0", flags=flags, stream=stream)
            case 2:
                data += frame(HEADERS, block, flags=last | END_HEADERS, stream=stream)
        for start in range(0, len(body), 9000):
            last = END_STREAM if start + 9000 >= len(body) else 0
            data += frame(DATA, body[start : start + 9000], flags=last, stream=stream)
        bodies[stream] = body
    return data, bodies


def bodies_in(frames: list[Frame]) -> dict[int, bytes]:
    """Return the bodies of complete responses by stream."""
    bodies: dict[int, bytes] = {}
    ended: set[int] = set()
    for got in frames:
        if got.kind == DATA:
            bodies[got.stream] = bodies.get(got.stream, b"") + got.payload
        if got.kind in (HEADERS, DATA) and got.flags & END_STREAM:
            ended.add(got.stream)
    return {stream: bodies.get(stream, b"") for stream in ended}


@pytest.mark.parametrize("size", [1, 7, 100, 5000, 10**6])
async def test_a_conversation_in_any_split_has_the_same_answers(size: int) -> None:
    chance = random.Random(size)
    for _ in range(10 if size == 1 else 30):
        data, bodies = conversation(chance, 6)
        opened = Opened()
        opened.feed(data, size)
        await settle(60)
        frames, rest = split_frames(opened.transport.written)
        assert (bodies_in(frames), rest) == (bodies, b"")
        await opened.close()


def mutate(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 12)):
        place = chance.randrange(len(PREFACE), len(changed))
        match chance.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                changed[place] = chance.randrange(256)
            case 5 | 6:
                del changed[place]
            case _:
                stream = chance.choice([0, 1, 3, 5, 2**31 - 1])
                payload = chance.randbytes(chance.choice([0, 4, 8, 6, 5]))
                inserted = frame(chance.randrange(11), payload, flags=chance.randrange(256), stream=stream)
                changed[place:place] = inserted
    return bytes(changed)


async def test_mutated_conversations_raise_nothing_and_leave_nothing_running(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(os.environ.get("SEED", "1"))
    ended = 0
    with caplog.at_level(logging.WARNING):
        for _ in range(MUTATED):
            data, _ = conversation(chance, 3)
            opened = Opened()
            opened.feed(mutate(data, chance), 4000)
            await settle(12)
            frames, rest = split_frames(opened.transport.written)
            assert rest == b""
            ended += any(got.kind == GOAWAY for got in frames)
            await opened.close()
    assert caplog.records == []
    assert MUTATED > ended > MUTATED // 3  # most mutations are noticed, and some are harmless
