"""How the server is: whether it lives, whether it takes new work, and what the store says.

Rule: a look at the health costs the store nothing: it is asked once a second at most, however many ask us.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import A2AError, StoreUnavailableError
from apcore_a2a.http.asgi import path_of, respond
from apcore_a2a.protocol.model import encode

logger = logging.getLogger(__name__)

HEALTH: Final = "/health"
LIVE: Final = "/health/live"
READY: Final = "/health/ready"
CHECK_INTERVAL: Final = 1.0  # seconds
PATIENCE: Final = 2.0  # seconds for the store's answer
NO_THREADS: Final = "Every thread is held by a function that does not return"
NO_ANSWER: Final = "The task store does not answer"


def is_health(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and path_of(scope) in (HEALTH, LIVE, READY)


class HealthEndpoint:
    """GET /health and /health/ready: 200 while new work is taken and the store is well, else 503 and the reason.

    GET /health/live: 200 as long as the loop turns; who restarts what is not alive must not look at the others.
    """

    def __init__(self, engine: Engine, count_modules: Callable[[], int]) -> None:
        self._engine = engine
        self._count_modules = count_modules
        self._started = time.monotonic()
        self._asking = asyncio.Lock()
        self._asked = -CHECK_INTERVAL  # when the store was asked
        self._said = ""  # and what it said

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if path_of(scope) == LIVE:
            await self._say_alive(send)
            return
        reason = await self._problem()
        if reason:
            await _say_unhealthy(send, reason)
            return
        state = {"status": "healthy", "module_count": self._count_modules(), "uptime_seconds": self._uptime()}
        await respond(send, 200, encode(state))

    async def answer_while_starting(self, scope: Scope, send: Send) -> None:
        """What is said before the store is open."""
        if path_of(scope) == LIVE:
            await self._say_alive(send)
        else:
            await _say_unhealthy(send, "starting")

    async def _say_alive(self, send: Send) -> None:
        await respond(send, 200, encode({"status": "alive", "uptime_seconds": self._uptime()}))

    def _uptime(self) -> float:
        return round(time.monotonic() - self._started, 3)

    async def _problem(self) -> str:
        """What is wrong, for everybody to see; empty if nothing is."""
        if self._engine.draining:
            return "shutting down"
        if self._engine.out_of_threads:
            return NO_THREADS
        known = self._engine.store_trouble  # remembered, so it is told at once
        if known:
            return known
        async with self._asking:  # who comes while the store is asked gets the same answer
            now = time.monotonic()
            if now - self._asked >= CHECK_INTERVAL:
                self._said = await self._ask_store()
                self._asked = time.monotonic()
            return self._said

    async def _ask_store(self) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._engine.store.check()
        except TimeoutError:
            return NO_ANSWER
        except A2AError:
            return self._engine.store_trouble or StoreUnavailableError.text
        except Exception:  # foreign code: a store may be anybody's
            logger.exception("the task store failed when it was asked how it is")
            return StoreUnavailableError.text
        return ""


async def _say_unhealthy(send: Send, reason: str) -> None:
    await respond(send, 503, encode({"status": "unhealthy", "reason": reason}))
