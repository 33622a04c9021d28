"""One replica and its lease: what it does while the store does not renew it, and when others take it for dead."""

import asyncio
import time

import pytest

from apcore_a2a.engine.context import Timing
from apcore_a2a.engine.replica import lease as lease_module
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from tests.engine.driving import User, serving, settle, until
from tests.engine.shared_disk import SharedDisk
from tests.fakes import COMPLETED, Gate, ScriptedAgent

S = TaskState
SLOW = "slow"  # what the tasks that the disk begins with were told


NO_PAUSES = Timing(save_retries=(0,), peer_cancel=0)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test says when there is a beat, not the clock."""
    monkeypatch.setattr(lease_module, "BEATS", 1e9)
    monkeypatch.setattr(lease_module, "RETRY", 0)


@pytest.fixture
def disk() -> SharedDisk:
    return SharedDisk()


def stopped(caplog: pytest.LogCaptureFixture) -> list[object]:
    """The tasks whose runs were stopped for want of a lease, by the log."""
    said = [vars(record) for record in caplog.records]
    return [line["task_id"] for line in said if line["msg"] == "lease not renewed: run stopped"]


async def test_a_store_that_is_away_for_a_moment_stops_no_run(disk: SharedDisk) -> None:
    gate = Gate()
    async with serving(ScriptedAgent({SLOW: (gate, COMPLETED)}), disk, timing=NO_PAUSES) as engine:
        alice = User(engine)
        task = await alice.start(SLOW)
        await gate.reached()
        await disk.replicas.renews(StoreUnavailableError())
        await settle()
        assert engine.active_tasks == 1
        gate.open()
        await until(lambda: disk.rows[task.id].state is S.COMPLETED)
        await disk.replicas.renews()  # it has gone on asking


async def test_runs_are_stopped_before_the_lease_is_over_that_the_store_does_not_renew(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    agent = ScriptedAgent({SLOW: (gate, COMPLETED)})
    async with serving(agent, disk, timing=NO_PAUSES) as engine:
        task = await User(engine).start(SLOW)
        await gate.reached()
        assert engine._cluster is not None
        lease = disk.replicas.lease.seconds
        engine._cluster._renewed(time.monotonic() - lease * 0.6)
        await disk.replicas.renews(StoreUnavailableError())
        assert stopped(caplog) == []
        engine._cluster._stop_time = time.monotonic()  # and nobody has woken up yet
        await disk.replicas.renews(StoreUnavailableError())
        assert stopped(caplog) == [task.id]
        await until(lambda: engine.active_tasks == 0)
        assert not gate.is_open


async def test_runs_are_stopped_while_a_beat_waits_for_a_store_that_says_nothing(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with serving(ScriptedAgent({SLOW: (gate, COMPLETED)}), disk, timing=NO_PAUSES) as engine:
        task = await User(engine).start(SLOW)
        await gate.reached()
        assert engine._cluster is not None
        engine._cluster._renewed(time.monotonic() - disk.replicas.lease.seconds * 0.7)  # and the beat is under way
        await until(lambda: stopped(caplog) == [task.id])
        await until(lambda: engine.active_tasks == 0)
        assert not gate.is_open


@pytest.mark.parametrize("is_renewed", [True, False], ids=["renewed", "not renewed"])
async def test_a_process_that_stood_still_asks_before_it_stops_its_runs(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_renewed: bool
) -> None:
    monkeypatch.setattr(lease_module, "STOOD_STILL", 0.2)
    gate = Gate()
    async with serving(ScriptedAgent({SLOW: (gate, COMPLETED)}), disk, timing=NO_PAUSES) as engine:
        task = await User(engine).start(SLOW)
        await gate.reached()
        assert engine._cluster is not None
        engine._cluster._lease_is_ending(asyncio.get_running_loop().time() - 1)  # as when a timer goes off too late
        if is_renewed:
            await disk.replicas.renews()
            await asyncio.sleep(0.3)  # the time in which it would have been stopped
            assert engine.active_tasks == 1
        else:
            await until(lambda: stopped(caplog) == [task.id])
        gate.open()
        await until(lambda: engine.active_tasks == 0)


async def test_a_store_that_says_that_it_is_down_stops_no_run_for_as_long_as_it_says_so(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "BEATS", 1)  # so the others would wait for ten minutes
    gate = Gate()
    async with serving(ScriptedAgent({SLOW: (gate, COMPLETED)}), disk, timing=NO_PAUSES) as engine:
        task = await User(engine).start(SLOW)
        await gate.reached()
        assert engine._cluster is not None
        engine._cluster._stop_time = time.monotonic()
        disk.replicas.down_at = time.monotonic()
        await disk.replicas.renews(StoreUnavailableError())
        engine._cluster._lease_is_ending(asyncio.get_running_loop().time())
        assert engine._cluster._stop_time > time.monotonic() + disk.replicas.lease.seconds / 2
        assert stopped(caplog) == []
        monkeypatch.setattr(lease_module, "LONGEST_HOLD", 0)
        engine._cluster._stop_time = time.monotonic()
        await disk.replicas.renews(StoreUnavailableError())
        assert stopped(caplog) == [task.id]
        await until(lambda: engine.active_tasks == 0)


async def test_whoever_was_away_takes_nobody_for_dead_before_they_could_say_that_they_live(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES):
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        await disk.replicas.renews(StoreUnavailableError())
        await disk.replicas.renews()
        assert disk.runners["left"] == "dead"
        await disk.replicas.renews()
        await until(lambda: disk.rows["left"].state is S.FAILED)


async def test_nobody_looks_for_the_dead_while_all_leases_hold(disk: SharedDisk) -> None:
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES):
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        disk.replicas.next_end = 0.01
        await disk.replicas.renews()
        await disk.replicas.renews()
        assert disk.runners["left"] == "dead"


async def test_more_than_is_claimed_at_once_is_claimed_soon(disk: SharedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "CLAIMED_AT_ONCE", 1)

    async def another_dies() -> None:
        disk.put("more", "dead")

    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES):
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        disk.replicas.meanwhile["claim_orphans"] = another_dies
        await disk.replicas.renews()  # and not one more
        await until(lambda: {row.state for row in disk.rows.values()} == {S.FAILED})


async def test_a_replica_beats_while_the_store_takes_its_time_to_hand_over_what_the_dead_have_left(
    disk: SharedDisk,
) -> None:
    answer = Gate()
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES):
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        disk.replicas.meanwhile["claim_orphans"] = answer.stand
        await disk.replicas.renews()
        await answer.reached()
        await disk.replicas.renews()
        await disk.replicas.renews()
        assert disk.rows["left"].state is S.WORKING
        answer.open()
        await until(lambda: disk.rows["left"].state is S.FAILED)


async def test_a_replica_that_is_closed_beats_no_more_though_a_cancellation_gets_lost(disk: SharedDisk) -> None:
    entered = asyncio.Event()

    async def swallow() -> float:
        if entered.is_set():
            raise asyncio.CancelledError  # it came back, though it was closed
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 0  # as asyncio.wait_for of Python 3.11 may
        raise AssertionError("not reached")

    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES) as engine:
        assert engine._cluster is not None
        beating = engine._cluster._background.start(engine._cluster._repeat(swallow), name="swallow")
        await entered.wait()
        await engine._cluster.close()
        assert beating.done() and not beating.cancelled()


async def test_a_replica_that_is_closed_in_the_middle_of_a_step_takes_no_other(disk: SharedDisk) -> None:
    steps: list[str] = []

    async def step() -> float:
        assert engine._cluster is not None
        steps.append("one")
        await engine._cluster.close()
        return 0

    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES) as engine:
        assert engine._cluster is not None
        await engine._cluster._repeat(step)
    assert steps == ["one"]


async def test_a_bug_in_a_beat_is_logged_and_the_replica_lives_on(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ScriptedAgent(), disk, timing=NO_PAUSES):
        await disk.replicas.renews(RuntimeError("a bug"))
        assert [record.getMessage() for record in caplog.records] == ["a step of the replica failed"]
        disk.put("left", "dead")
        disk.replicas.dead.add("dead")
        await disk.replicas.renews()
        await until(lambda: disk.rows["left"].state is S.FAILED)


async def test_a_replica_that_lost_its_lease_has_a_new_name_and_stops_each_run_once(
    disk: SharedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    gate, deaf = Gate(), Gate(deaf=True)
    agent = ScriptedAgent({SLOW: (gate, COMPLETED), "deaf": (deaf,)})
    async with serving(agent, disk, timing=NO_PAUSES) as engine:
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
