"""One replica when things go wrong: its lease, answers of the store that get lost, commands that cannot be obeyed."""

import asyncio
import logging
import time

import pytest

from apcore_a2a.engine import cluster, run
from apcore_a2a.engine.errands import Errand
from apcore_a2a.errors import StoreUnavailableError, TaskNotFoundError, UnsupportedOperationError
from apcore_a2a.protocol.model import TaskState, encode
from tests.engine.driving import ALICE, User, chunks_of, request, serving, settle, text_of, until
from tests.engine.shared_disk import SharedDisk, lose_the_answer
from tests.fakes import COMPLETED, Gate, ScriptedAgent, chunk

S = TaskState
SLOW = "slow"  # what the tasks that the disk begins with were told


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test says when there is a beat, not the clock."""
    monkeypatch.setattr(run, "SAVE_RETRIES", (0,))
    monkeypatch.setattr(cluster, "BEATS", 1e9)
    monkeypatch.setattr(cluster, "RETRY", 0)
    monkeypatch.setattr(cluster, "CANCEL_GRACE", 0)


@pytest.fixture
def disk() -> SharedDisk:
    return SharedDisk()


def stopped(caplog: pytest.LogCaptureFixture) -> list[object]:
    """The tasks whose runs were stopped for want of a lease, by the log."""
    said = [vars(record) for record in caplog.records]
    return [line["task_id"] for line in said if line["msg"] == "lease not renewed: run stopped"]


# ---- the lease -----------------------------------------------------------------------------------------------------


async def test_a_store_that_is_away_for_a_moment_stops_no_run(disk: SharedDisk) -> None:
    gate = Gate()
    async with serving(ScriptedAgent({SLOW: (gate, COMPLETED)}), disk) as engine:
        alice = User(engine)
        task = await alice.start(SLOW)
        await gate.reached()
        await disk.replicas.beats(StoreUnavailableError())
        await settle()
        assert engine.active_tasks == 1
        gate.open()
        await until(lambda: disk.rows[task.id].state is S.COMPLETED)
        await disk.replicas.beats()  # it has gone on asking


async def test_runs_are_stopped_before_the_lease_is_over_that_the_store_does_not_renew(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    agent = ScriptedAgent({SLOW: (gate, COMPLETED)})
    async with serving(agent, disk) as engine:
        task = await User(engine).start(SLOW)
        await gate.reached()
        assert engine._followers is not None
        lease = disk.replicas.lease
        engine._followers.renewed(time.monotonic() - lease * 0.6)
        await disk.replicas.beats(StoreUnavailableError())
        assert stopped(caplog) == []
        engine._followers.renewed(time.monotonic() - lease * 0.7)
        await disk.replicas.beats(StoreUnavailableError())
        assert stopped(caplog) == [task.id]
        await until(lambda: engine.active_tasks == 0)
        assert not gate.is_open


async def test_a_bug_in_a_beat_is_logged_and_the_replica_lives_on(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ScriptedAgent(), disk):
        await disk.replicas.beats(RuntimeError("a bug"))
        assert [record.getMessage() for record in caplog.records] == ["a step of the replica failed"]
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        await disk.replicas.beats()
        await until(lambda: disk.rows["left"].state is S.FAILED)


async def test_a_replica_that_lost_its_lease_has_a_new_name_and_stops_each_run_once(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate, deaf = Gate(), Gate(deaf=True)
    agent = ScriptedAgent({SLOW: (gate, COMPLETED), "deaf": (deaf,)})
    async with serving(agent, disk) as engine:
        alice = User(engine)
        slow = await alice.start(SLOW)
        canceled = await alice.start("deaf")
        await deaf.reached()
        canceling = asyncio.create_task(alice.cancel(canceled))
        await settle()  # its run is being stopped already
        await disk.replicas.beats(False)
        assert disk.replicas.name == "here-2"
        assert stopped(caplog) == [slow.id]
        deaf.open()
        assert (await canceling).status.state is S.CANCELED
        await until(lambda: engine.active_tasks == 0)


# ---- taking over ---------------------------------------------------------------------------------------------------


async def test_what_dead_replicas_left_behind_is_tidied_up_every_twelfth_beat(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk):
        for _ in range(cluster.TIDY_EVERY - 1):
            await disk.replicas.beats()
        assert disk.replicas.tidied == 0
        await disk.replicas.beats()
        assert disk.replicas.tidied == 1


async def test_a_replica_that_shuts_down_takes_over_nothing(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        engine.begin_drain()
        await disk.replicas.beats()
        assert disk.runners["left"] == "dead"


@pytest.mark.parametrize("method", ["claim_dead", "claim_queued"])
async def test_a_task_that_was_claimed_by_an_answer_that_got_lost_is_run_all_the_same(
    disk: SharedDisk, method: str
) -> None:
    agent = ScriptedAgent(default=(chunk("whole"), COMPLETED))
    async with serving(agent, disk):
        disk.put("left", "" if method == "claim_queued" else "dead", retry_safe=True)
        disk.replicas.dead.add("dead")
        disk.replicas.meanwhile[method] = lose_the_answer
        if method == "claim_queued":
            await disk.replicas.hears()
        else:
            await disk.replicas.beats()
        assert disk.runners["left"] == disk.replicas.name
        assert agent.calls == []
        await disk.replicas.beats()
        await until(lambda: disk.rows["left"].state is S.COMPLETED)
    assert len(agent.calls) == 1


async def test_of_its_own_tasks_a_replica_claims_again_those_that_nobody_here_knows_of(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, cluster.__name__)
    gate = Gate()
    agent = ScriptedAgent({SLOW: (gate, COMPLETED)}, retry_safe=True)
    async with serving(agent, disk) as engine:
        alice = User(engine)
        runs = await alice.start(SLOW)
        await gate.reached()
        for task_id in ("gone", "taken", "left"):
            disk.put(task_id, "dead", retry_safe=True)
        disk.replicas.dead.add("dead")
        disk.replicas.meanwhile["claim_dead"] = lose_the_answer
        await disk.replicas.beats()

        async def others_do_something() -> None:
            del disk.rows["gone"]
            disk.write(taken, COMPLETED)

        taken = disk.rows["taken"].task()
        disk.replicas.meanwhile["own_tasks"] = others_do_something
        await disk.replicas.beats()
        await until(lambda: len(agent.calls) == 2)
        assert {call.task.id for call in agent.calls} == {runs.id, "left"}
        said = [vars(record) for record in caplog.records]
        assert [line["task_id"] for line in said if line["msg"] == "task taken over"] == ["left"]
        assert (disk.rows[runs.id].epoch, disk.rows["left"].epoch) == (1, 3)
        disk.replicas.meanwhile["own_tasks"] = others_do_something
        await disk.replicas.beats()
        assert disk.replicas.meanwhile  # nobody asked: what was lost is found
        gate.open()
        await until(lambda: {row.state for row in disk.rows.values()} == {S.COMPLETED})


async def test_a_task_that_somebody_else_claims_meanwhile_is_left_to_them(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ScriptedAgent(), disk):
        task = disk.put("left", "dead")
        disk.replicas.dead.add("dead")

        async def another_claims() -> None:
            disk.claim(task.id, "other")

        disk.replicas.meanwhile["claim_dead"] = another_claims
        caplog.set_level(logging.INFO, cluster.__name__)
        await disk.replicas.beats()
        await until(lambda: disk.writes == 1)
        await settle()
        assert [record.getMessage() for record in caplog.records] == ["task taken over"]
        assert (disk.writes, disk.rows[task.id].state, disk.runners[task.id]) == (1, S.WORKING, "other")


async def test_a_task_is_taken_over_when_the_store_can_write_again(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        task = disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        disk.fault = lambda number: "before" if number <= 2 else ""
        await disk.replicas.beats()
        await until(lambda: disk.writes == 2)
        await asyncio.gather(*(later for later in asyncio.all_tasks() if later.get_name() == "task taken over"))
        assert text_of(await User(engine).get(task)).startswith("Worker lost")
        said = [record.getMessage() for record in caplog.records]
        assert said == ["task not taken over yet"] * 2


async def test_a_replica_that_claims_its_own_task_back_lets_its_first_run_end_before_the_next(
    disk: SharedDisk,
) -> None:
    gate = Gate(deaf=True)
    agent = ScriptedAgent({SLOW: (chunk("half"), gate, chunk("whole"), COMPLETED)}, retry_safe=True)
    async with serving(agent, disk) as engine:
        alice = User(engine)
        task = await alice.start(SLOW)
        await gate.reached()
        await disk.replicas.beats(False)
        await disk.replicas.beats()  # under its new name it finds the task of a dead replica: itself
        assert disk.runners[task.id] == "here-2"
        await settle()
        assert len(agent.calls) == 1
        gate.open()
        await until(lambda: disk.rows[task.id].state is S.COMPLETED)
        assert len(agent.calls) == 2
        assert chunks_of(await alice.get(task)) == ["whole"]


# ---- commands ------------------------------------------------------------------------------------------------------


async def test_a_command_that_cannot_be_obeyed_is_answered_with_the_reason(disk: SharedDisk) -> None:
    gate = Gate()
    agent = ScriptedAgent({SLOW: (gate, COMPLETED), "no": UnsupportedOperationError("Not that")})
    async with serving(agent, disk) as engine:
        task = await User(engine).start(SLOW)
        await gate.reached()
        asks = disk.replicas.asks
        assert await asks("elsewhere", encode(Errand(ALICE))) == "The task is no longer run here; try again"
        assert await asks(task.id, encode(Errand(ALICE, request("no", task_id=task.id)))) == "Not that"
        assert "do not understand each other" in await asks(task.id, b"[]")
        assert await asks(task.id, encode(Errand(ALICE))) == ""
        assert disk.rows[task.id].state is S.CANCELED


async def test_a_task_that_is_removed_while_it_is_canceled_is_not_found(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk) as engine:
        task = disk.put("queued", "")

        async def another_removes_it() -> None:
            del disk.rows[task.id]

        disk.replicas.meanwhile["follow"] = another_removes_it
        with pytest.raises(TaskNotFoundError):
            await User(engine).cancel(task)
