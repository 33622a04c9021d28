"""Cancels: of running, waiting and ended tasks, beside messages that want their turn."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Admission, AgentEvent, Call, Remember
from apcore_a2a.engine.run import BATCH
from apcore_a2a.errors import (
    StoreUnavailableError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.model import CancelTask, Task, TaskState
from apcore_a2a.storage.contract import Record
from tests.engine.driving import QUICK, Acts, Ledger, User, chunks_of, serving, settle, soon, text_of, until, words
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, WORKING, Gate, ScriptedAgent, Step, chunk, status
from tests.requirements import requirement

S = TaskState


def asking(*steps: Step) -> tuple[Step, ...]:
    """A run that lets its task wait for the next message."""
    return (*steps, ASKS)


@requirement("FR-TSK-005")
async def test_a_waiting_task_is_canceled_without_its_agent() -> None:
    agent = ScriptedAgent(default=asking())
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.send("go")
        canceled = await alice.cancel(task)
        assert (canceled.status.state, words(canceled)[-1]) == (S.CANCELED, "What next?")
        assert await alice.get(task) == canceled
    assert len(agent.calls) == 1


async def test_a_cancel_does_not_wait_for_the_messages_in_the_queue() -> None:
    """The run ends with a question just as it is canceled; then it is not the next message's turn."""
    gate = Gate()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            gate.open()
        yield ASKS

    async with serving(Acts(play)) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await gate.reached()
        queued = asyncio.create_task(alice.send("next", task_id=task.id))
        await settle()
        assert (await alice.cancel(task)).status.state is S.CANCELED
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await queued


async def test_a_cancel_comes_before_a_message_that_is_only_being_looked_at() -> None:
    gate, thinking = Gate(), Gate()

    class Thoughtful(ScriptedAgent):
        async def admit(self, call: Call) -> Admission:
            if call.memo is not None:
                await thinking.wait()
            return await super().admit(call)

    agent = Thoughtful({"first": asking(gate, Remember(1)), "second": (Gate(), COMPLETED)})
    async with serving(agent) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await gate.reached()
        second = asyncio.create_task(alice.send("second", task_id=task.id))
        await settle()
        gate.open()
        await thinking.reached()  # its turn has come, and the agent looks at it once more
        canceling = asyncio.create_task(alice.cancel(task))
        await settle()
        thinking.open()
        assert (await soon(canceling)).status.state is S.CANCELED
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await second
    assert len(agent.calls) == 1


async def test_an_agent_that_tidies_up_after_its_end_is_left_in_peace() -> None:
    tidying, tidied = Gate(), asyncio.Event()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        try:
            yield COMPLETED
        finally:
            await tidying.wait()
            tidied.set()

    async with serving(Acts(play)) as engine:
        alice = User(engine)
        task = await alice.send("go")
        await tidying.reached()
        with pytest.raises(Exception, match="current state is completed"):
            await alice.cancel(task)
        tidying.open()
        await soon(tidied.wait())


@requirement("FR-TSK-005")
async def test_a_running_task_is_canceled_and_all_subscribers_see_it() -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(chunk("half"), gate, COMPLETED))
    async with serving(agent) as engine:
        alice = User(engine)
        sending = asyncio.create_task(alice.send("go"))
        await gate.reached()
        (task,) = (await alice.list()).tasks
        watcher = await alice.subscribe(task)
        canceled = await alice.cancel(task)
        assert (canceled.status.state, text_of(canceled)) == (S.CANCELED, "Canceled by client")
        assert chunks_of(canceled) == ["half"]
        assert await sending == canceled == await alice.get(task)
        assert (await watcher.rest()).states[-1] is S.CANCELED
    assert agent.calls[0].cancel.is_cancelled


@requirement("FR-TSK-005")
@pytest.mark.parametrize("state", [S.COMPLETED, S.FAILED, S.REJECTED, S.CANCELED])
async def test_what_has_ended_cannot_be_canceled(state: TaskState) -> None:
    async with serving(ScriptedAgent(default=(WORKING, status(state)))) as engine:
        alice = User(engine)
        task = await alice.send("go")
        name = state.removeprefix("TASK_STATE_").lower()
        with pytest.raises(TaskNotCancelableError, match=f"^Task is not cancelable: current state is {name}$"):
            await alice.cancel(task)
        with pytest.raises(TaskNotFoundError):
            await engine.cancel_task(CancelTask(id="nowhere"), alice.context())
        assert await alice.get(task) == task


async def test_a_task_canceled_again_is_not_cancelable_any_more() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate,))) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await gate.reached()
        await alice.cancel(task)
        with pytest.raises(TaskNotCancelableError, match="canceled"):
            await alice.cancel(task)


@pytest.mark.parametrize("batches", range(1, 9))
async def test_a_cancel_that_comes_while_others_have_their_turn_reaches_the_agent_where_it_waits_next(
    batches: int,
) -> None:
    """Others run only between two batches of an agent that never waits: one of these turns is the cancel's."""
    seen: list[str] = []

    class Busy(ScriptedAgent):
        async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            canceling.append(asyncio.create_task(alice.cancel(call.task)))
            for number in range(batches * BATCH):
                yield chunk(str(number))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

    canceling: list[asyncio.Task[Task]] = []
    async with serving(Busy()) as engine:
        alice = User(engine)
        await alice.start("go")
        await until(lambda: bool(canceling))
        assert (await soon(canceling[0])).status.state is S.CANCELED
    assert seen in ([], ["cancelled"])  # not at all, if it was stopped between two batches


async def test_an_agent_that_never_waits_is_stopped_all_the_same() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        while True:
            yield chunk("more", append=True)

    async with serving(Acts(play)) as engine:
        alice = User(engine)
        task = await alice.start("go")
        assert (await alice.cancel(task)).status.state is S.CANCELED
        assert engine.active_tasks == 0


async def test_a_cancel_of_a_waiting_task_that_cannot_be_stored_says_so_and_leaves_it_waiting() -> None:
    disk = FakeDisk()
    async with serving(ScriptedAgent(default=(ASKS,)), disk) as engine:
        alice = User(engine)
        task = await alice.send("go")
        disk.fault = lambda n: "before"
        with pytest.raises(StoreUnavailableError):
            await alice.cancel(task)
        assert (await alice.get(task)).status.state is S.INPUT_REQUIRED
        disk.fault = lambda n: ""
        assert (await alice.cancel(task)).status.state is S.CANCELED


async def test_all_subscribers_see_a_cancel_that_is_stored_although_the_store_failed() -> None:
    disk = FakeDisk()
    async with serving(ScriptedAgent(default=asking()), disk, timing=QUICK) as engine:
        alice = User(engine)
        task = await alice.send("go")
        watcher = await alice.subscribe(task)
        written = disk.writes
        disk.fault = lambda n: "after" if n == written + 1 else ""
        canceled = await alice.cancel(task)
        assert canceled.status.state is S.CANCELED
        assert (await watcher.rest()).states[-1] is S.CANCELED


async def test_a_store_that_is_never_back_lets_those_who_watch_go() -> None:
    class Away(FakeDisk):
        is_away = False

        async def load(self, task_id: str, owner: str) -> Record | None:
            if self.is_away:
                raise StoreUnavailableError
            return await super().load(task_id, owner)

    disk = Away()
    async with serving(ScriptedAgent(default=asking()), disk, timing=replace(QUICK, max_resync_attempts=2)) as engine:
        alice = User(engine)
        task = await alice.send("go")
        watcher = await alice.subscribe(task)
        await watcher.read()
        disk.fault = lambda n: "before"
        disk.is_away = True
        with pytest.raises(StoreUnavailableError):
            await alice.cancel(task)
        assert await soon(watcher.next()) is None
        watcher.stream.close()
        disk.fault = lambda n: ""
        disk.is_away = False


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_run_whose_work_goes_on_is_abandoned_once(deaf: bool) -> None:
    gate = Gate(deaf=deaf)
    back = asyncio.Event()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        try:
            await gate.wait()
        finally:
            call.cancel.ignore()
            back.set()
        yield WORKING

    ledger = Ledger()
    async with serving(Acts(play), observer=ledger, timing=QUICK) as engine:
        alice = User(engine)
        task = await alice.start("go")
        await gate.reached()
        assert (await alice.cancel(task)).status.state is S.CANCELED
        assert ledger.abandoned == [task.id]
        gate.open()
        await soon(back.wait())
    assert ledger.abandoned == [task.id]
    assert ledger.ended == [(task.id, S.CANCELED)]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_run_that_ends_by_itself_may_also_say_that_its_work_goes_on(waits: bool) -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        call.cancel.ignore()
        if waits:
            await asyncio.sleep(0)
        yield COMPLETED

    ledger = Ledger()
    async with serving(Acts(play), observer=ledger) as engine:
        task = await User(engine).send("go")
    assert (task.status.state, ledger.abandoned) == (S.COMPLETED, [task.id])
