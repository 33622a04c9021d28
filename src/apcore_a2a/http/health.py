"""The health of the server: whether it takes new work, and whether its store answers."""

import time

from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import A2AError, StoreUnavailableError
from apcore_a2a.http.asgi import respond
from apcore_a2a.http.discovery import CardEndpoint
from apcore_a2a.protocol.model import encode


class HealthEndpoint:
    """GET /health: 200 while new work is taken and the store answers, else 503."""

    def __init__(self, engine: Engine, cards: CardEndpoint) -> None:
        self._engine = engine
        self._cards = cards
        self._started = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = await self._trouble()
        if reason:
            await respond(send, 503, encode({"status": "unhealthy", "reason": reason}))
            return
        uptime = round(time.monotonic() - self._started, 3)
        state = {"status": "healthy", "module_count": len(self._cards.card.skills), "uptime_seconds": uptime}
        await respond(send, 200, encode(state))

    async def _trouble(self) -> str:
        """What is wrong, for everybody to see; empty if nothing is."""
        if self._engine.draining:
            return "shutting down"
        try:
            await self._engine.store.check()
        except (A2AError, OSError):
            return StoreUnavailableError.text
        return ""
