"""The agent card in every form clients ask for, and the health of the server.

Rule: a card is encoded when it changes, never when it is asked for.
"""

import hashlib
import time
from email.utils import formatdate
from typing import Final, Literal

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from apcore_a2a.errors import A2AError, StoreUnavailableError
from apcore_a2a.protocol import v03, v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import encode
from apcore_a2a.server.asgi import inbound, respond
from apcore_a2a.server.engine import Engine

CARD_PATH: Final = "/.well-known/agent-card.json"
OLD_CARD_PATH: Final = "/.well-known/agent.json"
MAX_AGE: Final = 300

CardMode = Literal["auto", "1.0", "0.3", "hybrid"]


class _Form(Struct, frozen=True):
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    etag: bytes


def _form(body: bytes, modified: float) -> _Form:
    etag = b'"' + hashlib.sha256(body).hexdigest()[:32].encode() + b'"'
    headers = (
        (b"cache-control", b"max-age=%d" % MAX_AGE),
        (b"etag", etag),
        (b"last-modified", formatdate(modified, usegmt=True).encode()),
        (b"vary", b"A2A-Version"),
    )
    return _Form(body, headers, etag)


class CardDesk:
    """Holds the public card and hands it out.

    `mode` "auto" serves what fits the request: the pure 1.0 card for `A2A-Version: 1.0`, the pure 0.3 card at the old
    path, otherwise a card that both generations of clients can read. Any other mode serves that form alone.
    """

    def __init__(self, card: AgentCard, *, mode: CardMode = "auto") -> None:
        self._mode = mode
        self.replace(card)

    def replace(self, card: AgentCard) -> None:
        """Serve another card from now on."""
        now = time.time()
        self.card = card
        self._forms = {
            "1.0": _form(v1.encode_card(card), now),
            "0.3": _form(v03.encode_card(card), now),
            "hybrid": _form(v03.encode_hybrid_card(card), now),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = inbound(scope)
        form = self._forms[self._choose(scope["path"], request.text(b"a2a-version"))]
        if form.etag in request.headers.get(b"if-none-match", b""):
            await send({"type": "http.response.start", "status": 304, "headers": list(form.headers)})
            await send({"type": "http.response.body", "body": b""})
        else:
            await respond(send, 200, b"" if scope["method"] == "HEAD" else form.body, headers=form.headers)

    def _choose(self, path: str, version: str) -> str:
        if self._mode != "auto":
            return self._mode
        if path.endswith(OLD_CARD_PATH):
            return "0.3"
        return "1.0" if version.startswith("1.") else "hybrid"


class HealthDesk:
    """GET /health: 200 while new work is taken and the store answers, else 503."""

    def __init__(self, engine: Engine, desk: CardDesk) -> None:
        self._engine, self._desk = engine, desk
        self._started = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = await self._trouble()
        if reason:
            await respond(send, 503, encode({"status": "unhealthy", "reason": reason}))
            return
        uptime = round(time.monotonic() - self._started, 3)
        state = {"status": "healthy", "module_count": len(self._desk.card.skills), "uptime_seconds": uptime}
        await respond(send, 200, encode(state))

    async def _trouble(self) -> str:
        if self._engine.draining:
            return "shutting down"
        try:
            await self._engine.store.check()
        except (A2AError, OSError):
            return StoreUnavailableError.text
        return ""
