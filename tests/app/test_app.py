"""`async_serve` and what it answers: the application as its users see it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apcore
import httpx
import pytest

from apcore_a2a import InMemoryTaskStore, JWTAuthenticator, Limits, Settings, async_serve, serve
from tests.auth.tokens import SECRET, bearer
from tests.modules import Add, Pay, registry
from tests.requirements import requirement

V1 = {"A2A-Version": "1.0"}
CARD = "/.well-known/agent-card.json"


@asynccontextmanager
async def browsing(app: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, in its own process and within its lifespan."""
    transport = httpx.ASGITransport(app=app, **options)
    lifespan = app.router.lifespan_context(app)
    async with lifespan, httpx.AsyncClient(transport=transport, base_url="http://agent.example") as client:
        yield client


def send(data: Any = None, *, skill: str = "math.add", method: str = "message/send") -> dict[str, Any]:
    message = {"role": "user", "parts": [{"type": "data", "data": data or {"a": 1, "b": 2}}]}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message, "metadata": {"skillId": skill}}}


@requirement("FR-SRV-001", "FR-SRV-003", "FR-MSG-001")
async def test_a_registry_becomes_an_agent() -> None:
    async with browsing(await async_serve(registry())) as client:
        answer = (await client.post("/", json=send())).json()["result"]
        assert answer["status"]["state"] == "completed"
        assert answer["artifacts"][0]["parts"][0]["data"] == {"sum": 3}
        found = (await client.post("/", json={**send(), "method": "tasks/get", "params": {"id": answer["id"]}})).json()
        assert found["result"]["id"] == answer["id"]


@requirement("FR-SRV-001")
async def test_an_executor_will_do_as_well() -> None:
    app = await async_serve(apcore.Executor(registry()))
    async with browsing(app) as client:
        assert (await client.post("/", json=send())).json()["result"]["status"]["state"] == "completed"


async def test_a_function_will_do_as_well() -> None:
    async def shout(text: str) -> str:
        """Says it louder."""
        return text.upper()

    app = await async_serve(shout)
    async with browsing(app) as client:
        card = (await client.get(CARD, headers=V1)).json()
        assert (card["name"], card["description"]) == ("shout", "Says it louder.")
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hey"}]}
        answer = await client.post("/message:send", json={"message": message}, headers=V1)
        assert answer.json()["task"]["artifacts"][0]["parts"] == [{"text": "HEY"}]


@requirement("FR-SRV-001")
async def test_an_empty_registry_is_refused() -> None:
    with pytest.raises(ValueError, match="Registry contains zero modules; at least one module is required"):
        await async_serve(apcore.Registry(extensions_dir="nowhere"))


async def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be served"):
        await async_serve(7)


@requirement("FR-AUT-004")
async def test_an_authenticator_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="auth object lacks the method authenticate"):
        await async_serve(registry(), auth=object())  # type: ignore[arg-type]  # that is the test


@requirement("FR-STR-003")
async def test_a_store_that_lacks_methods_is_refused_by_their_names() -> None:
    store = SimpleNamespace(save=print, get=print, list=print, delete=print, save_push_config=print)
    with pytest.raises(TypeError, match="lacks the methods: delete_push_config, get_push_config"):
        await async_serve(registry(), task_store=store)


@requirement("FR-STR-003")
async def test_a_store_of_yours_keeps_the_tasks() -> None:
    store = InMemoryTaskStore()
    async with browsing(await async_serve(registry(), task_store=store)) as client:
        answer = (await client.post("/", json=send())).json()["result"]
        kept = await store.get(answer["id"])
        assert kept is not None
        assert kept.id == answer["id"]


async def test_one_word_makes_tasks_survive(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    async with browsing(await async_serve(registry(), store=url)) as client:
        answer = (await client.post("/", json=send())).json()["result"]
    async with browsing(await async_serve(registry(), store=url)) as client:
        params = {"id": answer["id"]}
        found = (await client.post("/", json={**send(), "method": "tasks/get", "params": params})).json()
        assert found["result"]["artifacts"] == answer["artifacts"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"store": "mysql://x"}, "memory://, postgres://, postgresql://, sqlite://"),
        ({"store": "memory://", "task_store": InMemoryTaskStore()}, "not both"),
        ({"url": "https://"}, "url must be an http or https address"),
        ({"execution_timeout": 0}, "execution_timeout must be positive"),
        ({"execution_timeout": float("nan")}, "execution_timeout must be positive"),
        ({"drain_delay": float("nan")}, "drain_delay must be finite, and 0 or more"),
        ({"limits": Limits(max_active_tasks=-1)}, "max_active_tasks must be positive"),
        ({"limits": Limits(max_streams_per_caller=0)}, "max_streams_per_caller must be positive"),
        ({"limits": Limits(max_connections_per_address=0)}, "max_connections_per_address must be positive"),
        ({"limits": Limits(max_json_values=0)}, "max_json_values must be positive"),
        ({"url": "ftp://x"}, "url must be an http"),
        ({"explorer_prefix": "explorer"}, "explorer_prefix must look like"),
        ({"log_level": "loud"}, "log_level must be one of"),
        ({"admin_role": "ops"}, "admin_role needs auth"),
        ({"trusted_proxies": "proxy.example"}, "trusted_proxies must hold addresses or networks"),
        ({"trusted_proxies": "10.0.0.1/8"}, "10.0.0.1/8 has host bits set"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
async def test_settings_that_make_no_sense_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        await async_serve(registry(), **options)


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_a_setting_of_another_type_is_refused_by_name(name: str) -> None:
    options: dict[str, Any] = {name: object()}
    with pytest.raises(TypeError, match=rf"^{name} has the wrong type: "):
        serve(registry(), **options)


async def test_where_a_loop_runs_already_serve_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"asyncio.to_thread\(serve, …\)"):
        serve(registry(), port=0)


async def test_a_path_may_be_a_path(tmp_path: Path) -> None:
    options: dict[str, Any] = {"audit_log": tmp_path / "audit.jsonl"}
    async with browsing(await async_serve(registry(), **options)) as client:
        await client.post("/", json=send())
    assert (tmp_path / "audit.jsonl").read_text()


@requirement("FR-AGC-001")
async def test_the_card_says_what_it_was_told() -> None:
    app = await async_serve(
        registry(), name="calculator", description="Adds", version="1.2.3", url="https://agent.example/a2a/"
    )
    async with browsing(app) as client:
        card = (await client.get("/.well-known/agent.json")).json()
        assert (card["name"], card["description"], card["version"]) == ("calculator", "Adds", "1.2.3")
        assert card["url"] == "https://agent.example/a2a/"
        assert card["capabilities"]["pushNotifications"] is False


@requirement("FR-AGC-001")
async def test_without_an_address_the_card_has_the_one_that_the_client_used() -> None:
    async with browsing(await async_serve(registry())) as client:
        client.base_url = httpx.URL("http://127.0.0.1:9000")
        card = (await client.get(CARD, headers={"Host": "agent:9000", "X-Forwarded-Host": "evil.example"})).json()
        assert "evil" not in str(card)
        assert card["url"] == "http://agent:9000/"


async def test_a_trusted_proxy_says_where_the_agent_is() -> None:
    app = await async_serve(registry(), trusted_proxies=["10.0.0.1", "172.16.0.0/12"])
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "agents.example", "X-Forwarded-Prefix": "/a"}
    for proxy in ("10.0.0.1", "172.18.0.9", "::ffff:172.18.0.9"):
        async with browsing(app, client=(proxy, 1)) as client:
            assert (await client.get(CARD, headers=forwarded)).json()["url"] == "https://agents.example/a/"
    appended = {name: f"made.up, {said}" for name, said in forwarded.items()}  # as Apache does with what it was told
    async with browsing(app, client=("10.0.0.1", 1)) as client:
        assert (await client.get(CARD, headers=appended)).json()["url"] == "https://agents.example/a/"
    async with browsing(app, client=("10.0.0.2", 1)) as client:
        assert "agents.example" not in (await client.get(CARD, headers=forwarded)).text


@requirement("FR-AGC-005", "FR-OPS-003")
async def test_the_card_follows_the_registry_whichever_thread_changes_it() -> None:
    modules = registry()
    async with browsing(await async_serve(modules)) as client:
        before = await client.get(CARD)
        await asyncio.to_thread(modules.register, "math.plus", Add())
        modules.register("math.more", Add())
        after = await _until(client, lambda card: len(card["skills"]) == 3)
        assert after.headers["etag"] != before.headers["etag"]
        assert (await client.post("/", json=send(skill="math.plus"))).json()["result"]["status"]["state"] == "completed"
        modules.unregister("math.plus")
        await _until(client, lambda card: len(card["skills"]) == 2)
        refused = (await client.post("/", json=send(skill="math.plus"))).json()["error"]
        assert refused["code"] == -32601
        assert refused["message"] == "Skill not found: math.plus"


async def _until(client: httpx.AsyncClient, true: Any) -> httpx.Response:
    """The card, once it is as it should be."""
    async with asyncio.timeout(5):
        while not true((answer := await client.get(CARD)).json()):  # noqa: ASYNC110  # a thread builds it and sends no event
            await asyncio.sleep(0)
    return answer


@requirement("FR-AGC-004", "FR-AUT-003")
async def test_what_needs_approval_is_shown_to_those_who_say_who_they_are() -> None:
    app = await async_serve(registry(math__add=Add(), bank__pay=Pay()), auth=JWTAuthenticator(SECRET))
    async with browsing(app) as client:
        card = (await client.get("/.well-known/agent.json")).json()
        assert [skill["id"] for skill in card["skills"]] == ["math.add"]
        assert card["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
        assert card["supportsAuthenticatedExtendedCard"] is True
        assert (await client.get("/agent/authenticatedExtendedCard")).status_code == 401
        extended = (await client.get("/agent/authenticatedExtendedCard", headers=bearer())).json()
        assert [skill["id"] for skill in extended["skills"]] == ["bank.pay", "math.add"]
        assert extended["url"] == card["url"]
        asked = {**send(), "method": "agentCard/get", "params": {}}
        assert (await client.post("/", json=asked, headers=bearer())).json()["result"]["skills"] == extended["skills"]


@requirement("FR-AGC-004")
async def test_without_authentication_there_is_no_extended_card() -> None:
    async with browsing(await async_serve(registry(bank__pay=Pay()))) as client:
        assert (await client.get("/agent/authenticatedExtendedCard")).status_code == 404
        card = (await client.get(CARD)).json()
        assert [skill["id"] for skill in card["skills"]] == ["bank.pay"]


@requirement("FR-AUT-001")
async def test_every_route_but_the_open_ones_asks_who_is_there() -> None:
    app = await async_serve(registry(), auth=JWTAuthenticator(SECRET), metrics=True)
    async with browsing(app) as client:
        for path in (CARD, "/.well-known/agent.json", "/health", "/metrics"):
            assert (await client.get(path)).status_code == 200
        for method, path in [
            ("POST", "/"),
            ("POST", "/message:send"),
            ("GET", "/tasks"),
            ("GET", "/v1/card"),
            ("POST", "/explorerx/message:send"),
            ("GET", "/nothing/here"),
            ("GET", "/docs"),
        ]:
            answer = await client.request(method, path, json=send() if method == "POST" else None)
            assert answer.status_code == 401, path
        assert (await client.post("/", json=send(), headers=bearer())).status_code == 200


async def test_a_request_that_the_server_ends_at_the_limit_of_its_shutdown_receives_503() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(text: str) -> str:
        begun.set()
        await go_on.wait()
        return text

    app = await async_serve(wait)
    body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
    headers = [(b"content-type", b"application/json"), (b"a2a-version", b"1.0")]
    scope = {"type": "http", "method": "POST", "path": "/message:send", "query_string": b"", "headers": headers}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    async with app.router.lifespan_context(app):
        request = asyncio.create_task(app(scope, receive, send))
        await begun.wait()
        app.engine.begin_drain()
        request.cancel()  # as uvicorn does
        await asyncio.wait({request})
        assert request.cancelled()
        go_on.set()
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"5") in sent[0]["headers"]
    assert b"The agent is shutting down" in sent[1]["body"]
