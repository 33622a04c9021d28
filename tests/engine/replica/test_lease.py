"""One replica and its lease: what it does while the store does not renew it, and after it was declared dead."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from msgspec.structs import replace

from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.replica.lease import LeaseKeeper
from apcore_a2a.engine.replica.replica import Repeater
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from tests.engine.driving import User, serving, settle, soon, until
from tests.engine.shared_disk import MANUAL, NO_PAUSES, SharedDisk
from tests.fakes import COMPLETED, Gate, ScriptedAgent

S = TaskState
SLOW = "slow"  # the message of the tasks that `SharedDisk.put` stores


@pytest.fixture
def disk() -> SharedDisk:
    return SharedDisk()


def serve(agent: ScriptedAgent, disk: SharedDisk, **timing: Any) -> AbstractAsyncContextManager[Engine]:
    """A replica without pauses, whose lease is renewed when the test says so. Any: other times of the replica."""
    return serving(agent, disk, timing=NO_PAUSES, replica=replace(MANUAL, **timing))


def keeper_of(engine: Engine) -> LeaseKeeper:
    assert engine.replica is not None
    return engine.replica.lease_keeper


def stopped(caplog: pytest.LogCaptureFixture) -> list[object]:
    """The tasks whose runs were stopped because the lease was not renewed, by the log."""
    lines = [vars(record) for record in caplog.records]
    return [line["task_id"] for line in lines if line["msg"] == "lease not renewed: run stopped"]


# ---- renewal -------------------------------------------------------------------------------------------------------


async def test_a_store_that_is_away_for_a_moment_stops_no_run(disk: SharedDisk) -> None:
    gate = Gate()
    async with serve(ScriptedAgent({SLOW: (gate, COMPLETED)}), disk) as engine:
        alice = User(engine)
        task = await alice.start(SLOW)
        await gate.reached()
        await disk.replicas.renews(StoreUnavailableError())
        await settle()
        assert engine.active_tasks == 1
        gate.open()
        await until(lambda: disk.rows[task.id].state is S.COMPLETED)
        await disk.replicas.renews()  # it has tried again


async def test_runs_are_stopped_while_a_renewal_waits_for_a_store_that_does_not_answer(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with serve(ScriptedAgent({SLOW: (gate, COMPLETED)}), disk) as engine:
        task = await User(engine).start(SLOW)
        await gate.reached()
        keeper_of(engine).renewed(time.monotonic() - disk.replicas.lease.seconds * 0.6)
        await settle()
        assert stopped(caplog) == []
        keeper_of(engine).renewed(time.monotonic() - disk.replicas.lease.seconds * 0.7)
        await until(lambda: stopped(caplog) == [task.id])
        await until(lambda: engine.active_tasks == 0)
        assert not gate.is_open


async def test_a_run_that_begins_after_the_others_were_stopped_is_stopped_by_the_next_failed_renewal(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate, other = Gate(), Gate()
    agent = ScriptedAgent({SLOW: (gate, COMPLETED), "late": (other, COMPLETED)})
    async with serve(agent, disk) as engine:
        first = await User(engine).start(SLOW)
        await gate.reached()
        keeper_of(engine).renewed(time.monotonic() - disk.replicas.lease.seconds * 0.7)
        await until(lambda: stopped(caplog) == [first.id])
        late = await User(engine).start("late")
        await other.reached()
        await disk.replicas.renews(StoreUnavailableError())
        assert stopped(caplog) == [first.id, late.id]
        await until(lambda: engine.active_tasks == 0)


async def test_a_suspended_process_renews_its_lease_before_it_stops_its_runs(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with serve(ScriptedAgent({SLOW: (gate, COMPLETED)}), disk, suspended=0.2) as engine:
        await User(engine).start(SLOW)
        await gate.reached()
        keeper_of(engine).expire(late_by=1)  # as by a timer that fires too late
        await disk.replicas.renews()
        await asyncio.sleep(0.3)  # the time after which the run would have been stopped
        assert (engine.active_tasks, stopped(caplog)) == (1, [])
        gate.open()
        await until(lambda: engine.active_tasks == 0)


async def test_a_suspended_process_that_cannot_renew_its_lease_stops_its_runs(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with serve(ScriptedAgent({SLOW: (gate, COMPLETED)}), disk, suspended=0.01) as engine:
        task = await User(engine).start(SLOW)
        await gate.reached()
        keeper_of(engine).expire(late_by=1)
        assert stopped(caplog) == []
        await until(lambda: stopped(caplog) == [task.id])
        await until(lambda: engine.active_tasks == 0)


@pytest.mark.parametrize("longest_hold", [1e9, 0], ids=["held", "not held"])
async def test_a_store_that_says_that_it_is_down_stops_no_run_for_a_limited_time(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture, longest_hold: float
) -> None:
    gate = Gate()
    agent = ScriptedAgent({SLOW: (gate, COMPLETED)})
    async with serve(agent, disk, renewals=1, longest_hold=longest_hold) as engine:  # held for ten minutes
        task = await User(engine).start(SLOW)
        await gate.reached()
        disk.replicas.down_at = time.monotonic()
        keeper_of(engine).renewed(time.monotonic() - disk.replicas.lease.seconds)
        await disk.replicas.renews(StoreUnavailableError())
        keeper_of(engine).expire(late_by=0)
        assert stopped(caplog) == ([] if longest_hold else [task.id])
        gate.open()
        await until(lambda: engine.active_tasks == 0)


async def test_a_bug_in_a_renewal_is_logged_and_the_lease_is_renewed_again(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(ScriptedAgent(), disk):
        await disk.replicas.renews(RuntimeError("a bug"))
        assert [record.getMessage() for record in caplog.records] == ["a step of the replica failed"]
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        await disk.replicas.renews()
        await until(lambda: disk.rows["left"].state is S.FAILED)


async def test_a_replica_that_lost_its_lease_joins_under_a_new_name_and_stops_each_run_once(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate, deaf = Gate(), Gate(deaf=True)
    agent = ScriptedAgent({SLOW: (gate, COMPLETED), "deaf": (deaf,)})
    async with serve(agent, disk) as engine:
        alice = User(engine)
        slow = await alice.start(SLOW)
        canceled = await alice.start("deaf")
        await deaf.reached()
        canceling = asyncio.create_task(alice.cancel(canceled))
        await settle()  # its run is being stopped already
        await disk.replicas.renews(False)
        assert disk.replicas.name == "here-2"
        assert stopped(caplog) == [slow.id]
        deaf.open()
        assert (await canceling).status.state is S.CANCELED
        await until(lambda: engine.active_tasks == 0)


# ---- leases of others ----------------------------------------------------------------------------------------------


async def test_a_replica_whose_renewal_failed_claims_orphans_one_renewal_later(disk: SharedDisk) -> None:
    async with serve(ScriptedAgent(), disk):
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        await disk.replicas.renews(StoreUnavailableError())
        await disk.replicas.renews()
        assert disk.runners["left"] == "dead"  # live replicas may not have renewed their leases yet
        await disk.replicas.renews()
        await until(lambda: disk.rows["left"].state is S.FAILED)


async def test_no_orphans_are_claimed_while_all_leases_are_valid(disk: SharedDisk) -> None:
    async with serve(ScriptedAgent(), disk):
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        disk.replicas.next_end = 0.01
        await disk.replicas.renews()
        await disk.replicas.renews()
        assert disk.runners["left"] == "dead"


async def test_more_orphans_than_one_claim_takes_are_claimed_after_one_renewal(disk: SharedDisk) -> None:
    async def another_dies() -> None:
        disk.put("more", "dead")

    async with serve(ScriptedAgent(), disk, claim_batch=1):
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        disk.replicas.meanwhile["claim_orphans"] = another_dies
        await disk.replicas.renews()
        await until(lambda: {row.state for row in disk.rows.values()} == {S.FAILED})


async def test_the_lease_is_renewed_while_a_claim_of_orphans_waits_for_the_store(disk: SharedDisk) -> None:
    answer = Gate()
    async with serve(ScriptedAgent(), disk):
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        disk.replicas.meanwhile["claim_orphans"] = answer.wait
        await disk.replicas.renews()
        await answer.reached()
        await disk.replicas.renews()
        await disk.replicas.renews()
        assert disk.rows["left"].state is S.WORKING
        answer.open()
        await until(lambda: disk.rows["left"].state is S.FAILED)


# ---- closing -------------------------------------------------------------------------------------------------------


async def test_a_closed_repeater_repeats_no_step_though_the_step_swallows_the_cancellation() -> None:
    entered = asyncio.Event()
    repeater = Repeater(retry=0)
    steps: list[str] = []

    async def swallow() -> float:
        steps.append("one")
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 0  # as asyncio.wait_for of Python 3.11 may
        raise AssertionError("not reached")

    repeater.start(swallow, name="swallow")
    await entered.wait()
    await repeater.close()
    await settle()
    assert steps == ["one"]


async def test_a_repeater_that_a_step_closes_repeats_no_step() -> None:
    repeater = Repeater(retry=0)
    steps: list[str] = []

    async def step() -> float:
        steps.append("one")
        await repeater.close()
        return 3600

    await soon(repeater.repeat(step))  # it does not pause either
    assert steps == ["one"]
