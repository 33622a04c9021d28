"""Subscribers of tasks: each gets a snapshot or a replay, then what follows, until its stream's end state.

Rule: a stream that closes affects no other, and not the task; only `cancel_on_disconnect` may end a task that 0.3
clients no longer watch, and then not before the grace is over.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Final

from apcore_a2a.engine.call_context import Origin
from apcore_a2a.engine.event_log import Entry, Lagged, Reader
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.engine.observer import Observer
from apcore_a2a.engine.options import Options
from apcore_a2a.engine.runs import SHUTTING_DOWN, Runs
from apcore_a2a.errors import OverloadedError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Document, Event, StatusUpdate, TaskState

KEEP_ALIVE: Final = 15.0
DISCONNECT_GRACE: Final = 5.0
UNTIL_ENDED: Final = TERMINAL
UNTIL_USER_IS_ASKED: Final = TERMINAL | {TaskState.INPUT_REQUIRED}  # not AUTH_REQUIRED: the agent may go on (§7.6.1)


class Stream:
    """Batches of entries: `take` what is there; if that is nothing, `wait`, and take what came, if anything did.

    `close` must be called, and may be called twice.
    """

    def __init__(
        self,
        first: list[Entry],
        live: LiveTask | None = None,
        *,
        after: int = 0,
        until: frozenset[TaskState] = UNTIL_ENDED,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._first, self._live, self._until, self._on_close = first, live, until, on_close
        self._reader = None if live is None else Reader(live.log, after, idle=KEEP_ALIVE)
        self._ended = self._lagged = False

    def take(self) -> list[Entry] | None:
        """What has come, perhaps nothing; None at the end."""
        batch: list[Entry] | None = self._first
        if batch:
            self._first = []
        elif self._ended or self._reader is None:
            return None
        else:
            try:
                batch = self._reader.take()
            except Lagged:
                self._lagged = True
                return []
            if batch is None:
                return None
        for index, item in enumerate(batch):
            if item.state in self._until:
                self._ended = True
                return batch[: index + 1]
        return batch

    def wait(self) -> Awaitable[None]:
        """Until there is something to take, or nothing has come for a while."""
        assert self._reader is not None  # else it has ended
        return self._start_again() if self._lagged else self._reader.wait()

    async def _start_again(self) -> None:
        """A reader that fell out of the log's window goes on from the task as it is now."""
        assert self._live is not None and self._reader is not None  # only a log lags
        self._reader.close()
        document, version = await self._live.latest()
        self._reader, self._lagged = Reader(self._live.log, version, idle=KEEP_ALIVE), False
        self._first = [snapshot(document, version)]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()


class Streams:
    """Opens streams and counts them."""

    def __init__(self, runs: Runs, *, observer: Observer, options: Options) -> None:
        self._runs, self._observer = runs, observer
        self._limit, self._per_caller = options.max_streams, options.max_streams_per_caller
        self._cancel_on_disconnect = options.cancel_on_disconnect
        self._open: Counter[str] = Counter()
        self._total = 0

    def seat(self, origin: Origin) -> ExitStack:
        """Room for one stream, taken at once; what is put into it is given back when the stream closes.

        Raises:
            OverloadedError: there is none.
        """
        if self._runs.draining:
            raise OverloadedError(SHUTTING_DOWN, retry_after=5)
        if self._total >= self._limit:
            raise OverloadedError("The agent is at its limit of open streams; try again later")
        if self._open[origin.owner] >= self._per_caller:
            raise OverloadedError("You are at your limit of open streams; close one or try again later")
        self._count(origin.owner, 1)
        seat = ExitStack()
        seat.callback(self._count, origin.owner, -1)
        return seat

    def _count(self, owner: str, change: int) -> None:
        self._total += change
        self._open[owner] += change
        if not self._open[owner]:
            del self._open[owner]

    async def follow(
        self, live: LiveTask, origin: Origin, seat: ExitStack, *, until: frozenset[TaskState], start: Entry | int | None
    ) -> Stream:
        """A stream of a live task: from a snapshot, from the event after a number, or, with None, from now."""
        seat.callback(self._left, live, origin, until)
        seat.enter_context(live.held())
        self._observer.stream_opened(live.task.id)
        if start is None or (isinstance(start, int) and start > live.log.version):
            start = snapshot(*await live.latest())
        first, after = ([], start) if isinstance(start, int) else ([start], start.seq)
        return Stream(first, live, after=after, until=until, on_close=seat.pop_all().close)

    def _left(self, live: LiveTask, origin: Origin, until: frozenset[TaskState]) -> None:
        self._observer.stream_closed(live.task.id)
        if origin.rules.stream_keeps_task and self._cancel_on_disconnect and live.state not in until:
            self._runs.stop_unless_watched(live, DISCONNECT_GRACE)


def snapshot(document: Document, version: int) -> Entry:
    """The task itself as an event, with the sequence number of the last event in it."""
    task = document.task()
    return Entry(version, task.status.state, b'{"task":' + document.body + b"}")


def reply(event: Event) -> Stream:
    """A stream of one event."""
    return Stream([Entry(1, TaskState.COMPLETED, v1.encode_event(event))])


async def replay(live: LiveTask, origin: Origin) -> Stream:
    """What a subscriber to an ended task gets: the events it missed where they are kept, else the outcome."""
    seen, version, task = origin.last_event_id, live.version, live.task
    if origin.rules.replay and seen is not None and seen < version:
        kept = await live.kept(seen)
        if kept is None:
            return Stream([snapshot(live.snapshot(), version)])
        events = enumerate(kept, version - len(kept) + 1)
        told = [(seq, v1.encode_event(v1.decode_record(body)[0])) for seq, body in events]  # without what was said
        return Stream([Entry(seq, TaskState.WORKING, body) for seq, body in told])
    status = StatusUpdate(status=task.status, task_id=task.id, context_id=task.context_id)
    return Stream([Entry(version, task.status.state, v1.encode_event(status))])
