"""The metrics of the server: an observer that counts, and an endpoint for JSON or Prometheus text.

Invariant: metrics contain no message contents and no names of callers.
"""

import asyncio
import logging
import mmap
import struct
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.context import Observer
from apcore_a2a.http.asgi import inbound, respond
from apcore_a2a.http.traffic import Traffic
from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import Backlog, Usage

logger = logging.getLogger(__name__)

# ---- figures that processes share -----------------------------------------------------------------------------------
# Processes share their figures in one piece of memory, with a row for each process. There are no locks: one process
# writes a row, and all of them read it. A figure may be half a second old.


class MetricsBoard:
    """Memory that is shared by forked processes, with a row of figures for each. Created before the processes fork."""

    def __init__(self, workers: int, figures: int) -> None:
        self._row = struct.Struct(f"{figures}d")
        self._workers = workers
        self._memory = mmap.mmap(-1, max(workers * self._row.size, 1))

    def write(self, worker: int, figures: Sequence[float]) -> None:
        self._row.pack_into(self._memory, worker * self._row.size, *figures)

    def read(self, worker: int) -> tuple[float, ...]:
        return self._row.unpack_from(self._memory, worker * self._row.size)

    def read_all(self) -> list[tuple[float, ...]]:
        return [self.read(worker) for worker in range(self._workers)]


# ---- metrics --------------------------------------------------------------------------------------------------------

PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"
_HELP: Final = {
    "active_tasks": ("gauge", "Tasks that are running"),
    "completed_tasks": ("counter", "Runs that ended in COMPLETED"),
    "failed_tasks": ("counter", "Runs that ended in FAILED or REJECTED"),
    "canceled_tasks": ("counter", "Runs that ended in CANCELED"),
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
        "uptime_seconds",
    }
)
STORE_TIMEOUT: Final = 2.0  # seconds to wait for the store
WRITE_INTERVAL: Final = 0.5  # seconds after which a worker writes its figures for the others
_ENDINGS: Final = {
    TaskState.COMPLETED: "completed_tasks",
    TaskState.FAILED: "failed_tasks",
    TaskState.REJECTED: "failed_tasks",
    TaskState.CANCELED: "canceled_tasks",
}


def make_board(workers: int) -> MetricsBoard:
    """Return a board for the figures of this many workers."""
    return MetricsBoard(workers, len(_HELP))


def reset_gauges(board: MetricsBoard, worker: int) -> None:
    """Set the gauges of a worker that has ended to 0. Its counters stay."""
    row = board.read(worker)
    kept: list[float] = []
    for value, (kind, _) in zip(row, _HELP.values(), strict=True):
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
        store_timeout: float = STORE_TIMEOUT,
    ) -> None:
        self._traffic = traffic
        self._stuck_threads = stuck_threads
        self._ask_backlog = backlog
        self._backlog = Backlog()  # as of the last request
        self._ask_usage = usage
        self._store_timeout = store_timeout
        self._usage = Usage(0, 0)  # as of the last request
        self._lag = LoopLag()
        self._started = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0
        self._board: MetricsBoard | None = None  # set if several processes serve one port
        self._worker = 0
        self._earlier: dict[str, float] = {}  # the counters of earlier processes with this worker's number
        self._timer: asyncio.TimerHandle | None = None

    def share(self, board: MetricsBoard, worker: int) -> None:
        """Show the figures of all workers. This process is the worker with the given number."""
        self._board = board
        self._worker = worker
        for name, value in zip(_HELP, board.read(worker), strict=True):
            if _HELP[name][0] == "counter":
                self._earlier[name] = value

    def watch_loop(self) -> None:
        """Measure from now on how long the event loop is blocked."""
        self._lag.start()
        if self._board is not None:
            self._publish()

    def _publish(self) -> None:
        assert self._board is not None  # the callers check it
        self._board.write(self._worker, list(self._own_values().values()))
        self._timer = asyncio.get_running_loop().call_later(WRITE_INTERVAL, self._publish)

    def stop(self) -> None:
        self._lag.stop()
        if self._timer is not None:
            self._timer.cancel()

    def request_received(self) -> None:
        self._counts["total_requests"] += 1

    def request_limited(self) -> None:
        self._counts["limited_requests"] += 1

    def run_started(self, task_id: str) -> None:
        self._counts["active_tasks"] += 1

    def run_ended(self, task_id: str, state: TaskState, seconds: float) -> None:
        self._counts["active_tasks"] -= 1
        self._counts[_ENDINGS.get(state, "interrupted_tasks")] += 1
        self._seconds += seconds

    def run_abandoned(self, task_id: str) -> None:
        self._counts["abandoned_runs"] += 1

    def stream_opened(self, task_id: str) -> None:
        self._counts["open_streams"] += 1

    def stream_closed(self, task_id: str) -> None:
        self._counts["open_streams"] -= 1

    def notification_sent(self, task_id: str) -> None:
        self._counts["webhook_notifications_sent"] += 1

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
        own = self._own_values()
        if self._board is None:
            return own
        self._board.write(self._worker, list(own.values()))
        values: dict[str, float] = {}
        for name, column in zip(_HELP, zip(*self._board.read_all(), strict=True), strict=True):
            value = max(column) if name in _MAXIMUM_OF_WORKERS else sum(column)
            values[name] = int(value) if value.is_integer() else value  # the board holds only floats
        return values

    def _own_values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for name in _HELP:
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
        values["stored_tasks"] = self._usage.tasks
        values["stored_bytes"] = self._usage.bytes
        values["uptime_seconds"] = round(time.monotonic() - self._started, 3)
        for name, value in self._earlier.items():
            values[name] += value
        return values

    def prometheus(self) -> bytes:
        lines: list[str] = []
        for name, value in self.values().items():
            kind, text = _HELP[name]
            metric = f"apcore_a2a_{name}"
            if kind == "counter" and not name.startswith("total"):  # in Prometheus, names of counters end in _total
                metric += "_total"
            lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}", f"{metric} {value:.15g}"]
        return ("\n".join(lines) + "\n").encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /metrics: JSON, or Prometheus text for clients that accept text."""
        try:
            async with asyncio.timeout(self._store_timeout):
                self._backlog = await self._ask_backlog()
                self._usage = await self._ask_usage()
        except Exception as error:  # from a store. The other figures matter even more if the store is unavailable
            logger.warning("metrics without figures of the task store: it failed", exc_info=error)
        if inbound(scope).accepts(b"text/plain"):
            await respond(send, 200, self.prometheus(), media=PROMETHEUS)
        else:
            await respond(send, 200, encode(self.values()))


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
        self._forget(asyncio.get_running_loop().time())
        return max((lag for _, lag in self._seconds), default=0.0)

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
