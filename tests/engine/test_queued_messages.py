"""A message that was acknowledged while its task was running is run, or refused where its sender can see it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from apcore_a2a.agent import Admission, AgentEvent, Call, Remember
from apcore_a2a.engine import recovery
from apcore_a2a.engine.agent_output import UNANSWERED_KEY
from apcore_a2a.errors import AgentError, InvalidParamsError, StoreUnavailableError
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.storage.contract import Page, Query
from tests.engine.driving import QUICK, User, serving, settle, soon, text_of, until, words
from tests.engine.fake_disk import FakeDisk
from tests.engine.test_recovery import dying
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, Step, chunk

S = TaskState
ASKED = "What next?"


def unanswered(task: Task) -> list[str]:
    """The texts of the messages that the task's status names as not answered."""
    assert task.status.message is not None
    named = (task.status.message.metadata or {}).get(UNANSWERED_KEY, [])
    return [str(said.parts[0].text) for said in task.history if said.message_id in named]


async def queue_two(user: User, gate: Gate) -> Task:
    """A running task with two messages that wait."""
    task = await user.start("first")
    await gate.reached()
    await user.start("second", task_id=task.id)
    await user.start("third", task_id=task.id)
    return task


async def at_rest(user: User, task: Task) -> Task:
    await until(lambda: user.engine.live_tasks == 0)
    return await user.get(task)


async def test_after_a_crash_what_waited_is_run_after_what_ran() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS), "third": (COMPLETED,)}, default=(ASKS,), retry_safe=True)
    async with dying(agent, FakeDisk()) as (engine, left):
        task = await queue_two(User(engine), gate)
    gate.open()
    async with serving(agent, left[0]) as engine:
        done = await at_rest(User(engine), task)
    assert (done.status.state, words(done)) == (S.COMPLETED, ["first", ASKED, "second", ASKED, "third"])
    assert left[0].rows[task.id].run == b""


async def test_after_a_crash_what_waited_beside_a_lost_run_is_refused_in_the_task() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS)})
    async with dying(agent, FakeDisk()) as (engine, left):
        task = await queue_two(User(engine), gate)
    async with serving(agent, left[0]) as engine:
        lost = await at_rest(User(engine), task)
    assert (lost.status.state, text_of(lost)) == (S.FAILED, recovery.LOST)
    assert (words(lost), unanswered(lost)) == (["first", "second", "third"], ["second", "third"])
    assert len(agent.calls) == 1


async def test_a_crash_between_two_turns_loses_neither() -> None:
    """The run before has ended with a question and the next one has not begun: there is but the queue to go on with."""
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS), "third": (COMPLETED,)}, default=(ASKS,))
    disk = FakeDisk()
    async with dying(agent, disk) as (engine, _):
        task = await queue_two(User(engine), gate)
        disk.hold()
        gate.open()
        await until(lambda: disk.waiting == 1)
        disk.commit()  # that the task waits for its user
        await settle()
        left_behind = disk.reopen()
    assert left_behind.rows[task.id].state is S.INPUT_REQUIRED
    async with serving(agent, left_behind) as engine:
        done = await at_rest(User(engine), task)
    assert (done.status.state, words(done)) == (S.COMPLETED, ["first", ASKED, "second", ASKED, "third"])


@pytest.mark.parametrize("disk", [None, FakeDisk()], ids=["memory", "durable"])
@pytest.mark.parametrize("end", ["cancel", "shutdown"])
async def test_what_waits_for_a_task_that_is_stopped_is_refused_in_the_task(end: str, disk: FakeDisk | None) -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS)})
    async with serving(agent, disk, shutdown_timeout=0.01, timing=QUICK) as engine:
        alice = User(engine)
        task = await queue_two(alice, gate)
        if end == "cancel":
            stopped = await alice.cancel(task)
        else:
            await soon(engine.close())
            stopped = await alice.get(task)
    assert stopped.status.state is (S.CANCELED if end == "cancel" else S.FAILED)
    assert (words(stopped), unanswered(stopped)) == (["first", "second", "third"], ["second", "third"])


async def test_an_agent_that_ends_its_task_with_a_history_of_its_own_does_not_hide_what_waited() -> None:
    gate = Gate()

    class Own(ScriptedAgent):
        async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            await gate.wait()
            done = call.task
            done.status = COMPLETED.status
            done.history = []
            yield done

    async with serving(Own()) as engine:
        alice = User(engine)
        task = await queue_two(alice, gate)
        gate.open()
        done = await at_rest(alice, task)
    assert (done.status.state, words(done), unanswered(done)) == (S.COMPLETED, ["second", "third"], ["second", "third"])


async def test_a_message_that_cannot_be_stored_is_not_acknowledged_and_not_run() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS)})
    disk = FakeDisk()
    async with serving(agent, disk) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        disk.fault = lambda n: "before"
        with pytest.raises(StoreUnavailableError):
            await alice.start("second", task_id=task.id)
        disk.fault = lambda n: ""
        gate.open()
        asked = await at_rest(alice, task)
    assert (asked.status.state, words(asked), len(agent.calls)) == (S.INPUT_REQUIRED, ["first"], 1)


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_message_whose_turn_comes_while_the_store_is_away_is_run_when_it_is_back(
    fault: str,
) -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS), "second": (COMPLETED,)})
    disk = FakeDisk()
    async with serving(agent, disk, timing=QUICK) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        await alice.start("second", task_id=task.id)
        written = disk.writes
        disk.fault = lambda n: fault if n == written + 2 else ""  # after the question: how the next run begins
        gate.open()
        done = await at_rest(alice, task)
    assert done.status.state in (S.COMPLETED, S.FAILED)
    assert words(done) == ["first", ASKED, "second"]
    assert (done.status.state is S.COMPLETED) == (fault == "before")  # "after": it began, and may not begin twice


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize(
    "end", [COMPLETED, chunk("a", append=True), AgentError("No more")], ids=["ends", "adds", "raises"]
)
async def test_what_waits_survives_an_end_whose_first_write_fails(end: Step, fault: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, end)})
    disk = FakeDisk()
    async with serving(agent, disk, timing=QUICK) as engine:
        alice = User(engine)
        task = await queue_two(alice, gate)
        written = disk.writes
        disk.fault = lambda n: fault if n == written + 1 else ""
        gate.open()
        done = await at_rest(alice, task)
    assert (words(done), unanswered(done)) == (["first", "second", "third"], ["second", "third"])
    assert done.status.state is (S.COMPLETED if end is COMPLETED else S.FAILED)


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_what_waits_survives_a_cancel_whose_first_write_fails(fault: str) -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS)})
    disk = FakeDisk()
    async with serving(agent, disk, timing=QUICK) as engine:
        alice = User(engine)
        task = await queue_two(alice, gate)
        written = disk.writes
        disk.fault = lambda n: fault if n == written + 1 else ""
        canceled = await alice.cancel(task)
    assert (words(canceled), unanswered(canceled)) == (["first", "second", "third"], ["second", "third"])


async def test_an_agent_whose_question_is_not_stored_at_first_still_asks_it() -> None:
    disk = FakeDisk()
    disk.fault = lambda n: "before" if n == 2 else ""
    agent = ScriptedAgent({"ask": (Remember({"step": 1}), chunk("a"), ASKS)})
    async with serving(agent, disk, timing=QUICK) as engine:
        alice = User(engine)
        asked = await alice.send("ask")
        assert (asked.status.state, text_of(asked)) == (S.INPUT_REQUIRED, ASKED)
        await alice.send("go on", task_id=asked.id)
    assert agent.calls[1].memo == {"step": 1}


async def test_a_store_that_cannot_be_asked_when_its_turn_comes_does_not_refuse_a_message() -> None:

    class Away(FakeDisk):
        asked_in_vain = 0

        async def page(self, query: Query) -> Page:
            if gate.is_open and self.asked_in_vain < 3:
                self.asked_in_vain += 1
                raise StoreUnavailableError
            return await super().page(query)

    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS), "second": (COMPLETED,)})
    disk = Away()
    async with serving(agent, disk, timing=QUICK) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        await alice.start("second", task_id=task.id)
        gate.open()
        done = await at_rest(alice, task)
    assert (done.status.state, words(done), disk.asked_in_vain) == (S.COMPLETED, ["first", ASKED, "second"], 3)


@pytest.mark.parametrize("fault", ["", "before", "after"])
async def test_a_message_that_its_agent_refuses_when_its_turn_comes_is_refused_in_the_task(fault: str) -> None:
    class Fickle(ScriptedAgent):
        async def admit(self, call: Call) -> Admission:
            if call.memo is not None:
                raise InvalidParamsError("Not any more")
            return await super().admit(call)

    gate = Gate()
    agent = Fickle({"first": (gate, Remember(1), ASKS)})
    disk = FakeDisk()
    async with serving(agent, disk, timing=QUICK) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        await alice.start("second", task_id=task.id)
        written = disk.writes
        disk.fault = lambda n: fault if n == written + 2 else ""  # after the question: that it was refused
        gate.open()
        told = await at_rest(alice, task)
    assert words(told) == ["first", ASKED, "second"]
    assert (told.status.state, text_of(told)) == (S.INPUT_REQUIRED, "The message was not taken: Not any more")


async def test_a_message_whose_turn_comes_during_the_drain_is_run_by_the_next_process() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS), "second": (COMPLETED,)})
    disk = FakeDisk()
    async with serving(agent, disk, shutdown_timeout=30) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        await alice.start("second", task_id=task.id)
        closing = asyncio.create_task(engine.close())
        await settle()
        gate.open()
        await soon(closing)
    async with serving(agent, disk.reopen()) as engine:
        done = await at_rest(User(engine), task)
    assert (done.status.state, words(done)) == (S.COMPLETED, ["first", ASKED, "second"])
