"""The application: an engine, its bindings, and the order in which a request passes them.

Rule: the door stands before every route, and what is open is named exactly.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.agent import Agent, Caller
from apcore_a2a.auth.authenticator import Authenticator
from apcore_a2a.auth.middleware import AuthMiddleware
from apcore_a2a.engine.call_context import Interceptor
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.options import Options
from apcore_a2a.explorer import ExplorerPage
from apcore_a2a.http.discovery import (
    CARD_PATH,
    EXTENDED_CARD_PATH,
    OLD_CARD_PATH,
    CardDesk,
    ExtendedCardDesk,
    HealthDesk,
)
from apcore_a2a.http.jsonrpc import JSONRPCBinding
from apcore_a2a.http.metrics import Metrics
from apcore_a2a.http.rest import RESTBinding
from apcore_a2a.http.signals import on_exit_signal
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.settings import Settings
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.storage.task_store import Store

logger = logging.getLogger(__name__)

Hook = Callable[[], Awaitable[None] | None]
CORS_HEADERS = ("A2A-Version", "A2A-Extensions", "Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID")


class Parts(Struct, kw_only=True):
    """What an application is made of besides its settings."""

    agent: Agent
    card: AgentCard
    store: Store | None = None
    auth: Authenticator | None = None
    extended_card: Callable[[Caller], AgentCard] | None = None
    interceptors: tuple[Interceptor, ...] = ()
    on_open: "Callable[[Application], None] | None" = None
    on_startup: tuple[Hook, ...] = ()
    on_shutdown: tuple[Hook, ...] = ()


class Application(Starlette):
    """The agent as a Starlette application.

    Its routes skip Starlette's own layers, which cost a third of a request, unless middleware was added that must see
    them. Mounted in another application, it opens with the first request when no lifespan reaches it.
    """

    def __init__(self, parts: Parts, settings: Settings) -> None:
        metrics = Metrics() if settings.metrics else None
        self.engine = Engine(
            parts.agent,
            parts.store or InMemoryTaskStore(),
            options=_options(parts.card, settings),
            observer=metrics,
            interceptors=parts.interceptors,
            extended_card=parts.extended_card,
        )
        self.desk = CardDesk(parts.card, url=settings.url, mode=settings.card_mode, proxies=settings.trusted_proxies)
        self.settings = settings
        self._parts, self._opening = parts, asyncio.Lock()
        self._opened = False
        self._core = _pipeline(self.engine, self.desk, metrics, parts, settings)
        super().__init__(routes=[Route("/{path:path}", endpoint=self._core)], lifespan=_lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if not self._opened:
            await self.open()
        await (super().__call__ if self.user_middleware else self._core)(scope, receive, send)

    async def open(self) -> None:
        """Open the store, go on with what a dead process left, run the start-up hooks. Once."""
        async with self._opening:
            if not self._opened:
                await self.engine.open()
                if self._parts.on_open is not None:
                    self._parts.on_open(self)
                for hook in self._parts.on_startup:
                    await _call(hook)
                self._opened = True

    async def close(self) -> None:
        """End every run and stream in bounded time, run the shutdown hooks, close the store."""
        await self.engine.close()
        for hook in self._parts.on_shutdown:
            await _call(hook)


def _options(card: AgentCard, settings: Settings) -> Options:
    """The engine keeps what the card promises, and no more."""
    required = frozenset(extension.uri for extension in card.capabilities.extensions if extension.required)
    return replace(settings.options(), streaming=bool(card.capabilities.streaming), required_extensions=required)


async def _call(hook: Hook) -> None:
    done = hook()
    if done is not None:
        await done


@asynccontextmanager
async def _lifespan(app: Application) -> AsyncIterator[None]:
    await app.open()
    with on_exit_signal(app.engine.begin_drain):
        yield
    await app.close()


class _Dispatch:
    """Exact routes first, then the REST table."""

    def __init__(self, routes: Mapping[tuple[str, str], ASGIApp], rest: ASGIApp, metrics: Metrics | None) -> None:
        self._routes, self._rest, self._metrics = routes, rest, metrics

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if self._metrics is not None:
            self._metrics.request_received()
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        return self._routes.get((scope["method"], path), self._rest)(scope, receive, send)


def _pipeline(engine: Engine, desk: CardDesk, metrics: Metrics | None, parts: Parts, settings: Settings) -> ASGIApp:
    """CORS, then the door, then the routes."""
    public: dict[tuple[str, str], ASGIApp] = {
        (method, path): desk for path in (CARD_PATH, OLD_CARD_PATH) for method in ("GET", "HEAD")
    }
    public["GET", "/health"] = HealthDesk(engine, desk)
    if metrics is not None:
        public["GET", "/metrics"] = metrics
    if settings.explorer:
        page, prefix = ExplorerPage(), settings.explorer_prefix
        public |= {("GET", prefix): page, ("GET", f"{prefix}/"): page}
    routes: dict[tuple[str, str], ASGIApp] = {
        **public,
        ("POST", "/"): JSONRPCBinding(engine, locate=desk.at),
        ("GET", EXTENDED_CARD_PATH): ExtendedCardDesk(engine, desk),
    }
    rest = RESTBinding(engine, locate=desk.at, old_statuses=settings.old_statuses)
    app: ASGIApp = _Dispatch(routes, rest, metrics)
    if parts.auth is not None:
        app = AuthMiddleware(app, parts.auth, exempt=frozenset(public))
    if settings.cors_origins:
        if "*" in settings.cors_origins:
            logger.warning("CORS is open to every origin; name the origins in production")
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=CORS_HEADERS,
            expose_headers=("A2A-Version", "A2A-Extensions", "ETag", "Retry-After"),
        )
    return app
