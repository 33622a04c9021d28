"""The server of `apcore-a2a explore`, without a browser."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from apcore_a2a.client.transport import HttpRequest, Transport
from apcore_a2a.explorer import proxy
from apcore_a2a.explorer.proxy import ExplorerProxy
from apcore_a2a.testing import AppTransport
from apcore_a2a.testing.app_client import lifespan


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """An agent that sends nothing until its client disconnects."""
    await receive()
    await receive()


@asynccontextmanager
async def network() -> AsyncIterator[Transport]:
    yield AppTransport(silent)


@pytest.fixture
async def explorer() -> AsyncIterator[ExplorerProxy]:
    explorer = ExplorerProxy("http://agent.test", network())
    async with lifespan(explorer):
        yield explorer


async def test_fetching_a_card_through_the_proxy_times_out(
    explorer: ExplorerProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "ANSWER_TIME", 0.01)
    request = HttpRequest("GET", f"http://127.0.0.1/{explorer.secret}/{proxy.CARD}", {})

    async with asyncio.timeout(5):
        response = await AppTransport(explorer).request(request, 1000)

    assert response.status == 502
    assert b"did not answer within" in response.body


@pytest.mark.parametrize("host", ["evil.example", "[", ""])
async def test_a_host_that_is_not_loopback_is_rejected(explorer: ExplorerProxy, host: str) -> None:
    request = HttpRequest("GET", f"http://127.0.0.1{explorer.path}", {"Host": host})

    assert (await AppTransport(explorer).request(request, 1000)).status == 404
