"""One run at a time for each task: who waits, who is refused, and what becomes of both."""

import asyncio

import pytest

from apcore_a2a.agent import Admission, Call, Remember
from apcore_a2a.engine.agent_output import UNANSWERED, UNANSWERED_KEY
from apcore_a2a.engine.task import MAX_QUEUED
from apcore_a2a.errors import InvalidParamsError, OverloadedError, UnsupportedOperationError
from apcore_a2a.protocol.model import Task, TaskState
from tests.engine.driving import User, chunks_of, serving, settle, soon, text_of, until, words
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, Step, chunk, status

S = TaskState


def asking(*steps: Step) -> tuple[Step, ...]:
    """A run that lets its task wait for the next message."""
    return (*steps, ASKS)


async def test_messages_to_a_running_task_are_run_one_after_the_other_in_order() -> None:
    gates = {name: Gate() for name in ("one", "two", "three", "four")}
    agent = ScriptedAgent({name: asking(gate, chunk(name, append=True)) for name, gate in gates.items()})
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.start("one")
        await gates["one"].reached()
        two = asyncio.create_task(alice.send("two", task_id=task.id))
        await settle()
        now = await alice.start("three", task_id=task.id)  # answered at once, with the task as it is
        assert (now.status.state, words(now)) == (S.WORKING, ["one"])
        four = asyncio.create_task(alice.send("four", task_id=task.id))
        await settle()
        assert [call.message.parts[0].text for call in agent.calls] == ["one"]
        for gate in gates.values():
            await gate.reached()
            assert engine.active_tasks == 1
            gate.open()
        assert chunks_of(await two)[0].startswith("onetwo")
        last = await four
    assert [call.message.parts[0].text for call in agent.calls] == list(gates)
    assert chunks_of(last) == ["".join(gates)]
    question = "What next?"
    assert words(last) == ["one", question, "two", question, "three", question, "four"]


async def test_a_message_whose_sender_did_not_wait_keeps_its_place() -> None:
    gate = Gate()
    agent = ScriptedAgent({"one": asking(gate)}, default=asking())
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.start("one")
        await gate.reached()
        await alice.start("two", task_id=task.id)
        asyncio.get_running_loop().call_soon(gate.open)
        await alice.send("three", task_id=task.id)  # without a turn of the loop in between
    assert [call.message.parts[0].text for call in agent.calls] == ["one", "two", "three"]


async def test_a_message_that_waited_knows_what_happened_meanwhile() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": asking(gate, Remember({"kept": 1})), "second": (COMPLETED,)})
    async with serving(agent, execution_timeout=300) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        second = asyncio.create_task(alice.send("second", task_id=task.id))
        await settle()
        gate.open()
        await second
    first, waited = agent.calls
    assert (waited.memo, waited.resumed) == ({"kept": 1}, True)
    assert [message.parts[0].text for message in waited.history] == ["first", "What next?"]
    assert first.deadline is not None and waited.deadline is not None
    assert waited.deadline > first.deadline


async def test_a_message_that_waited_may_be_refused_when_it_is_its_turn() -> None:
    class Fickle(ScriptedAgent):
        async def admit(self, call: Call) -> Admission:
            if call.memo is not None:
                raise InvalidParamsError("Not any more")
            return await super().admit(call)

    gate = Gate()
    agent = Fickle({"first": asking(gate, Remember(1))})
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        second = asyncio.create_task(alice.send("second", task_id=task.id))
        await settle()
        gate.open()
        with pytest.raises(InvalidParamsError, match="Not any more"):
            await second
        assert (await alice.get(task)).status.state is S.INPUT_REQUIRED
        assert (await alice.cancel(task)).status.state is S.CANCELED  # the turn is free


async def test_only_so_many_messages_wait_and_both_kinds_of_senders_are_told() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": asking(gate)}, default=asking())
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        waiting = [asyncio.create_task(alice.send("wait", task_id=task.id)) for _ in range(MAX_QUEUED - 1)]
        await settle()
        await alice.start("last", task_id=task.id)
        for now in (True, False):
            with pytest.raises(OverloadedError, match="Too many messages wait"):
                await alice.send("too many", task_id=task.id, now=now)
        waiting.pop().cancel()  # one who gives up makes room
        await settle()
        waiting.append(asyncio.create_task(alice.send("fits", task_id=task.id)))
        gate.open()
        for sender in waiting:
            assert (await soon(sender)).status.state is S.INPUT_REQUIRED
    assert len(agent.calls) == 1 + MAX_QUEUED


async def test_a_message_for_a_task_that_ends_before_its_turn_is_refused() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, COMPLETED)})
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        blocking = asyncio.create_task(alice.send("second", task_id=task.id))
        await settle()
        await alice.start("third", task_id=task.id)
        gate.open()
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await blocking
        await until(lambda: engine.live_tasks == 0)
        done = await alice.get(task)
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await alice.send("fourth", task_id=task.id)
    # Who was answered before it was their turn sees in the task that it never came; who waited was told.
    assert (done.status.state, words(done), len(agent.calls)) == (S.COMPLETED, ["first", "third"], 1)
    assert text_of(done) == UNANSWERED
    assert done.status.message is not None
    assert done.status.message.metadata == {UNANSWERED_KEY: [done.history[-1].message_id]}


async def test_a_message_to_a_waiting_task_is_stored_before_a_hasty_sender_is_answered() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": asking(), "second": (gate, COMPLETED)})
    async with serving(agent, FakeDisk()) as engine:
        alice = User(engine)
        task = await alice.send("first")
        now = await alice.start("second", task_id=task.id)
        assert (now.status.state, words(now)) == (S.WORKING, ["first", "What next?", "second"])
        gate.open()


async def test_a_hasty_sender_hears_of_a_refusal() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, COMPLETED), "bad": InvalidParamsError("Bad input")})
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        with pytest.raises(InvalidParamsError, match="Bad input"):
            await alice.start("bad", task_id=task.id)
        gate.open()


async def test_one_who_is_refused_does_not_take_the_task_from_one_who_is_not() -> None:
    """Two messages to a parked task: while the agent thinks about the first, it refuses the second."""
    thinking = Gate()

    class Thoughtful(ScriptedAgent):
        async def admit(self, call: Call) -> Admission:
            if call.message.parts[0].text == "slow":
                await thinking.wait()
            return await super().admit(call)

    agent = Thoughtful({"first": asking(), "bad": InvalidParamsError("no")})
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.send("first")
        slow = asyncio.create_task(alice.send("slow", task_id=task.id))
        await thinking.reached()
        with pytest.raises(InvalidParamsError):
            await alice.send("bad", task_id=task.id)
        assert engine.live_tasks == 1
        watcher = await alice.subscribe(task)
        thinking.open()
        assert (await slow).status.state is S.COMPLETED
        assert (await watcher.rest()).states == [S.INPUT_REQUIRED, S.WORKING, S.COMPLETED]


async def test_a_sender_who_gives_up_while_its_message_is_stored_leaves_a_task_that_runs() -> None:
    disk, agent = FakeDisk(), ScriptedAgent({"first": asking()})
    async with serving(agent, disk) as engine:
        alice = User(engine)
        disk.hold()
        sending = asyncio.create_task(alice.send("new"))
        await until(lambda: disk.waiting == 1)
        sending.cancel()
        await settle()
        disk.let_go()
        await until(lambda: engine.live_tasks == 0)
        assert [task.status.state for task in (await alice.list()).tasks] == [S.COMPLETED]
        task = await alice.send("first")
        disk.hold()
        sending = asyncio.create_task(alice.send("second", task_id=task.id))
        await until(lambda: disk.waiting == 1)
        sending.cancel()
        await settle()
        disk.let_go()
        await until(lambda: engine.live_tasks == 0)
        assert (await alice.get(task)).status.state is S.COMPLETED


async def test_a_login_by_other_means_lets_messages_wait_for_the_run() -> None:
    """AUTH_REQUIRED with a run that goes on by itself: the task is at rest, but it is not free."""
    gate = Gate()
    agent = ScriptedAgent({"go": (status(S.AUTH_REQUIRED), gate, chunk("in"), ASKS)}, default=(COMPLETED,))
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.send("go")
        assert task.status.state is S.AUTH_REQUIRED
        second = asyncio.create_task(alice.send("then", task_id=task.id))
        await settle()
        gate.open()
        done = await second
    assert isinstance(done, Task)
    assert (done.status.state, chunks_of(done)) == (S.COMPLETED, ["in"])
