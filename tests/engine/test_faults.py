"""What goes wrong, forced at every point where it can: stores that fail, cancels that race, shutdowns in between."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from apcore_a2a.agent import AgentEvent, Call
from apcore_a2a.errors import A2AError, AgentError, OverloadedError, StoreUnavailableError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import QUICK, Acts, User, Watcher, chunks_of, serving, settle, text_of, until
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, Step, chunk, pause
from tests.requirements import requirement

S = TaskState


WRITES = 8  # of the conversation below, when nothing fails


def talker(*, may_reply: bool = False) -> ScriptedAgent:
    return ScriptedAgent(
        {
            "ask": (chunk("a"), pause(), chunk("b", append=True), pause(), ASKS),
            "answer": (chunk("c", append=True), pause(), chunk("d", append=True), pause(), COMPLETED),
        },
        may_reply=may_reply,
    )


def assert_seen_is_stored(watcher: Watcher, disk: FakeDisk) -> None:
    """A reader has seen nothing that is not on the disk, nothing twice, and no gap but one a snapshot closes."""
    position = 0
    for item in watcher.entries:
        if isinstance(item.event, Task):
            assert item.seq == 1 or item.seq >= position
            task_id = item.event.id
        else:
            assert item.seq == position + 1
            assert v1.decode_record(disk.rows[task_id].events[item.seq - 1])[0] == item.event
        position = item.seq


async def converse(alice: User, watchers: list[Watcher]) -> list[Task | A2AError]:
    """Open a stream whose agent asks, subscribe, and answer. Return the results and the errors."""
    told: list[Task | A2AError] = []
    try:
        watchers.append(await alice.stream("ask"))
        while not watchers[0].entries and await watchers[0].read():
            pass
        task = watchers[0].entries[0].event
        assert isinstance(task, Task)
        watchers.append(await alice.subscribe(task))
        await watchers[0].rest()
        told.append(await alice.send("answer", task_id=task.id))
    except A2AError as error:
        told.append(error)
    return told


@requirement("NFR-REL-003")
@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, WRITES + 1))
async def test_a_store_that_fails_once_costs_at_most_one_run(nth: int, fault: str) -> None:
    disk = FakeDisk()
    disk.fault = lambda n: fault if n == nth else ""
    async with serving(talker(), disk, timing=QUICK) as engine:
        alice, watchers = User(engine), list[Watcher]()
        (told,) = await converse(alice, watchers)
        await until(lambda: engine.active_tasks == 0)
        assert isinstance(told, Task | StoreUnavailableError | A2AError)
        assert [row.state for row in disk.rows.values() if row.state not in AT_REST] == []
        assert chunks_of(await alice.send("ask")) == ["ab"]  # all is well again
        for row in disk.rows.values():
            if row.state not in TERMINAL:
                await alice.cancel(row.task())
        for watcher in watchers:
            await watcher.rest()
            assert_seen_is_stored(watcher, disk)


async def test_the_conversation_under_fault_has_as_many_writes_as_are_made_to_fail() -> None:
    disk = FakeDisk()
    async with serving(talker(), disk) as engine:
        watchers: list[Watcher] = []
        (told,) = await converse(User(engine), watchers)
        assert isinstance(told, Task)
        assert (told.status.state, chunks_of(told)) == (S.COMPLETED, ["abcd"])
        for watcher in watchers:
            await watcher.rest()
    assert disk.writes == WRITES


@pytest.mark.parametrize("may_reply", [False, True])
@pytest.mark.parametrize("nth", range(1, 5))
async def test_a_store_that_is_down_delays_ends_until_it_is_back(nth: int, may_reply: bool) -> None:
    disk = FakeDisk()
    disk.fault = lambda n: "before" if n >= nth else ""
    async with serving(talker(may_reply=may_reply), disk, timing=QUICK) as engine:
        alice = User(engine)
        with pytest.raises(StoreUnavailableError):  # the sender is not kept waiting
            await alice.send("ask")
        running = engine.active_tasks
        assert running == (0 if nth == 1 else 1)
        if running:
            ((task_id, row),) = disk.rows.items()
            watcher = await alice.subscribe(row.task())
            with pytest.raises(StoreUnavailableError):
                await alice.cancel(row.task())
        disk.fault = lambda n: ""
        await until(lambda: engine.active_tasks == 0)
        if running:
            assert (await watcher.rest()).states[-1] in AT_REST
            failed = await alice.get(disk.rows[task_id].task())
            assert failed.status.state in TERMINAL
            assert "store is not available" in text_of(failed) or text_of(failed) == "Canceled by client"
            assert_seen_is_stored(watcher, disk)
        assert (await alice.send("ask")).status.state is S.INPUT_REQUIRED


async def test_a_cancel_does_not_cut_short_the_end_of_an_agent_that_fails_in_leaving() -> None:
    disk = FakeDisk()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        try:
            yield chunk("a")
            raise AgentError("No more")
        finally:
            await asyncio.sleep(0)
            raise AgentError("Not even tidy")

    async with serving(Acts(play), disk, timing=QUICK) as engine:
        disk.fault = lambda n: "before" if n > 2 else ""
        alice = User(engine)
        with pytest.raises(StoreUnavailableError):
            await alice.send("go")
        ((_, row),) = disk.rows.items()
        with pytest.raises(StoreUnavailableError):
            await alice.cancel(row.task())
        disk.fault = lambda n: ""
        await until(lambda: engine.active_tasks == 0)
        assert (row.state, text_of(row.task())) == (S.FAILED, "Not even tidy")


async def test_a_shutdown_while_the_store_is_down_is_bounded_and_the_next_process_ends_the_task() -> None:
    disk = FakeDisk()
    disk.fault = lambda n: "before" if n >= 3 else ""
    async with serving(talker(), disk, timing=QUICK) as engine:
        with pytest.raises(StoreUnavailableError):
            await User(engine).send("ask")
        assert engine.active_tasks == 1
    async with serving(talker(), disk.reopen(), timing=QUICK) as engine:
        (task,) = (await User(engine).list()).tasks
        assert (task.status.state, "Worker lost" in text_of(task)) == (S.FAILED, True)


class Broken(InMemoryTaskStore):
    """A store with a bug of its own, rather than one that is not available."""

    async def create(self, change: Any, *, key: str = "") -> str | None:
        raise RuntimeError("secret")


@pytest.mark.parametrize("may_reply", [False, True])
@pytest.mark.parametrize("step", [chunk("a"), ValueError("also secret")], ids=["yields", "raises"])
async def test_a_bug_in_a_store_reaches_no_client(
    may_reply: bool, step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    agent = ScriptedAgent(default=(step, COMPLETED), may_reply=may_reply)
    async with serving(agent, Broken()) as engine:
        with pytest.raises(A2AError, match=r"^Internal error$"):
            await User(engine).send("go")
    assert "task not stored" in [record.message for record in caplog.records]


async def test_a_store_that_is_full_refuses_the_message_and_says_so() -> None:
    agent = ScriptedAgent({"ask": (ASKS,)})
    async with serving(agent, InMemoryTaskStore(max_capacity=1)) as engine:
        alice = User(engine)
        await alice.send("ask")
        for refused in (alice.send("ask"), alice.stream("ask")):
            with pytest.raises(OverloadedError, match="limit of unfinished tasks"):
                await refused
    assert len(agent.calls) == 1


async def test_nothing_is_left_behind_no_task_no_timer_no_future(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, chunk("a"), COMPLETED), "ask": (ASKS,), "bad": (ValueError("x"),)})

    def timers() -> int:
        pending = loop._scheduled  # type: ignore[attr-defined]  # asyncio's: there is no other way to see its timers
        return sum(not timer.cancelled() for timer in pending)

    before = timers()
    disk = FakeDisk()
    async with serving(agent, disk) as engine:
        alice = User(engine, rules=v1.RULES._replace(stream_keeps_task=True))
        for text in ("ask", "bad", "go"):
            await alice.send(text)
        watchers = [await alice.stream("slow") for _ in range(3)]
        await gate.reached()
        for watcher in watchers:
            await watcher.read()
        watchers[0].stream.close()  # its grace begins
        task = watchers[1].entries[0].event
        assert isinstance(task, Task)
        await alice.cancel(task)
        gate.open()
        for watcher in watchers[1:]:
            await watcher.rest()
        await until(lambda: engine.live_tasks == 0)
        assert timers() == before + 1  # one for the deadlines of all runs
        broken = disk.writes + 2
        disk.fault = lambda n: "before" if n == broken else ""
        assert (await alice.send("slow")).status.state is S.COMPLETED
    gc.collect()
    await settle()
    assert unhandled == []
    assert timers() == before


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_an_agent_that_fails_before_its_first_event_has_one_task_at_most_whatever_the_store_says(
    fault: str,
) -> None:
    disk = FakeDisk()
    disk.fault = lambda n: fault if n == 1 else ""
    async with serving(ScriptedAgent(default=(ValueError("lost"),), may_reply=True), disk, timing=QUICK) as engine:
        with pytest.raises(StoreUnavailableError):
            await User(engine).send("go")
        await until(lambda: engine.active_tasks == 0)
    assert [row.task().status.state for row in disk.rows.values()] == ([] if fault == "before" else [S.FAILED])
