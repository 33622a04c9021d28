"""How many tasks run, and how many are kept in memory: no more than are needed."""

import asyncio

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Admission, Call
from apcore_a2a.errors import LimitExceededError, OverloadedError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.task_store import Record
from tests.engine.driving import ALICE, BOB, User, serving, settle, soon, until
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, Step, chunk

S = TaskState


def asking(*steps: Step) -> tuple[Step, ...]:
    """A run that lets its task wait for the next message."""
    return (*steps, ASKS)


async def test_running_tasks_have_a_limit_and_the_next_fits_when_one_has_ended() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED), "ask": asking()})
    async with serving(agent, max_active_tasks=2) as engine:
        alice = User(engine)
        parked = await alice.send("ask")  # a task that waits is not running
        await alice.start("slow")
        await alice.start("slow")
        for fields in ({}, {"task_id": parked.id}):
            with pytest.raises(OverloadedError, match="limit of running tasks"):
                await alice.send("one more", **fields)
        assert (await alice.get(parked)).status.state is S.INPUT_REQUIRED
        gate.open()
        await until(lambda: engine.active_tasks == 0)
        assert (await alice.send("one more")).status.state is S.COMPLETED


async def test_senders_that_come_together_do_not_pass_the_limit_together() -> None:
    gate, thinking = Gate(), Gate()

    class Thoughtful(ScriptedAgent):
        async def admit(self, call: Call) -> Admission:
            await thinking.stand()
            return await super().admit(call)

    async with serving(Thoughtful(default=(gate, COMPLETED)), max_active_tasks=3) as engine:
        alice = User(engine)
        senders = [asyncio.create_task(alice.send("go")) for _ in range(10)]
        await thinking.reached()
        await settle()
        thinking.open()
        await gate.reached()
        await until(lambda: sum(sender.done() for sender in senders) == 7)
        assert engine.active_tasks == 3
        gate.open()
        await soon(asyncio.wait(senders))
        assert sum(sender.exception() is None for sender in senders) == 3


async def test_a_task_is_live_only_while_somebody_needs_it() -> None:
    gate = Gate()
    async with serving(ScriptedAgent({"slow": (gate, COMPLETED), "ask": asking()})) as engine:
        alice = User(engine)
        await alice.send("go")
        parked = await alice.send("ask")
        assert engine.live_tasks == 0
        await alice.get(parked)
        await alice.list()
        assert engine.live_tasks == 0
        watcher = await alice.subscribe(parked)
        assert engine.live_tasks == 1
        watcher.stream.close()
        assert engine.live_tasks == 0
        running = await alice.start("slow")
        assert (engine.active_tasks, engine.live_tasks) == (1, 1)
        other = await alice.subscribe(running)
        gate.open()
        await until(lambda: engine.active_tasks == 0)
        assert engine.live_tasks == 1
        await other.rest()
        assert engine.live_tasks == 0


async def test_two_who_come_at_once_share_one_live_task() -> None:
    class SlowReads(FakeDisk):
        async def load(self, task_id: str, owner: str) -> Record | None:
            await asyncio.sleep(0)
            return await super().load(task_id, owner)

    async with serving(ScriptedAgent({"ask": asking()}), SlowReads()) as engine:
        alice = User(engine)
        task = await alice.send("ask")
        comers = [asyncio.create_task(alice.subscribe(task)) for _ in range(3)]
        watchers = [await soon(comer) for comer in comers]
        assert engine.live_tasks == 1
        await alice.send("on", task_id=task.id)
        for watcher in watchers:
            assert (await watcher.rest()).states == [S.INPUT_REQUIRED, S.WORKING, S.COMPLETED]


async def test_one_caller_has_a_limit_of_running_tasks_and_others_have_their_own() -> None:
    gate = Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), max_active_tasks_per_caller=2) as engine:
        alice = User(engine, ALICE)
        await alice.start("slow")
        await alice.start("slow")
        for who in (ALICE, replace(ALICE, tenant="made up")):
            with pytest.raises(LimitExceededError, match="your limit of running tasks"):
                await User(engine, who).send("one more")
        await User(engine, BOB).start("slow")
        assert engine.active_tasks == 3
        gate.open()
        await until(lambda: engine.active_tasks == 0)
        assert (await alice.send("one more")).status.state is S.COMPLETED


async def test_a_caller_s_messages_that_come_together_do_not_pass_the_limit_together() -> None:
    gate, thinking = Gate(), Gate()

    class Thoughtful(ScriptedAgent):
        async def admit(self, call: Call) -> Admission:
            await thinking.stand()
            return await super().admit(call)

    async with serving(Thoughtful(default=(gate, COMPLETED)), max_active_tasks_per_caller=3) as engine:
        senders = [asyncio.create_task(User(engine).send("go")) for _ in range(10)]
        await thinking.reached()
        await settle()
        thinking.open()
        await gate.reached()
        await until(lambda: sum(sender.done() for sender in senders) == 7)
        assert engine.active_tasks == 3
        gate.open()
        await soon(asyncio.wait(senders))


@pytest.mark.parametrize(
    ("limit", "size", "state"),
    [("max_event_bytes", 999, S.COMPLETED), ("max_event_bytes", 2_000, S.FAILED), ("max_output_bytes", 999, S.FAILED)],
)
async def test_what_an_agent_says_has_a_size(limit: str, size: int, state: TaskState) -> None:
    agent = ScriptedAgent(default=(chunk("x" * size), chunk("y" * size, append=True), COMPLETED))
    async with serving(agent, None, **{limit: 1_900}) as engine:
        task = await User(engine).send("go")
        assert task.status.state is state
        if state is S.FAILED:
            assert task.status.message is not None
            assert "limit of bytes" in str(task.status.message.parts[0].text)
            shown = "".join(str(part.text) for artifact in task.artifacts for part in artifact.parts)
            assert len(shown) <= 1_900
