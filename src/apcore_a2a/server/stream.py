"""One subscriber of a task: a snapshot or a replay, then what follows, until the stream's end state."""

from collections.abc import Callable
from typing import Final

from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Document, Event, TaskState
from apcore_a2a.server.event_log import Entry, EventLog, Lagged, Reader

KEEP_ALIVE: Final = 15.0
UNTIL_ENDED: Final = TERMINAL
UNTIL_USER_IS_ASKED: Final = TERMINAL | {
    TaskState.INPUT_REQUIRED
}  # not AUTH_REQUIRED: the agent may go on (1.0 §7.6.1)


def snapshot(document: Document, version: int) -> Entry:
    """The task itself as an event, with the sequence number of the last event in it."""
    task = document.task()
    return Entry(version, task, task.status.state, {v1.VERSION: b'{"task":' + document.body + b"}"})


def entry(seq: int, event: Event, state: TaskState) -> Entry:
    return Entry(seq, event, state, {})


class Stream:
    """Iterates over batches of entries; an empty batch means that nothing happened for a while.

    `close` must be called, and may be called twice.
    """

    def __init__(
        self,
        first: list[Entry],
        log: EventLog | None = None,
        *,
        after: int = 0,
        until: frozenset[TaskState] = UNTIL_ENDED,
        again: Callable[[], Entry] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._first, self._until, self._again, self._on_close = first, until, again, on_close
        self._log = log
        self._reader = None if log is None else Reader(log, after, idle=KEEP_ALIVE)
        self._ended = False

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> list[Entry]:
        if self._first:
            batch, self._first = self._first, []
        elif self._ended or self._reader is None:
            raise StopAsyncIteration
        else:
            batch = await self._next(self._reader)
        for index, item in enumerate(batch):
            if item.state in self._until:
                self._ended = True
                return batch[: index + 1]
        return batch

    async def _next(self, reader: Reader) -> list[Entry]:
        try:
            return await reader.__anext__()
        except Lagged:
            assert self._again is not None and self._log is not None  # whoever gives a log gives a snapshot
            reader.close()
            first = self._again()
            self._reader = Reader(self._log, first.seq, idle=KEEP_ALIVE)
            return [first]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()
