"""Health endpoints: liveness, readiness for new work, and the state of the store.

Invariant: health requests put no load on the store. It is checked at most once a second, for any number of requests.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from starlette.types import Receive, Scope, Send

from apcore_a2a.agent import Call
from apcore_a2a.engine.context import Observer, RunTimes
from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import A2AError, StoreUnavailableError
from apcore_a2a.http.asgi import path_of, respond
from apcore_a2a.protocol.model import TaskState, encode

logger = logging.getLogger(__name__)

HEALTH: Final = "/health"
LIVE: Final = "/health/live"
READY: Final = "/health/ready"
PING: Final = "/ping"
CHECK_INTERVAL: Final = 1.0  # seconds
STORE_TIMEOUT: Final = 0.8  # seconds to wait for the store: a response takes less than one second (FR-OPS-001)
NO_THREADS: Final = "Every thread is held by a function that does not return"
NO_ANSWER: Final = "The task store does not answer"


def is_health(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and path_of(scope) in (HEALTH, LIVE, READY)


class HealthEndpoint:
    """GET /health and /health/ready: 200 while new work is accepted and the store is healthy, else 503 and the reason.

    GET /health/live: 200 as long as the event loop turns. A supervisor that restarts the server must check this path,
    and not the others.
    """

    def __init__(
        self,
        engine: Engine,
        count_modules: Callable[[], int],
        *,
        auth_trouble: Callable[[], str] = str,
        check_interval: float = CHECK_INTERVAL,
        store_timeout: float = STORE_TIMEOUT,
    ) -> None:
        self._engine = engine
        self._count_modules = count_modules
        self._auth_trouble = auth_trouble
        self._check_interval = check_interval
        self._store_timeout = store_timeout
        self._started = time.monotonic()
        self._checking = asyncio.Lock()
        self._checked_at = float("-inf")
        self._store_problem = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if path_of(scope) == LIVE:
            await self._send_alive(send)
            return
        reason = await self._problem()
        if reason:
            await _send_unhealthy(send, reason)
            return
        state = {"status": "healthy", "module_count": self._count_modules(), "uptime_seconds": self._uptime()}
        await respond(send, 200, encode(state))

    async def is_ready(self) -> bool:
        """Return whether new work is accepted and the store is healthy."""
        return not await self._problem()

    async def answer_while_starting(self, scope: Scope, send: Send) -> None:
        """Answer a health request before the store is open."""
        if path_of(scope) == LIVE:
            await self._send_alive(send)
        else:
            await _send_unhealthy(send, "starting")

    async def _send_alive(self, send: Send) -> None:
        await respond(send, 200, encode({"status": "alive", "uptime_seconds": self._uptime()}))

    def _uptime(self) -> float:
        return round(time.monotonic() - self._started, 3)

    async def _problem(self) -> str:
        """Return the reason for a 503, in a text without internal details, or an empty string."""
        if self._engine.draining:
            return "shutting down"
        if self._engine.out_of_threads:
            return NO_THREADS
        locked_out = self._auth_trouble()
        if locked_out:
            return locked_out
        known = self._engine.store_trouble  # known from the last operation, so the store is not asked
        if known:
            return known
        async with self._checking:  # requests that arrive during a check share its result
            now = time.monotonic()
            if now - self._checked_at >= self._check_interval:
                self._store_problem = await self._check_store()
                self._checked_at = time.monotonic()
            return self._store_problem

    async def _check_store(self) -> str:
        try:
            async with asyncio.timeout(self._store_timeout):
                await self._engine.store.check()
        except TimeoutError:
            return NO_ANSWER
        except A2AError:
            return self._engine.store_trouble or StoreUnavailableError.text
        except Exception:  # foreign code: a store may be custom
            logger.exception("the health check of the task store failed")
            return StoreUnavailableError.text
        return ""


# ---- ping -----------------------------------------------------------------------------------------------------------
# AWS Bedrock AgentCore polls /ping, ends a session that has been idle for long, and keeps a busy one. A fresh time in
# every answer would keep idle sessions alive for ever. An answer that is never busy would end them while a task runs.


class Activity(Observer):
    """The time of the last activity of an engine: the last begin or end of a run or of a stream."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.now = clock
        self.last = clock()

    def run_started(self, task_id: str, call: Call) -> None:
        self.last = self.now()

    def run_ended(self, task_id: str, call: Call, state: TaskState, times: RunTimes) -> None:
        self.last = self.now()

    def stream_opened(self, task_id: str) -> None:
        self.last = self.now()

    def stream_closed(self, task_id: str) -> None:
        self.last = self.now()


class PingEndpoint:
    """GET /ping: whether a task runs, and the time of the last activity, which is now while a task runs."""

    def __init__(self, *watched: tuple[Engine, Activity]) -> None:
        self._watched = watched

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_busy = any(engine.active_tasks for engine, _ in self._watched)
        if is_busy:
            updated = max(activity.now() for _, activity in self._watched)
        else:
            updated = max(activity.last for _, activity in self._watched)
        status = "HealthyBusy" if is_busy else "Healthy"
        await respond(send, 200, encode({"status": status, "time_of_last_update": int(updated)}))


async def _send_unhealthy(send: Send, reason: str) -> None:
    await respond(send, 503, encode({"status": "unhealthy", "reason": reason}))
