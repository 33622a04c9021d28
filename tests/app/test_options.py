"""What `serve` is told by keyword: each option does what it says, through a socket, or is refused by name."""

import inspect
import logging
import time
from typing import Any

import apcore
import httpx
import pytest

from apcore_a2a import InMemoryTaskStore, JWTAuthenticator, __version__, async_serve, serve
from apcore_a2a.agents.executors import TaskUpdater
from apcore_a2a.app.serve import ServeOptions, build
from apcore_a2a.app.stores import Retention, choose_store, with_listen_url
from apcore_a2a.errors import OverloadedError, TaskNotFoundError
from apcore_a2a.protocol.model import Operation, Task, TaskState, TaskStatus
from apcore_a2a.settings import Limits, Settings
from apcore_a2a.storage.postgres.connection import Address
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.app.test_app import CARD, V1, send
from tests.auth.tokens import SECRET, bearer
from tests.interaction.serving import CARD as READY_MADE
from tests.interaction.serving import serving
from tests.modules import Add, Pay, registry
from tests.requirements import requirement


async def echo(text: str) -> str:
    """Says it again."""
    return text


async def ask(url: str, path: str, **headers: str) -> Any:
    async with httpx.AsyncClient(base_url=url) as client:
        return (await client.get(path, headers=headers)).json()


async def tell(url: str, body: dict[str, Any], **headers: str) -> Any:
    async with httpx.AsyncClient(base_url=url) as client:
        return (await client.post("/", json=body, headers=headers)).json()


# ---- names ---------------------------------------------------------------------------------------------------------


@requirement("FR-SRV-002")
async def test_what_is_served_can_be_given_by_its_name() -> None:
    assert next(iter(inspect.signature(serve).parameters)) == "registry_or_executor"
    app = await async_serve(registry_or_executor=registry())
    assert [skill.id for skill in app.cards.card.skills] == ["math.add"]


def test_every_setting_is_a_keyword_and_every_keyword_a_setting_or_an_object() -> None:
    objects = {"card", "auth", "task_store", "interceptors", "request_context_builder", "on_startup", "on_shutdown"}
    objects |= {"card_signing_key", "tracer_provider"}
    assert set(ServeOptions.__annotations__) - objects == set(Settings.__struct_fields__) - {
        "host",
        "port",
        "platform_url",
    }


async def test_a_keyword_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"there is no option shutdown_time\. Did you mean shutdown_timeout\?"):
        await async_serve(echo, shutdown_time=3)  # type: ignore[call-arg]  # that is the test


@pytest.mark.parametrize("address", [{"host": "127.0.0.1"}, {"port": 9000}], ids=str)
async def test_an_application_takes_no_address(address: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"an application binds nothing: give (host|port) to the server"):
        await async_serve(echo, **address)


async def test_an_option_for_modules_is_refused_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="approvals_by_caller is an option for apcore modules"):
        await async_serve(echo, approvals_by_caller=False)


async def test_a_default_skill_is_refused_where_there_is_nothing_to_choose_from() -> None:
    with pytest.raises(ValueError, match="default_skill is for several functions or modules, not for this function"):
        await async_serve(echo, default_skill="x")


async def test_the_log_level_is_that_of_our_log() -> None:
    log = logging.getLogger("apcore_a2a")
    before = log.level
    try:
        await async_serve(echo, log_level="debug")
        assert log.level == logging.DEBUG
    finally:
        log.setLevel(before)


# ---- the card ------------------------------------------------------------------------------------------------------


async def test_a_card_of_ones_own_is_named_by_what_is_given_beside_it() -> None:
    for target in (echo, registry()):
        async with serving(target, card=READY_MADE, name="mine", description="My own", version="9") as url:
            card = await ask(url, CARD, **V1)
            assert (card["name"], card["description"], card["version"]) == ("mine", "My own", "9")


@requirement("FR-AGC-001")
async def test_a_card_without_a_version_has_the_version_of_the_project() -> None:
    async def from_a_project(text: str) -> str:
        return text

    from_a_project.__module__ = "httpx.agents"
    for target, version in ((echo, __version__), (registry(), __version__), (from_a_project, httpx.__version__)):
        async with serving(target, card=None) as url:
            assert (await ask(url, CARD, **V1))["version"] == version


class Declares:
    """Says on the card that there are these ways to prove who one is."""

    def __init__(self, *schemes: dict[str, Any]) -> None:
        self.schemes = schemes

    def authenticate(self, headers: dict[str, str]) -> Any:
        return None

    def security_schemes(self) -> list[dict[str, Any]]:
        return list(self.schemes)


@requirement("FR-AUT-003")
async def test_several_security_schemes_of_one_type_are_all_on_the_card() -> None:
    first = {"type": "apiKey", "in": "header", "name": "X-Key"}
    second = {"type": "apiKey", "in": "query", "name": "key"}
    other = {"type": "http", "scheme": "bearer"}
    async with serving(echo, card=None, auth=Declares(first, second, other, other)) as url:
        old = await ask(url, "/.well-known/agent.json")
        assert old["securitySchemes"] == {"apiKey": first, "apiKey2": second, "bearer": other, "bearer2": other}
        assert old["security"] == [{name: []} for name in old["securitySchemes"]]
        new = await ask(url, CARD, **V1)
        assert new["securitySchemes"]["apiKey2"] == {"apiKeySecurityScheme": {"location": "query", "name": "key"}}


@pytest.mark.parametrize("scheme", [{"type": "basic"}, {}], ids=str)
async def test_a_security_scheme_of_no_known_type_is_refused_at_the_start(scheme: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"unknown type {scheme.get('type')!r}; the types are http, apiKey, oauth2"):
        await async_serve(echo, auth=Declares(scheme))


def banking(**options: Any) -> apcore.Executor:
    """An executor of three modules: one for all callers, one for tellers, one that no caller may call."""
    rules = [
        apcore.ACLRule(callers=["*"], targets=["bank.*"], effect="allow", conditions={"roles": ["teller"]}),
        apcore.ACLRule(callers=["*"], targets=["math.*"], effect="allow"),
    ]
    acl = apcore.ACL(rules=rules, default_effect="deny", **options)
    return apcore.Executor(registry(math__add=Add(), bank__pay=Pay(), vault__open=Add()), acl=acl)


@requirement("FR-AGC-004")
async def test_the_extended_card_shows_what_its_reader_may_call() -> None:
    audited: list[Any] = []
    async with serving(banking(audit_logger=audited.append), card=None, auth=JWTAuthenticator(SECRET)) as url:
        extended = "/agent/authenticatedExtendedCard"
        for_a_teller = await ask(url, extended, **bearer(roles=["teller"]))
        for_others = await ask(url, extended, **bearer(roles=["guest"]))
        for_all = await ask(url, CARD)
    assert [skill["id"] for skill in for_a_teller["skills"]] == ["bank.pay", "math.add"]
    assert (
        [skill["id"] for skill in for_others["skills"]] == [skill["id"] for skill in for_all["skills"]] == ["math.add"]
    )
    assert "vault.open" not in str(for_a_teller)
    assert audited == []  # no caller has tried to call a module


# ---- health, browsers, conversations, streams, stores ----------------------------------------------------------------


@requirement("FR-OPS-001")
async def test_health_counts_all_registered_modules_also_hidden_ones() -> None:
    executor = banking()
    async with serving(executor, card=None, auth=JWTAuthenticator(SECRET)) as url:
        assert len((await ask(url, CARD))["skills"]) == 1
        assert (await ask(url, "/health"))["module_count"] == 3
        executor.registry.register("math.more", Add())
        assert (await ask(url, "/health"))["module_count"] == 4


@requirement("NFR-SEC-003")
async def test_one_origin_needs_no_list() -> None:
    async with serving(echo, card=None, cors_origins="https://app.example") as url:
        async with httpx.AsyncClient(base_url=url) as client:
            for origin, allowed in (("https://app.example", "https://app.example"), ("https://a", None)):
                answer = await client.get(CARD, headers={"Origin": origin})
                assert answer.headers.get("access-control-allow-origin") == allowed


async def test_one_proxy_needs_no_list() -> None:
    async with serving(echo, card=None, trusted_proxies="127.0.0.1") as url:
        card = await ask(url, CARD, **V1, **{"X-Forwarded-Host": "agent.example"})
        assert card["supportedInterfaces"][0]["url"].startswith("http://agent.example")


@pytest.mark.parametrize("origin", ["https://app.example/", "app.example", "https://", ""])
async def test_what_no_browser_would_say_is_no_origin(origin: str) -> None:
    with pytest.raises(ValueError, match="cors_origins must be origins such as"):
        await async_serve(echo, cors_origins=[origin])


def talk(text: str) -> dict[str, Any]:
    message = {"messageId": text, "role": "ROLE_USER", "contextId": "talk", "parts": [{"text": text}]}
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}


class Remembers:
    """Answers with how many messages of the conversation it was told."""

    async def execute(self, context: Any, event_queue: Any) -> None:
        await TaskUpdater(event_queue).complete(str(len(context.history)))

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Nothing to cancel."""


@requirement("FR-CTX-002", "FR-STR-002")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ["0", "2", "4", "6"]),
        ({"limits": Limits(max_context_messages=3)}, ["0", "2", "3", "3"]),
        ({"task_store": InMemoryTaskStore(max_context_messages=3)}, ["0", "2", "3", "3"]),
        (
            {"task_store": InMemoryTaskStore(max_context_messages=3), "limits": Limits(max_context_messages=5)},
            ["0", "2", "4", "5"],
        ),
    ],
    ids=["usual", "served", "stored", "both"],
)
async def test_an_agent_is_told_so_many_messages_of_a_conversation(options: dict[str, Any], told: list[str]) -> None:
    async with serving(Remembers(), card=None, **options) as url:
        answers = [await tell(url, talk(text), **V1) for text in "abcd"]
    heard = [answer["result"]["task"]["status"]["message"]["parts"][0]["text"] for answer in answers]
    assert heard == told


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/tasks.db", None])
async def test_how_many_tasks_are_kept_is_said_once_for_every_store(store: str | None, tmp_path: Any) -> None:
    where = store and store.format(tmp_path)
    async with serving(registry(), card=None, store=where, task_store_max=1, task_store_ttl=60) as url:
        first = (await tell(url, send()))["result"]["id"]
        second = (await tell(url, send()))["result"]["id"]
        ids = []
        for task in (first, second):
            answer = await tell(url, {**send(method="tasks/get"), "params": {"id": task}})
            ids.append(answer.get("result", {}).get("id"))
    assert ids == [None, second]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task_store_ttl": 0}, "task_store_ttl must be positive"),
        ({"task_store_max": 0}, "task_store_max must be positive"),
        ({"limits": Limits(max_context_messages=0)}, "max_context_messages must be positive"),
        ({"keep_alive_interval": 0}, "keep_alive_interval must be positive"),
        ({"store": "sqlite:///x.db?ttl=5", "task_store_ttl": 6}, "ttl is set in the store's URL and by"),
        ({"store": "memory://?ttl=5"}, "has no options in its URL"),
        ({"task_store": InMemoryTaskStore(), "task_store_max": 6}, "set them on the InMemoryTaskStore"),
        ({"store_listen_url": "postgresql://h/d"}, "store_listen_url is for a PostgreSQL store"),
        (
            {"store": "postgresql://h/d?listen_url=off", "store_listen_url": "postgresql://h/d"},
            "listen_url is set in the store's URL and by store_listen_url",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
async def test_a_limit_that_would_do_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        await async_serve(echo, **options)


def test_the_address_for_notifications_is_an_option_of_the_store_and_its_password_is_hidden() -> None:
    url = with_listen_url("postgresql://h/d?schema=s", "postgresql://u:s3cret@other/d?sslmode=require")
    store = choose_store(url, None, Retention())
    assert isinstance(store, PostgresStore)
    assert store.address.for_listening == Address("postgresql://u:s3cret@other/d?sslmode=require", "s")
    assert "s3cret" not in repr(Settings(store_listen_url="postgresql://u:s3cret@other/d"))


@requirement("FR-TSK-002", "FR-TSK-004", "FR-AGC-002")
@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/tasks.db"])
async def test_a_task_says_which_states_it_has_passed_through_if_that_is_asked_for(store: str, tmp_path: Any) -> None:
    claims = {"apcore.stateTransitions": ["made up"], "apcore.caller": "made up", "mine": 1}
    where = store.format(tmp_path)
    modules = registry(bank__pay=Pay())
    for asked in (True, False):
        async with serving(modules, card=None, store=where, state_history=asked) as url:
            card = await ask(url, "/.well-known/agent.json")
            body = send(skill="bank.pay")
            body["params"]["metadata"].update(claims)
            waiting = (await tell(url, body))["result"]
            answer = {"role": "user", "taskId": waiting["id"], "parts": [{"type": "data", "data": {"approved": True}}]}
            await tell(url, {**body, "params": {"message": answer}})
            task = (await tell(url, {**send(method="tasks/get"), "params": {"id": waiting["id"]}}))["result"]
        assert card["capabilities"]["stateTransitionHistory"] is asked
        assert (task["status"]["state"], task["metadata"]["mine"]) == ("completed", 1)
        assert {entry["kind"] for entry in task["history"]} == {"message"}
        passed = task["metadata"].get("apcore.stateTransitions", [])
        states = [transition["state"] for transition in passed]
        assert states == (["submitted", "working", "input-required", "working"] if asked else [])
        assert [transition["timestamp"] for transition in passed] == sorted(entry["timestamp"] for entry in passed)
        assert "apcore.caller" not in task["metadata"]  # an anonymous one


class Whole:
    """Publishes its own idea of its task first."""

    def __init__(self, state: TaskState) -> None:
        self.state = state

    async def execute(self, context: Any, event_queue: Any) -> None:
        status = TaskStatus(state=self.state)
        await event_queue.enqueue_event(Task(id=context.task_id, context_id=context.context_id, status=status))
        await TaskUpdater(event_queue).complete()

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Nothing to cancel."""


@pytest.mark.parametrize("state", [TaskState.SUBMITTED, TaskState.WORKING])
async def test_a_task_of_the_agents_own_records_as_well(state: TaskState) -> None:
    async with serving(Whole(state), card=None, state_history=True) as url:
        task = (await tell(url, talk("a"), **V1))["result"]["task"]
    assert [passed["state"] for passed in task["metadata"]["apcore.stateTransitions"]] == ["submitted", "working"]


# ---- tokens, interceptors --------------------------------------------------------------------------------------------


@requirement("FR-AUT-001")
async def test_how_far_two_clocks_may_differ_can_be_set() -> None:
    late = bearer(exp=int(time.time()) - 10)
    for auth, state in (
        (JWTAuthenticator(SECRET), "completed"),
        (JWTAuthenticator(SECRET, leeway=0), None),
        (JWTAuthenticator(SECRET, leeway=5), None),
    ):
        async with serving(registry(), card=None, auth=auth) as url:
            answer = await tell(url, send(), **late)
            assert answer.get("result", {}).get("status", {}).get("state") == state


async def test_an_interceptor_hears_how_an_operation_failed() -> None:
    class Listens:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        async def before(self, operation: Operation, request: Any, context: Any) -> None:
            """Lets everything through."""

        async def after(self, operation: Operation, request: Any, context: Any, result: Any) -> None:
            self.heard.append((operation, type(result)))

    listener = Listens()
    async with serving(registry(), card=None, interceptors=[listener]) as url:
        answer = await tell(url, {**send(method="tasks/get"), "params": {"id": "nowhere"}})
    assert answer["error"]["code"] == -32001
    assert listener.heard == [(Operation.GET, TaskNotFoundError)]


class Broken:
    def authenticate(self, headers: dict[str, str]) -> Any:
        raise RuntimeError("the directory does not answer")


class Refusing:
    """An interceptor that rejects every call."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def before(self, operation: Operation, request: object, context: object) -> None:
        raise self._error

    async def after(self, operation: Operation, request: object, context: object, result: object) -> None: ...


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (OverloadedError("Not now", retry_after=7), 503, "OVERLOADED"),
        (TaskNotFoundError(), 404, "TASK_NOT_FOUND"),
        (RuntimeError("a secret"), 500, "INTERNAL_ERROR"),
    ],
    ids=["overloaded", "not found", "unexpected"],
)
@pytest.mark.parametrize("path", ["/extendedAgentCard", "/agent/authenticatedExtendedCard"])
async def test_an_interceptor_stands_before_every_way_to_the_extended_card(
    path: str, error: Exception, status: int, reason: str
) -> None:
    async with serving(echo, auth=JWTAuthenticator(SECRET), interceptors=[Refusing(error)]) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            answer = await client.get(path, headers={**V1, **bearer()})
    assert (answer.status_code, answer.json()["error"]["details"][0]["reason"]) == (status, reason)
    assert (answer.headers.get("retry-after") == "7") == (status == 503)


@requirement("FR-AUT-004")
@pytest.mark.parametrize("path", ["/", "/message:send", "/agent/authenticatedExtendedCard"])
async def test_an_authenticator_that_fails_is_an_error_of_the_protocol(path: str) -> None:
    async with serving(echo, card=None, auth=Broken()) as url, httpx.AsyncClient(base_url=url) as client:
        method = "GET" if path.startswith("/agent/") else "POST"
        answer = await client.request(method, path, json=None if method == "GET" else send(), headers=V1)
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/json")
    assert answer.json()["error"]["message"] == "Authentication is not available; try again later"


def test_the_old_name_of_a_parameter_stays() -> None:
    assert InMemoryTaskStore(ttl=5).max_context_messages == 100
    with pytest.raises(TypeError, match="give one of the two"):
        InMemoryTaskStore(ttl=5, ttl_seconds=6)
    with pytest.raises(TypeError, match="has no parameter tll"):
        InMemoryTaskStore(tll=5)  # type: ignore[call-arg]  # that is the test
    with pytest.raises(ValueError, match="max_context_messages must be positive"):
        InMemoryTaskStore(max_context_messages=0)
    with pytest.raises(TypeError, match="has no parameter leway"):
        JWTAuthenticator(SECRET, leway=5)  # type: ignore[call-arg]  # that is the test
    with pytest.raises(ValueError, match="leeway must be a number of seconds"):
        JWTAuthenticator(SECRET, leeway=-1)
    build(echo, {"cors_origins": None, "trusted_proxies": None})
