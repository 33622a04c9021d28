"""The log of one live task: events with sequence numbers, and readers with a cursor.

Rule: a reader is a number. It owns no queue, delays nobody, and misses nothing; one that falls out of the window is
told so (`Lagged`) and starts again from a snapshot.
"""

import asyncio
import time
from typing import Final

from msgspec import Struct

from apcore_a2a.protocol import v1
from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.model import Event, TaskState

WINDOW_EVENTS: Final = 20_000
WINDOW_BYTES: Final = 32 * 1024 * 1024
PACE: Final = 0.001  # seconds after which readers are told again, at the earliest
CROWD: Final = 32  # readers; writing to so many takes about that long
MAX_PACE: Final = 0.02


class Lagged(Exception):
    """The reader's next event has left the window."""


class Entry(Struct, gc=False):
    """One event of a task as its 1.0 JSON, and as another dialect's once somebody reads it in that."""

    seq: int
    state: TaskState
    """The task's state after this event."""
    body: bytes
    others: dict[Dialect, bytes] | None = None

    @property
    def event(self) -> Event:
        return v1.decode_event(self.body)

    @property
    def size(self) -> int:
        return len(self.body) + (sum(map(len, self.others.values())) if self.others else 0)

    def encode(self, dialect: Dialect) -> bytes:
        if dialect is v1:
            return self.body
        if self.others is None:
            self.others = {}
        if dialect not in self.others:
            self.others[dialect] = dialect.encode_event(self.event)
        return self.others[dialect]


class EventLog:
    """Append-only, by one writer; read by any number of `Reader`s."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._first = version + 1
        self._entries: list[Entry] = []
        self._waiting: dict[asyncio.Future[None], None] = {}

    closed = False
    _bytes = 0
    _told = 0.0
    _waking: asyncio.TimerHandle | None = None

    def append(self, entries: list[Entry], size: int) -> None:
        self._entries += entries
        self.version += len(entries)
        self._bytes += size
        if len(self._entries) > WINDOW_EVENTS or self._bytes > WINDOW_BYTES:
            self._trim()
        if self._waiting:
            self._wake_soon()

    def _trim(self) -> None:
        # Half at a time: each entry is moved, and measured anew with what dialects made of it, once on average.
        dropped = max(len(self._entries) // 2, 1)
        del self._entries[:dropped]
        self._first += dropped
        self._bytes = sum(entry.size for entry in self._entries)

    def restart(self, version: int) -> None:
        """Go on from a version whose events were not all published: readers begin again from a snapshot."""
        self._entries, self._bytes = [], 0
        self.version, self._first = version, version + 1
        self._wake()

    def close(self) -> None:
        """No event will follow."""
        self.closed = True
        if self._waiting:
            self._wake()

    def _wake_soon(self) -> None:
        # A write costs more than an event: what comes faster than once a millisecond leaves once a millisecond.
        if self._waking is None:
            # A crowd is told so long after it has come back: writing to all of it took as long.
            pause = max(self._told + PACE - time.monotonic(), min(len(self._waiting) // CROWD * PACE, MAX_PACE))
            if pause > 0:
                self._waking = asyncio.get_running_loop().call_later(pause, self._wake)
            else:
                self._wake()

    def _wake(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._told = time.monotonic()
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            wake(waiter)

    def after(self, seq: int) -> list[Entry]:
        """The events that follow sequence number `seq`."""
        if seq + 1 < self._first:
            raise Lagged
        return self._entries[seq + 1 - self._first :]

    def wait(self, waiter: "asyncio.Future[None]") -> None:
        """Wake somebody at the next append or close."""
        self._waiting[waiter] = None

    def forget(self, waiter: "asyncio.Future[None]") -> None:
        self._waiting.pop(waiter, None)


def wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class Reader:
    """Follows a log from a cursor: `take` what is there, then `wait` for more; not longer than `idle` seconds."""

    def __init__(self, log: EventLog, after: int, *, idle: float | None = None) -> None:
        self._log, self._after, self._idle = log, after, idle
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self) -> list[Entry] | None:
        """What has come, perhaps nothing; None when nothing more can come.

        Raises:
            Lagged: what has come has gone already.
        """
        log = self._log
        if self._closed:
            return None
        if self._after == log.version:
            return None if log.closed else []
        batch = log.after(self._after)
        self._after += len(batch)
        return batch

    def wait(self) -> "asyncio.Future[None]":
        """Done when there is something to take, or nothing for a while."""
        loop = asyncio.get_running_loop()
        if self._idle and self._timer is None:
            # One timer a stream, not one an event: it is set anew only after it fired.
            self._timer = loop.call_later(self._idle, self._tick)
        self._waiter = loop.create_future()
        self._log.wait(self._waiter)
        return self._waiter

    def _tick(self) -> None:
        self._timer = None
        self._leave()

    def _leave(self) -> None:
        """Wait no longer. A log that is silent for days keeps no trace of those who came and went."""
        if self._waiter is not None:
            self._log.forget(self._waiter)
            wake(self._waiter)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._leave()
