"""Fold, save, publish: events are published only after they are stored, and undone if they cannot be stored."""

import asyncio

import pytest

from apcore_a2a.engine.task import MAX_UNSAVED
from apcore_a2a.errors import StoreUnavailableError, TaskNotFoundError
from apcore_a2a.protocol.model import Task, TaskState
from tests.engine.driving import V03, User, chunks_of, serving, settle, soon, until, words
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, Step, chunk, pause, status
from tests.requirements import requirement

S = TaskState


@requirement("NFR-REL-003")
async def test_events_that_are_not_stored_are_not_published() -> None:
    disk, gate = FakeDisk(), Gate()
    agent = ScriptedAgent(default=(gate, chunk("a"), pause(), chunk("b", append=True), pause(), COMPLETED))
    async with serving(agent, disk) as engine:
        alice = User(engine)
        sending = asyncio.create_task(alice.send("go"))
        await gate.reached()
        await settle()
        (task,) = (await alice.list()).tasks
        early = await alice.subscribe(task)
        disk.hold()
        gate.open()
        await until(lambda: disk.waiting == 3)
        for saved in range(4):
            await settle()
            seen = await alice.get(task)
            late = await alice.subscribe(task)
            await late.read()
            assert (len("".join(chunks_of(seen))), late.seqs) == (min(saved, 2), [2 + saved] if saved < 3 else [5])
            assert isinstance(late.entries[0].event, Task)
            assert chunks_of(late.entries[0].event) == chunks_of(seen)
            assert (seen.status.state is S.COMPLETED) == (saved == 3) == sending.done()
            late.stream.close()
            if saved == 2:
                break
            disk.commit()
        await early.until_seq(4)
        assert early.seqs == [2, 3, 4]
        disk.let_go()
        assert (await early.rest()).seqs == [2, 3, 4, 5]
        assert (await sending).status.state is S.COMPLETED


async def test_a_task_whose_end_is_not_stored_has_not_ended() -> None:
    disk, gate = FakeDisk(), Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), disk) as engine:
        alice, old = User(engine), User(engine, rules=V03)
        task = await alice.start("go")
        await gate.reached()
        disk.hold()
        gate.open()
        await until(lambda: disk.waiting == 1)
        watchers = [await alice.subscribe(task), await old.subscribe(task)]
        canceling = asyncio.create_task(alice.cancel(task))
        more = asyncio.create_task(alice.send("more", task_id=task.id))
        await settle()
        assert not canceling.done() and not more.done()
        disk.let_go()
        for watcher in watchers:
            assert (await watcher.rest()).states == [S.WORKING, S.COMPLETED]
        with pytest.raises(Exception, match="current state is completed"):
            await canceling
        with pytest.raises(Exception, match="has ended"):
            await more


async def test_a_cancel_while_an_event_is_stored_leaves_no_gap() -> None:
    disk, gate = FakeDisk(), Gate()
    agent = ScriptedAgent(default=(gate, chunk("a"), pause(), ASKS, pause(), COMPLETED))
    async with serving(agent, disk) as engine:
        alice = User(engine)
        watcher = await alice.stream("go")
        await gate.reached()
        await watcher.read()
        task = watcher.entries[0].event
        assert isinstance(task, Task)
        disk.hold()
        gate.open()
        await until(lambda: disk.waiting == 2)  # the run waits for the question to be stored
        everything = await alice.subscribe(task)
        canceling = asyncio.create_task(alice.cancel(task))
        await settle()
        disk.let_go()
        canceled = await soon(canceling)
        await everything.rest()
        assert await alice.get(task) == canceled
        await watcher.rest()
    assert (canceled.status.state, chunks_of(canceled)) == (S.CANCELED, ["a"])
    assert everything.seqs == [2, 3, 4, 5]
    assert everything.states == [S.WORKING, S.WORKING, S.INPUT_REQUIRED, S.CANCELED]
    assert watcher.seqs == [1, 2, 3, 4]


async def test_an_agent_is_only_so_far_ahead_of_the_store() -> None:
    disk, gate = FakeDisk(), Gate()
    chunks: list[Step] = [chunk("x", append=True), pause()] * (3 * MAX_UNSAVED)
    agent = ScriptedAgent(default=(gate, *chunks, COMPLETED))
    async with serving(agent, disk) as engine:
        sending = asyncio.create_task(User(engine).send("go"))
        await gate.reached()
        await settle()
        disk.hold()
        gate.open()
        await until(lambda: disk.waiting == MAX_UNSAVED + 1)
        await settle()
        assert disk.waiting == MAX_UNSAVED + 1
        disk.commit(10)
        await until(lambda: disk.waiting == MAX_UNSAVED + 1)
        disk.let_go()
        assert chunks_of(await sending) == ["x" * 3 * MAX_UNSAVED]


async def test_a_save_that_fails_while_the_agent_goes_on_ends_the_run_at_the_next_event() -> None:
    disk, gate = FakeDisk(), Gate()
    agent = ScriptedAgent(default=(chunk("lost"), chunk("lost", append=True), gate, chunk("too late"), COMPLETED))
    disk.fault = lambda n: "before" if n == 2 else ""
    async with serving(agent, disk) as engine:
        alice = User(engine)
        watcher = await alice.stream("go")
        await gate.reached()
        await settle()
        gate.open()
        await watcher.rest()
        (task,) = (await alice.list()).tasks
    assert (task.status.state, chunks_of(task)) == (S.FAILED, [])
    assert (watcher.seqs, watcher.states[-1]) == ([1, 2, 3], S.FAILED)


async def test_writes_that_came_through_after_all_stand_and_are_seen_without_a_gap() -> None:
    """The store says of one write that it failed, but it did not, and the next one found it in place."""
    disk, gate = FakeDisk(), Gate()
    agent = ScriptedAgent(default=(gate, chunk("there"), pause(), COMPLETED))
    disk.fault = lambda n: "after" if n == 2 else ""
    async with serving(agent, disk) as engine:
        alice = User(engine)
        watcher = await alice.stream("go")
        await watcher.until_seq(2)
        gate.open()
        await watcher.rest()
        (task,) = (await alice.list(include_artifacts=True)).tasks
    assert (chunks_of(task), task.status.state) == (["there"], S.COMPLETED)
    assert watcher.seqs == [1, 2, 4]
    assert watcher.entries[2].event == task  # a snapshot, with what was never published


async def test_a_write_that_came_through_after_all_is_not_written_twice() -> None:
    disk, gate, end = FakeDisk(), Gate(), Gate()
    agent = ScriptedAgent(default=(gate, chunk("there"), end, COMPLETED))
    disk.fault = lambda n: "after" if n == 2 else ""
    async with serving(agent, disk) as engine:
        alice = User(engine)
        watcher = await alice.stream("go")
        await watcher.until_seq(2)
        gate.open()
        await end.reached()
        await settle()
        end.open()
        await watcher.rest()
        (task,) = (await alice.list(include_artifacts=True)).tasks
    assert chunks_of(task) == ["there"]
    assert watcher.states[-1] is task.status.state


async def test_an_end_that_came_through_after_all_stands() -> None:
    disk = FakeDisk()
    disk.fault = lambda n: "after" if n == 2 else ""
    async with serving(ScriptedAgent(), disk) as engine:
        alice = User(engine)
        watcher = await alice.stream("go")
        await watcher.rest()
        (task,) = (await alice.list()).tasks
    assert (task.status.state, watcher.states[-1]) == (S.COMPLETED, S.COMPLETED)


async def test_a_message_that_cannot_be_stored_leaves_its_task_waiting() -> None:
    disk = FakeDisk()
    agent = ScriptedAgent({"ask": (ASKS,)})
    async with serving(agent, disk) as engine:
        alice = User(engine)
        task = await alice.send("ask")
        broken = disk.writes + 1
        disk.fault = lambda n: "before" if n == broken else ""
        with pytest.raises(StoreUnavailableError):
            await alice.send("answer", task_id=task.id)
        watcher = await alice.subscribe(task)
        assert words(await alice.get(task)) == ["ask"]
        done = await alice.send("answer", task_id=task.id)
        assert (await watcher.rest()).states == [S.INPUT_REQUIRED, S.WORKING, S.COMPLETED]
    assert (done.status.state, words(done)) == (S.COMPLETED, ["ask", "What next?", "answer"])
    assert len(agent.calls) == 2


async def test_a_message_that_cannot_be_stored_while_others_watch_is_not_seen_by_them() -> None:
    disk = FakeDisk()
    async with serving(ScriptedAgent({"ask": (ASKS,)}), disk) as engine:
        alice = User(engine)
        task = await alice.send("ask")
        watcher = await alice.subscribe(task)
        broken = disk.writes + 1
        disk.fault = lambda n: "before" if n == broken else ""
        with pytest.raises(StoreUnavailableError):
            await alice.send("answer", task_id=task.id)
        late = await alice.subscribe(task)  # the live task is there, and in disorder
        assert words(await alice.get(task)) == ["ask"]
        await alice.send("answer", task_id=task.id)
        for each in (watcher, late):
            assert (await each.rest()).states == [S.INPUT_REQUIRED, S.WORKING, S.COMPLETED]


async def test_a_task_that_was_removed_under_its_run_ends_without_it(caplog: pytest.LogCaptureFixture) -> None:
    disk, gate = FakeDisk(), Gate()
    async with serving(ScriptedAgent(default=(gate, COMPLETED)), disk) as engine:
        alice = User(engine)
        sending = asyncio.create_task(alice.send("go"))
        await gate.reached()
        await settle()
        (task,) = (await alice.list()).tasks
        watcher = await alice.subscribe(task)
        await disk.remove(task.id, "test|alice")
        gate.open()
        with pytest.raises(StoreUnavailableError):
            await sending
        assert (await watcher.rest()).states == [S.WORKING]  # no end that is not stored
        await until(lambda: engine.live_tasks == 0)
        with pytest.raises(TaskNotFoundError):
            await alice.get(task)
    assert "task is gone or taken over" in [record.message for record in caplog.records]


async def test_a_task_that_another_process_has_taken_over_is_not_written_any_more() -> None:
    disk, gate = FakeDisk(), Gate()
    async with serving(ScriptedAgent(default=(chunk("mine"), gate, COMPLETED)), disk) as engine:
        alice = User(engine)
        sending = asyncio.create_task(alice.send("go"))
        await gate.reached()
        await settle()
        (task,) = (await alice.list()).tasks
        disk.rows[task.id].epoch += 1
        events = list(disk.rows[task.id].events)
        gate.open()
        with pytest.raises(StoreUnavailableError):
            await sending
    assert disk.rows[task.id].events == events


async def test_a_sender_is_not_answered_before_the_rest_is_stored_however_short_it_is() -> None:
    disk, gate = FakeDisk(), Gate()
    script = (gate, status(S.AUTH_REQUIRED, "Log in"), status(S.WORKING), Gate())
    async with serving(ScriptedAgent(default=script), disk) as engine:
        sending = asyncio.create_task(User(engine).send("go"))
        await gate.reached()
        disk.hold()
        gate.open()
        await until(lambda: disk.waiting == 1)
        await settle()
        assert not sending.done()
        disk.let_go()
        assert words(await sending) == ["go", "Log in"]


async def test_statuses_that_say_nothing_new_are_not_stored() -> None:
    disk = FakeDisk()
    script = (status(S.WORKING), status(S.WORKING), status(S.WORKING, "halfway"), COMPLETED)
    async with serving(ScriptedAgent(default=script), disk) as engine:
        task = await User(engine).send("go")
    assert len(disk.rows[task.id].events) == 4  # the task, WORKING, what was said, COMPLETED
    assert words(task) == ["go", "halfway"]
