"""Isolation: two authenticated callers and an anonymous one perform random operations in every binding and version.

No caller can distinguish another owner's task from an unknown one, and no agent receives data of another owner.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from apcore_a2a.agent import Caller
from apcore_a2a.app.application import Application
from apcore_a2a.app.serve import build
from apcore_a2a.protocol import model
from apcore_a2a.protocol.grpc import find_method
from apcore_a2a.protocol.model import Message, Operation, Part, Role, SendConfiguration, SendMessage
from tests.fakes import ASKS, COMPLETED, PATIENCE, Gate, ScriptedAgent
from tests.interaction.conftest import WIRES
from tests.interaction.grpc_calls import call_app
from tests.interaction.serving import CARD
from tests.interaction.wire_client import PATHS, WireClient
from tests.requirements import requirement

NAMES: Final = ("ada", "eve", "anonymous")
CONTEXTS: Final = ("talk", "chat")
KEYS: Final = ("", "", "key-1", "key-2")
TEXTS: Final = ("done", "ask", "wait")
PUSH: Final = "/tasks/{task_id}/pushNotificationConfigs"
ALL_PATHS: Final = PATHS | {
    Operation.CREATE_PUSH: ("POST", PUSH),
    Operation.LIST_PUSH: ("GET", PUSH),
    Operation.GET_PUSH: ("GET", PUSH + "/{id}"),
    Operation.DELETE_PUSH: ("DELETE", PUSH + "/{id}"),
}
ON_A_TASK: Final = (
    Operation.GET,
    Operation.CANCEL,
    Operation.SUBSCRIBE,
    Operation.SEND,
    Operation.STREAM,
    Operation.CREATE_PUSH,
    Operation.GET_PUSH,
    Operation.LIST_PUSH,
    Operation.DELETE_PUSH,
)


class Doors:
    """Authenticates a caller by the name in its key. A request without a key is anonymous."""

    def authenticate(self, headers: dict[str, str]) -> Caller:
        name = headers.get("x-api-key", "").removeprefix("key of ")
        if not name:
            return Caller()
        return Caller(id=name, type="user")

    def security_schemes(self) -> list[dict[str, Any]]:
        return [{"type": "apiKey", "in": "header", "name": "X-API-Key"}]


class Step(NamedTuple):
    """An operation of a caller, in a binding and version, on a task of an owner."""

    who: str
    wire: tuple[str, str]
    operation: Operation
    whose: str
    which: int
    last_event_id: str


class Said(NamedTuple):
    """A message that begins a task, with a context, an idempotency key, and references to an owner's tasks."""

    who: str
    wire: tuple[str, str]
    text: str
    context: str
    key: str
    refers_to: str


who = st.sampled_from(NAMES)
wires = st.sampled_from(WIRES)
begins = st.builds(
    Said,
    who,
    wires,
    st.sampled_from(TEXTS),
    st.sampled_from(CONTEXTS),
    st.sampled_from(KEYS),
    who,
)
steps = st.builds(
    Step,
    who,
    wires,
    st.sampled_from(ON_A_TASK),
    who,
    st.integers(0, 5),
    st.sampled_from(("", "0", "1", "99")),
)


class World:
    """An agent, its three callers, and the tasks that each of them has begun."""

    def __init__(self, http: httpx.AsyncClient, app: Application, agent: ScriptedAgent) -> None:
        self._http = http
        self._app = app
        self._agent = agent
        self._tasks: dict[str, list[str]] = {name: [] for name in NAMES}
        self._messages: dict[str, set[str]] = {name: set() for name in NAMES}
        self._keys: dict[tuple[str, str], str] = {}  # the text that a caller first sent with a key

    def client(self, name: str, wire: tuple[str, str]) -> WireClient:
        binding, version = wire
        client = WireClient(self._http, rest=binding != "JSON-RPC", version=version)
        if name == "anonymous":
            return client
        return client.as_caller(name)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        """Return the complete response. A stream that does not end fails the test: no caller may follow such a task."""
        async with asyncio.timeout(PATIENCE):
            return await self._http.send(request)

    async def begin(self, said: Said) -> None:
        """Begin a task, and check that its agent receives no data of other owners."""
        client = self.client(said.who, said.wire)
        message_id = uuid.uuid4().hex
        self._messages[said.who].add(message_id)
        message = Message(
            message_id=message_id,
            role=Role.USER,
            parts=(Part(text=said.text),),
            context_id=said.context,
            reference_task_ids=tuple(self._tasks[said.refers_to][:5]),
        )
        value = SendMessage(message=message, configuration=SendConfiguration(return_immediately=True))
        request = client.request(Operation.SEND, value)
        if said.key:
            request.headers["Idempotency-Key"] = said.key
        before = len(self._agent.calls)
        answer = await self._send(request)
        if b"KeyReused" in answer.content or b"IDEMPOTENCY_KEY_REUSED" in answer.content:
            assert self._keys.get((said.who, said.key), said.text) != said.text  # a key of another owner is unknown
            return
        self._keys.setdefault((said.who, said.key), said.text)
        task = find_task(answer.json())
        # A new task, or an own task that the key or, in 0.3, the context continues. Never one of another owner.
        if task["id"] not in self._tasks[said.who]:
            assert not any(task["id"] in tasks for tasks in self._tasks.values())
            self._tasks[said.who].append(task["id"])
        for call in self._agent.calls[before:]:
            received = {one.message_id for one in call.history if one.role is Role.USER}
            assert received <= self._messages[said.who]
            assert {one.id for one in call.references} <= set(self._tasks[said.who])
            assert call.caller.id in (said.who, "anonymous")

    async def act(self, step: Step) -> None:
        """Perform an operation. On a task of another owner, the response must equal that for an unknown task."""
        theirs = self._tasks[step.whose]
        if not theirs:
            return
        task_id = theirs[step.which % len(theirs)]
        if step.whose == step.who:
            return await self._act_on_own(step, task_id)
        unknown = str(uuid.uuid4())
        foreign = await self._answer(step, task_id)
        assert foreign == await self._answer(step, unknown)
        assert b"result" not in foreign[2]

    async def _act_on_own(self, step: Step, task_id: str) -> None:
        if step.operation is Operation.GET:
            answer = await self._send(self._request(step, task_id))
            assert find_task(answer.json())["id"] == task_id

    async def _answer(self, step: Step, task_id: str) -> tuple[object, object, bytes]:
        """Return status, headers and body with the task's id removed: the rest must not depend on the task."""
        if step.wire[0] == "gRPC":
            return await self._grpc_answer(step, task_id)
        answer = await self._send(self._request(step, task_id))
        return answer.status_code, dict(answer.headers), answer.content.replace(task_id.encode(), b"?" * 36)

    async def _grpc_answer(self, step: Step, task_id: str) -> tuple[object, object, bytes]:
        path, method = find_method(step.wire[1], step.operation)
        headers = self.client(step.who, step.wire).headers
        if step.last_event_id:
            headers = {**headers, "Last-Event-ID": step.last_event_id}
        message = method.encode_request(_value(step.operation, task_id))
        answer = await call_app(self._app, path, message, headers)
        headers_only = repr(answer.headers).replace(task_id, "?" * 36)
        known = task_id.encode()
        return answer.details.replace(known, b"?" * 36), headers_only, answer.body.replace(known, b"?" * 36)

    def _request(self, step: Step, task_id: str) -> httpx.Request:
        client = self.client(step.who, step.wire)
        value = _value(step.operation, task_id)
        if client.rest:
            request = self._rest_request(client, step.operation, value)
        else:
            request = client.request(step.operation, value)
        if step.last_event_id:
            request.headers["Last-Event-ID"] = step.last_event_id
        return request

    def _rest_request(self, client: WireClient, operation: Operation, value: model.Value) -> httpx.Request:
        params = json.loads(client.dialect.encode_request(operation, value))
        method, path = ALL_PATHS[operation]
        names = {name: getattr(value, name, "") for name in ("id", "task_id")}
        url = client.dialect.REST_PREFIX + path.format(**names)
        if method == "POST" and operation is not Operation.SUBSCRIBE:
            return self._http.build_request(method, url, json=params, headers=client.headers)
        return self._http.build_request(method, url, headers=client.headers)

    async def look(self, name: str, wire: tuple[str, str]) -> None:
        """Check that a caller lists all own tasks, and no others."""
        _, version = wire
        if version == "0.3":
            return  # a list of 0.3 has no total, unlike 1.0
        client = self.client(name, wire)
        for context in ("", *CONTEXTS):
            page = await client.list(context_id=context, page_size=100)
            mine = [task.id for task in page.tasks]
            assert page.total_size == len(mine)
            assert set(mine) <= set(self._tasks[name])
            if not context:
                assert sorted(mine) == sorted(self._tasks[name])


def _value(operation: Operation, task_id: str) -> model.Value:
    match operation:
        case Operation.SEND | Operation.STREAM:
            message = Message(message_id="m", role=Role.USER, parts=(Part(text="done"),), task_id=task_id)
            return SendMessage(message=message)
        case Operation.CANCEL:
            return model.CancelTask(id=task_id)
        case Operation.SUBSCRIBE:
            return model.SubscribeToTask(id=task_id)
        case Operation.CREATE_PUSH:
            return model.PushConfig(task_id=task_id, id="hook", url="https://hooks.example/x")
        case Operation.GET_PUSH | Operation.DELETE_PUSH:
            return model.PushConfigRef(task_id=task_id, id="hook")
        case Operation.LIST_PUSH:
            return model.ListPushConfigs(task_id=task_id)
        case _:
            return model.GetTask(id=task_id)


def find_task(answer: Any) -> dict[str, Any]:
    """Return the task in a response of any binding and version."""
    found = answer.get("result", answer)
    found = found.get("task", found)
    assert "status" in found, answer
    task: dict[str, Any] = found
    return task


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    agent = ScriptedAgent({"done": (COMPLETED,), "ask": (ASKS,), "wait": (Gate(), COMPLETED)})
    app: Application = build(
        agent, {"card": CARD, "auth": Doors(), "push_notifications": True, "shutdown_timeout": 0.01}
    )
    await app.open()
    try:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield World(http, app, agent)
    finally:
        await app.close()


@requirement("NFR-SEC-001")
# Without shrinking: a failure has a few lines anyway, and shrinking takes minutes.
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)
@given(st.lists(begins, min_size=3, max_size=8), st.lists(steps, min_size=5, max_size=25), wires)
async def test_tasks_of_other_owners_look_like_unknown_tasks(
    begun: list[Said], done: list[Step], wire: tuple[str, str]
) -> None:
    async with world() as callers:
        for said in begun:
            await callers.begin(said)
        for step in done:
            await callers.act(step)
        for name in NAMES:
            await callers.look(name, wire)


@requirement("NFR-SEC-001")
async def test_no_operation_of_any_binding_and_version_reveals_a_task_of_another_owner() -> None:
    async with world() as callers:
        for text in TEXTS:
            await callers.begin(Said("ada", WIRES[0], text, "talk", "", "ada"))
        for wire in WIRES:
            for operation in ON_A_TASK:
                for name in ("eve", "anonymous"):
                    for which in range(len(TEXTS)):
                        for last_event_id in ("", "1"):
                            await callers.act(Step(name, wire, operation, "ada", which, last_event_id))
