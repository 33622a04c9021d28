"""From a message to a run: which task, which conversation, and whether it is new at all."""

import asyncio

import pytest

from apcore_a2a.agent import Admission, Call
from apcore_a2a.engine.conversation import MAX_REFERENCES
from apcore_a2a.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.model import PushConfig, Role, SendConfiguration, SendMessage, TaskState
from apcore_a2a.storage import cursor
from apcore_a2a.storage.contract import Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import ALICE, BOB, V03, User, request, serving, soon, words
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk, status
from tests.requirements import requirement

S = TaskState


@pytest.fixture(params=[InMemoryTaskStore, FakeDisk], ids=["memory", "durable"])
def store(request: pytest.FixtureRequest) -> Store:
    made: Store = request.param()
    return made


def heard(agent: ScriptedAgent) -> list[list[str]]:
    """The conversation that each run was told of."""
    return [[str(message.parts[0].text) for message in call.history] for call in agent.calls]


@requirement("FR-TSK-002", "FR-CTX-001")
async def test_a_new_task_has_ids_of_its_own_and_the_message_in_its_history(store: Store) -> None:
    async with serving(ScriptedAgent(), store) as engine:
        task = await User(engine).send("hello", message_id="")
        other = await User(engine).send("hello", request_metadata={"from": "the request"})
    assert len({task.id, other.id, task.context_id, other.context_id}) == 4
    (said,) = task.history
    assert (said.task_id, said.context_id, said.role) == (task.id, task.context_id, Role.USER)
    assert said.message_id
    assert task.status.timestamp.endswith("Z")
    assert other.metadata == {"from": "the request"}


@requirement("FR-CTX-001")
async def test_messages_of_one_context_form_a_conversation(store: Store) -> None:
    agent = ScriptedAgent(
        {"one": (status(S.COMPLETED, "First answer"),), "two": (status(S.COMPLETED, "Second answer"),)}
    )
    async with serving(agent, store) as engine:
        alice = User(engine)
        first = await alice.send("one")
        second = await alice.send("two", context_id=first.context_id)
        await alice.send("three", context_id=first.context_id)
        await alice.send("elsewhere")
        await alice.send("fresh", context_id="a-new-one")
    assert second.context_id == first.context_id
    assert second.id != first.id
    assert heard(agent) == [
        [],
        ["one", "First answer"],
        ["one", "First answer", "two", "Second answer"],
        [],
        [],
    ]


@requirement("FR-CTX-004")
async def test_a_conversation_is_bounded_and_the_oldest_messages_go_first(store: Store) -> None:
    agent = ScriptedAgent(default=(COMPLETED,))
    async with serving(agent, store) as engine:
        alice = User(engine)
        for number in range(105):
            await alice.send(str(number), context_id="talk")
    assert heard(agent)[50] == [str(number) for number in range(50)]
    assert heard(agent)[104] == [str(number) for number in range(4, 104)]


async def test_a_conversation_of_large_tasks_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor, "MAX_PAGE_BYTES", 1)  # one task to a page
    agent = ScriptedAgent(default=(COMPLETED,))
    async with serving(agent) as engine:
        alice = User(engine)
        for number in range(4):
            await alice.send(str(number), context_id="talk")
    assert heard(agent)[3] == ["0", "1", "2"]


@pytest.mark.parametrize("limit", [0, 3])
async def test_the_length_of_a_conversation_can_be_chosen(limit: int) -> None:
    agent = ScriptedAgent(default=(status(S.COMPLETED, "answer"),))
    async with serving(agent, context_messages=limit) as engine:
        alice = User(engine)
        for number in range(4):
            await alice.send(str(number), context_id="talk")
    assert heard(agent)[-1] == (["answer", "2", "answer"] if limit else [])


@requirement("FR-CTX-003")
async def test_a_waiting_task_goes_on_by_its_id(store: Store) -> None:
    agent = ScriptedAgent({"ask": (ASKS,), "answer": (chunk("done"), COMPLETED)})
    async with serving(agent, store) as engine:
        alice = User(engine)
        asked = await alice.send("ask")
        done = await alice.send("answer", task_id=asked.id)
    assert (done.id, done.context_id, done.status.state) == (asked.id, asked.context_id, S.COMPLETED)
    assert words(done) == ["ask", "What next?", "answer"]
    assert (done.history[-1].task_id, done.history[-1].context_id) == (asked.id, asked.context_id)
    assert (agent.calls[1].resumed, agent.calls[1].task.status.state) == (True, S.WORKING)
    assert heard(agent)[1] == ["ask", "What next?"]


@requirement("FR-CTX-003")
async def test_a_waiting_task_goes_on_by_its_context_where_the_rules_say_so(store: Store) -> None:
    agent = ScriptedAgent({"ask": (ASKS,)})
    async with serving(agent, store) as engine:
        old, new = User(engine, rules=V03), User(engine)
        asked = await old.send("ask")
        apart = await new.send("answer", context_id=asked.context_id)
        assert apart.id != asked.id
        done = await old.send("answer", context_id=asked.context_id)
        assert (done.id, done.status.state) == (asked.id, S.COMPLETED)
        assert (await old.send("more", context_id=asked.context_id)).id not in (asked.id, apart.id)
        listed = await old.list(context_id=asked.context_id)
    assert listed.total_size == 3


async def test_when_two_tasks_of_a_context_wait_a_message_must_say_which(store: Store) -> None:
    async with serving(ScriptedAgent({"ask": (ASKS,)}), store) as engine:
        alice = User(engine, rules=V03)
        one = await alice.send("ask", context_id="talk")
        two = await User(engine).send("ask", context_id="talk")
        assert (await alice.send("answer", context_id="talk")).id not in (one.id, two.id)
        assert (await alice.send("answer", context_id="talk", task_id=two.id)).id == two.id


async def test_two_waiting_tasks_are_two_however_large_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor, "MAX_PAGE_BYTES", 1)  # one task to a page
    async with serving(ScriptedAgent({"ask": (ASKS,)})) as engine:
        alice = User(engine, rules=V03)
        one = await alice.send("ask", context_id="talk")
        two = await User(engine).send("ask", context_id="talk")
        assert (await alice.send("answer", context_id="talk")).id not in (one.id, two.id)


async def test_a_context_that_is_not_the_tasks_is_refused(store: Store) -> None:
    async with serving(ScriptedAgent({"ask": (ASKS,)}), store) as engine:
        alice = User(engine)
        task = await alice.send("ask")
        with pytest.raises(InvalidParamsError, match="contextId does not match the task") as refused:
            await alice.send("answer", task_id=task.id, context_id="another")
        assert [violation.field for violation in refused.value.violations] == ["message.contextId"]
        assert (await alice.get(task)).status.state is S.INPUT_REQUIRED


async def test_a_task_that_has_ended_takes_no_more_messages(store: Store) -> None:
    agent = ScriptedAgent()
    async with serving(agent, store) as engine:
        alice = User(engine)
        task = await alice.send("go")
        with pytest.raises(UnsupportedOperationError, match="has ended; send a new message without taskId"):
            await alice.send("more", task_id=task.id)
        with pytest.raises(TaskNotFoundError, match="Task not found: nowhere"):
            await alice.send("more", task_id="nowhere")
    assert len(agent.calls) == 1


async def test_only_users_send_messages_and_webhooks_are_rejected() -> None:
    agent = ScriptedAgent()
    async with serving(agent) as engine:
        alice = User(engine)
        for role in (Role.AGENT, Role.UNSPECIFIED):
            with pytest.raises(InvalidParamsError, match="Invalid message role"):
                await alice.send("go", role=role)
        config = SendConfiguration(task_push_notification_config=PushConfig(url="https://example.org"))
        with pytest.raises(PushNotificationNotSupportedError):
            await engine.send_message(SendMessage(message=request("go").message, configuration=config), alice.context())
    assert agent.calls == []


async def test_an_agent_sees_the_tasks_a_message_refers_to_if_they_are_the_callers(store: Store) -> None:
    agent = ScriptedAgent()
    async with serving(agent, store) as engine:
        alice, bob = User(engine, ALICE), User(engine, BOB)
        mine, foreign = await alice.send("mine"), await bob.send("his")
        await alice.send("about", reference_task_ids=(mine.id, foreign.id, "nowhere"))
        many = [await alice.send(str(number)) for number in range(MAX_REFERENCES + 1)]
        await alice.send("about all", reference_task_ids=tuple(task.id for task in many))
    assert [task.id for task in agent.calls[2].references] == [mine.id]
    assert len(agent.calls[-1].references) == MAX_REFERENCES


async def test_an_agent_knows_who_calls_and_the_headers_that_matter() -> None:
    agent = ScriptedAgent({"ask": (ASKS,)})
    async with serving(agent) as engine:
        alice = User(engine)
        await soon(engine.send_message(request("go"), alice.context(headers={"traceparent": "00-1"})))
    (call,) = agent.calls
    assert (call.caller, call.headers, call.resumed, call.memo) == (ALICE, {"traceparent": "00-1"}, False, None)


class Strict(ScriptedAgent):
    """Admits as a test says."""

    def __init__(self) -> None:
        super().__init__(default=(ASKS,))
        self.trouble: BaseException | None = None
        self.gate: Gate | None = None

    async def admit(self, call: Call) -> Admission:
        if self.gate is not None:
            await self.gate.wait()
        if self.trouble is not None:
            raise self.trouble
        return await super().admit(call)


@pytest.mark.parametrize("trouble", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
async def test_an_agent_that_exits_when_asked_ends_nothing_but_the_answer(trouble: BaseException) -> None:
    agent = Strict()
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.send("go")
        agent.trouble = trouble
        with pytest.raises(RuntimeError, match="tried to exit"):
            await alice.send("a new task")
        with pytest.raises(RuntimeError, match="tried to exit"):
            await alice.send("the next message", task_id=task.id)
        agent.trouble = None
        assert words(await alice.send("still there", task_id=task.id))[-1] == "still there"


async def test_a_sender_who_is_cancelled_while_the_agent_is_asked_is_cancelled() -> None:
    agent = Strict()
    agent.gate = Gate()
    async with serving(agent) as engine:
        sending = asyncio.create_task(User(engine).send("go"))
        await agent.gate.reached()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert sending.cancelled()
