"""Streams of the events of a task: a snapshot or a replay, then the events that follow, until an end state.

Invariant: a stream is a cursor on the log of its task. It has no queue, so it delays no other stream. When a stream
closes, other streams and the task continue. The exception is `cancel_on_disconnect`: if the last stream of a 0.3 task
closes, the task is canceled `Timing.disconnect_grace` later, unless a client subscribes again.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, Protocol

from apcore_a2a.engine.context import DEFAULTS, CallContext, EngineOptions, Observer
from apcore_a2a.engine.event_log import READ_AT_ONCE, EventLog, Lagged, LogEntry, StoredEvents
from apcore_a2a.engine.runs import Runs
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.errors import LimitExceededError, OverloadedError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Event, StatusUpdate, Task, TaskState
from apcore_a2a.quota import QuotaCounter

UNTIL_ENDED: Final = TERMINAL
UNTIL_USER_IS_ASKED: Final = TERMINAL | {TaskState.INPUT_REQUIRED}  # not AUTH_REQUIRED: the agent may go on (§7.6.1)


class Events(Protocol):
    """Events that a binding writes to its client: a `Stream` or a `Replay`.

    `take` returns the available events, an empty list if the binding has to `wait`, or None at the end. `close` has to
    be called.
    """

    def take(self) -> list[LogEntry] | None: ...

    async def wait(self) -> None: ...

    @property
    def is_cut(self) -> bool:
        """Return whether the stream ended before its task, because of a shutdown. The client may subscribe again."""

    def close(self) -> None: ...


class StreamSource(Protocol):
    """The source of a stream: a log, and the task itself for a stream that has fallen behind."""

    @property
    def log(self) -> EventLog: ...

    async def latest_entry(self) -> LogEntry: ...


class Stream:
    """A stream of entries: `take` returns the available ones. If it returns an empty list, `wait` for more.

    A stream begins with `ready`, continues with the entries after sequence number `after` in the log of `source`, and
    ends with the first entry whose state is in `until`. Without a source it ends with `ready`. An empty batch after a
    wait means that no event came for `keep_alive_interval` seconds. `close` must be called, and may be called twice.
    """

    def __init__(
        self,
        ready: list[LogEntry],
        source: StreamSource | None = None,
        *,
        after: int = 0,
        until: frozenset[TaskState] = UNTIL_ENDED,
        on_close: Callable[[], None] | None = None,
        keep_alive_interval: float = DEFAULTS.keep_alive_interval,
    ) -> None:
        self._ready = ready
        self._source = source
        self._after = after
        self._until = until
        self._missed: StoredEvents | None = None
        self._on_close = on_close
        self._keep_alive_interval = keep_alive_interval
        self._is_over = source is None
        self._has_lagged = False
        self.is_cut = False
        self._waiter: asyncio.Future[None] | None = None
        # One timer for the whole stream and not for each event: it is set again only after it has fired.
        self._timer: asyncio.TimerHandle | None = None

    def read_missed_from(self, missed: StoredEvents) -> None:
        """Read events from the store that have left the log, or were never in it because another process ran the task.

        Without this, the stream continues from a snapshot of the task.
        """
        self._missed = missed

    def take(self) -> list[LogEntry] | None:
        """Return the next entries, an empty list if there are none yet, or None at the end."""
        batch = self._ready
        if batch:
            self._ready = []
        elif self._is_over or self._source is None:
            return None
        else:
            log = self._source.log
            if self._after == log.version:
                self.is_cut = log.closed
                return None if log.closed else []
            try:
                batch = log.after(self._after)
            except Lagged:
                self._has_lagged = True
                return []
            self._after += len(batch)
        for index, entry in enumerate(batch):
            if entry.state in self._until:
                self._is_over = True
                return batch[: index + 1]
        return batch

    async def wait(self) -> None:
        """Wait until there is something to take, or the keep-alive interval is over."""
        assert self._source is not None  # a stream without a source never waits
        if self._has_lagged:
            await self._restart(self._source)
            return
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_later(self._keep_alive_interval, self._keep_alive)
        self._waiter = loop.create_future()
        self._source.log.wait(self._waiter)
        await self._waiter

    async def _restart(self, source: StreamSource) -> None:
        """Continue after the reader has fallen behind the window of the log: with stored events, or with a snapshot."""
        records = None
        behind = source.log.version - self._after
        if self._missed is not None and behind > 0:
            records = await self._missed(self._after, min(READ_AT_ONCE, behind))
        if records:
            self._ready = _decode_records(records, self._after)
            self._after += len(records)
        else:
            snapshot = await source.latest_entry()
            self._ready = [snapshot]
            self._after = snapshot.seq
        self._has_lagged = False

    def _keep_alive(self) -> None:
        self._timer = None
        self._end_wait()

    def _end_wait(self) -> None:
        if self._waiter is not None and self._source is not None:
            self._source.log.forget(self._waiter)
            if not self._waiter.done():
                self._waiter.set_result(None)

    def close(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._end_wait()
        if self._on_close is not None:
            on_close = self._on_close
            self._on_close = None
            on_close()


class Streams:
    """The open streams of an engine, which opens and counts them."""

    def __init__(self, runs: Runs, *, observer: Observer, options: EngineOptions) -> None:
        self._runs = runs
        self._observer = observer
        self._limit = options.max_streams
        self._limit_per_caller = options.max_streams_per_caller
        self._anonymous_divisor = options.anonymous_divisor
        self._cancel_on_disconnect = options.cancel_on_disconnect
        self._keep_alive_interval = options.keep_alive_interval
        self._open = QuotaCounter()

    def reserve(self, context: CallContext) -> ExitStack:
        """Reserve a place for one stream, without waiting. The result has the callbacks to run when the stream closes.

        Raises:
            OverloadedError: the engine is at its limit of streams.
            LimitExceededError: the quota key is at its limit of streams.
        """
        self._runs.check_draining()
        if self._open.total >= self._limit:
            raise OverloadedError("The agent is at its limit of open streams; try again later")
        quota_key = context.quota_key
        if self._open.is_used_up(quota_key, self._limit_per_caller, self._anonymous_divisor):
            raise LimitExceededError("You are at your limit of open streams; close one or try again later")
        self._open.add(quota_key)
        place = ExitStack()
        place.callback(self._open.subtract, quota_key)
        return place

    async def follow(
        self,
        live: LiveTask,
        context: CallContext,
        place: ExitStack,
        *,
        until: frozenset[TaskState],
        start: LogEntry | int | None,
    ) -> Stream:
        """Return a stream of a live task, which begins with the entry `start`, or after the sequence number `start`.

        If `start` is None, or a number that the log has not reached, the stream begins with a snapshot of the task.
        """
        place.callback(self._closed, live, context, until)
        place.enter_context(live.held())
        self._observer.stream_opened(live.task.id)
        if start is None or (isinstance(start, int) and start > live.log.version):
            start = await live.latest_entry()
        ready: list[LogEntry] = []
        if isinstance(start, LogEntry):
            ready.append(start)
            start = start.seq
        stream = Stream(
            ready,
            live,
            after=start,
            until=until,
            on_close=place.pop_all().close,
            keep_alive_interval=self._keep_alive_interval,
        )
        if context.rules.replay and context.last_event_id is not None:
            stream.read_missed_from(live.stored_events())
        return stream

    async def replay(self, live: LiveTask, context: CallContext, place: ExitStack) -> "Stream | Replay":
        """Return a stream of an ended task: the events that the client missed, if they are stored, or the outcome."""
        last_seen = context.last_event_id
        version = live.version
        if not context.rules.replay or last_seen is None or last_seen >= version:
            task = live.task
            outcome = StatusUpdate(status=task.status, task_id=task.id, context_id=task.context_id)
            entry = LogEntry(version, task.status.state, v1.encode_event(outcome))
            return Stream([entry], on_close=self._hold(place, live.task.id))
        read = live.stored_events()
        first = await read(last_seen, READ_AT_ONCE)
        if first is None:
            return Stream([await live.latest_entry()], on_close=self._hold(place, live.task.id))
        return Replay(read, last_seen, first, on_close=self._hold(place, live.task.id))

    def of_ended(self, task_id: str, events: list[LogEntry], place: ExitStack) -> Stream:
        """Return a stream of all events of a task that has ended in the first step of its agent."""
        return Stream(events, on_close=self._hold(place, task_id))

    def _hold(self, place: ExitStack, task_id: str) -> Callable[[], None]:
        """Keep the place of a stream until it closes. Return the function to call then."""
        place.callback(self._observer.stream_closed, task_id)
        self._observer.stream_opened(task_id)
        return place.pop_all().close

    def _closed(self, live: LiveTask, context: CallContext, until: frozenset[TaskState]) -> None:
        self._observer.stream_closed(live.task.id)
        if context.rules.stream_keeps_task and self._cancel_on_disconnect and live.state not in until:
            self._runs.stop_unless_watched(live)


def event_stream(event: Event) -> Stream:
    """Return a stream of one event."""
    return Stream([LogEntry(1, TaskState.COMPLETED, v1.encode_event(event))])


class Replay:
    """A stream of the stored events of an ended task, read in pages."""

    def __init__(self, read: StoredEvents, after: int, first: Sequence[bytes], *, on_close: Callable[[], None]) -> None:
        self._read = read
        self._after = after
        self._page: Sequence[bytes] = first
        self._on_close: Callable[[], None] | None = on_close
        self._is_over = False
        self.is_cut = False

    def take(self) -> list[LogEntry] | None:
        if self._is_over:
            return None
        entries = _decode_records(self._page, self._after)
        self._after += len(entries)
        self._page = ()
        return entries

    async def wait(self) -> None:
        """Read the next page. The stream ends after the last one."""
        page = await self._read(self._after, READ_AT_ONCE)
        self._page = page or ()
        if not page:
            self._is_over = True

    def close(self) -> None:
        self._is_over = True
        if self._on_close is not None:
            on_close = self._on_close
            self._on_close = None
            on_close()


def _decode_records(records: Sequence[bytes], after: int) -> list[LogEntry]:
    """Return stored events as they were published, without the user's messages that are stored with them."""
    entries: list[LogEntry] = []
    for seq, record in enumerate(records, after + 1):
        event, _ = v1.decode_record(record)
        state = TaskState.WORKING
        if isinstance(event, StatusUpdate | Task):
            state = event.status.state
        entries.append(LogEntry(seq, state, v1.encode_event(event)))
    return entries
