"""The server of `apcore-a2a explore`, without a browser."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from apcore_a2a.client.auth import Auth, BearerAuth
from apcore_a2a.client.transport import HttpRequest, Transport
from apcore_a2a.explorer import proxy
from apcore_a2a.explorer.proxy import ExplorerProxy
from apcore_a2a.testing import AppTransport
from apcore_a2a.testing.app_client import lifespan
from tests.fakes import PATIENCE


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


# ---- headers ---------------------------------------------------------------------------------------------------------

COLLIDING = [
    *("Cookie", "Host", "Origin", "Referer", "Sec-Fetch-Site", "Connection", "Content-Length", "Transfer-Encoding"),
    *("Proxy-Authorization", "X-Forwarded-For", "User-Agent", "Accept", "Content-Type", "A2A-Version", "bad name"),
]


class Recording:
    """An agent whose card names a header for its API key, and which records the headers of each request."""

    def __init__(self, header: str) -> None:
        self.card = {
            "name": "Agent",
            "description": "Records",
            "version": "1",
            "url": "http://agent.test/",
            "preferredTransport": "JSONRPC",
            "protocolVersion": "0.3.0",
            "capabilities": {},
            "defaultInputModes": [],
            "defaultOutputModes": [],
            "skills": [],
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": header}},
        }
        self.received: list[dict[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.received.append(dict(scope["headers"]))
        body = json.dumps(self.card).encode() if scope["path"].endswith("agent-card.json") else b"{}"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})


async def forwarded(agent: Recording, sent: dict[str, str], *, auth: Auth | None = None) -> dict[bytes, bytes]:
    """Return the headers that the agent receives for a message of the page."""

    @asynccontextmanager
    async def recording() -> AsyncIterator[Transport]:
        yield AppTransport(agent)

    explorer = ExplorerProxy("http://agent.test", recording(), auth=auth)
    base = f"http://127.0.0.1/{explorer.secret}/"
    async with lifespan(explorer), asyncio.timeout(PATIENCE):
        assert (await AppTransport(explorer).request(HttpRequest("GET", base + proxy.CARD, {}), 10_000)).status == 200
        request = HttpRequest("POST", base, {"Host": "127.0.0.1", **sent}, b"{}")
        assert (await AppTransport(explorer).request(request, 1_000)).status == 200
    return agent.received[-1]


@pytest.mark.parametrize("header", COLLIDING)
async def test_a_card_cannot_ask_for_headers_that_the_browser_adds(header: str) -> None:
    agent = Recording(header)
    sent = {} if header in ("Host", "Content-Length", "Transfer-Encoding", "bad name") else {header: "session=secret"}
    got = await forwarded(agent, {"Cookie": "session=secret", **sent}, auth=BearerAuth("t0ken"))
    assert b"cookie" not in got
    assert got[b"authorization"] == b"Bearer t0ken"  # not dropped because the page had sent the header
    if header not in ("Accept", "Content-Type", "A2A-Version"):  # these are forwarded in any case
        assert b"session=secret" not in got.values()


async def test_an_api_key_of_the_page_is_forwarded() -> None:
    got = await forwarded(Recording("X-Agent-Key"), {"X-Agent-Key": "secret"}, auth=BearerAuth("t0ken"))
    assert got[b"x-agent-key"] == b"secret"
    assert b"authorization" not in got
