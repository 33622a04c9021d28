"""The same message twice: with its key it is run once, and answered as often as it is asked."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Admission, Call
from apcore_a2a.errors import KeyReusedError, OverloadedError, StoreUnavailableError, TaskNotFoundError
from apcore_a2a.protocol.lifecycle import document_of
from apcore_a2a.protocol.model import Message, Task, TaskState
from apcore_a2a.storage.contract import Record, Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import ALICE, BOB, User, serving, settle, soon, text_of, until
from tests.engine.fake_disk import FakeDisk
from tests.engine.shared_disk import NO_PAUSES, SharedDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk, says

S = TaskState


@pytest.fixture(params=[InMemoryTaskStore, FakeDisk], ids=["memory", "durable"])
def store(request: pytest.FixtureRequest) -> Store:
    made: Store = request.param()
    return made


@pytest.mark.parametrize("streaming", [False, True], ids=["send", "stream"])
async def test_a_send_repeated_with_its_key_answers_with_the_same_task(store: Store, streaming: bool) -> None:
    agent = ScriptedAgent(default=(chunk("once"), COMPLETED))
    async with serving(agent, store) as engine:
        alice = User(engine)
        first = await alice.send("go", key="k")
        if streaming:
            watcher = await (await alice.stream("go", key="k")).rest()
            assert [item.event for item in watcher.entries] == [first]
        else:
            assert await alice.send("go", key="k") == first
        assert (await alice.send("go", key="other")).id != first.id
        assert (await alice.send("go")).id != first.id
    assert len(agent.calls) == 3


@pytest.mark.parametrize("running", [False, True], ids=["ended", "running"])
async def test_a_key_that_was_used_for_another_message_is_an_error(store: Store, running: bool) -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(gate, COMPLETED))
    async with serving(agent, store) as engine:
        alice = User(engine)
        first = await alice.start("Pay 5 to Alice", key="k", metadata={"skillId": "pay"})
        if not running:
            gate.open()
            await until(lambda: engine.active_tasks == 0)
        for other in ({"text": "Pay 5 to Mallory", "metadata": {"skillId": "pay"}}, {"text": "Pay 5 to Alice"}):
            with pytest.raises(KeyReusedError):
                await alice.start(key="k", **other)
        same = await alice.start("Pay 5 to Alice", key="k", metadata={"skillId": "pay"})
        assert same.id == first.id
        gate.open()
    assert len(agent.calls) == 1


async def test_a_key_that_was_used_for_another_message_at_another_replica_is_an_error() -> None:
    disk = SharedDisk()
    agent = ScriptedAgent()
    async with serving(agent, disk) as engine:
        disk.put("theirs", "other")
        disk.rows["theirs"].key = "k"
        with pytest.raises(KeyReusedError):
            await User(engine).send("another", key="k")
        assert engine.live_tasks == 0  # the task of the other replica is not kept here
    assert agent.calls == []


async def test_a_key_answers_with_its_task_if_the_store_keeps_no_messages_to_compare() -> None:
    class KeepsNoHistory(InMemoryTaskStore):
        async def load(self, task_id: str, owner: str) -> Record | None:
            found = await super().load(task_id, owner)
            assert found is not None
            return replace(found, document=document_of(replace(found.document.task(), history=[])))

    agent = ScriptedAgent()
    async with serving(agent, KeepsNoHistory()) as engine:
        alice = User(engine)
        first = await alice.send("go", key="k")
        assert (await alice.send("go", key="k")).id == first.id
    assert len(agent.calls) == 1


async def test_the_same_key_of_another_caller_is_another_key(store: Store) -> None:
    async with serving(ScriptedAgent(), store) as engine:
        alices = await User(engine, ALICE).send("go", key="k")
        bobs = await User(engine, BOB).send("go", key="k")
    assert alices.id != bobs.id


async def test_sends_with_one_key_that_come_together_run_once(store: Store) -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(gate, chunk("once"), COMPLETED))
    async with serving(agent, store) as engine:
        alice = User(engine)
        senders = [asyncio.create_task(alice.send("go", key="k")) for _ in range(5)]
        now = await alice.start("go", key="k")
        watcher = await alice.stream("go", key="k")
        await gate.reached()
        await settle()
        assert engine.active_tasks == 1
        gate.open()
        answers = [await soon(sender) for sender in senders]
        await watcher.rest()
    assert {task.id for task in answers} == {now.id}
    assert len(agent.calls) == 1
    assert watcher.seqs == [1, 2, 3, 4]  # attached from the start: it missed nothing
    assert [task.status.state for task in answers] == [S.COMPLETED] * 5


async def test_a_key_makes_a_task_even_of_a_reply() -> None:
    agent = ScriptedAgent(default=(says("Hello"),), may_reply=True)
    async with serving(agent) as engine:
        alice = User(engine)
        assert isinstance(await alice.answer("hi"), Message)
        first = await alice.send("hi", key="k")
        assert (first.status.state, text_of(first)) == (S.COMPLETED, "Hello")
        assert await alice.send("hi", key="k") == first
    assert len(agent.calls) == 2


@pytest.mark.parametrize("switched_on", [False, True])
async def test_the_message_id_is_a_key_only_when_that_is_switched_on(switched_on: bool) -> None:
    agent = ScriptedAgent()
    async with serving(agent, same_message_same_task=switched_on) as engine:
        alice = User(engine)
        one, two = await alice.send("go", message_id="m"), await alice.send("go", message_id="m")
        assert (one == two) is switched_on
        assert (await alice.send("go", message_id="n")).id != one.id
    assert len(agent.calls) == (2 if switched_on else 3)


async def test_an_answer_repeated_with_its_key_is_not_run_twice(store: Store) -> None:
    gate = Gate()
    agent = ScriptedAgent({"ask": (ASKS,), "answer": (gate, chunk("once"), ASKS)})
    async with serving(agent, store) as engine:
        alice = User(engine)
        asked = await alice.send("ask")
        answer: dict[str, Any] = {"task_id": asked.id, "message_id": "a", "key": "k"}
        first = asyncio.create_task(alice.send("answer", **answer))
        await gate.reached()
        attached = asyncio.create_task(alice.send("answer", **answer))
        await settle()
        gate.open()
        assert await soon(attached) == await soon(first)
        assert await alice.send("answer", **answer) == await first
        await alice.send("answer", task_id=asked.id, message_id="a")  # without a key it is simply said again
    assert [call.message.parts[0].text for call in agent.calls] == ["ask", "answer", "answer"]


async def test_an_answer_repeated_after_it_ended_its_task_answers_with_that_task() -> None:
    agent = ScriptedAgent({"ask": (ASKS,)})
    async with serving(agent) as engine:
        alice = User(engine)
        asked = await alice.send("ask")
        answer: dict[str, Any] = {"task_id": asked.id, "message_id": "a", "key": "k"}
        done = await alice.send("answer", **answer)
        assert await alice.send("answer", **answer) == done
    assert (done.status.state, len(agent.calls)) == (S.COMPLETED, 2)


async def test_an_answer_repeated_while_it_waits_for_its_turn_is_not_run_twice(store: Store) -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS), "answer": (chunk("once"), ASKS)})
    async with serving(agent, store) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        answer: dict[str, Any] = {"task_id": task.id, "message_id": "a", "key": "k"}
        twins = [asyncio.create_task(alice.send("answer", **answer)) for _ in range(2)]
        await settle()
        gate.open()
        one, two = [await soon(twin) for twin in twins]
        assert one == two
        await until(lambda: engine.live_tasks == 0)
    assert len(agent.calls) == 2


async def test_an_answer_repeated_while_it_is_in_the_queue_is_queued_and_run_once(store: Store) -> None:
    gate = Gate()
    turn = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS), "answer": (turn, chunk("once"), ASKS)})
    async with serving(agent, store) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        answer: dict[str, Any] = {"task_id": task.id, "message_id": "a", "key": "k"}
        for _ in range(3):
            await alice.start("answer", **answer)
        blocking = asyncio.create_task(alice.send("answer", **answer))
        await settle()
        if isinstance(store, FakeDisk):
            assert store.rows[task.id].run.count(b'"answer"') == 1
        gate.open()
        await turn.reached()
        await settle()
        assert not blocking.done()  # a blocking send answers with a task at rest
        turn.open()
        done = await soon(blocking)
        await until(lambda: engine.live_tasks == 0)
        assert await alice.get(task) == done
    assert (done.status.state, len(agent.calls)) == (S.INPUT_REQUIRED, 2)
    if isinstance(store, FakeDisk):
        assert store.rows[task.id].run == b""


@pytest.mark.parametrize("fault", ["", "before"])
async def test_a_copy_is_acknowledged_when_the_first_one_is_stored(fault: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS)}, default=(ASKS,))
    disk = FakeDisk()
    async with serving(agent, disk) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        disk.hold()
        disk.fault = lambda number: fault
        answer: dict[str, Any] = {"task_id": task.id, "message_id": "a", "key": "k"}
        copies = [asyncio.create_task(alice.start("answer", **answer)) for _ in range(2)]
        await until(lambda: disk.waiting == 1)
        await settle()
        assert [copy.done() for copy in copies] == [False, False]
        disk.let_go()
        disk.fault = lambda number: ""
        for copy in copies:
            if fault:
                with pytest.raises(StoreUnavailableError):
                    await soon(copy)
            else:
                await soon(copy)
        gate.open()
        await until(lambda: engine.live_tasks == 0)
    assert len(agent.calls) == (1 if fault else 2)


async def test_a_message_that_is_in_the_queue_twice_leaves_it_when_it_is_run() -> None:
    """The row of a task with a message in its queue names a runner, so another replica would wait for it."""
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS)}, default=(ASKS,))
    disk = FakeDisk()
    async with serving(agent, disk) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        for _ in range(2):
            await alice.start("answer", task_id=task.id, message_id="a")  # without a key, so both are taken
        gate.open()
        await until(lambda: engine.live_tasks == 0)
    assert disk.rows[task.id].run == b""


class SlowAdmission(ScriptedAgent):
    """Decides about the messages "answer" when the test opens the gate."""

    def __init__(self, *, first: Gate) -> None:
        super().__init__({"first": (first, ASKS)}, default=(chunk("once"), ASKS))
        self.gate = Gate()
        self.asked = 0

    async def admit(self, call: Call) -> Admission:
        if str(call.message.parts[0].text) == "answer":
            self.asked += 1
            await self.gate.wait()
        return await super().admit(call)


async def test_copies_that_arrive_while_the_agent_decides_are_queued_once(store: Store) -> None:
    first = Gate()
    agent = SlowAdmission(first=first)
    async with serving(agent, store) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await first.reached()
        answer: dict[str, Any] = {"task_id": task.id, "message_id": "a", "key": "k"}
        copies = [asyncio.create_task(alice.start("answer", **answer)) for _ in range(3)]
        await until(lambda: agent.asked == 3)
        agent.gate.open()
        for copy in copies:
            await soon(copy)
        if isinstance(store, FakeDisk):
            assert store.rows[task.id].run.count(b'"answer"') == 1
        first.open()
        await until(lambda: engine.live_tasks == 0)
        done = await alice.get(task)
    assert [said.message_id for said in done.history].count("a") == 1
    assert len(agent.calls) == 2


async def test_a_key_whose_task_waits_answers_with_that_task(store: Store) -> None:
    async with serving(ScriptedAgent(default=(ASKS,)), store) as engine:
        alice = User(engine)
        asked = await alice.send("go", key="k")
        again = await alice.send("go", key="k")
    assert isinstance(again, Task)
    assert again == asked


# ---- at a limit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["max_active_tasks", "max_active_tasks_per_caller"])
async def test_a_repeat_finds_its_task_though_that_fills_the_limit_of_running_tasks(store: Store, limit: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"ask": (ASKS,)}, default=(gate, COMPLETED))
    async with serving(agent, store, **{limit: 1}) as engine:
        alice = User(engine)
        asked = await alice.send("ask")
        first = await alice.start("go", key="k")
        await gate.reached()
        assert (await alice.start("go", key="k")).id == first.id
        waiting = asyncio.create_task(alice.send("go", key="k"))
        await settle()
        answer: dict[str, Any] = {"task_id": asked.id, "key": "k"}
        for refused in ({"key": "another"}, {}, answer):
            with pytest.raises(OverloadedError, match="limit of running tasks"):
                await alice.send("go", **refused)
        with pytest.raises(OverloadedError, match="limit of running tasks"):
            await User(engine, ALICE if limit == "max_active_tasks_per_caller" else BOB).send("go", key="other")
        gate.open()
        assert (await soon(waiting)).status.state is S.COMPLETED
    assert len(agent.calls) == 2


async def test_an_answer_repeated_at_the_limit_of_running_tasks_finds_its_run(store: Store) -> None:
    gate = Gate()
    agent = ScriptedAgent({"ask": (ASKS,)}, default=(gate, COMPLETED))
    async with serving(agent, store, max_active_tasks_per_caller=1) as engine:
        alice = User(engine)
        asked = await alice.send("ask")
        answer: dict[str, Any] = {"task_id": asked.id, "message_id": "a", "key": "k"}
        first = asyncio.create_task(alice.send("answer", **answer))
        await gate.reached()
        again = asyncio.create_task(alice.send("answer", **answer))
        await settle()
        gate.open()
        assert await soon(again) == await soon(first)
    assert len(agent.calls) == 2


async def test_a_repeat_is_not_looked_for_in_a_store_that_is_away() -> None:
    disk = FakeDisk()
    async with serving(ScriptedAgent(), disk) as engine:
        alice = User(engine)
        first = await alice.send("go", key="k")
        disk.fault = lambda number: "before"
        with pytest.raises(StoreUnavailableError):
            await alice.send("go", key="k")
        disk.fault = lambda number: ""
        assert await alice.send("go", key="k") == first


async def test_a_repeat_whose_task_goes_as_it_is_found_has_no_task() -> None:
    class Forgetful(InMemoryTaskStore):
        async def find_key(self, key: str, owner: str) -> str | None:
            found = await super().find_key(key, owner)
            if found is not None:
                assert await self.remove(found, owner)  # as one that expires now
            return found

    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with serving(agent, Forgetful(), max_active_tasks=1) as engine:
        alice = User(engine)
        await alice.send("go", key="k")
        await alice.start("slow")
        with pytest.raises(TaskNotFoundError):
            await alice.send("go", key="k")
        gate.open()


async def test_a_settled_message_stays_in_the_queue_until_its_removal_is_stored() -> None:
    async def play(disk: FakeDisk) -> None:
        gate = Gate()
        agent = ScriptedAgent({"first": (gate, ASKS)}, default=(ASKS,))
        async with serving(agent, disk, timing=NO_PAUSES) as engine:
            alice = User(engine)
            task = await alice.start("first")
            await gate.reached()
            for _ in range(2):
                await alice.start("answer", task_id=task.id, message_id="a")
            gate.open()
            await until(lambda: engine.live_tasks == 0)
        assert (disk.rows[task.id].run, len(agent.calls)) == (b"", 2)

    undisturbed = FakeDisk()
    await play(undisturbed)
    disturbed = FakeDisk()
    disturbed.fault = lambda number: "before" if number == undisturbed.writes else ""
    await play(disturbed)
    assert disturbed.writes == undisturbed.writes + 1
