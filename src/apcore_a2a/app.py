"""The composition root: an agent, a store and the bindings become one ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.agent import Agent
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.server.discovery import CARD_PATH, OLD_CARD_PATH, CardDesk, CardMode, HealthDesk
from apcore_a2a.server.engine import Engine
from apcore_a2a.server.jsonrpc import JSONRPCBinding
from apcore_a2a.server.options import DEFAULTS, Options
from apcore_a2a.server.rest import RESTBinding
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.storage.task_store import Store


class Application(Starlette):
    """A Starlette application whose hot routes skip Starlette, unless middleware was added that must see them."""

    def __init__(self, engine: Engine, desk: CardDesk, direct: dict[tuple[str, str], ASGIApp], rest: ASGIApp) -> None:
        self.engine, self.desk = engine, desk
        self._direct, self._rest = direct, rest
        routes = [Route(path, endpoint=app, methods=[method]) for (method, path), app in direct.items()]
        super().__init__(routes=[*routes, Route("/{path:path}", endpoint=rest)], lifespan=_lifespan)
        self._opened = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.user_middleware:
            await super().__call__(scope, receive, send)
            return
        if not self._opened:
            await self.open()
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        endpoint = self._direct.get((scope["method"], path), self._rest)
        await endpoint(scope, receive, send)

    async def open(self) -> None:
        if not self._opened:
            self._opened = True
            await self.engine.open()


@asynccontextmanager
async def _lifespan(app: Application) -> AsyncIterator[None]:
    await app.open()
    yield
    await app.engine.close()


def build_app(
    agent: Agent,
    card: AgentCard,
    *,
    store: Store | None = None,
    options: Options = DEFAULTS,
    card_mode: CardMode = "auto",
    old_statuses: bool = False,
) -> Application:
    engine = Engine(agent, store or InMemoryTaskStore(), options=options)
    desk = CardDesk(card, mode=card_mode)
    direct: dict[tuple[str, str], ASGIApp] = {
        ("POST", "/"): JSONRPCBinding(engine),
        ("GET", CARD_PATH): desk,
        ("GET", OLD_CARD_PATH): desk,
        ("GET", "/health"): HealthDesk(engine, desk),
    }
    return Application(engine, desk, direct, RESTBinding(engine, old_statuses=old_statuses))
