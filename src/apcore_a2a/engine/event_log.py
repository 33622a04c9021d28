"""The event log of one live task: events with sequence numbers, for any number of readers with a cursor each.

Invariant: a reader is a sequence number. It has no queue, delays no other reader, and misses no event. A reader that
falls behind the window gets `Lagged`, and starts again from a snapshot.

Readers that have read everything wait for the next append. They are woken at most once in `Timing.wake_interval`, a
millisecond: a write to a socket costs more than an event, so events that come faster are sent together.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import Struct

from apcore_a2a.engine.context import DEFAULTS, EngineOptions
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL, fold
from apcore_a2a.protocol.model import Document, Event, Task, TaskState

READ_AT_ONCE: Final = 500  # events in one read, so that a reader of 20,000 does not delay the others

StoredEvents = Callable[[int, int], Awaitable[Sequence[bytes] | None]]
"""Takes a sequence number and a maximum. Returns at most that many stored events after the number, or None if the
store keeps no events."""


class Lagged(Exception):
    """The reader's next event has left the window."""


Encoder = Callable[[bytes], bytes]
"""Turns the stored form of an event into another form, such as that of a protocol version."""


class LogEntry(Struct, gc=False):
    """One event of a task in its stored form, and in the other forms in which readers have asked for it."""

    seq: int
    state: TaskState
    """The task's state after this event."""
    body: bytes
    encodings: dict[Encoder, bytes] | None = None
    lock: asyncio.Lock | None = None

    @property
    def event(self) -> Event:
        return v1.decode_event(self.body)

    @property
    def size(self) -> int:
        """The bytes of the stored form and of the other forms together."""
        size = len(self.body)
        if self.encodings is not None:
            for encoding in self.encodings.values():
                if encoding is not self.body:
                    size += len(encoding)
        return size

    def encoded(self, encoder: Encoder) -> bytes:
        """Return the event in another form, which is made once for all readers with the same encoder."""
        if self.encodings is None:
            self.encodings = {}
        encoding = self.encodings.get(encoder)
        if encoding is None:
            encoding = encoder(self.body)
            self.encodings[encoder] = encoding
        return encoding

    async def encoded_on_thread(self, encoder: Encoder) -> bytes:
        """Return a large event in another form. It is made on a thread, once, even if many readers ask concurrently."""
        if self.lock is None:
            self.lock = asyncio.Lock()
        async with self.lock:
            if self.encodings is None or encoder not in self.encodings:
                await asyncio.to_thread(self.encoded, encoder)
        return self.encoded(encoder)


class Folded(Struct, gc=False):
    """Events that were folded together: as entries for the log, and as records for the store."""

    entries: list[LogEntry]
    records: list[bytes]


class Snapshot(Struct, frozen=True):
    """A task, and the sequence number of the last event in it."""

    document: Document
    version: int
    events: list[LogEntry] | None = None
    """All events of the task, if it has ended in the first step of its agent."""


def snapshot_entry(snapshot: Snapshot) -> LogEntry:
    """Return the task as an event, with the sequence number of the last event in it."""
    document = snapshot.document
    return LogEntry(snapshot.version, document.task().status.state, b'{"task":' + document.body + b"}")


def fold_records(task: Task, records: Sequence[bytes], *, after: int) -> list[LogEntry]:
    """Fold stored events into the task that they follow. Return them as entries of its log."""
    entries: list[LogEntry] = []
    for seq, record in enumerate(records, after + 1):
        event, said = v1.decode_record(record)
        fold(task, event)
        if said is not None:
            fold(task, said)
        entries.append(LogEntry(seq, task.status.state, v1.event_of(record, event)))
    return entries


class EventLog:
    """An append-only log with one writer and any number of readers."""

    def __init__(self, version: int = 0, options: EngineOptions = DEFAULTS) -> None:
        self.version = version
        self.closed = False
        self._options = options  # the log uses its window and the times of wake-ups
        self._first = version + 1  # the sequence number of the first entry in the window
        self._entries: list[LogEntry] = []
        self._bytes = 0
        # Futures of readers that wait. A dict keeps their order and removes one in constant time.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._woken_at = 0.0
        self._timer: asyncio.TimerHandle | None = None  # for a later wake-up

    def append(self, entries: list[LogEntry], size: int) -> None:
        """Publish the next entries, of which there is at least one. The end of the task closes the log."""
        self._entries += entries
        self.version += len(entries)
        self._bytes += size
        window = self._options.log_window
        if len(self._entries) > window.events or self._bytes > window.bytes:
            self._trim()
        if entries[-1].state in TERMINAL:
            self.close()
        elif self._waiting and self._timer is None:
            self._wake_soon()

    def _trim(self) -> None:
        # Half of the window at once: so each entry is moved, and its size computed again, once on average.
        dropped = max(len(self._entries) // 2, 1)
        del self._entries[:dropped]
        self._first += dropped
        self._bytes = sum(entry.size for entry in self._entries)

    def restart(self, version: int) -> None:
        """Continue from a version whose events were not all published. Readers start again from a snapshot."""
        self._entries = []
        self._bytes = 0
        self.version = version
        self._first = version + 1
        self._wake()

    def close(self) -> None:
        """Close the log: no event will follow."""
        self.closed = True
        if self._waiting:
            self._wake()

    # ---- readers --------------------------------------------------------------------------------------------------

    def after(self, seq: int) -> list[LogEntry]:
        """Return the next events after sequence number `seq`, at most READ_AT_ONCE.

        Raises:
            Lagged: some of them have left the window.
        """
        if seq + 1 < self._first:
            raise Lagged
        start = seq + 1 - self._first
        return self._entries[start : start + READ_AT_ONCE]

    def wait(self, waiter: "asyncio.Future[None]") -> None:
        """Set the result of `waiter` at the next append, restart or close, to wake its reader."""
        self._waiting[waiter] = None

    def forget(self, waiter: "asyncio.Future[None]") -> None:
        """Remove a reader that waits no longer, so that a log without events does not collect old readers."""
        self._waiting.pop(waiter, None)

    def _wake_soon(self) -> None:
        timing = self._options.timing
        rest_of_interval = self._woken_at + timing.wake_interval - time.monotonic()
        # With many readers, the pause is longer: to write to all of them takes about that long, and with shorter pauses
        # the event loop would do nothing else.
        intervals = len(self._waiting) // self._options.log_window.readers_per_wake
        pause = max(rest_of_interval, min(intervals * timing.wake_interval, timing.max_wake_interval))
        if pause > 0:
            self._timer = asyncio.get_running_loop().call_later(pause, self._wake)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._woken_at = time.monotonic()
        waiting = self._waiting
        self._waiting = {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
