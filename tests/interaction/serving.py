"""An agent on a real socket of the loopback interface, in the event loop of its test."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from ssl import SSLContext
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

from apcore_a2a.app.serve import build_app
from apcore_a2a.http.server.connection import GuardedProtocol, HTTP2Support
from apcore_a2a.http.traffic import HTTP2_KEY
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentSkill
from tests.fakes import PATIENCE

CARD = AgentCard(
    name="scripted",
    description="Does what a test wrote.",
    version="1.2.3",
    supported_interfaces=(),  # the server fills in its address
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=("text/plain",),
    default_output_modes=("text/plain",),
    skills=(AgentSkill(id="play", name="Play", description="Plays a script.", tags=("test",)),),
)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers and without its pauses at shutdown, with an event for the start of listening."""

    def __init__(self, config: uvicorn.Config, http2: HTTP2Support | None) -> None:
        super().__init__(config)
        self._http2 = http2
        self.listens, self.ends = asyncio.Event(), asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._http2 is not None:
            self.lifespan.state[HTTP2_KEY] = self._http2
        await super().startup(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.listens.set()
        await self.ends.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self.lifespan.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=PATIENCE)


def listen() -> socket.socket:
    """Return a socket that listens on an unused port."""
    # With IPPROTO_TCP: otherwise asyncio does not disable Nagle's algorithm, which costs 40 ms per call.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


@asynccontextmanager
async def serving(
    agent: Any,
    *,
    card: AgentCard | None = CARD,
    tls: SSLContext | None = None,
    protocol: type[GuardedProtocol] = GuardedProtocol,
    http2: HTTP2Support | None = None,
    **options: Any,
) -> AsyncIterator[str]:
    """Serve an agent as `serve` does, and yield its address. At the end, stop the runs without a grace period."""
    app = build_app(agent, card=card, **{"shutdown_timeout": 0.1} | options)
    if http2 is None and options.get("grpc") is not False:
        http2 = HTTP2Support()
    async with serving_app(app, tls=tls, protocol=protocol, http2=http2) as url:
        yield url


@asynccontextmanager
async def serving_app(
    app: ASGIApp,
    *,
    tls: SSLContext | None = None,
    protocol: type[GuardedProtocol] = GuardedProtocol,
    http2: HTTP2Support | None = None,
    lifespan: Literal["on", "off"] = "on",
) -> AsyncIterator[str]:
    """Serve any ASGI application, and yield its address."""
    config = uvicorn.Config(app, http=protocol, ws="none", lifespan=lifespan, log_config=None, proxy_headers=False)
    config.load()
    config.ssl = tls
    server = _Server(config, http2)
    scheme = "http" if tls is None else "https"
    with listen() as listener:
        running = asyncio.create_task(server.serve([listener]))
        try:
            async with asyncio.timeout(PATIENCE):
                await server.listens.wait()
            yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.ends.set()
            await running
