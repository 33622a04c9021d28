"""Every route and method, written in every way: what is open is open, and nothing that looks like it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from apcore_a2a import JWTAuthenticator
from apcore_a2a.app.serve import build
from apcore_a2a.auth.api_keys import APIKeyAuthenticator, hash_key, new_key
from apcore_a2a.http.rest import ROUTES
from tests.auth.tokens import SECRET, bearer
from tests.fakes import COMPLETED, PATIENCE, ScriptedAgent
from tests.interaction.serving import CARD, serving
from tests.requirements import requirement

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND")
OPEN = {
    "/.well-known/agent-card.json": {"GET", "HEAD"},
    "/.well-known/agent.json": {"GET", "HEAD"},
    "/health": {"GET", "HEAD"},
    "/health/live": {"GET", "HEAD"},
    "/health/ready": {"GET", "HEAD"},
    "/metrics": {"GET", "HEAD"},
    "/explorer": {"GET", "HEAD"},
    "/explorer/": {"GET", "HEAD"},
}
REST = [
    "/message:send",
    "/message:stream",
    "/tasks",
    "/tasks/t",
    "/tasks/t:subscribe",
    "/tasks/t:cancel",
    "/tasks/t/pushNotificationConfigs",
    "/tasks/t/pushNotificationConfigs/c",
    "/extendedAgentCard",
    "/card",
]
PATHS = ["/", "/agent/authenticatedExtendedCard", *REST, *(f"/v1{path}" for path in REST)]
TRICKS = [
    "//",
    "/?a=b",
    "/tasks",
    "/tasks/",
    "//health",
    "/health/",
    "/health//",
    "/Health",
    "/HEALTH",
    "/healthz",
    "/health/../",
    "/health/../tasks",
    "/health/..%2ftasks",
    "/health;/tasks",
    "/health%00",
    "/health%2f",
    "/%68ealth/../tasks",
    "/explorerx/message:send",
    "/explorer/../tasks",
    "/explorer/x",
    "/explorer//",
    "/.well-known/agent-card.json/",
    "/.well-known/agent-card.json/../../tasks",
    "/.well-known/agent-card.jsonx",
    "/.well-known/",
    "/.well-known/../tasks",
    "/%2e%2e/tasks",
    "/metrics/",
    "/metrics/../tasks",
    "/v1//card",
    "/v1/card",
    "/extendedAgentCard",
    "/tenant/tasks",
]


@pytest.fixture(scope="module")
def app() -> object:
    return build(
        ScriptedAgent(default=(COMPLETED,)),
        {"card": CARD, "auth": JWTAuthenticator(SECRET), "metrics": True, "explorer": True},
    )


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    auth = JWTAuthenticator(SECRET)
    async with (
        serving(ScriptedAgent(default=(COMPLETED,)), auth=auth, metrics=True, explorer=True) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client,
    ):
        yield client


async def status(http: httpx.AsyncClient, method: str, path: str) -> int:
    # As it stands: httpx would tidy up the dots.
    request = http.build_request(method, "/")
    request.url = request.url.copy_with(raw_path=path.encode())
    answer = await http.send(request)
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/json"
    return answer.status_code


def test_no_route_is_left_out() -> None:
    for route in ROUTES:
        assert any(route.path.fullmatch(path) for path in REST), route


@requirement("FR-AUT-001")
async def test_every_route_and_method_but_the_open_ones_wants_credentials(http: httpx.AsyncClient) -> None:
    for path in [*PATHS, *OPEN]:
        for method in METHODS:
            is_open = method in OPEN.get(path, ())
            assert (await status(http, method, path) != 401) is is_open, (method, path)


@requirement("FR-AUT-001")
async def test_nothing_that_looks_like_an_open_route_is_one(http: httpx.AsyncClient) -> None:
    for path in TRICKS:
        for method in ("GET", "POST", "DELETE"):
            assert await status(http, method, path) == 401, (method, path)


async def test_a_mounted_application_has_the_same_open_routes(app: object) -> None:
    transport = httpx.ASGITransport(app=app, root_path="/agent")  # type: ignore[arg-type]  # an application is one
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/agent/health", "/agent/.well-known/agent-card.json"):
            assert (await client.get(path)).status_code == 200
        for path in ("/agent/tasks", "/agent", "/agent/", "/agenthealth", "/agent/agent/health", "/tasks"):
            assert (await client.get(path)).status_code == 401, path


@requirement("NFR-SEC-003")
async def test_a_browser_may_ask_before_it_shows_its_credentials() -> None:
    key = new_key()
    auth = [JWTAuthenticator(SECRET), APIKeyAuthenticator({"bob": hash_key(key)}, header="X-Agent-Key")]
    page = {"Origin": "https://app.example"}
    asks = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-agent-key"}
    async with (
        serving(ScriptedAgent(default=(COMPLETED,)), auth=auth, cors_origins=["https://app.example"]) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client,
    ):
        for path in ("/", "/message:send", "/tasks/t:cancel"):
            preflight = await client.options(path, headers=asks)
            assert preflight.status_code == 200
            assert preflight.headers["access-control-allow-origin"] == "https://app.example"
            assert "x-agent-key" in preflight.headers["access-control-allow-headers"].lower()
            assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        refused = await client.get("/tasks", headers=page)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        assert refused.headers["www-authenticate"] == 'Bearer, ApiKey header="X-Agent-Key"'
        assert (await client.get("/tasks", headers={**page, "A2A-Version": "1.0", **bearer()})).status_code == 200
        stranger = await client.options("/", headers={**asks, "Origin": "https://evil.example"})
        assert stranger.status_code == 400
