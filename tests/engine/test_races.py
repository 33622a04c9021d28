"""Cancels, deadlines and shutdowns that race with the end, with the store, and with each other."""

import asyncio
import random
from collections.abc import AsyncGenerator
from itertools import count

import pytest

from apcore_a2a.agent import AgentEvent, Call
from apcore_a2a.engine.context import Timing
from apcore_a2a.errors import StoreUnavailableError, TaskNotCancelableError, UnsupportedOperationError
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.storage.contract import Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import QUICK, Acts, User, Watcher, chunks_of, serving, settle, soon, text_of, until
from tests.engine.fake_disk import FakeDisk
from tests.fakes import COMPLETED, Gate, ScriptedAgent, chunk
from tests.requirements import requirement

S = TaskState


async def race(lead: int, store: Store) -> tuple[Task | None, Task, Watcher]:
    """Free the agent to finish and cancel its task, one of them so many steps of the loop after the other.

    What the cancel answered, if it did not come too late; the task; what a stream was told.
    """
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate, chunk("a"), COMPLETED)), store) as engine:
        alice = User(engine)
        watcher = await alice.stream("go")
        await watcher.until_seq(2)
        task = watcher.entries[0].event
        assert isinstance(task, Task)
        await gate.reached()
        if lead >= 0:
            gate.open()
            await settle(lead)
        canceling = asyncio.create_task(alice.cancel(task))
        if lead < 0:
            await settle(-lead)
            gate.open()
        try:
            won: Task | None = await canceling
        except TaskNotCancelableError as error:
            won = None
            assert error.state == "completed"
        await watcher.rest()
        return won, await alice.get(task), watcher


@requirement("FR-TSK-003")
@pytest.mark.parametrize("make", [InMemoryTaskStore, FakeDisk], ids=["memory", "durable"])
@pytest.mark.parametrize("lead", range(-8, 9))
async def test_a_cancel_that_races_the_end_has_one_winner(lead: int, make: type[Store]) -> None:
    won, ended, watcher = await race(lead, make())
    assert ended.status.state is (S.COMPLETED if won is None else S.CANCELED)
    assert won is None or won == ended
    assert [state in TERMINAL for state in watcher.states].count(True) == 1
    assert watcher.states[-1] is ended.status.state
    assert watcher.seqs == list(range(1, len(watcher.seqs) + 1))


async def test_the_race_is_won_by_either_side() -> None:
    assert (await race(-8, FakeDisk()))[0] is not None
    assert (await race(8, FakeDisk()))[0] is None


async def test_a_shutdown_during_a_cancel_lets_the_cancel_win() -> None:
    deaf = Gate(deaf=True)
    async with serving(ScriptedAgent(default=(deaf,)), timing=QUICK) as engine:
        alice = User(engine)
        watcher = await alice.stream("go")
        await watcher.until_seq(2)
        task = watcher.entries[0].event
        assert isinstance(task, Task)
        await deaf.reached()
        canceling = asyncio.create_task(alice.cancel(task))
        await settle()
        closing = asyncio.create_task(engine.close())
        assert (await soon(canceling)).status.state is S.CANCELED
        await soon(closing)
        assert (await watcher.rest()).states[-1] is S.CANCELED
        deaf.open()


async def test_a_shutdown_does_not_wait_for_agents_that_were_left_behind() -> None:
    deaf = Gate(deaf=True)
    async with serving(ScriptedAgent({"deaf": (deaf,)}), shutdown_timeout=3600, timing=QUICK) as engine:
        alice = User(engine)
        task = await alice.start("deaf")
        await deaf.reached()
        await alice.cancel(task)
        await soon(engine.close())
        deaf.open()


async def test_an_engine_whose_loop_is_torn_down_still_ends_its_tasks() -> None:
    """A program that does not close its engine cancels its asyncio tasks. The runs end as at a shutdown."""
    gate, store = Gate(), InMemoryTaskStore()
    async with serving(ScriptedAgent(default=(gate,)), store) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await gate.reached()
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await until(lambda: engine.active_tasks == 0)
        ended = await alice.get(task)
    assert (ended.status.state, text_of(ended)) == (S.FAILED, "Server shutdown")


async def test_a_loop_that_is_torn_down_while_an_end_is_stored_does_not_lose_it() -> None:
    disk, gate = FakeDisk(), Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), disk) as engine:
        alice = User(engine)
        watcher = await alice.stream("go")
        await watcher.until_seq(2)
        await gate.reached()
        disk.hold()
        gate.open()
        await until(lambda: disk.waiting == 1)
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await settle()
        disk.let_go()
        assert (await watcher.rest()).states[-1] is S.COMPLETED
        assert (await alice.get(watcher.task)).status.state is S.COMPLETED


async def test_a_reply_agent_that_is_stopped_while_its_task_is_stored_ends_it() -> None:
    disk, agent = FakeDisk(), ScriptedAgent(default=(chunk("a"), COMPLETED), may_reply=True)
    disk.hold()
    async with serving(agent, disk, execution_timeout=0.01) as engine:
        sending = asyncio.create_task(User(engine).send("go"))
        await until(lambda: disk.waiting == 1)
        await until(lambda: agent.calls[0].cancel.is_cancelled)
        disk.let_go()
        task = await sending
    assert (task.status.state, text_of(task), task.artifacts) == (S.FAILED, "Execution timed out", [])


async def test_a_deaf_agent_that_yields_while_it_is_left_behind_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its task is being ended on a slow store when it wakes up."""
    disk, deaf = FakeDisk(), Gate(deaf=True)
    agent = ScriptedAgent(default=(chunk("a"), deaf, chunk("late"), COMPLETED))
    async with serving(agent, disk, execution_timeout=0.02, timing=Timing(cancel_grace=0.02)) as engine:
        alice = User(engine)
        sending = asyncio.create_task(alice.send("go"))
        await deaf.reached()
        await settle()
        disk.hold()
        (running,) = (await alice.list()).tasks
        queued = asyncio.create_task(alice.send("more", task_id=running.id))
        await until(lambda: disk.waiting == 1)  # the end is on its way
        deaf.open()
        await settle()
        assert (disk.waiting, queued.done(), sending.done()) == (1, False, False)
        disk.let_go()
        task = await sending
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await queued
    assert (task.status.state, text_of(task), chunks_of(task)) == (S.FAILED, "Execution timed out", ["a"])


async def test_an_agent_that_is_slow_only_because_the_store_is_is_not_called_deaf(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, gate = FakeDisk(), Gate()
    async with serving(ScriptedAgent(default=(gate,)), disk, timing=QUICK) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await gate.reached()
        await settle()
        disk.hold()
        with pytest.raises(StoreUnavailableError):
            await alice.cancel(task)
        disk.let_go()
        await until(lambda: engine.active_tasks == 0)
        assert (await alice.get(task)).status.state is S.CANCELED
    assert "agent ignored its cancellation" not in [record.message for record in caplog.records]


@requirement("FR-TSK-003", "NFR-REL-003")
@pytest.mark.parametrize("make", [InMemoryTaskStore, FakeDisk], ids=["memory", "durable"])
async def test_two_hundred_tasks_with_random_cancels_all_end_once(make: type[Store]) -> None:
    dice, gate = random.Random(20_26), Gate()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        await gate.wait()
        for number in range(dice.randrange(12)):
            yield chunk(str(number), append=True)
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
        yield COMPLETED

    async with serving(Acts(play), make()) as engine:
        alice = User(engine)
        watchers = [await alice.stream("go") for _ in range(200)]
        readers = [asyncio.create_task(watcher.rest()) for watcher in watchers]

        async def strike(watcher: Watcher) -> bool:
            await gate.reached()
            await settle(dice.randrange(30))
            task = watcher.entries[0].event
            assert isinstance(task, Task)
            try:
                await alice.cancel(task)
            except TaskNotCancelableError:
                return False
            return True

        await until(lambda: all(watcher.entries for watcher in watchers))
        strikes = {id(watcher): asyncio.create_task(strike(watcher)) for watcher in dice.sample(watchers, 120)}
        await settle(10)
        gate.open()
        await soon(asyncio.wait([*readers, *strikes.values()]))
        for watcher in watchers:
            struck = id(watcher) in strikes and strikes[id(watcher)].result()
            assert watcher.states[-1] is (S.CANCELED if struck else S.COMPLETED)
            assert [state in TERMINAL for state in watcher.states].count(True) == 1
            assert watcher.seqs == list(range(1, len(watcher.seqs) + 1))
        outcomes = {task.result() for task in strikes.values()}
    assert outcomes == {True, False}


@requirement("FR-TSK-003")
async def test_a_hundred_tasks_run_at_the_same_time_and_none_sees_another() -> None:
    gate, numbers = Gate(), count(1)
    agent = Acts(lambda call: count_to(call, gate, numbers))
    async with serving(agent) as engine:
        alice = User(engine)
        senders = [asyncio.create_task(alice.send(str(number))) for number in range(100)]
        await until(lambda: engine.active_tasks == 100)
        await gate.reached()
        await settle(5)
        gate.open()
        tasks = [await soon(sender) for sender in senders]
    assert [chunks_of(task) for task in tasks] == [[str(number) * 3] for number in range(100)]
    assert next(numbers) == 101


async def count_to(call: Call, gate: Gate, numbers: "count[int]") -> AsyncGenerator[AgentEvent, None]:
    next(numbers)
    await gate.wait()
    for _ in range(3):
        yield chunk(str(call.message.parts[0].text), append=True)
        await asyncio.sleep(0)
    yield COMPLETED
