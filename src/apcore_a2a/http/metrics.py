"""The metrics of the server: an observer that counts and measures, and an endpoint for JSON or Prometheus text.

Invariant: metrics contain no message contents and no names of callers.
"""

import asyncio
import logging
import mmap
import platform
import struct
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.types import Receive, Scope, Send

from apcore_a2a import __version__
from apcore_a2a.agent import Call
from apcore_a2a.engine.context import CallContext, Observer, RunTimes
from apcore_a2a.errors import A2AError, wire
from apcore_a2a.http.asgi import inbound, respond
from apcore_a2a.http.histograms import (
    MAX_SERIES,
    OPENMETRICS,
    PROMETHEUS,
    Exemplar,
    Family,
    Series,
    decode_families,
    encode_families,
    text_of_family,
    text_of_figure,
    text_of_info,
)
from apcore_a2a.http.traffic import Traffic
from apcore_a2a.protocol.model import Operation, TaskState, encode
from apcore_a2a.storage.contract import Backlog, Usage
from apcore_a2a.trace_context import Trace, is_sampled, trace_id_of

logger = logging.getLogger(__name__)

# ---- figures that processes share -----------------------------------------------------------------------------------
# Processes share their figures in one piece of memory, with a row for each process. There are no locks: one process
# writes a row, and all of them read it. A figure may be half a second old.
#
# Families with labels are written as JSON, because their labels are not known before. Each process has two places for
# it and writes them in turn, so a reader has half a second to read the latest one.

MAX_FAMILIES_BYTES: Final = 512 * 1024


class MetricsBoard:
    """Memory that is shared by forked processes, with a row of figures for each. Created before the processes fork."""

    def __init__(self, workers: int, figures: int) -> None:
        self._row = struct.Struct(f"{figures}d")
        self._head = struct.Struct("QI")  # the number of the latest write, and its length
        self._workers = workers
        self._memory = mmap.mmap(-1, max(workers * self._row.size, 1))
        # The system provides pages of it only when they are written.
        self._families = mmap.mmap(-1, max(workers * self._families_size, 1))

    @property
    def _families_size(self) -> int:
        return self._head.size + 2 * MAX_FAMILIES_BYTES

    def write(self, worker: int, figures: Sequence[float]) -> None:
        self._row.pack_into(self._memory, worker * self._row.size, *figures)

    def read(self, worker: int) -> tuple[float, ...]:
        return self._row.unpack_from(self._memory, worker * self._row.size)

    def read_all(self) -> list[tuple[float, ...]]:
        return [self.read(worker) for worker in range(self._workers)]

    def write_families(self, worker: int, body: bytes) -> None:
        """Write the families of a worker. The limit of their series keeps them far below the limit of bytes."""
        if len(body) > MAX_FAMILIES_BYTES:
            logger.error("metrics with labels are too large to be shared", extra={"bytes": len(body)})
            return
        start = worker * self._families_size
        number, _ = self._head.unpack_from(self._families, start)
        place = start + self._head.size + (number + 1) % 2 * MAX_FAMILIES_BYTES
        self._families[place : place + len(body)] = body
        self._head.pack_into(self._families, start, number + 1, len(body))

    def read_families(self, worker: int) -> bytes:
        """Return the families that a worker has written last. Empty if it has written none."""
        start = worker * self._families_size
        number, length = self._head.unpack_from(self._families, start)
        place = start + self._head.size + number % 2 * MAX_FAMILIES_BYTES
        return self._families[place : place + length]

    def others(self, worker: int) -> list[int]:
        """Return the numbers of the other workers."""
        return [other for other in range(self._workers) if other != worker]


# ---- metrics --------------------------------------------------------------------------------------------------------

HELP: Final = {
    "active_tasks": ("gauge", "Tasks that are running"),
    "waiting_messages": ("gauge", "Messages that wait in the queues of running tasks"),
    "completed_tasks": ("counter", "Runs that ended in COMPLETED"),
    "failed_tasks": ("counter", "Runs that ended in FAILED or REJECTED, also because their process ended"),
    "canceled_tasks": ("counter", "Tasks that ended in CANCELED, while they ran or while they waited"),
    "interrupted_tasks": ("counter", "Runs that stopped to ask the user"),
    "abandoned_runs": ("counter", "Agents that ignored their cancellation"),
    "stuck_threads": ("gauge", "Threads of functions that still run after their run has ended"),
    "open_streams": ("gauge", "Event streams that are open"),
    "total_requests": ("counter", "HTTP requests"),
    "refused_requests": ("counter", "Requests answered with 429 or 503"),
    "limited_requests": ("counter", "Requests rejected by a limit of requests per second"),
    "refused_for_storage": ("counter", "Messages rejected by a limit of stored tasks or bytes"),
    "stored_tasks": ("gauge", "Stored tasks, if their number is limited"),
    "stored_bytes": ("gauge", "Bytes of the stored tasks as JSON"),
    "run_seconds": ("counter", "Seconds spent in runs"),
    "open_connections": ("gauge", "Connections that are open"),
    "refused_connections": ("counter", "Connections rejected by a limit of connections"),
    "cut_off_readers": ("counter", "Connections closed because their clients did not read"),
    "tls_handshakes": ("gauge", "TLS handshakes in progress"),
    "body_bytes_in_flight": ("gauge", "Bytes of request bodies that are not complete"),
    "answer_bytes_in_flight": ("gauge", "Bytes of responses that clients have not read yet"),
    "loop_lag_seconds_max": ("gauge", "Longest time the event loop was blocked"),
    "loop_lag_seconds_max_last_minute": ("gauge", "Longest time the event loop was blocked, last minute"),
    "loop_lag_cpu_seconds_max": ("gauge", "Longest processor time the event loop was blocked"),
    "webhook_notifications_sent": ("counter", "Events delivered to webhooks"),
    "webhook_notifications_failed": ("counter", "Failed attempts to post an event to a webhook"),
    "webhook_notifications_retried": ("counter", "Events scheduled for another delivery"),
    "webhooks_given_up": ("counter", "Webhooks given up after all retries"),
    "webhook_notifications_waiting": ("gauge", "Events that wait for delivery to a webhook"),
    "webhook_oldest_seconds": ("gauge", "Age in seconds of the oldest event that waits for delivery"),
    "webhooks_failed": ("gauge", "Webhooks whose events are dead letters"),
    "lease_age_seconds": ("gauge", "Seconds since this replica renewed its lease. 0 without other replicas"),
    "uptime_seconds": ("gauge", "Seconds since the server started"),
}
# For these figures, the maximum of all workers is shown. Other figures are added up. Stored tasks and waiting webhook
# events are in the store that the workers share, so each worker reports all of them.
_MAXIMUM_OF_WORKERS: Final = frozenset(
    {
        "loop_lag_seconds_max",
        "loop_lag_seconds_max_last_minute",
        "loop_lag_cpu_seconds_max",
        "webhook_notifications_waiting",
        "webhook_oldest_seconds",
        "webhooks_failed",
        "stored_tasks",
        "stored_bytes",
        "lease_age_seconds",
        "uptime_seconds",
    }
)
OK: Final = "ok"  # the outcome of a request without an error
CANCELED: Final = "canceled"  # the client has left before the result
UNKNOWN_ERROR: Final = "INTERNAL_ERROR"
NO_SKILL: Final = "none"  # no skill was chosen, or the agent has none
STORE_TIMEOUT: Final = 2.0  # seconds to wait for the store
WRITE_INTERVAL: Final = 0.5  # seconds after which a worker writes its figures for the others
_ENDINGS: Final = {
    TaskState.COMPLETED: "completed_tasks",
    TaskState.FAILED: "failed_tasks",
    TaskState.REJECTED: "failed_tasks",
    TaskState.CANCELED: "canceled_tasks",
}


_OUTCOMES: Final = {state: state.removeprefix("TASK_STATE_").lower() for state in TaskState}


def make_families() -> dict[str, Family]:
    """Return the counts and durations with labels, by name, all empty."""
    families = (
        Family("refusals", "Rejected requests by reason", ("reason",), is_histogram=False),
        Family(
            "request_duration_seconds",
            "Time to the result of an operation. A stream has its result when it opens",
            ("operation", "binding", "version", "outcome"),
        ),
        Family("run_duration_seconds", "Time from the call of the agent to the end of the run", ("skill", "outcome")),
        Family("run_first_event_seconds", "Time from the call of the agent to its first event", ("skill", "outcome")),
        Family("queue_wait_seconds", "Time that a message to a running task has waited in the queue of the task"),
        Family("store_write_seconds", "Time of a write to a store on disk, until it is confirmed"),
        Family("webhook_delay_seconds", "Time from a change of status to its delivery to a webhook"),
    )
    return {family.name: family for family in families}


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, A2AError):
        return wire(error).reason
    if isinstance(error, asyncio.CancelledError):
        return CANCELED
    return UNKNOWN_ERROR


def _note_trace(series: Series, seconds: float, trace: Trace) -> None:
    """Keep the trace of a measured duration, if it is one that a reader can find: the caller records it."""
    if is_sampled(trace):
        series.note(Exemplar(trace_id_of(trace), seconds, time.time()))


# The requirements' names of figures that have another name here. Only the JSON has them.
NAMES_OF_REQUIREMENTS: Final = {
    "sse_active_streams": "open_streams",
    "push_notifications_sent": "webhook_notifications_sent",
    "push_notifications_failed": "webhook_notifications_failed",
}


def make_board(workers: int) -> MetricsBoard:
    """Return a board for the figures of this many workers."""
    return MetricsBoard(workers, len(HELP))


def reset_gauges(board: MetricsBoard, worker: int) -> None:
    """Set the gauges of a worker that has ended to 0. Its counters stay."""
    row = board.read(worker)
    kept: list[float] = []
    for value, (kind, _) in zip(row, HELP.values(), strict=True):
        kept.append(value if kind == "counter" else 0)
    board.write(worker, kept)


class Metrics(Observer):
    """An observer that counts, and the endpoint GET /metrics."""

    def __init__(
        self,
        traffic: Traffic,
        *,
        stuck_threads: Callable[[], int],
        backlog: Callable[[], Awaitable[Backlog]],
        usage: Callable[[], Awaitable[Usage]],
        lease_age: Callable[[], float | None] = lambda: None,
        store_timeout: float = STORE_TIMEOUT,
    ) -> None:
        self._traffic = traffic
        self._lease_age = lease_age
        self._stuck_threads = stuck_threads
        self._ask_backlog = backlog
        self._backlog = Backlog()  # as of the last request
        self._ask_usage = usage
        self._store_timeout = store_timeout
        self._usage = Usage(0, 0)  # as of the last request
        self._lag = LoopLag()
        self._started = time.monotonic()
        self._counts = dict.fromkeys(HELP, 0)
        self._seconds = 0.0
        self._families = make_families()
        self._requests = self._families["request_duration_seconds"]
        # The series of a request and of a run, found without making their labels.
        self._request_series: dict[tuple[Operation, str, str, str], Series] = {}
        self._run_series: dict[tuple[str, TaskState], tuple[Series, Series]] = {}
        self._runs = self._families["run_duration_seconds"]
        self._first_events = self._families["run_first_event_seconds"]
        self._queue_waits = self._families["queue_wait_seconds"].find(())
        self._writes = self._families["store_write_seconds"].find(())
        self._webhook_delays = self._families["webhook_delay_seconds"].find(())
        self._earlier_reasons: Counter[str] = Counter()  # of earlier processes with this worker's number
        self._board: MetricsBoard | None = None  # set if several processes serve one port
        self._worker = 0
        self._earlier: dict[str, float] = {}  # the counters of earlier processes with this worker's number
        self._timer: asyncio.TimerHandle | None = None

    def share(self, board: MetricsBoard, worker: int) -> None:
        """Show the figures of all workers. This process is the worker with the given number."""
        self._board = board
        self._worker = worker
        for name, value in zip(HELP, board.read(worker), strict=True):
            if HELP[name][0] == "counter":
                self._earlier[name] = value
        saved = decode_families(board.read_families(worker) or b"{}")
        for labels, counts, _ in saved.pop("refusals", []):
            self._earlier_reasons[labels[0]] = counts[0]
        for name, series in saved.items():
            self._families[name].add_all(series)

    def watch_loop(self) -> None:
        """Measure from now on how long the event loop is blocked."""
        self._lag.start()
        if self._board is not None:
            self.publish()

    def publish(self) -> None:
        """Write the metrics of this process for the others, now and twice a second from now on."""
        assert self._board is not None  # the callers check it
        self._board.write(self._worker, list(self.own_values().values()))
        self._board.write_families(self._worker, encode_families(self.own_families()))
        self._timer = asyncio.get_running_loop().call_later(WRITE_INTERVAL, self.publish)

    def stop(self) -> None:
        self._lag.stop()
        if self._timer is not None:
            self._timer.cancel()

    def request_received(self) -> None:
        self._counts["total_requests"] += 1

    def request_limited(self) -> None:
        self._counts["limited_requests"] += 1

    def request_ended(
        self, operation: Operation, context: CallContext, seconds: float, error: BaseException | None
    ) -> None:
        outcome = OK
        if error is not None:
            outcome = _outcome_of(error)
        key = (operation, context.binding, context.rules.version, outcome)
        series = self._request_series.get(key)
        if series is None:
            series = self._requests.find((operation.value, context.binding, context.rules.version, outcome))
            self._request_series[key] = series
        series.observe(seconds)
        if context.headers:
            _note_trace(series, seconds, context.headers)

    def message_waits(self) -> None:
        self._counts["waiting_messages"] += 1

    def message_waited(self, seconds: float) -> None:
        self._counts["waiting_messages"] -= 1
        self._queue_waits.observe(seconds)

    def write_confirmed(self, seconds: float) -> None:
        self._writes.observe(seconds)

    def run_started(self, task_id: str, call: Call) -> None:
        self._counts["active_tasks"] += 1

    def run_ended(self, task_id: str, call: Call, state: TaskState, times: RunTimes) -> None:
        self._counts["active_tasks"] -= 1
        if state is not TaskState.CANCELED:
            self._counts[_ENDINGS.get(state, "interrupted_tasks")] += 1
        self._seconds += times.seconds
        found = self._run_series.get((call.skill, state))
        if found is None:
            labels = (call.skill or NO_SKILL, _OUTCOMES[state])
            found = (self._runs.find(labels), self._first_events.find(labels))
            if len(self._run_series) < MAX_SERIES:
                self._run_series[call.skill, state] = found
        series, first = found
        series.observe(times.seconds)
        if times.first_event is not None:
            first.observe(times.first_event)
        if call.headers:
            _note_trace(series, times.seconds, call.headers)

    def task_ended(self, task_id: str, owner: str, state: TaskState) -> None:
        if state is TaskState.CANCELED:  # not by `run_ended`: a task that waits for its user has no run
            self._counts["canceled_tasks"] += 1

    def run_lost(self, task_id: str) -> None:
        self._counts["failed_tasks"] += 1

    def run_abandoned(self, task_id: str) -> None:
        self._counts["abandoned_runs"] += 1

    def stream_opened(self, task_id: str) -> None:
        self._counts["open_streams"] += 1

    def stream_closed(self, task_id: str) -> None:
        self._counts["open_streams"] -= 1

    def notification_sent(self, task_id: str, delay: float | None) -> None:
        self._counts["webhook_notifications_sent"] += 1
        if delay is not None:
            self._webhook_delays.observe(delay)

    def notification_failed(self, task_id: str) -> None:
        self._counts["webhook_notifications_failed"] += 1

    def notification_retried(self, task_id: str) -> None:
        self._counts["webhook_notifications_retried"] += 1

    def webhook_given_up(self, task_id: str) -> None:
        self._counts["webhooks_given_up"] += 1

    def storage_refused(self, quota_key: str) -> None:
        self._counts["refused_for_storage"] += 1

    def values(self) -> dict[str, float]:
        """Return every figure by name, of all workers together if there are several."""
        own = self.own_values()
        if self._board is None:
            return own
        self._board.write(self._worker, list(own.values()))
        values: dict[str, float] = {}
        for name, column in zip(HELP, zip(*self._board.read_all(), strict=True), strict=True):
            value = max(column) if name in _MAXIMUM_OF_WORKERS else sum(column)
            values[name] = int(value) if value.is_integer() else value  # the board holds only floats
        return values

    def own_values(self) -> dict[str, float]:
        """Return the figures of this process."""
        values: dict[str, float] = {}
        for name in HELP:
            values[name] = self._counts[name]
        values["run_seconds"] = round(self._seconds, 6)
        values["stuck_threads"] = self._stuck_threads()
        values["refused_requests"] = self._traffic.refusals.requests
        values["refused_connections"] = self._traffic.refusals.connections
        values["cut_off_readers"] = self._traffic.refusals.readers
        values["open_connections"] = self._traffic.connections
        values["tls_handshakes"] = self._traffic.handshakes
        values["body_bytes_in_flight"] = self._traffic.body_bytes
        values["answer_bytes_in_flight"] = self._traffic.answer_bytes
        values["loop_lag_seconds_max"] = round(self._lag.longest, 6)
        values["loop_lag_seconds_max_last_minute"] = round(self._lag.longest_of_last_minute(), 6)
        values["loop_lag_cpu_seconds_max"] = round(self._lag.longest_on_processor, 6)
        values["webhook_notifications_waiting"] = self._backlog.events
        values["webhook_oldest_seconds"] = round(self._backlog.oldest, 3)
        values["webhooks_failed"] = self._backlog.failed
        values["lease_age_seconds"] = round(self._lease_age() or 0.0, 3)
        values["stored_tasks"] = self._usage.tasks
        values["stored_bytes"] = self._usage.bytes
        values["uptime_seconds"] = round(time.monotonic() - self._started, 3)
        for name, value in self._earlier.items():
            values[name] += value
        return values

    def families(self) -> list[Family]:
        """Return the counts and durations with labels, of all workers together if there are several."""
        own = self.own_families()
        if self._board is None:
            return own
        merged = make_families()
        for family in own:
            for labels, series in list(family.series.items()):
                ours = merged[family.name].find(labels)
                ours.add(series.counts, series.total)
                ours.exemplars.update(series.exemplars)
        for worker in self._board.others(self._worker):
            for name, saved in decode_families(self._board.read_families(worker) or b"{}").items():
                merged[name].add_all(saved)
        return list(merged.values())

    def own_families(self) -> list[Family]:
        """Return the counts and durations of this process."""
        refusals = self._families["refusals"]
        # A copy, because exporters of OpenTelemetry read this from a thread of their own.
        for reason, count in (self._earlier_reasons + self._traffic.refusals.reasons.copy()).items():
            refusals.find((reason,)).counts[0] = count
        return list(self._families.values())

    def prometheus(self, *, is_open: bool = False) -> bytes:
        """Return the metrics as Prometheus text, or in the format OpenMetrics, which has exemplars."""
        lines: list[str] = []
        for name, value in self.values().items():
            kind, text = HELP[name]
            lines += text_of_figure(name, kind, text, value, is_open=is_open)
        for family in self.families():
            lines += text_of_family(family, is_open=is_open)
        version = {"version": __version__, "python": platform.python_version()}
        lines += text_of_info("build_info", "The versions of the package and of Python", version)
        if is_open:
            lines.append("# EOF")
        return ("\n".join(lines) + "\n").encode()

    async def refresh(self) -> None:
        """Read the figures of the store again, in bounded time. Never raises."""
        try:
            async with asyncio.timeout(self._store_timeout):
                self._backlog = await self._ask_backlog()
                self._usage = await self._ask_usage()
        except Exception as error:  # from a store. The other figures matter even more if the store is unavailable
            logger.warning("metrics without figures of the task store: it failed", exc_info=error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /metrics: JSON, or text for clients that accept it: OpenMetrics rather than Prometheus."""
        await self.refresh()
        request = inbound(scope)
        if request.accepts(b"application/openmetrics-text"):
            await respond(send, 200, self.prometheus(is_open=True), media=OPENMETRICS)
        elif request.accepts(b"text/plain"):
            await respond(send, 200, self.prometheus(), media=PROMETHEUS)
        else:
            values = self.values()
            for name, ours in NAMES_OF_REQUIREMENTS.items():
                values[name] = values[ours]
            await respond(send, 200, encode(values))


# ---- the event loop's lag -------------------------------------------------------------------------------------------
# How long the event loop was blocked: a timer measures how much later than planned it is called.
#
# Code that runs on the event loop without waiting delays all other work. The wall clock also counts time in which the
# machine ran other processes. Processor time counts only this process.

LAG_INTERVAL: Final = 0.1  # seconds
MINUTE: Final = 60.0


class LoopLag:
    """The longest delay since the start and within the last minute, in seconds, measured by ten timers a second."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.longest_on_processor = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0  # when the timer is due, on the loop's clock
        self._processor = 0.0  # processor time of the loop's thread when the timer was set
        self._seconds: deque[tuple[int, float]] = deque()  # the longest delay of each second of the last minute

    def start(self) -> None:
        """Start to measure. A second call does nothing."""
        if self._timer is None:
            self._set()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def longest_of_last_minute(self) -> float:
        """Return the longest delay of the last minute before the latest measurement. Any thread may call it."""
        oldest = self._due_at - MINUTE
        return max((lag for second, lag in tuple(self._seconds) if second >= oldest), default=0.0)

    def _set(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_at = loop.time() + LAG_INTERVAL
        self._processor = time.thread_time()
        self._timer = loop.call_at(self._due_at, self._measure)

    def _measure(self) -> None:
        now = asyncio.get_running_loop().time()
        lag = max(now - self._due_at, 0.0)
        self.longest = max(self.longest, lag)
        # Processor time before the timer was due caused no delay, so no more than the delay is counted.
        on_processor = min(lag, time.thread_time() - self._processor)
        self.longest_on_processor = max(self.longest_on_processor, on_processor)
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            lag = max(lag, self._seconds.pop()[1])
        self._seconds.append((second, lag))
        self._forget(now)
        self._set()

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] < now - MINUTE:
            self._seconds.popleft()
