"""Health: what it shows to which caller, and how often it asks the store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from apcore_a2a import InMemoryTaskStore, JWTAuthenticator, async_serve, create_site
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.http.health import CHECK_INTERVAL, NO_ANSWER, STORE_TIMEOUT, Activity, HealthEndpoint, PingEndpoint
from tests.app.test_app import browsing
from tests.auth.tokens import SECRET
from tests.engine.driving import User, until
from tests.engine.driving import serving as engine_of
from tests.fakes import COMPLETED, PATIENCE, Gate, ScriptedAgent
from tests.interaction.serving import serving
from tests.modules import registry
from tests.requirements import requirement


class Counted(InMemoryTaskStore):
    """Counts how often it is asked; remembers a trouble."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.reason = ""

    def trouble(self) -> str:
        return self.reason

    async def check(self) -> None:
        self.asked += 1


@asynccontextmanager
async def health_client(
    store: InMemoryTaskStore, *, check_interval: float = CHECK_INTERVAL
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve only the health of an engine with this store."""
    async with engine_of(ScriptedAgent(), store) as engine:
        endpoint = HealthEndpoint(engine, lambda: 0, check_interval=check_interval)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(endpoint), base_url="http://localhost") as client:
            yield client


@requirement("FR-OPS-001")
@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_health_says_what_troubles_the_store(path: str) -> None:
    store = Counted()
    store.reason = "The disk is full"
    async with browsing(await async_serve(registry(), task_store=store)) as client:
        answer = await client.get(path)
        assert (answer.status_code, answer.json()) == (503, {"status": "unhealthy", "reason": "The disk is full"})
        assert (await client.get("/health/live")).json()["status"] == "alive"


async def test_the_store_is_checked_once_per_interval_for_any_number_of_requests() -> None:
    store = Counted()
    async with health_client(store, check_interval=3600) as client:
        for _ in range(20):
            assert (await client.get("/health")).status_code == 200
    assert store.asked == 1
    async with health_client(store, check_interval=0) as client:
        for _ in range(2):
            assert (await client.get("/health")).status_code == 200
    assert store.asked == 3


@requirement("FR-OPS-001")
async def test_health_does_not_wait_for_a_store_that_does_not_answer() -> None:
    """With the default limit, which leaves time for a response within a second."""
    assert STORE_TIMEOUT < 1

    class Stuck(InMemoryTaskStore):
        async def check(self) -> None:
            await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE), health_client(Stuck()) as client:
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()["reason"]) == (503, NO_ANSWER)


async def test_a_store_that_fails_in_its_own_way_is_a_store_that_is_not_well() -> None:
    class Broken(InMemoryTaskStore):
        async def check(self) -> None:
            raise RuntimeError("the secret reason")

    async with browsing(await async_serve(registry(), task_store=Broken())) as client:
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()["reason"]) == (503, StoreUnavailableError.text)


@requirement("FR-OPS-001")
async def test_while_it_starts_it_lives_but_is_not_ready() -> None:
    class Slow(InMemoryTaskStore):
        def __init__(self) -> None:
            super().__init__()
            self.opening = asyncio.Event()
            self.may_open = asyncio.Event()

        async def open(self) -> None:
            self.opening.set()
            await self.may_open.wait()
            await super().open()

    store = Slow()
    app = await async_serve(registry(), task_store=store)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent.example") as client:
        first = asyncio.create_task(client.get("/health"))
        await store.opening.wait()
        for path in ("/health", "/health/ready"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["reason"]) == (503, "starting")
        assert (await client.get("/health/live")).status_code == 200
        store.may_open.set()
        assert (await first).status_code == 200
        assert (await client.get("/health/ready")).status_code == 200


@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("POST", "/"), ("POST", "/message:send")])
async def test_a_store_that_does_not_open_is_tried_again_by_the_next_request(method: str, path: str) -> None:
    class Late(InMemoryTaskStore):
        tries = 0

        async def open(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise StoreUnavailableError("not yet")
            await super().open()

    app = await async_serve(registry(), task_store=Late())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://agent.example") as client:
        refused = await client.request(method, path, json={})
        assert refused.status_code == 503
        assert refused.headers["content-type"] == "application/json"
        assert (await client.get("/health")).status_code == 200


@requirement("FR-OPS-001")
async def test_health_needs_no_token() -> None:
    async with browsing(await async_serve(registry(), auth=JWTAuthenticator(SECRET))) as client:
        for path in ("/health", "/health/live", "/health/ready"):
            assert (await client.get(path)).status_code == 200
        for path in ("/health/", "/health/lively", "/health/live/"):
            answer: Any = await client.get(path)
            assert answer.status_code == 401


@requirement("FR-OPS-001")
@pytest.mark.parametrize("path", ["/health", "/health/ready", "/health/live", "/metrics", "/explorer/"])
async def test_who_looks_with_head_sees_what_get_would_say(path: str) -> None:
    async with (
        serving(ScriptedAgent(), metrics=True, explorer=True) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        answer = await client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"] == (await client.get(path)).headers["content-type"]


async def test_head_says_503_as_get_does() -> None:
    store = Counted()
    store.reason = "The disk is full"
    async with serving(ScriptedAgent(), task_store=store) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.head("/health")).status_code == 503
        assert (await client.head("/health/live")).status_code == 200


# ---- ping -----------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds since 1970, which a test sets."""

    def __init__(self) -> None:
        self.time = 1_000.5

    def __call__(self) -> float:
        return self.time


async def test_ping_has_the_present_time_while_a_task_runs_and_else_that_of_the_last_activity() -> None:
    clock = Clock()
    activity = Activity(clock)
    gate = Gate()
    async with engine_of(ScriptedAgent({"hi": (gate, COMPLETED)}), observer=activity) as engine:
        transport = httpx.ASGITransport(PingEndpoint((engine, activity)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

            async def ping() -> tuple[str, int]:
                body = (await client.get("/ping")).json()
                return body["status"], body["time_of_last_update"]

            clock.time += 60
            assert await ping() == ("Healthy", 1_000)  # an idle session ends
            watcher = await User(engine).stream("hi")
            await gate.reached()
            clock.time += 600
            assert await ping() == ("HealthyBusy", 1_660)  # a busy one does not
            gate.open()
            await watcher.rest()
            await until(lambda: engine.active_tasks == 0)
            clock.time += 60
            assert await ping() == ("Healthy", 1_660)


async def test_only_platforms_that_poll_it_have_ping() -> None:
    app = await async_serve(ScriptedAgent(), host_profile="agentcore")
    async with browsing(app) as client:
        answer = await client.get("/ping")
        assert (answer.status_code, answer.json()["status"]) == (200, "Healthy")
        assert type(answer.json()["time_of_last_update"]) is int
    async with browsing(create_site({"/a": ScriptedAgent()}, host_profile="agentcore")) as client:
        assert (await client.get("/ping")).json()["status"] == "Healthy"
    async with browsing(await async_serve(ScriptedAgent())) as client:
        assert (await client.get("/ping")).status_code == 404
