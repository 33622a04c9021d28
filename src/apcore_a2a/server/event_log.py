"""The log of one live task: events with sequence numbers, and readers with a cursor.

Rule: a reader is a number. It owns no queue, delays nobody, and misses nothing; one that falls out of the window is
told so (`Lagged`) and starts again from a snapshot.
"""

import asyncio
from typing import Final

from msgspec import Struct

from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.model import Event, TaskState

WINDOW_EVENTS: Final = 20_000
WINDOW_BYTES: Final = 32 * 1024 * 1024


class Lagged(Exception):
    """The reader's next event has left the window."""


class Entry(Struct, gc=False):
    """One event of a task, encoded once per dialect however many read it."""

    seq: int
    event: Event
    state: TaskState
    """The task's state after this event."""
    encoded: dict[Dialect, bytes]

    def encode(self, dialect: Dialect) -> bytes:
        body = self.encoded.get(dialect)
        if body is None:
            body = self.encoded[dialect] = dialect.encode_event(self.event)
        return body


class EventLog:
    """Append-only, by one writer; read by any number of `Reader`s."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.closed = False
        self._first = version + 1
        self._entries: list[Entry] = []
        self._bytes = 0
        self._waiting: list[asyncio.Future[None]] = []

    def append(self, entries: list[Entry], size: int) -> None:
        self._entries += entries
        self.version += len(entries)
        self._bytes += size
        if len(self._entries) > WINDOW_EVENTS or self._bytes > WINDOW_BYTES:
            self._trim()
        self.wake()

    def _trim(self) -> None:
        # Half at a time: each entry is moved once on average.
        dropped = max(len(self._entries) // 2, 1)
        self._bytes = self._bytes * (len(self._entries) - dropped) // len(self._entries)
        del self._entries[:dropped]
        self._first += dropped

    def restart(self, version: int) -> None:
        """Go on from a version whose events were not all published: readers begin again from a snapshot."""
        self._entries, self._bytes = [], 0
        self.version, self._first = version, version + 1
        self.wake()

    def close(self) -> None:
        """No event will follow."""
        self.closed = True
        self.wake()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def after(self, seq: int) -> list[Entry]:
        """The events that follow sequence number `seq`."""
        if seq + 1 < self._first:
            raise Lagged
        return self._entries[seq + 1 - self._first :]

    def wait(self) -> "asyncio.Future[None]":
        """Done at the next append or close."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter


class Reader:
    """Follows a log from a cursor: an iterator over batches of entries, empty when `idle` seconds pass without any."""

    def __init__(self, log: EventLog, after: int, *, idle: float | None = None) -> None:
        self._log, self._after, self._idle = log, after, idle
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __aiter__(self) -> "Reader":
        return self

    async def __anext__(self) -> list[Entry]:
        batch = self._log.after(self._after)
        if not batch:
            if self._log.closed:
                raise StopAsyncIteration
            self._waiter = self._log.wait()
            if self._idle and self._timer is None:
                # One timer a stream, not one an event: it is set anew only after it fired.
                self._timer = asyncio.get_running_loop().call_later(self._idle, self._tick)
            await self._waiter
            batch = self._log.after(self._after)
            if not batch and self._log.closed:
                raise StopAsyncIteration
        self._after += len(batch)
        return batch

    def _tick(self) -> None:
        self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None:
            self._waiter.cancel()  # wake() passes over it
