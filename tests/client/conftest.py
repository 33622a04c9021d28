"""A scripted server, and a client with short pauses."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from apcore_a2a.client import A2AClient, Retry
from tests.client.scripted import CARD, ScriptedServer, card, respond

QUICK = Retry(base=0.0)

Connect = Callable[..., A2AClient]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as running:
        yield running.on(CARD, respond(card(running.url)))


@pytest.fixture
async def connect(server: ScriptedServer) -> AsyncIterator[Connect]:
    """Create clients of the server, and close them after the test."""
    clients: list[A2AClient] = []

    def make(url: str = "", **options: Any) -> A2AClient:
        quick: dict[str, Any] = {"retry": QUICK, "timeout": 5.0, "poll_interval": 0.0}
        clients.append(A2AClient(url or server.url, **quick | options))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()
