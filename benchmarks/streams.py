"""A light client for streams, which wrk cannot measure: a protocol that counts events in the received bytes.

Invariant: it only searches for the marks between events, so that it is never the limit. The counts are checked.
"""

import asyncio
import re
import statistics
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

import uvloop

from benchmarks import wire
from benchmarks.load import ask
from benchmarks.servers import Running, pin_to_load

T = TypeVar("T")
MARK = b"data:"
LAST_CHUNK = b"0\r\n\r\n"  # end of the chunked transfer coding
DEADLINE = 120.0
TASK_ID = re.compile(rb'"id": ?"([^"]+)"')


class Reader(asyncio.Protocol):
    """One stream. Times are those of the arrival of bytes."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.began, self.ended = loop.create_future(), loop.create_future()
        self.events = self.size = 0
        self.sent = self.first = self.last = 0.0
        self.head = b""
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transport has the same methods without the base class.
        self.transport = cast(asyncio.Transport, transport)

    def request(self, target: Running, body: str) -> None:
        lines = [
            f"POST {target.server.path} HTTP/1.1",
            f"Host: 127.0.0.1:{target.port}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            f"A2A-Version: {target.server.version}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        self.sent = time.perf_counter()
        self.transport.write("\r\n".join([*lines, "", body]).encode())

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        window = self._tail + data
        found = window.count(MARK)
        if found:
            self.last = time.perf_counter()
            if not self.events:
                self.first, self.head = self.last, window
                self.began.set_result(None)
            self.events += found
        self._tail = window[1 - len(MARK) :]
        if data.endswith(LAST_CHUNK):  # some servers ignore the request to close the connection
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.began.done():
            self.began.set_exception(RuntimeError(f"no event came: {self._tail!r}"))
            self.began.exception()
        self.ended.set_result(None)

    @property
    def seconds(self) -> float:
        """Seconds from the request to the last event."""
        return self.last - self.sent


async def connect(target: Running) -> Reader:
    _, reader = await asyncio.get_running_loop().create_connection(Reader, "127.0.0.1", target.port)
    return reader


async def read(target: Running, text: str, chunks: int) -> Reader:
    """Read one stream to its end, and check its chunks."""
    reader = await connect(target)
    reader.request(target, wire.stream(target.server, text))
    async with asyncio.timeout(DEADLINE):
        await reader.ended
    check(target, reader, chunks)
    return reader


def check(target: Running, reader: Reader, chunks: int) -> None:
    """Check the chunks: besides them only the task, its states, and a final mark are allowed."""
    if not chunks <= reader.events <= chunks + 5:
        raise RuntimeError(f"{target.name}: {reader.events} events for {chunks} chunks: {reader.head[:500]!r}")


async def measure_chunks(target: Running, word: str, chunks: int, streams: int) -> float:
    """Return the median microseconds per chunk. The cost of a stream with one chunk is subtracted."""
    least = statistics.median([(await read(target, f"{word} 1", 1)).seconds for _ in range(max(streams, 5))])
    whole = statistics.median([(await read(target, f"{word} {chunks}", chunks)).seconds for _ in range(streams)])
    return (whole - least) / (chunks - 1) * 1e6


async def measure_first_event(target: Running, concurrent: int) -> list[float]:
    """Return the microseconds from the request to the first event, of streams started together."""
    readers = [await connect(target) for _ in range(concurrent)]
    await asyncio.sleep(0.05)  # until the server has accepted all of them
    for reader in readers:
        reader.request(target, wire.stream(target.server, "yield 3"))
    async with asyncio.timeout(DEADLINE):
        for reader in readers:
            await reader.ended
            check(target, reader, 3)
    return [(reader.first - reader.sent) * 1e6 for reader in readers]


async def subscribe(target: Running, word: str, chunks: int, subscribers: int) -> list[Reader]:
    """Open subscribers of one task whose agent waits at its gate."""
    first = await connect(target)
    first.request(target, wire.stream(target.server, f"{word} {chunks}"))
    await first.began
    task_id = TASK_ID.findall(first.head)[0].decode()
    others = [await connect(target) for _ in range(subscribers - 1)]
    for reader in others:
        reader.request(target, wire.subscribe(target.server, task_id))
        await reader.began
    return [first, *others]


async def open_gate(target: Running, readers: Sequence[Reader], chunks: int) -> float:
    """Return the seconds until the last subscriber has the last chunk."""
    started = time.perf_counter()
    await asyncio.to_thread(ask, target, wire.send(target.server, "open"))
    async with asyncio.timeout(DEADLINE):
        for reader in readers:
            await reader.ended
            check(target, reader, chunks)
    return max(reader.last for reader in readers) - started


async def measure_subscribers(target: Running, word: str, chunks: int, subscribers: int) -> float:
    """Return the microseconds per subscriber and event, with all subscribers on one task."""
    readers = await subscribe(target, word, chunks, subscribers)
    return await open_gate(target, readers, chunks) / (chunks * subscribers) * 1e6


async def open_idle(target: Running, streams: int) -> Sequence[Reader]:
    """Open streams of an agent that yields nothing. They stay open until their readers are closed.

    Each thousand uses its own tenant, because a caller is limited to that many.
    """
    readers: list[Reader] = []
    for _ in range(0, streams, 100):
        batch = [await connect(target) for _ in range(min(100, streams - len(readers)))]
        tenant = f"tenant-{len(readers) // 1000}" if len(readers) >= 1000 else ""
        for reader in batch:
            reader.request(target, wire.stream(target.server, "hang", tenant))
        for reader in batch:
            async with asyncio.timeout(DEADLINE):
                await reader.began
        readers += batch
    return readers


def run(measurement: Coroutine[Any, Any, T]) -> T:
    pin_to_load()
    return uvloop.run(measurement)
