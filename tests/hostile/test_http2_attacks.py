"""Attacks of HTTP/2 clients: each ends with its connection, and other clients are served meanwhile.

The server runs in a process of its own, and measures the longest block of its event loop in CPU time.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Final

import httpx
import pytest
from a2a.types import a2a_pb2 as pb

from apcore_a2a import A2AClient
from apcore_a2a.protocol.grpc import PATHS
from apcore_a2a.protocol.model import Operation
from tests.hostile.test_nothing_freezes import BLOCKED, figure, server
from tests.hostile.test_readers import MEGABYTE, large_task, peak_memory
from tests.http2_peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    LARGEST,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    FramePeer,
    connected,
    frame,
    message,
    setting,
    window_update,
)
from tests.processes import PATIENCE

Attack = Callable[[FramePeer], Iterator[bytes]]
GET: Final = PATHS["1.0", Operation.GET]
STREAM: Final = PATHS["1.0", Operation.STREAM]
GROWTH: Final = 120 * MEGABYTE  # of the server's memory: several times less than the attacks announce or send


def headers_of(peer: FramePeer, stream: int, flags: int = END_HEADERS) -> bytes:
    fields = (("content-type", "application/grpc"), ("te", "trailers"))
    return frame(HEADERS, peer.block("POST", GET, fields), flags=flags, stream=stream)


def rapid_reset(peer: FramePeer) -> Iterator[bytes]:
    """CVE-2023-44487."""
    for stream in range(1, 20_001, 2):
        yield headers_of(peer, stream) + frame(RST_STREAM, b"\0\0\0\x08", stream=stream)


def made_to_reset(peer: FramePeer) -> Iterator[bytes]:
    """CVE-2025-8671: an invalid frame makes the server reset the stream."""
    for stream in range(1, 20_001, 2):
        yield headers_of(peer, stream) + window_update(0, stream)


def large_continuations(peer: FramePeer) -> Iterator[bytes]:
    """CVE-2024-27316: headers without an end."""
    yield headers_of(peer, 1, flags=0)
    for _ in range(60):
        yield frame(CONTINUATION, (b"\x00\x02aa\x7f\x81\x7e" + b"b" * 0x17D) * 40, stream=1)


def small_continuations(peer: FramePeer) -> Iterator[bytes]:
    yield headers_of(peer, 1, flags=0)
    for _ in range(5000):
        yield frame(CONTINUATION, b"\x00\x01a\x01b" * 2, stream=1)


def empty_continuations(peer: FramePeer) -> Iterator[bytes]:
    yield headers_of(peer, 1, flags=0)
    for _ in range(20_000):
        yield frame(CONTINUATION, stream=1)


def many_settings(peer: FramePeer) -> Iterator[bytes]:
    for _ in range(15_000):
        yield frame(SETTINGS, setting(INITIAL_WINDOW, 65_535) * 4)


def many_pings(peer: FramePeer) -> Iterator[bytes]:
    for _ in range(15_000):
        yield frame(PING, b"12345678")


def many_priorities(peer: FramePeer) -> Iterator[bytes]:
    for _ in range(20_000):
        yield frame(PRIORITY, b"\0\0\0\0\1", stream=1)


def unknown_frames(peer: FramePeer) -> Iterator[bytes]:
    for _ in range(20_000):
        yield frame(0xFE, b"x" * 10)


def empty_bodies(peer: FramePeer) -> Iterator[bytes]:
    yield headers_of(peer, 1)
    for _ in range(20_000):
        yield frame(DATA, stream=1)


def compressed_headers(peer: FramePeer) -> Iterator[bytes]:
    """A header of four kilobytes in the table of HPACK, and 12,000 references to it of one byte."""
    large = b"\x40\x01a" + b"\x7f\x81\x1e" + b"x" * 0xF80
    yield frame(HEADERS, peer.block("POST", GET) + large + b"\xbe" * 12_000, flags=END_HEADERS, stream=1)


def many_streams(peer: FramePeer) -> Iterator[bytes]:
    for stream in range(1, 4001, 2):
        yield headers_of(peer, stream)


def announced_frame(peer: FramePeer) -> Iterator[bytes]:
    """A frame of sixteen megabytes, which never arrives as a whole."""
    yield b"\xff\xff\xff\0\0\0\0\0\1" + b"x" * 100_000


def noise(peer: FramePeer) -> Iterator[bytes]:
    yield random.Random(1).randbytes(100_000)


CALM: Final = {ENHANCE_YOUR_CALM}
ATTACKS: Final[list[tuple[Attack, set[int]]]] = [
    (rapid_reset, CALM),
    (made_to_reset, CALM | {PROTOCOL_ERROR}),
    (large_continuations, CALM),
    (small_continuations, CALM | {PROTOCOL_ERROR}),
    (empty_continuations, CALM | {PROTOCOL_ERROR}),
    (many_settings, CALM),
    (many_pings, CALM),
    (many_priorities, CALM),
    (unknown_frames, CALM),
    (empty_bodies, CALM),
    (compressed_headers, CALM),
    (many_streams, CALM | {PROTOCOL_ERROR}),
    (announced_frame, {FRAME_SIZE_ERROR}),
    (noise, {FRAME_SIZE_ERROR, PROTOCOL_ERROR, ENHANCE_YOUR_CALM}),
]


async def perform(url: str, attack: Attack) -> int:
    """Perform an attack, and return the code with which the server ends the connection."""
    async with connected(url) as peer:
        reading = asyncio.create_task(peer.goaway())
        sent = 0
        for data in attack(peer):
            peer.send(data)
            sent += len(data)
            if sent > 5_000:
                sent = 0
                await asyncio.sleep(0)  # often, because a write that fails discards a GOAWAY that was not read yet
                if reading.done() or peer.writer.transport.is_closing():
                    break
        return (await reading).code


@pytest.mark.timeout(150)
async def test_attacks_end_with_their_connections_and_delay_no_other_client() -> None:
    async with server() as (process, url):
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            for attack, codes in ATTACKS:
                assert await perform(url, attack) in codes, attack.__name__
                assert (await client.get(f"{url}/health")).status_code == 200
        assert await figure(url, "loop_lag_cpu_seconds_max") < BLOCKED
        assert peak_memory(process) < GROWTH


def stream_request(number: int, text: str) -> bytes:
    said = pb.Message(message_id=f"m-{number}", role=pb.ROLE_USER, parts=[pb.Part(text=text)])
    return pb.SendMessageRequest(message=said).SerializeToString()


async def test_a_window_that_is_opened_byte_by_byte_ends_the_connection() -> None:
    async with server() as (_, url), connected(url, setting(INITIAL_WINDOW, 1)) as peer:
        stream = peer.call(STREAM, stream_request(1, "count 1000"))
        while True:
            got = await peer.read()
            if got is None or got.kind in (GOAWAY, RST_STREAM):
                break
            if got.kind == DATA:
                peer.send(window_update(1, stream))
        assert got is not None and got.code == ENHANCE_YOUR_CALM
        assert len(peer.received(stream)) < 2000


@pytest.mark.timeout(150)
async def test_a_client_that_reads_nothing_uses_little_memory() -> None:
    """Sixty large responses, asked for at once, with windows of two gigabytes: 480 MB in all."""
    async with server() as (process, url):
        async with A2AClient(url) as caller:
            task_id = (await large_task(caller, "hold 8", 8 * MEGABYTE)).id
        before = peak_memory(process)
        async with connected(url, setting(INITIAL_WINDOW, LARGEST)) as peer:
            peer.send(window_update(LARGEST - 65_535))
            body = message(pb.GetTaskRequest(id=task_id).SerializeToString())
            for stream in range(1, 121, 2):
                peer.send(headers_of(peer, stream) + frame(DATA, body, flags=END_STREAM, stream=stream))
            async with httpx.AsyncClient(timeout=PATIENCE) as client:
                for _ in range(100):
                    assert (await client.get(f"{url}/health")).status_code == 200
            assert peak_memory(process) - before < 250 * MEGABYTE
