"""Callers do not see, touch or even suspect each other's tasks: a foreign id is answered like an unknown one."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Caller
from apcore_a2a.engine.context import CallContext
from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import (
    CancelTask,
    GetTask,
    ListTasks,
    Operation,
    SubscribeToTask,
    Task,
    TaskState,
    encode,
)
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.storage.contract import Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import ALICE, BOB, V03, User, request, serving, settle, soon, until
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk

S = TaskState
UNKNOWN = "00000000-0000-4000-8000-000000000000"
OTHERS = {
    "another user": BOB,
    "an anonymous caller": Caller(),
    "the same name from another issuer": Caller(id="alice", type="user", issuer="elsewhere"),
    "the same user in a tenant": Caller(id="alice", type="user", issuer="test", tenant="t"),
}

Attempt = Callable[[Engine, str, CallContext], Awaitable[Any]]
ATTEMPTS: dict[str, Attempt] = {
    "get": lambda engine, id, context: engine.handle(Operation.GET, GetTask(id=id), context),
    "cancel": lambda engine, id, context: engine.handle(Operation.CANCEL, CancelTask(id=id), context),
    "subscribe": lambda engine, id, context: engine.handle(Operation.SUBSCRIBE, SubscribeToTask(id=id), context),
    "send": lambda engine, id, context: engine.handle(Operation.SEND, request("x", task_id=id), context),
    "stream": lambda engine, id, context: engine.handle(Operation.STREAM, request("x", task_id=id), context),
    "send now": lambda engine, id, context: engine.handle(Operation.SEND, request("x", task_id=id, now=True), context),
}


@pytest.fixture(params=[InMemoryTaskStore, FakeDisk], ids=["memory", "durable"])
def store(request: pytest.FixtureRequest) -> Store:
    made: Store = request.param()
    return made


async def refusal(attempt: Attempt, engine: Engine, task_id: str, context: CallContext) -> tuple[str, bytes, bytes]:
    """The answer on the wire, in both dialects, with the id blanked that the caller sent."""
    with pytest.raises(A2AError) as refused:
        await soon(attempt(engine, task_id, context))
    one, other = (encode(dialect.encode_error(refused.value)) for dialect in (v1, v03))
    blank = task_id.encode(), UNKNOWN.encode()
    return type(refused.value).__name__, one.replace(*blank), other.replace(*blank)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_a_foreign_task_is_answered_byte_for_byte_like_one_that_does_not_exist(
    attempt: str, name: str, store: Store
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED), "ask": (ASKS,)})
    async with serving(agent, store) as engine:
        alice = User(engine, ALICE)
        running, parked, ended = await alice.start("slow"), await alice.send("ask"), await alice.send("go")
        await gate.reached()
        await settle()
        watched = await alice.subscribe(parked)
        calls = len(agent.calls)
        for rules in (v1.RULES, V03):
            context = CallContext(caller=OTHERS[name], rules=rules)
            unknown = await refusal(ATTEMPTS[attempt], engine, UNKNOWN, context)
            assert unknown[0] == "TaskNotFoundError"
            for task in (running, parked, ended):
                assert await refusal(ATTEMPTS[attempt], engine, task.id, context) == unknown
        assert len(agent.calls) == calls
        assert (await alice.get(parked)).status.state is S.INPUT_REQUIRED
        assert (await alice.get(running)).status.state is S.WORKING
        watched.stream.close()
        gate.open()
        await until(lambda: engine.active_tasks == 0)
        assert (await alice.get(running)).status.state is S.COMPLETED


@pytest.mark.parametrize("name", OTHERS)
async def test_callers_list_and_count_only_their_own_tasks(name: str, store: Store) -> None:
    async with serving(ScriptedAgent({"ask": (ASKS,)}), store) as engine:
        alice, other = User(engine, ALICE), User(engine, OTHERS[name])
        mine = {(await alice.send(text, context_id="talk")).id for text in ("ask", "go", "go")}
        his = {(await other.send("go", context_id="talk")).id}
        for fields in ({}, {"context_id": "talk"}):
            for user, ids in ((alice, mine), (other, his)):
                page = await user.list(**fields)
                assert ({task.id for task in page.tasks}, page.total_size) == (ids, len(ids))
        page = await other.list(context_id="talk", status=S.INPUT_REQUIRED)
        assert (page.tasks, page.total_size, page.next_page_token) == ((), 0, "")


@pytest.mark.parametrize("name", OTHERS)
async def test_a_context_that_is_not_theirs_is_an_empty_one(name: str, store: Store) -> None:
    """No history of it is heard, and no task that waits in it goes on."""
    agent = ScriptedAgent({"ask": (chunk("secret"), ASKS)})
    async with serving(agent, store) as engine:
        alice, other = User(engine, ALICE, V03), User(engine, OTHERS[name], V03)
        asked = await alice.send("ask")
        intruder = await other.send("what was it?", context_id=asked.context_id)
        assert intruder.id != asked.id
        assert (await alice.get(asked)).status.state is S.INPUT_REQUIRED
        await alice.send("answer", context_id=asked.context_id)
    assert agent.calls[1].history == ()
    assert [str(message.parts[0].text) for message in agent.calls[2].history] == ["ask", "secret", "What next?"]


async def test_a_tasks_next_message_runs_as_its_sender(store: Store) -> None:
    """What a caller may do can change between two messages; an old proof of who they were is worth nothing."""
    before = Caller(id="alice", type="user", issuer="test", roles=("admin",))
    after = Caller(id="alice", type="user", issuer="test", roles=())
    agent = ScriptedAgent({"ask": (ASKS,)})
    async with serving(agent, store) as engine:
        task = await User(engine, before).send("ask")
        await User(engine, after).send("answer", task_id=task.id)
    assert [call.caller.roles for call in agent.calls] == [("admin",), ()]


def test_owners_differ_as_callers_do() -> None:
    # A name with a line break, which could be another's with a tenant, is refused where callers come in (`identify`).
    made_up = [replace(ALICE, tenant="t\ntest|bob"), Caller(tenant="t"), Caller(tenant="test|alice")]
    callers = [ALICE, *OTHERS.values(), *made_up]
    assert len({caller.owner for caller in callers}) == len(callers)
    assert Caller(id="alice").owner == Caller().owner  # an id without authentication is ignored


async def test_a_list_page_shows_tasks_and_nothing_private(store: Store) -> None:
    async with serving(ScriptedAgent(), store) as engine:
        alice = User(engine)
        await alice.send("go", key="secret-key")
        page = await soon(engine.list_tasks(ListTasks(), alice.context()))
        (task,) = page.tasks
        assert isinstance(task, Task)
        for private in (b"secret-key", b"alice", b"epoch"):
            assert private not in encode(page)
