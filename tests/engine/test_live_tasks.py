"""How many tasks run, and how many are kept in memory: no more than are needed."""

import asyncio

import pytest
from msgspec.structs import replace

from apcore_a2a.agent import Admission, Call, Caller
from apcore_a2a.engine.context import CallContext
from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import LimitExceededError, OverloadedError, UnsupportedOperationError
from apcore_a2a.protocol.model import Document, TaskState
from apcore_a2a.storage.contract import Record
from tests.engine.driving import ALICE, BOB, User, request, serving, settle, soon, until
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
            await thinking.wait()
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


async def test_a_task_is_live_only_while_it_is_used() -> None:
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
            await thinking.wait()
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


# ---- the place of a task between two runs ---------------------------------------------------------------------------


class Thinking(ScriptedAgent):
    """Thinks about the message "next" until a gate opens, when it is asked for that often whether it takes it."""

    def __init__(self, thought: Gate, scripts: dict[str, tuple[Step, ...]], *, times: int) -> None:
        super().__init__(scripts)
        self._thought = thought
        self._times = times

    async def admit(self, call: Call) -> Admission:
        if call.text == "next":
            self._times -= 1
            if self._times <= 0:
                await self._thought.wait()
        return await super().admit(call)


@pytest.mark.parametrize("limit", ["max_active_tasks", "max_active_tasks_per_caller"])
async def test_a_message_that_waited_runs_in_the_place_of_the_run_before_it(limit: str) -> None:
    first, second, thought = Gate(), Gate(), Gate()
    scripts = {"first": asking(first), "next": asking(second), "another": (second, COMPLETED)}
    agent = Thinking(thought, scripts, times=2)
    async with serving(agent, None, **{limit: 2}) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await first.reached()
        await alice.start("next", task_id=task.id)
        await alice.start("another")
        first.open()
        await thought.reached()  # asked again, for the task went on; nothing of it runs now
        assert engine.active_tasks == 1
        with pytest.raises(OverloadedError, match="limit of running tasks"):
            await alice.send("one more")
        thought.open()
        await until(lambda: engine.active_tasks == 2)
        second.open()
        await until(lambda: engine.active_tasks == 0)
        assert (await alice.send("one more")).status.state is S.COMPLETED


@pytest.mark.parametrize("limit", ["max_active_tasks", "max_active_tasks_per_caller"])
async def test_answers_that_come_together_do_not_pass_the_limit_together(limit: str) -> None:
    gate, thought = Gate(), Gate()
    agent = Thinking(thought, {"ask": asking(), "next": (gate, COMPLETED)}, times=1)
    async with serving(agent, None, **{limit: 2}) as engine:
        alice = User(engine)
        parked = [await alice.send("ask") for _ in range(5)]
        senders = [asyncio.create_task(alice.send("next", task_id=task.id)) for task in parked]
        await thought.reached()
        await settle()
        thought.open()
        await until(lambda: sum(sender.done() for sender in senders) == 3)
        assert engine.active_tasks == 2
        gate.open()
        await soon(asyncio.wait(senders))
        assert sum(sender.exception() is None for sender in senders) == 2


@pytest.mark.parametrize("limit", ["max_active_tasks", "max_active_tasks_per_caller"])
async def test_the_place_of_a_message_that_was_not_run_is_free_again(limit: str) -> None:
    first, hold = Gate(), Gate()
    agent = ScriptedAgent({"first": (first, COMPLETED), "slow": (hold, COMPLETED)})
    async with serving(agent, None, **{limit: 2}) as engine:
        alice = User(engine)
        task = await alice.start("first")
        await first.reached()
        waiting = asyncio.create_task(alice.send("too late", task_id=task.id))
        await settle()
        first.open()
        with pytest.raises(UnsupportedOperationError):  # its turn came, and the task had ended
            await soon(waiting)
        for _ in range(2):
            await alice.start("slow")
        with pytest.raises(OverloadedError):
            await alice.start("slow")
        hold.open()


async def test_a_message_that_waited_counts_for_the_address_it_came_from() -> None:
    first, second = Gate(), Gate()
    agent = ScriptedAgent({"first": asking(first), "next": asking(second), "go": (second, COMPLETED)})

    async def start(engine: Engine, text: str, host: str, task_id: str = "") -> str:
        context = CallContext(caller=Caller(), peer=(host, 1))
        answer = await soon(engine.send_message(request(text, now=True, task_id=task_id), context))
        assert isinstance(answer, Document)
        return answer.task().id

    async with serving(agent, max_active_tasks_per_caller=2) as engine:
        task_id = await start(engine, "first", "192.0.2.1")
        await first.reached()
        await start(engine, "next", "192.0.2.1", task_id)
        first.open()
        await second.reached()
        await start(engine, "go", "192.0.2.1")
        with pytest.raises(LimitExceededError):
            await start(engine, "go", "192.0.2.1")
        await start(engine, "go", "192.0.2.2")
        second.open()
