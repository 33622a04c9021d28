"""Clients who leave: by the rules of 0.3 that may cancel a task, by those of 1.0 it never does."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from apcore_a2a.agent import AgentEvent, Call
from apcore_a2a.protocol.model import TaskState
from tests.engine.driving import NO_GRACE, V03, Acts, User, serving, settle, text_of, until
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent
from tests.requirements import requirement

S = TaskState


@requirement("FR-MSG-005")
async def test_a_task_without_subscribers_is_canceled_by_the_rules_of_0_3() -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(gate, COMPLETED))
    async with serving(agent, timing=NO_GRACE) as engine:
        alice = User(engine, rules=V03)
        watcher = await alice.stream("go")
        await watcher.read()
        await gate.reached()
        watcher.stream.close()
        await until(lambda: engine.active_tasks == 0)
        task = await alice.get(watcher.task)
    assert (task.status.state, text_of(task)) == (S.CANCELED, "Canceled: the client disconnected")
    assert agent.calls[0].cancel.is_cancelled


async def test_a_task_that_waits_for_its_user_waits_on_without_subscribers() -> None:
    async with serving(ScriptedAgent(default=(ASKS,)), timing=NO_GRACE) as engine:
        alice = User(engine, rules=V03)
        task = await alice.send("go")
        watcher = await alice.subscribe(task)
        watcher.stream.close()
        await settle(50)
        assert (await alice.get(task)).status.state is S.INPUT_REQUIRED


@requirement("FR-MSG-005")
@pytest.mark.parametrize("case", ["1.0", "switched off", "another stream", "a sender waits"])
async def test_a_task_goes_on_without_its_stream(case: str) -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(gate, COMPLETED))
    is_on = case != "switched off"
    async with serving(agent, cancel_on_disconnect=is_on, timing=NO_GRACE) as engine:
        alice = User(engine) if case == "1.0" else User(engine, rules=V03)
        sending = asyncio.create_task(alice.send("go", key="k"))
        await gate.reached()
        watcher = await alice.stream("go", key="k")
        await watcher.read()
        task, other = watcher.task, None
        if case != "a sender waits":
            sending.cancel()
            await settle()
        if case == "another stream":
            other = await alice.subscribe(task)
        watcher.stream.close()
        await settle(50)
        assert engine.active_tasks == 1
        gate.open()
        await until(lambda: engine.active_tasks == 0)
        assert (await alice.get(task)).status.state is S.COMPLETED
        if other is not None:
            await other.rest()
        elif case == "a sender waits":
            assert (await sending).status.state is S.COMPLETED


async def test_who_comes_back_in_time_keeps_the_task_and_has_the_whole_grace_again() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), timing=NO_GRACE) as engine:
        alice = User(engine, rules=V03)
        first = await alice.stream("go")
        await first.read()
        await gate.reached()
        first.stream.close()
        back = await alice.subscribe(first.task)  # before the loop turns, and with it the grace ends
        await settle()
        assert engine.active_tasks == 1
        back.stream.close()
        await until(lambda: engine.active_tasks == 0)
        assert (await alice.get(first.task)).status.state is S.CANCELED


async def test_a_stream_that_has_told_all_takes_nothing_with_it() -> None:
    """Not the next run of its task, and not a run that is still tidying up."""
    tidying = Gate()
    second = Gate()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        if call.resumed:
            await second.wait()
            yield COMPLETED
            return
        yield ASKS
        await tidying.wait()

    async with serving(Acts(play), timing=NO_GRACE) as engine:
        alice = User(engine, rules=V03)
        asked = await (await alice.stream("go")).rest()
        await tidying.reached()
        await settle()
        assert engine.active_tasks == 1
        answering = asyncio.create_task(alice.send("answer", task_id=asked.task.id))
        tidying.open()
        await second.reached()
        await settle()
        second.open()
        assert (await answering).status.state is S.COMPLETED


async def test_leaving_just_after_the_last_event_cancels_nothing() -> None:
    async with serving(ScriptedAgent(), timing=NO_GRACE) as engine:
        alice = User(engine, rules=V03)
        watcher = await alice.stream("go")
        await until(lambda: engine.active_tasks == 0)  # all is published, nothing is read
        watcher.stream.close()
        await settle()
        (task,) = (await alice.list()).tasks
        assert task.status.state is S.COMPLETED


async def test_leaving_just_before_the_last_event_lets_the_agent_have_its_say() -> None:
    reached = asyncio.Event()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield COMPLETED  # it was done anyway

    async with serving(Acts(play), timing=NO_GRACE) as engine:
        alice = User(engine, rules=V03)
        watcher = await alice.stream("go")
        await reached.wait()
        watcher.stream.close()
        await until(lambda: engine.active_tasks == 0)
        (task,) = (await alice.list()).tasks
        assert task.status.state is S.COMPLETED
