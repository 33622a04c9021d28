"""The first step of an agent: when a task ends in it, when a run takes over, and that callers see the same events.

What both have in common is in test_deferred_tasks.py, whose agents end, wait and fail at once.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator

import pytest

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.engine.context import Observer, RunTimes
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.first_step import MAX_EVENTS
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, StatusUpdate, TaskState, TaskStatus
from apcore_a2a.storage.contract import Change, Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.trace_context import continued_trace
from tests.engine.driving import (
    ALICE,
    QUICK,
    Acts,
    Ledger,
    User,
    chunks_of,
    request,
    serving,
    settle,
    soon,
    text_of,
    until,
)
from tests.engine.fake_disk import FakeDisk

S = TaskState
COMPLETED = StatusUpdate(status=TaskStatus(state=S.COMPLETED))
WORKING = StatusUpdate(status=TaskStatus(state=S.WORKING))


def chunk(text: str) -> ArtifactUpdate:
    return ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[Part(text=text)]), append=True)


class Looking:
    """Yields as many chunks as the message says, and notes after each whether its task is live or active."""

    may_reply = False
    engine: Engine

    def __init__(self, *, retry_safe: bool = False) -> None:
        self.retry_safe = retry_safe
        self.seen: list[tuple[int, int]] = []

    async def admit(self, call: Call) -> Admission:
        return Admission(retry_safe=self.retry_safe)

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        for number in range(int(call.text)):
            yield chunk(str(number))
            self.seen.append((self.engine.live_tasks, self.engine.active_tasks))
        yield COMPLETED


# ---- a task that ends in the first step -----------------------------------------------------------------------------


async def test_a_task_that_ends_in_the_first_step_is_never_live_and_has_no_run() -> None:
    agent = Looking()
    ledger = Ledger()
    async with serving(agent, observer=ledger) as engine:
        agent.engine = engine
        task = await User(engine).send("2")

        assert agent.seen == [(0, 0), (0, 0)]
        assert (ledger.started, ledger.ended) == ([task.id], [(task.id, S.COMPLETED)])
        assert await User(engine).get(task) == task


async def test_an_observer_learns_the_owner_of_a_task_that_ends_in_the_first_step() -> None:
    ends: list[tuple[str, str, TaskState]] = []

    class Ends(Observer):
        def task_ended(self, task_id: str, owner: str, state: TaskState) -> None:
            ends.append((task_id, owner, state))

    agent = Looking()
    async with serving(agent, observer=Ends()) as engine:
        agent.engine = engine
        task = await User(engine).send("0")

        assert ends == [(task.id, ALICE.owner, S.COMPLETED)]


async def test_an_agent_sees_its_task_as_working_and_the_trace_of_its_caller() -> None:
    seen: list[object] = []
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        seen.extend((call.task.status.state, dict(continued_trace())))
        yield COMPLETED

    async with serving(Acts(play)) as engine:
        user = User(engine)
        await soon(engine.send_message(request("hello"), user.context(headers=trace)))

        assert seen == [S.WORKING, trace]


async def test_a_stream_of_a_task_that_ended_at_once_has_all_its_events_and_counts_as_a_stream() -> None:
    agent = Looking()
    ledger = Ledger()
    async with serving(agent, observer=ledger, max_streams=1) as engine:
        agent.engine = engine
        for _ in range(2):  # the second one finds the place that the first one has left
            stream = await User(engine).stream("2")
            assert ledger.streams == 1
            await stream.rest()

            assert stream.states == [S.SUBMITTED, S.WORKING, S.WORKING, S.WORKING, S.COMPLETED]
            assert stream.seqs == [1, 2, 3, 4, 5]
            assert ledger.streams == 0


async def test_a_task_that_ends_in_the_first_step_needs_no_run_for_a_durable_store() -> None:
    agent = Looking(retry_safe=True)
    ledger = Ledger()
    disk = FakeDisk()
    disk.hold()
    async with serving(agent, disk, observer=ledger) as engine:
        agent.engine = engine
        sending = asyncio.ensure_future(User(engine).send("2"))
        await until(lambda: disk.waiting == 1)
        await settle()

        assert (engine.live_tasks, engine.active_tasks, sending.done(), ledger.ended) == (0, 0, False, [])
        disk.let_go()
        task = await soon(sending)
        assert (disk.writes, disk.rows[task.id].state, ledger.ended) == (1, S.COMPLETED, [(task.id, S.COMPLETED)])
        assert await User(engine).get(task) == task


async def test_a_shutdown_does_not_wait_for_a_store_that_does_not_confirm_the_task() -> None:
    agent = Looking(retry_safe=True)
    ledger = Ledger()
    disk = FakeDisk()
    disk.hold()
    async with serving(agent, disk, observer=ledger, shutdown_timeout=0.0, timing=QUICK) as engine:
        agent.engine = engine
        sending = asyncio.ensure_future(User(engine).send("2"))
        await until(lambda: disk.waiting == 1)
        await soon(engine.close())

        with pytest.raises(StoreUnavailableError):
            await soon(sending)
        assert len(ledger.ended) == 1
        disk.let_go()


async def test_an_agent_that_cancels_itself_while_its_task_is_stored_keeps_no_place() -> None:
    class Repeatable(Acts):
        async def admit(self, call: Call) -> Admission:
            return Admission(retry_safe=True)

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        yield COMPLETED

    disk = FakeDisk()
    async with serving(Repeatable(play), disk, max_active_tasks=1) as engine:
        for _ in range(2):
            disk.hold()
            with pytest.raises(StoreUnavailableError):
                await User(engine).send("hello")
            disk.let_go()
            await settle()

        assert [row.state for row in disk.rows.values()] == [S.COMPLETED, S.COMPLETED]


async def test_a_sender_that_leaves_before_the_store_rejects_its_task_leaves_nothing() -> None:
    agent = Looking(retry_safe=True)
    ledger = Ledger()
    disk = FakeDisk()
    disk.fault = lambda number: "before"
    disk.hold()
    async with serving(agent, disk, observer=ledger) as engine:
        agent.engine = engine
        sending = asyncio.ensure_future(User(engine).send("2"))
        await until(lambda: disk.waiting == 1)
        sending.cancel()
        disk.let_go()
        await until(lambda: bool(ledger.ended))

        assert disk.rows == {}


async def test_the_places_of_tasks_that_were_not_stored_are_free_again() -> None:
    disk = FakeDisk()
    disk.fault = lambda number: "before"
    agent = Looking(retry_safe=True)
    async with serving(agent, disk, max_active_tasks=1, timing=QUICK) as engine:
        agent.engine = engine
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                await User(engine).send("1")

        assert disk.rows == {}


async def test_a_status_that_only_repeats_working_is_no_event() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield WORKING
        yield COMPLETED

    async with serving(Acts(play)) as engine:
        stream = await (await User(engine).stream("hello")).rest()

        assert stream.states == [S.SUBMITTED, S.WORKING, S.COMPLETED]


@pytest.mark.parametrize("waits", [False, True])
async def test_an_empty_text_is_no_event_in_the_first_step_and_after_it(waits: bool) -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield chunk("hello")
        if waits:
            await asyncio.sleep(0)
        yield chunk("")
        yield COMPLETED

    async with serving(Acts(play)) as engine:
        stream = await (await User(engine).stream("hello")).rest()

        assert stream.states == [S.SUBMITTED, S.WORKING, S.WORKING, S.COMPLETED]


async def test_a_sender_that_leaves_before_the_first_step_leaves_a_task_that_has_ended() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield COMPLETED

    ledger = Ledger()
    async with serving(Acts(play), observer=ledger) as engine:
        sending = asyncio.ensure_future(User(engine).send("hello"))
        await asyncio.sleep(0)
        sending.cancel()
        await until(lambda: bool(ledger.ended))

        assert [task.status.state for task in (await User(engine).list()).tasks] == [S.COMPLETED]


async def test_an_agent_cannot_read_the_memory_of_the_conversation_after_its_task_has_ended() -> None:
    calls: list[Call] = []

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        calls.append(call)
        yield COMPLETED

    async with serving(Acts(play)) as engine:
        await User(engine).send("hello")

        assert await calls[0].recall() is None
        assert engine.live_tasks == 0


# ---- when a run takes over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [-1, 0, 1, 200])
async def test_a_long_output_is_continued_by_a_run_without_a_gap(extra: int) -> None:
    agent = Looking()
    async with serving(agent) as engine:
        agent.engine = engine
        count = MAX_EVENTS + extra
        stream = await (await User(engine).stream(str(count))).rest()

        assert stream.seqs == list(range(1, count + 4))
        assert stream.states[-1] is S.COMPLETED
        assert agent.seen[: MAX_EVENTS - 1] == [(0, 0)] * (MAX_EVENTS - 1)
        assert all(seen == (1, 1) for seen in agent.seen[MAX_EVENTS:])
        assert chunks_of(await User(engine).get(stream.task)) == ["".join(map(str, range(count)))]


async def test_an_agent_that_yields_nothing_new_without_end_lets_others_run() -> None:
    is_over = False

    def finish() -> None:
        nonlocal is_over
        is_over = True

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        asyncio.get_running_loop().call_soon(finish)
        for _ in range(100_000):
            if is_over:
                yield COMPLETED
            yield WORKING
        raise AssertionError("nothing else ran")

    async with serving(Acts(play)) as engine:
        assert (await User(engine).send("hello")).status.state is S.COMPLETED


async def test_a_sender_is_answered_before_its_agent_has_cleaned_up() -> None:
    gate = asyncio.Event()
    ledger = Ledger()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        try:
            yield COMPLETED
        finally:
            await gate.wait()

    async with serving(Acts(play), observer=ledger) as engine:
        task = await User(engine).send("hello")

        assert task.status.state is S.COMPLETED
        assert (engine.active_tasks, ledger.ended) == (1, [])
        gate.set()
        await until(lambda: engine.active_tasks == 0)
        assert ledger.ended == [(task.id, S.COMPLETED)]


async def test_an_agent_that_cleans_up_for_too_long_is_stopped() -> None:
    stopped = asyncio.Event()

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        try:
            yield COMPLETED
        finally:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

    async with serving(Acts(play), execution_timeout=0.01) as engine:
        task = await User(engine).send("hello")
        await soon(stopped.wait())
        await until(lambda: engine.active_tasks == 0)

        assert (await User(engine).get(task)).status.state is S.COMPLETED


async def test_an_agent_that_fails_to_clean_up_has_completed_its_task(caplog: pytest.LogCaptureFixture) -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        try:
            yield COMPLETED
        finally:
            raise ValueError("not clean")

    caplog.set_level(logging.ERROR)
    async with serving(Acts(play)) as engine:
        task = await User(engine).send("hello")

        assert task.status.state is S.COMPLETED
        assert [record.message for record in caplog.records] == ["agent failed"]


async def test_an_agent_that_exits_in_its_first_step_fails_its_task_and_not_the_server() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield chunk("hello")
        raise SystemExit

    async with serving(Acts(play)) as engine:
        task = await User(engine).send("hello")

        assert (task.status.state, text_of(task)) == (S.FAILED, "Internal error")
        assert chunks_of(task) == ["hello"]


async def test_the_timeout_of_an_agent_cancels_its_own_wait_and_nothing_else() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield chunk("before")
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            yield chunk(" after")
        yield COMPLETED

    async with serving(Acts(play)) as engine:
        assert chunks_of(await User(engine).send("hello")) == ["before after"]


async def test_a_run_counts_what_the_first_step_has_yielded_against_its_limit() -> None:
    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield chunk("x" * 600)
        await asyncio.sleep(0)
        yield chunk("y" * 600)
        yield COMPLETED

    async with serving(Acts(play), max_output_bytes=1_000) as engine:
        task = await User(engine).send("hello")

        assert (task.status.state, chunks_of(task)) == (S.FAILED, ["x" * 600])


@pytest.mark.parametrize("store", [InMemoryTaskStore(), FakeDisk()], ids=["memory", "disk"])
@pytest.mark.parametrize(("text", "is_timed"), [("", True), ("wait", True), ("wait first", False)])
async def test_the_time_of_the_first_event_is_that_of_the_first_step(store: Store, text: str, is_timed: bool) -> None:
    first_events: list[float | None] = []

    class Times(Observer):
        def run_ended(self, task_id: str, call: Call, state: TaskState, times: RunTimes) -> None:
            first_events.append(times.first_event)

    class Repeatable(Acts):
        async def admit(self, call: Call) -> Admission:
            return Admission(retry_safe=True)

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        if call.text != "wait first":
            yield chunk("hello")
        if call.text:
            await asyncio.sleep(0)
            raise ValueError
        yield COMPLETED

    async with serving(Repeatable(play), store, observer=Times()) as engine:
        await User(engine).send(text)
        await until(lambda: bool(first_events))

        assert [first is not None for first in first_events] == [is_timed]


async def test_a_store_that_fails_after_all_leaves_no_task_and_its_sender_gets_an_error() -> None:
    class Broken(InMemoryTaskStore):
        def begin_create(self, change: Change) -> None:
            raise OSError("broken")

        create = InMemoryTaskStore.create
        append = InMemoryTaskStore.append

    async def play(call: Call) -> AsyncGenerator[AgentEvent, None]:
        yield COMPLETED

    store = Broken()
    async with serving(Acts(play), store) as engine:
        with pytest.raises(Exception, match="Internal error"):
            await User(engine).send("hello")
        await settle()

        assert (await User(engine).list()).total_size == 0
        assert (await store.usage(ALICE.owner)).tasks == 0
