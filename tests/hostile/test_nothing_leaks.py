"""Internal errors: no response on the socket reveals the place, the file or the text of the error."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, NoReturn

import httpx
import pytest

from apcore_a2a import InMemoryTaskStore
from apcore_a2a.agent import Caller
from tests.interaction.serving import serving
from tests.modules import Add, Hang, registry
from tests.requirements import requirement

SECRET = "hunter2"
TROUBLE = f"password={SECRET} in /srv/secret/settings.py"
INSIDE = ("Traceback", 'File "', "/srv/", ".py", SECRET, "RuntimeError", "site-packages", "apcore_a2a.")
SEND = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": {"a": 1, "b": 2}}]}}
V1 = {"A2A-Version": "1.0"}


def fail() -> NoReturn:
    raise RuntimeError(TROUBLE)


class Breaks(Add):
    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        fail()


class UnreadableStore(InMemoryTaskStore):
    """A store whose reads fail with an error text that must not leak."""

    async def load(self, task_id: str, owner: str) -> NoReturn:
        fail()

    async def page(self, query: Any) -> NoReturn:
        fail()


class UnwritableStore(InMemoryTaskStore):
    async def create(self, change: Any, *, key: str = "") -> NoReturn:
        fail()


class FailingAuthenticator:
    def authenticate(self, headers: Mapping[str, str]) -> Caller | None:
        fail()


class Interceptor:
    async def before(self, *arguments: Any, **more: Any) -> None:
        fail()

    async def after(self, *arguments: Any, **more: Any) -> None:
        fail()


async def ask_everything(client: httpx.AsyncClient) -> list[httpx.Response]:
    """Call every operation in each version and binding, and some that do not exist."""
    old = {
        "message": {
            "kind": "message",
            "messageId": "m",
            "role": "user",
            "parts": [{"kind": "data", "data": {"a": 1, "b": 2}}],
        }
    }
    methods: list[tuple[str, Any, dict[str, str]]] = [
        ("message/send", old, {}),
        ("message/stream", old, {}),
        ("tasks/get", {"id": "t"}, {}),
        ("tasks/cancel", {"id": "t"}, {}),
        ("tasks/list", {}, {}),
        ("SendMessage", SEND, V1),
        ("SendStreamingMessage", SEND, V1),
        ("GetTask", {"id": "t"}, V1),
        ("ListTasks", {}, V1),
        ("SubscribeToTask", {"id": "t"}, V1),
    ]
    answers = []
    for method, params, headers in methods:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answers.append(await client.post("/", json=body, headers=headers))
    for verb, path, content in [
        ("POST", "/message:send", SEND),
        ("POST", "/message:stream", SEND),
        ("GET", "/tasks", None),
        ("GET", "/tasks/t", None),
        ("POST", "/tasks/t:cancel", None),
        ("POST", "/message:send", {"message": 7}),
        ("GET", "/nothing/here", None),
        ("PUT", "/", None),
    ]:
        answers.append(await client.request(verb, path, json=content, headers=V1))
    as_json = {"Content-Type": "application/json"}
    answers += [await client.post("/", content=raw, headers=as_json) for raw in (b"{", b"\xff", b"[" * 1000)]
    return answers


BROKEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "module": (Breaks(), {}),
    "reading": (Add(), {"task_store": UnreadableStore()}),
    "writing": (Add(), {"task_store": UnwritableStore()}),
    "authenticator": (Add(), {"auth": FailingAuthenticator()}),
    "interceptor": (Add(), {"interceptors": (Interceptor(),)}),
}


@requirement("NFR-SEC-001")
@pytest.mark.parametrize("broken", BROKEN)
async def test_no_answer_reveals_an_internal_error(broken: str) -> None:
    module, options = BROKEN[broken]
    async with AsyncExitStack() as stack:
        # Any: `serving` is typed for agents, but the application accepts whatever `serve` does.
        served: Any = registry(math__add=module)
        no_card: Any = None
        url = await stack.enter_async_context(serving(served, card=no_card, **options))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        answers = await ask_everything(client)
    failed = [answer for answer in answers if "nternal" in answer.text or answer.status_code >= 500]
    assert failed, "there was no internal error: the test proves nothing"
    for answer in answers:
        said = answer.text + str(answer.headers)
        assert [word for word in INSIDE if word in said] == [], said


@requirement("NFR-REL-002")
async def test_failing_tasks_affect_neither_other_tasks_nor_the_server() -> None:
    async with AsyncExitStack() as stack:
        served: Any = registry(math__add=Add(), math__break=Breaks(), math__hang=Hang())
        no_card: Any = None
        url = await stack.enter_async_context(serving(served, card=no_card))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=V1))

        async def send(skill: str, **configuration: Any) -> dict[str, Any]:
            body = {**SEND, "metadata": {"skillId": skill}, "configuration": configuration}
            task: dict[str, Any] = (await client.post("/message:send", json=body)).json()["task"]
            return task

        neighbour = await send("math.hang", returnImmediately=True)
        for _ in range(100):
            failed = await send("math.break")
            assert failed["status"]["state"] == "TASK_STATE_FAILED"
        still = (await client.get(f"/tasks/{neighbour['id']}")).json()
        assert still["status"]["state"] == "TASK_STATE_WORKING"
        assert (await send("math.add"))["status"]["state"] == "TASK_STATE_COMPLETED"
        assert (await client.get("/health")).json()["status"] == "healthy"
