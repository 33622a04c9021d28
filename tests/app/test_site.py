"""Several agents in one server, and an agent in another server or application."""

import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from apcore_a2a import A2AClient, InMemoryTaskStore, JWTAuthenticator, create_app, create_site
from apcore_a2a.app.site import check_paths, store_of
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import Task
from tests.app.test_app import CARD, browsing, send
from tests.auth.tokens import SECRET, bearer
from tests.modules import registry
from tests.processes import Process, running
from tests.requirements import requirement

CATALOG = "/.well-known/ai-catalog.json"
TWO_AGENTS = """
from apcore_a2a import create_app, serve

def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

async def tell(text: str):
    "Tell a story."
    yield "Once "
    yield text

agents = {"/math": add, "/stories/short": create_app(tell, name="teller")}
app = create_app(add)
"""


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    path = tmp_path / "agents.py"
    path.write_text(TWO_AGENTS)
    return path


@pytest.fixture
def raw_agents(agents: Path) -> Path:
    agents.write_text(TWO_AGENTS.replace('create_app(tell, name="teller")', "tell"))
    return agents


@asynccontextmanager
async def served(agents: Path, *options: str) -> AsyncIterator[tuple[Process, str]]:
    words = ["-m", "apcore_a2a", "serve", f"{agents}:agents", "--host", "127.0.0.1", "--port", "0", *options]
    async with running(*words) as process:
        yield process, (await process.says(r"running on (http://[\d.]+:\d+)"))[1]


async def test_clients_call_each_of_several_agents_at_its_path(agents: Path) -> None:
    async with served(agents) as (process, url):
        async with A2AClient(f"{url}/math") as math:
            assert (await math.send_message({"a": 2, "b": 3})).data == 5
            assert (await math.discover()).supported_interfaces[0].url == f"{url}/math/"
        async with A2AClient(f"{url}/stories/short") as stories:
            assert [event.text async for event in stories.stream_message("a cat") if event.text][:2] == [
                "Once ",
                "a cat",
            ]
            assert (await stories.discover()).name == "teller"
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    assert "2 agents" in process.said
    assert f"{url}/math/" in process.said


async def test_agents_of_one_server_keep_their_tasks_in_files_of_their_own(raw_agents: Path, tmp_path: Path) -> None:
    async with served(raw_agents, "--store", f"sqlite:///{tmp_path / 'tasks.db'}") as (_, url):
        async with A2AClient(f"{url}/math") as math, A2AClient(f"{url}/stories/short") as stories:
            task = await math.send_message({"a": 2, "b": 3})
            assert isinstance(task, Task)
            assert [found.id for found in (await math.list_tasks()).tasks] == [task.id]
            assert (await stories.list_tasks()).tasks == ()
    assert {path.name for path in tmp_path.glob("*.db")} == {"tasks-math.db", "tasks-stories_short.db"}  # noqa: ASYNC240


async def test_the_index_and_the_catalog_list_every_agent() -> None:
    site = create_site({"/math": registry(), "/shout": str.upper})
    async with browsing(site) as client:
        page = await client.get("/", headers={"Accept": "text/html"})
        assert '<a href="./math/">' in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        listed = (await client.get("/")).json()["agents"]
        assert set(listed) == {"/math", "/shout"}
        catalog = await client.get(CATALOG)
        assert catalog.headers["content-type"] == "application/ai-catalog+json"
        assert catalog.json()["specVersion"] == "1.0"
        for entry in catalog.json()["entries"]:
            assert entry["mediaType"] == "application/a2a-agent-card+json"
            card = (await client.get(entry["url"])).json()
            assert (card["name"], card["url"]) == (entry["displayName"], entry["identifier"])


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/", "/nothing", "/mathematics", CARD])
async def test_a_request_outside_of_every_agent_names_their_paths(method: str, path: str) -> None:
    if (method, path) == ("GET", "/"):
        return
    async with browsing(create_site({"/math": registry()})) as client:
        answer = await client.request(method, path, json=send() if method == "POST" else None)
        assert answer.status_code == 404
        assert "/math/" in answer.text


async def test_the_credentials_of_one_agent_are_not_asked_for_by_another() -> None:
    closed = create_app(registry(), auth=JWTAuthenticator(SECRET))
    async with browsing(create_site({"/closed": closed, "/open": registry()})) as client:
        assert (await client.post("/open/", json=send())).json()["result"]["status"]["state"] == "completed"
        assert (await client.post("/closed/", json=send())).status_code == 401
        answer = await client.post("/closed/", json=send(), headers=bearer())
        assert answer.json()["result"]["status"]["state"] == "completed"


async def test_no_spelling_of_a_path_reaches_an_agent_without_its_authentication() -> None:
    closed = create_app(registry(), auth=JWTAuthenticator(SECRET))
    async with browsing(create_site({"/closed": closed, "/open": registry()})) as client:
        for path in ("/closed", "/closed/", "//closed/", "/open/../closed/", "/closed//", "/CLOSED/"):
            answer = await client.post(path, json=send())
            assert answer.status_code in (401, 404, 400), path


async def test_one_agent_that_is_not_healthy_makes_the_server_not_healthy() -> None:
    class Broken(InMemoryTaskStore):
        async def check(self) -> None:
            raise StoreUnavailableError

    broken = create_app(registry(), task_store=Broken())
    async with browsing(create_site({"/good": registry(), "/bad": broken})) as client:
        answer = await client.get("/health")
        assert answer.status_code == 503
        states = {path: health["status"] for path, health in answer.json()["agents"].items()}
        assert states == {"/good": "healthy", "/bad": "unhealthy"}
        assert (await client.get("/health/live")).status_code == 200


@pytest.mark.parametrize(
    "path", ["math", "/", "/math/", "//math", "/../etc", "/.well-known/x", "/health", "/a b", "/a?b"]
)
def test_a_path_that_is_not_one_is_rejected_by_name(path: str) -> None:
    with pytest.raises(ValueError, match="an agent's path must be like /math"):
        check_paths(["/good", path])


def test_two_paths_with_the_same_store_are_rejected() -> None:
    with pytest.raises(ValueError, match="/a-b and /a_b would have the same store"):
        create_site({"/a-b": str.upper, "/a_b": str.lower})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///tasks.db", "sqlite:///tasks-math.db"),
        ("sqlite:////var/lib/a.b/tasks?ttl=60", "sqlite:////var/lib/a.b/tasks-math?ttl=60"),
        ("postgresql://u:p@h/d?schema=own&ttl=60", "postgresql://u:p@h/d?ttl=60&schema=own_math"),
        ("memory://", "memory://"),
        (None, None),
    ],
)
def test_the_store_of_an_agent_is_named_for_its_path(url: str | None, expected: str | None) -> None:
    assert store_of(url, "/math") == expected


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: create_site({"/math": str.upper}, name="two"), r"name is an option of one agent: serve create_app\("),
        (lambda: create_site({"math": str.upper}), "create_site takes agents by their paths"),
        (lambda: create_app({"/math": str.upper}), "for several agents by their paths, call create_site"),
        (lambda: create_site({"/math": object()}), "^/math: "),
        (lambda: create_app(str.upper, port=1), "give port to the server that runs it"),  # type: ignore[call-arg]  # the point
        (lambda: create_site({"/a": str.upper}, host="x"), "give host to the server"),  # type: ignore[call-arg]  # the point
    ],
)
def test_options_that_several_agents_cannot_have_are_rejected(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


async def test_workers_are_for_one_agent(agents: Path) -> None:
    async with running("-m", "apcore_a2a", "serve", f"{agents}:agents", "--workers", "2", "--port", "0") as process:
        assert await process.ends() == 1
    assert "--workers serves one agent" in process.said


@requirement("FR-SRV-003")
async def test_an_application_runs_under_uvicorn_as_it_is(agents: Path) -> None:
    words = ["-m", "uvicorn", "agents:app", "--app-dir", str(agents.parent), "--port", "0"]
    async with running(*words) as process:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        async with A2AClient(url) as client:
            assert (await client.send_message({"a": 2, "b": 3})).data == 5
        process.signal(signal.SIGTERM)
        assert await process.ends() in (0, -signal.SIGTERM)
    assert "Traceback" not in process.said


async def test_a_mounted_agent_opens_and_closes_with_its_host() -> None:
    told: list[str] = []
    agent = create_app(
        registry(), on_startup=[lambda: told.append("opened")], on_shutdown=[lambda: told.append("closed")]
    )
    host = FastAPI(lifespan=agent.lifespan)
    host.mount("/agent", agent)
    async with browsing(host) as client:
        assert told == ["opened"]
        answer = (await client.post("/agent/", json=send())).json()
        assert answer["result"]["status"]["state"] == "completed"
    assert told == ["opened", "closed"]


async def test_a_mounted_site_has_the_addresses_of_its_host() -> None:
    site = create_site({"/math": registry()})
    host = FastAPI(lifespan=site.lifespan)
    host.mount("/agents", site)
    async with browsing(host) as client:
        client.base_url = httpx.URL("http://127.0.0.1:9000")
        (entry,) = (await client.get(f"/agents{CATALOG}")).json()["entries"]
        assert entry["identifier"] == "http://127.0.0.1:9000/agents/math/"
        answer = (await client.post("/agents/math/", json=send())).json()
        assert answer["result"]["status"]["state"] == "completed"


async def test_a_site_that_cannot_start_names_the_agent(agents: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks-math.db").write_text("not a database, " * 1000)
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with running("-m", "apcore_a2a", "serve", f"{agents}:agents", "--port", "0", "--store", store) as process:
        assert await process.ends() == 2
    assert "Error: /math: " in process.said


async def test_every_answer_of_the_index_is_json_or_a_page_without_scripts() -> None:
    async with browsing(create_site({"/x": create_app(str.upper, name="<script>alert(1)</script>")})) as client:
        page = (await client.get("/", headers={"Accept": "text/html"})).text
        assert "<script" not in page
        assert json.loads((await client.get("/", headers={"Accept": "*/*"})).text)
