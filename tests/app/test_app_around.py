"""What stands around an agent: health, metrics, other origins, other applications, hooks."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from apcore_a2a import InMemoryTaskStore, JWTAuthenticator, async_serve
from apcore_a2a.errors import StoreUnavailableError
from tests.app.test_app import CARD, browsing, send
from tests.auth.tokens import SECRET
from tests.modules import registry
from tests.requirements import requirement


@requirement("FR-OPS-001")
async def test_health_says_how_it_is() -> None:
    async with browsing(await async_serve(registry())) as client:
        answer = await client.get("/health")
        assert answer.status_code == 200
        health = answer.json()
        assert (health["status"], health["module_count"]) == ("healthy", 1)
        assert health["uptime_seconds"] >= 0


@requirement("FR-OPS-001")
async def test_health_says_when_the_store_is_gone() -> None:
    class Broken(InMemoryTaskStore):
        async def check(self) -> None:
            raise StoreUnavailableError

    async with browsing(await async_serve(registry(), task_store=Broken())) as client:
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.json() == {"status": "unhealthy", "reason": StoreUnavailableError.text}


@requirement("NFR-SEC-003")
async def test_other_origins_are_kept_out_unless_named(caplog: pytest.LogCaptureFixture) -> None:
    asking = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with browsing(await async_serve(registry())) as client:
        answer = await client.get(CARD, headers={"Origin": "https://app.example"})
        assert "access-control-allow-origin" not in answer.headers
    app = await async_serve(registry(), cors_origins=["https://app.example"])
    async with browsing(app) as client:
        preflight = await client.options("/", headers={**asking, "Access-Control-Request-Headers": "A2A-Version"})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        answer = await client.get(CARD, headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in answer.headers
    with caplog.at_level(logging.WARNING):
        await async_serve(registry(), cors_origins=["*"])
    assert "CORS is open to every origin" in caplog.text


async def test_a_preflight_needs_no_token() -> None:
    app = await async_serve(registry(), auth=JWTAuthenticator(SECRET), cors_origins=["https://app.example"])
    asking = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with browsing(app) as client:
        assert (await client.options("/", headers=asking)).status_code == 200
        refused = await client.post("/", json=send(), headers={"Origin": "https://app.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"


@requirement("FR-SRV-003")
async def test_it_mounts_anywhere_in_another_application() -> None:
    host = FastAPI()
    host.mount("/agents/calculator", await async_serve(registry()))
    async with browsing(host) as client:
        client.base_url = httpx.URL("http://127.0.0.1:9000")
        card = (await client.get(f"/agents/calculator{CARD}")).json()
        assert card["url"] == "http://127.0.0.1:9000/agents/calculator/"
        answer = (await client.post("/agents/calculator/", json=send())).json()
        assert answer["result"]["status"]["state"] == "completed"


async def test_an_application_that_mounts_it_opens_and_closes_it_by_its_lifespan() -> None:
    told: list[str] = []
    agent = await async_serve(
        registry(), on_startup=[lambda: told.append("opened")], on_shutdown=[lambda: told.append("closed")]
    )
    host = FastAPI(lifespan=agent.router.lifespan_context)
    host.mount("/agent", agent)
    async with browsing(host) as client:
        assert told == ["opened"]
        answer = (await client.post("/agent/", json=send())).json()
        assert answer["result"]["status"]["state"] == "completed"
    assert told == ["opened", "closed"]


async def test_middleware_that_was_added_sees_every_request() -> None:
    app = await async_serve(registry())
    seen: list[str] = []

    async def watch(request: Any, call_next: Any) -> Any:
        seen.append(request.url.path)
        return await call_next(request)

    app.user_middleware.append(Middleware(BaseHTTPMiddleware, dispatch=watch))
    async with browsing(app) as client:
        assert (await client.post("/", json=send())).json()["result"]["status"]["state"] == "completed"
    assert seen == ["/"]


async def test_routes_that_were_added_work_beside_the_agents() -> None:
    async def version(request: Request) -> Response:
        return Response("7")

    app = await async_serve(registry())
    app.add_route("/version", version)
    async with browsing(app) as client:
        assert (await client.get("/version")).text == "7"
        assert (await client.post("/", json=send())).json()["result"]["status"]["state"] == "completed"
        assert (await client.get("/nothing")).status_code in (400, 404)


async def test_hooks_run_when_it_opens_and_when_it_closes() -> None:
    told: list[str] = []

    async def later() -> None:
        told.append("opened, later")

    app = await async_serve(
        registry(), on_startup=[lambda: told.append("opened"), later], on_shutdown=[lambda: told.append("closed")]
    )
    async with browsing(app):
        assert told == ["opened", "opened, later"]
    assert told == ["opened", "opened, later", "closed"]


class Told:
    """An authenticator that says when it is opened and closed."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def authenticate(self, headers: dict[str, str]) -> None:
        return None

    async def open(self) -> None:
        self.said.append("opened")

    async def close(self) -> None:
        self.said.append("closed")


def fail() -> None:
    raise RuntimeError("a hook of the user's")


async def test_a_hook_that_fails_at_the_start_leaves_nothing_open() -> None:
    auth = Told()
    app = await async_serve(registry(), auth=auth, on_startup=[fail])
    with pytest.raises(RuntimeError):
        await app.open()
    assert auth.said == ["opened", "closed"]


async def test_a_hook_that_fails_at_the_end_keeps_nothing_else_from_being_closed(tmp_path: Path) -> None:
    auth = Told()
    log = tmp_path / "audit.log"
    closed: list[str] = []
    app = await async_serve(
        registry(), auth=auth, audit_log=str(log), on_shutdown=[fail, lambda: closed.append("closed")]
    )
    await app.open()
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent.example") as client:
        assert (await client.post("/", json={})).status_code == 401
    with pytest.raises(RuntimeError):
        await app.close()
    assert (auth.said, closed) == (["opened", "closed"], ["closed"])
    assert '"no credentials"' in log.read_text()
    assert "audit log" not in {thread.name for thread in threading.enumerate()}


async def test_it_opens_once_however_many_come_first() -> None:
    opened: list[None] = []

    counted = await async_serve(registry(), on_startup=[lambda: opened.append(None)])
    transport = httpx.ASGITransport(app=counted)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://agent.example") as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(5):
            group.create_task(client.get(CARD))
    assert len(opened) == 1
