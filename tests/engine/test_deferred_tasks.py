"""Tasks that are stored together with the first events of their agents: which ones, when, and what a failure leaves."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Struct

from apcore_a2a.agent import Admission, AgentEvent, Call, Remember
from apcore_a2a.errors import OverloadedError, StoreUnavailableError
from apcore_a2a.protocol.lifecycle import STATE_TRANSITIONS
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, StatusUpdate, Task, TaskState, TaskStatus
from apcore_a2a.storage.contract import Change, Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import QUICK, Ledger, User, chunks_of, serving, settle, soon, text_of, until
from tests.engine.fake_disk import FakeDisk

S = TaskState
COMPLETED = StatusUpdate(status=TaskStatus(state=S.COMPLETED))


def chunk(text: str) -> ArtifactUpdate:
    return ArtifactUpdate(artifact=Artifact(artifact_id=text[:9], parts=[Part(text=text)]))


class Script:
    """Does what the message says, word by word, and notes whether its task was stored when it was called."""

    def __init__(self, store: Store, *, retry_safe: bool = True, may_reply: bool = False) -> None:
        self.store = store
        self.retry_safe = retry_safe
        self.may_reply = may_reply
        self.was_stored: list[bool] = []
        self.stopped: list[str] = []
        self.task_id = ""
        self.gate = asyncio.Event()

    async def admit(self, call: Call) -> Admission:
        return Admission(retry_safe=self.retry_safe)

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        self.task_id = call.task.id
        self.was_stored.append(await self._is_stored(call))
        for word in str(call.message.parts[0].text).split():
            match word:
                case "wait" | "look" | "raise":
                    await self._do(word, call)
                case "remember":
                    yield Remember("note")
                case "big":
                    yield chunk("x" * 15_000)
                case "many":
                    for number in range(200):
                        yield chunk(str(number))
                case "ask":
                    yield StatusUpdate(status=TaskStatus(state=S.INPUT_REQUIRED))
                    return
                case "illegal":
                    yield StatusUpdate(status=TaskStatus(state=S.SUBMITTED))
                case _:
                    yield chunk(word)
        yield COMPLETED

    async def _do(self, word: str, call: Call) -> None:
        if word == "raise":
            raise ValueError("the agent is broken")
        if word == "look":
            self.was_stored.append(await self._is_stored(call))
            return
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped.append(self.task_id)
            raise

    async def _is_stored(self, call: Call) -> bool:
        return await self.store.load(call.task.id, call.caller.owner) is not None


class Counted(InMemoryTaskStore):
    """Counts the writes of a store in memory."""

    def __init__(self, *, max_capacity: int = 100, max_bytes: int = 1_000_000) -> None:
        super().__init__(max_capacity=max_capacity, max_bytes=max_bytes)
        self.writes: list[int] = []

    def begin_create(self, change: Change) -> None:
        self.writes.append(len(change.events))
        super().begin_create(change)

    async def create(self, change: Change, *, key: str = "") -> str | None:
        self.writes.append(len(change.events))
        return await super().create(change, key=key)

    def append(self, change: Change) -> None:
        self.writes.append(len(change.events))
        super().append(change)


STORES = pytest.mark.parametrize("make", [Counted, FakeDisk])


# ---- when a task is stored ------------------------------------------------------------------------------------------


async def test_an_agent_that_ends_at_once_costs_one_write_in_memory() -> None:
    store = Counted()
    async with serving(Script(store, retry_safe=False), store) as engine:
        task = await User(engine).send("hello")

        assert task.status.state is S.COMPLETED
        assert store.writes == [4]  # the task, WORKING, the artifact, COMPLETED


async def test_an_agent_that_is_safe_to_repeat_costs_one_commit() -> None:
    disk = FakeDisk()
    async with serving(Script(disk), disk) as engine:
        task = await User(engine).send("hello")

        assert (disk.writes, disk.rows[task.id].state) == (1, S.COMPLETED)


@STORES
async def test_a_deferred_task_is_stored_when_its_agent_first_waits(make: Any) -> None:
    store = make()
    agent = Script(store)
    async with serving(agent, store) as engine:
        task = await User(engine).start("first look wait look second")

        assert [artifact.artifact_id for artifact in task.artifacts] == ["first"]
        agent.gate.set()
        stream = await User(engine).subscribe(task)
        await stream.rest()
        assert agent.was_stored == [False, False, True]
        assert chunks_of(await User(engine).get(task)) == ["first", "second"]


class Promise(Struct):
    """A request whose task has to be stored before its agent runs on a durable store."""

    retry_safe: bool = True
    key: str = ""
    may_reply: bool = False


@pytest.mark.parametrize("promise", [Promise(retry_safe=False), Promise(key="k")], ids=["not repeatable", "key"])
async def test_other_tasks_are_on_the_disk_before_their_agents_run(promise: Promise) -> None:
    disk = FakeDisk()
    agent = Script(disk, retry_safe=promise.retry_safe)
    async with serving(agent, disk) as engine:
        await User(engine).answer("hello", key=promise.key)

        assert agent.was_stored == [True]
        assert disk.writes == 2


async def test_a_key_defers_no_task_in_memory_and_its_repeat_runs_nothing() -> None:
    store = Counted()
    agent = Script(store)
    async with serving(agent, store) as engine:
        user = User(engine)
        first = await user.answer("hello", key="k", message_id="m")
        again = await user.answer("hello", key="k", message_id="m")

        assert first == again
        assert agent.was_stored == [True]


async def test_an_agent_that_decides_makes_its_task_with_its_first_event() -> None:
    disk = FakeDisk()
    agent = Script(disk, may_reply=True)
    async with serving(agent, disk) as engine:
        task = await User(engine).send("look hello look")

        assert task.status.state is S.COMPLETED
        assert agent.was_stored == [False, False, True]


async def test_a_subclass_that_changes_how_tasks_are_written_sees_every_write() -> None:
    class Noted(InMemoryTaskStore):
        written = 0

        def append(self, change: Change) -> None:
            self.written += 1
            super().append(change)

    class Created(InMemoryTaskStore):
        written = 0

        async def create(self, change: Change, *, key: str = "") -> str | None:
            self.written += 1
            return await super().create(change, key=key)

    for store in (Noted(), Created()):
        async with serving(Script(store), store) as engine:
            await User(engine).send("hello")

            assert store.written == 1


# ---- what readers see -----------------------------------------------------------------------------------------------


@STORES
@pytest.mark.parametrize("text", ["hello", "wait hello", "hello wait", "many"])
async def test_a_stream_begins_with_the_submitted_task(make: Any, text: str) -> None:
    store = make()
    agent = Script(store)
    agent.gate.set()
    async with serving(agent, store) as engine:
        stream = await (await User(engine).stream(text)).rest()

        assert stream.task.status.state is S.SUBMITTED
        assert stream.states[:2] == [S.SUBMITTED, S.WORKING]
        assert stream.states[-1] is S.COMPLETED
        assert stream.seqs == list(range(1, len(stream.seqs) + 1))
        stored = await User(engine).get(stream.task)
        assert len(stored.artifacts) == len(stream.seqs) - 3


@STORES
async def test_a_deferred_task_records_its_past_states(make: Any) -> None:
    store = make()
    async with serving(Script(store), store, state_history=True) as engine:
        task = await User(engine).send("hello")

        assert task.metadata is not None
        assert [passed["state"] for passed in task.metadata[STATE_TRANSITIONS]] == ["submitted", "working"]


@STORES
async def test_a_deferred_task_keeps_the_memo_and_asks_its_user(make: Any) -> None:
    store = make()
    async with serving(Script(store), store) as engine:
        user = User(engine)
        task = await user.send("remember ask")
        assert task.status.state is S.INPUT_REQUIRED
        record = await store.load(task.id, user.caller.owner)

        assert record is not None and record.memo == b'"note"'
        again = await user.send("hello", task_id=task.id)
        assert again.status.state is S.COMPLETED


# ---- how a run ends before its task is stored -----------------------------------------------------------------------


@STORES
@pytest.mark.parametrize(("text", "chunks"), [("raise", []), ("hello raise", ["hello"]), ("hello illegal", ["hello"])])
async def test_an_agent_that_fails_at_once_fails_its_task(make: Any, text: str, chunks: list[str]) -> None:
    store = make()
    async with serving(Script(store), store) as engine:
        task = await User(engine).send(text)

        assert (task.status.state, text_of(task)) == (S.FAILED, "Internal error")
        assert chunks_of(await User(engine).get(task)) == chunks


@STORES
async def test_an_agent_whose_run_cannot_be_made_fails_its_task(make: Any) -> None:
    class Unmade(Script):
        def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
            raise ValueError("no generator")

    store = make()
    async with serving(Unmade(store), store) as engine:
        task = await User(engine).send("hello")

        assert (task.status.state, text_of(task)) == (S.FAILED, "Internal error")


@STORES
async def test_a_deferred_task_can_be_canceled_at_its_first_wait(make: Any) -> None:
    store = make()
    agent = Script(store)
    async with serving(agent, store) as engine:
        user = User(engine)
        task = await user.start("hello wait")
        canceled = await user.cancel(task)

        assert canceled.status.state is S.CANCELED
        assert agent.stopped == [task.id]
        assert chunks_of(await user.get(task)) == ["hello"]


@STORES
async def test_a_deadline_passes_before_the_first_wait_is_over(make: Any) -> None:
    store = make()
    async with serving(Script(store), store, execution_timeout=0.01) as engine:
        task = await User(engine).send("wait")

        assert (task.status.state, text_of(task)) == (S.FAILED, "Execution timed out")


@STORES
async def test_a_shutdown_before_the_agent_is_called_ends_the_task(make: Any) -> None:
    store = make()
    agent = Script(store)
    async with serving(agent, store, shutdown_timeout=0.0) as engine:
        sending = asyncio.ensure_future(User(engine).send("wait"))
        await until(lambda: engine.active_tasks == 1)
        await soon(engine.close())
        task = await soon(sending)

        assert (task.status.state, text_of(task)) == (S.FAILED, "Server shutdown")


# ---- a store that has no room, or does not answer -------------------------------------------------------------------


async def test_a_full_store_rejects_a_message_before_its_agent_runs() -> None:
    store = Counted(max_capacity=1)
    agent = Script(store)
    async with serving(agent, store) as engine:
        user = User(engine)
        await user.start("wait")
        with pytest.raises(OverloadedError):
            await user.send("hello")

        assert len(agent.was_stored) == 1


async def test_the_result_of_an_agent_needs_no_room_in_advance() -> None:
    store = Counted(max_bytes=20_000)
    async with serving(Script(store), store) as engine:
        task = await User(engine).send("big")

        assert task.status.state is S.COMPLETED


async def test_a_write_that_fails_leaves_no_task_and_its_sender_gets_the_error() -> None:
    disk = FakeDisk()
    disk.fault = lambda number: "before"
    async with serving(Script(disk), disk, timing=QUICK) as engine:
        with pytest.raises(StoreUnavailableError):
            await User(engine).send("hello")

        assert disk.rows == {}


async def test_a_store_that_rejects_a_task_at_once_is_not_asked_again_and_its_sender_gets_the_error() -> None:
    class Rejecting(FakeDisk):
        asked = 0

        def begin_create(self, change: Change) -> "asyncio.Future[None]":
            self.asked += 1
            raise OverloadedError

    disk = Rejecting()
    agent = Script(disk)
    async with serving(agent, disk, timing=QUICK) as engine:
        with pytest.raises(OverloadedError):
            await User(engine).send("hello wait second")
        await until(lambda: engine.live_tasks == 0)

        assert (disk.asked, disk.writes, agent.was_stored) == (1, 0, [False])


async def test_an_agent_stops_when_its_task_cannot_be_stored() -> None:
    disk = FakeDisk()
    disk.fault = lambda number: "before"
    agent = Script(disk)
    async with serving(agent, disk, timing=QUICK) as engine:
        with pytest.raises(StoreUnavailableError):
            await User(engine).send("hello wait second")

        assert agent.stopped == [agent.task_id]
        assert disk.rows == {}


@pytest.mark.parametrize(("text", "state"), [("hello", S.COMPLETED), ("hello wait", S.FAILED)])
async def test_a_task_that_was_stored_all_the_same_comes_to_rest(text: str, state: TaskState) -> None:
    disk = FakeDisk()
    disk.fault = lambda number: "after" if number == 1 else ""
    agent = Script(disk)
    async with serving(agent, disk, timing=QUICK) as engine:
        with pytest.raises(StoreUnavailableError):
            await User(engine).send(text)
        await until(lambda: engine.active_tasks == 0)

        assert disk.rows[agent.task_id].state is state


async def test_an_agent_continues_while_its_task_is_being_stored_and_waits_at_its_next_event() -> None:
    disk = FakeDisk()
    disk.hold()
    agent = Script(disk)
    async with serving(agent, disk) as engine:
        sending = asyncio.ensure_future(User(engine).send("first wait second"))
        await until(lambda: disk.waiting == 1)
        agent.gate.set()
        await settle()
        assert (disk.writes, sending.done()) == (1, False)
        disk.let_go()
        task = await soon(sending)

        assert chunks_of(task) == ["first", "second"]
        assert task.status.state is S.COMPLETED


async def test_a_run_that_is_stopped_while_its_task_is_being_stored_ends_in_the_store() -> None:
    disk = FakeDisk()
    disk.hold()
    agent = Script(disk)
    ledger = Ledger()
    async with serving(agent, disk, execution_timeout=0.01, timing=QUICK, observer=ledger) as engine:
        sending = asyncio.ensure_future(User(engine).send("first wait"))
        await until(lambda: bool(agent.stopped))
        patience = asyncio.get_running_loop().time() + 2 * QUICK.cancel_grace
        await until(lambda: asyncio.get_running_loop().time() > patience)  # the store takes longer than an agent may
        assert not sending.done()
        disk.let_go()
        task = await soon(sending)

        assert (task.status.state, text_of(task)) == (S.FAILED, "Execution timed out")
        assert disk.rows[task.id].state is S.FAILED
        assert ledger.abandoned == []


async def test_an_agent_that_is_abandoned_while_its_task_is_being_stored_has_a_task_that_failed() -> None:
    class Deaf(Script):
        async def _do(self, word: str, call: Call) -> None:
            with suppress(asyncio.CancelledError):
                await super()._do(word, call)
            await self.gate.wait()

    disk = FakeDisk()
    disk.hold()
    agent = Deaf(disk)
    ledger = Ledger()
    async with serving(agent, disk, execution_timeout=0.01, timing=QUICK, observer=ledger) as engine:
        sending = asyncio.ensure_future(User(engine).send("first wait"))
        await until(lambda: bool(ledger.abandoned))
        disk.let_go()
        task = await soon(sending)

        assert (task.status.state, text_of(task)) == (S.FAILED, "Execution timed out")
        assert disk.rows[task.id].state is S.FAILED
        assert chunks_of(task) == ["first"]
        agent.gate.set()


async def test_a_process_that_ends_before_the_store_has_the_task_leaves_nothing() -> None:
    disk = FakeDisk()
    disk.hold()
    agent = Script(disk)
    async with serving(agent, disk, timing=QUICK) as engine:
        sending = asyncio.ensure_future(User(engine).send("first wait"))
        await until(lambda: disk.waiting == 1)
        left = dict(disk.rows)
        disk.let_go()
        agent.gate.set()
        task: Task = await soon(sending)

        assert left == {}
        assert task.status.state is S.COMPLETED
