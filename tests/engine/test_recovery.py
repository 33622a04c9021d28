"""What a dead process left: run again where the agent allows it, at most three times in all; else ended as lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from apcore_a2a.agent import Remember
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.event_log import READ_AT_ONCE
from apcore_a2a.engine.stored_run import MAX_ATTEMPTS
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import Task, TaskState
from tests.engine.driving import (
    QUICK,
    Ledger,
    User,
    chunks_of,
    metadata_of,
    serving,
    settle,
    soon,
    text_of,
    until,
    words,
)
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk, status
from tests.requirements import requirement

S = TaskState


@asynccontextmanager
async def dying(agent: ScriptedAgent, disk: FakeDisk) -> AsyncIterator[tuple[Engine, list[FakeDisk]]]:
    """An engine whose process dies at the end of the block; the list then has the disk it leaves behind."""
    left: list[FakeDisk] = []
    async with serving(agent, disk, timing=QUICK) as engine:
        yield engine, left
        await settle()
        left.append(disk.reopen())  # from here on, nothing that it writes is kept


@requirement("FR-CTX-004")
async def test_what_may_not_be_repeated_has_lost_its_worker() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("half"), gate, COMPLETED), "ask": (ASKS,)})
    async with dying(agent, FakeDisk()) as (engine, left):
        alice = User(engine)
        running, parked, done = await alice.start("slow"), await alice.send("ask"), await alice.send("go")
        await gate.reached()
    ledger = Ledger()
    async with serving(agent, left[0], observer=ledger) as engine:
        alice = User(engine)
        assert (engine.active_tasks, engine.live_tasks) == (0, 0)
        assert ledger.lost == [running.id]
        lost = await alice.get(running)
        assert (lost.status.state, chunks_of(lost)) == (S.FAILED, ["half"])
        assert text_of(lost) == "Worker lost: the process running this task ended"
        assert metadata_of(lost) == {"type": "WorkerLostError", "code": -32603}
        assert await alice.get(done) == done
        assert await alice.get(parked) == parked
        answered = await alice.send("answer", task_id=parked.id)
        assert (answered.status.state, words(answered)) == (S.COMPLETED, ["ask", "What next?", "answer"])
    assert len(agent.calls) == 4  # the lost one was not run again


async def test_what_became_of_each_task_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("half"), gate, COMPLETED)})
    async with dying(agent, FakeDisk()) as (engine, left):
        running = await User(engine).start("slow")
        await gate.reached()
    caplog.set_level("INFO", "apcore_a2a")
    async with serving(agent, left[0]):
        said = [vars(record) for record in caplog.records if record.getMessage() == "task recovered"]
    assert [(line["task_id"], line["outcome"]) for line in said] == [(running.id, "failed: its worker is lost")]


async def test_a_task_that_was_only_just_stored_is_not_forgotten() -> None:
    disk, agent = FakeDisk(), ScriptedAgent()
    disk.hold()
    async with dying(agent, disk) as (engine, left):
        sending = asyncio.create_task(User(engine).stream("go"))
        await until(lambda: disk.waiting == 1)
        disk.commit()
        await settle()
        (await sending).stream.close()
    assert [row.state for row in left[0].rows.values()] == [S.WORKING]
    async with serving(agent, left[0]) as engine:
        (task,) = (await User(engine).list()).tasks
        assert "Worker lost" in text_of(task)


async def test_what_may_be_repeated_is_run_again_with_all_that_was_known() -> None:
    gate = Gate()
    agent = ScriptedAgent(
        {
            "ask": (Remember({"step": 1}), ASKS),
            "answer": (Remember({"step": 2}), chunk("half", append=True), gate, chunk("more", append=True), COMPLETED),
        },
        retry_safe=True,
    )
    async with dying(agent, FakeDisk()) as (engine, left):
        alice = User(engine)
        earlier = await alice.send("go")
        asked = await alice.send("ask", context_id=earlier.context_id)
        await alice.start("answer", task_id=asked.id, reference_task_ids=(earlier.id,))
        await gate.reached()
    gate.open()
    async with serving(agent, left[0]) as engine:
        await until(lambda: engine.live_tasks == 0)
        done = await User(engine).get(asked)
        assert (done.status.state, chunks_of(done)) == (S.COMPLETED, ["halfmore"])  # nothing of it twice
        assert words(done) == ["ask", "What next?", "answer"]
    first, again = agent.calls[2:]
    assert (first.message.message_id, first.caller) == (again.message.message_id, again.caller)
    assert (first.resumed, again.resumed, first.memo, again.memo) == (True, True, {"step": 1}, {"step": 1})
    assert first.history == again.history
    assert [task.id for task in again.references] == [earlier.id]


async def test_a_rerun_keeps_what_earlier_turns_produced_and_drops_what_it_interrupts() -> None:
    gate = Gate()
    agent = ScriptedAgent(
        {
            "ask": (chunk("a"), chunk("kept", artifact_id="other"), ASKS),
            "answer": (
                chunk("b", append=True),
                chunk("changed", artifact_id="other"),
                chunk("new", artifact_id="third"),
                status(S.WORKING, "halfway"),
                status(S.WORKING, "nearly"),
                gate,
                COMPLETED,
            ),
        },
        retry_safe=True,
    )
    async with dying(agent, FakeDisk()) as (engine, left):
        alice = User(engine)
        asked = await alice.send("ask")
        await alice.start("answer", task_id=asked.id)
        await gate.reached()
    (row,) = left[0].rows.values()
    async with serving(agent, left[0]) as engine:
        await until(lambda: len(agent.calls) == 3)
        again = agent.calls[2].task
        gate.open()
        await until(lambda: engine.live_tasks == 0)
        done = await User(engine).get(asked)
    assert chunks_of(again) == ["a", "kept"]
    assert words(again) == ["ask", "What next?", "answer"]
    assert chunks_of(done) == ["ab", "changed", "new"]
    assert words(done) == ["ask", "What next?", "answer", "halfway", "nearly"]
    first, second = agent.calls[1:]
    assert second.history == first.history
    assert second.waited_in is first.waited_in is S.INPUT_REQUIRED
    assert row.state is S.COMPLETED


async def test_a_rerun_drops_no_earlier_turn_if_the_store_has_no_events() -> None:
    class Documents(FakeDisk):
        """A store that keeps the task, and not its events."""

        async def events(self, *_: object, **__: object) -> None:
            return None

    gate = Gate()
    agent = ScriptedAgent(
        {"ask": (chunk("a"), ASKS), "answer": (chunk("b", artifact_id="two"), gate, COMPLETED)}, retry_safe=True
    )
    async with dying(agent, FakeDisk()) as (engine, left):
        alice = User(engine)
        asked = await alice.send("ask")
        await alice.start("answer", task_id=asked.id)
        await gate.reached()
    gate.open()
    async with serving(agent, Documents(left[0].rows)) as engine:
        await until(lambda: engine.live_tasks == 0)
        assert chunks_of(await User(engine).get(asked)) == ["a", "b"]


async def test_a_subscriber_finds_the_task_again_where_it_was() -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(chunk("a", append=True), gate, COMPLETED), retry_safe=True)
    async with dying(agent, FakeDisk()) as (engine, left):
        watcher = await User(engine).stream("go")
        await watcher.until_seq(3)
        watcher.stream.close()
    async with serving(agent, left[0]) as engine:
        back = await User(engine).subscribe(watcher.task)
        gate.open()
        await back.rest()
        assert back.seqs == [3, 4, 5, 6]  # the old task; its second start; the chunk again; the end
        assert [chunks_of(item.event) for item in back.entries if isinstance(item.event, Task)] == [["a"], []]
        assert chunks_of(await User(engine).get(watcher.task)) == ["a"]


async def test_a_task_that_takes_its_process_with_it_is_tried_three_times_in_all() -> None:
    agent, disk = ScriptedAgent(default=(Gate(), COMPLETED), retry_safe=True), FakeDisk()
    for _ in range(MAX_ATTEMPTS):
        async with dying(agent, disk) as (engine, left):
            if not disk.rows:
                await User(engine).start("go")
            await until(lambda: engine.active_tasks == 1)
            await until(lambda: bool(agent.calls))
            agent.calls.clear()
        (disk,) = left
    async with serving(agent, disk) as engine:
        (task,) = (await User(engine).list()).tasks
        assert "Worker lost" in text_of(task)
    assert (MAX_ATTEMPTS, agent.calls) == (3, [])


async def test_an_attempt_counts_before_the_agent_runs() -> None:
    """Else a task that kills its process at once would do so for ever."""
    agent, disk = ScriptedAgent(default=(Gate(), COMPLETED), retry_safe=True), FakeDisk()
    async with dying(agent, disk) as (engine, left):
        await User(engine).start("go")
    (disk,) = left
    agent.calls.clear()
    disk.hold()
    async with dying(agent, disk) as (engine, left):
        await until(lambda: disk.waiting == 1)
        await settle()
        assert agent.calls == []
        disk.commit()
        await until(lambda: len(agent.calls) == 1)
        ((row),) = disk.rows.values()
        assert b'"attempt":2' in row.run


async def test_a_run_that_another_version_wrote_is_ended_rather_than_guessed() -> None:
    agent = ScriptedAgent(default=(Gate(), COMPLETED), retry_safe=True)
    async with dying(agent, FakeDisk()) as (engine, left):
        task = await User(engine).start("go")
    left[0].rows[task.id].run = b'{"request":"in a form we do not know"}'
    async with serving(agent, left[0]) as engine:
        assert "Worker lost" in text_of(await User(engine).get(task))


async def test_a_store_that_cannot_write_lets_no_engine_recover() -> None:
    agent = ScriptedAgent(default=(Gate(), COMPLETED))
    async with dying(agent, FakeDisk()) as (engine, left):
        await User(engine).start("go")
    left[0].fault = lambda n: "before"
    with pytest.raises(StoreUnavailableError):
        await soon(Engine(agent, left[0]).recover())


async def test_a_task_that_waits_for_a_login_without_its_agent_waits_on() -> None:
    agent = ScriptedAgent({"login": (status(S.AUTH_REQUIRED),)}, retry_safe=True)
    async with dying(agent, FakeDisk()) as (engine, left):
        task = await User(engine).send("login")
    async with serving(agent, left[0]) as engine:
        alice = User(engine)
        assert (await alice.get(task)).status.state is S.AUTH_REQUIRED
        assert (await alice.send("done", task_id=task.id)).status.state is S.COMPLETED
    assert [call.message.parts[0].text for call in agent.calls] == ["login", "done"]


@pytest.mark.parametrize("safe", [False, True])
async def test_a_task_whose_agent_waited_for_the_login_is_not_left_waiting(safe: bool) -> None:
    gate = Gate()
    agent = ScriptedAgent(default=(status(S.AUTH_REQUIRED), gate, COMPLETED), retry_safe=safe)
    async with dying(agent, FakeDisk()) as (engine, left):
        task = await User(engine).send("login")
    gate.open()
    async with serving(agent, left[0]) as engine:
        await until(lambda: engine.live_tasks == 0)
        found = await User(engine).get(task)
        assert found.status.state is (S.COMPLETED if safe else S.FAILED)
    assert len(agent.calls) == (2 if safe else 1)


async def test_that_a_task_waits_without_its_agent_is_stored_when_the_store_is_back() -> None:
    disk = FakeDisk()
    disk.fault = lambda n: "before" if 2 <= n <= 5 else ""  # the first write is the task with all events of its agent
    agent = ScriptedAgent(default=(status(S.AUTH_REQUIRED),), retry_safe=True)
    async with dying(agent, disk) as (engine, left):
        await User(engine).send("login")
        await until(lambda: engine.live_tasks == 0)
    assert disk.writes == 6
    ((_, row),) = left[0].rows.items()
    assert (row.state, row.run) == (S.AUTH_REQUIRED, b"")


async def test_a_rerun_keeps_an_earlier_turn_of_more_events_than_one_read_returns() -> None:
    gate = Gate()
    pieces = [chunk("a", append=number > 0) for number in range(READ_AT_ONCE + 50)]
    agent = ScriptedAgent(
        {"ask": (*pieces, ASKS), "answer": (chunk("b", artifact_id="two"), gate, COMPLETED)}, retry_safe=True
    )
    async with dying(agent, FakeDisk()) as (engine, left):
        alice = User(engine)
        asked = await alice.send("ask")
        await alice.start("answer", task_id=asked.id)
        await gate.reached()
    gate.open()
    async with serving(agent, left[0]) as engine:
        await until(lambda: engine.live_tasks == 0)
        assert chunks_of(await User(engine).get(asked)) == ["a" * len(pieces), "b"]
