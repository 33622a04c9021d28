"""When a replica answers for a task from its memory: only while no other replica can have ended the task."""

import asyncio

from apcore_a2a.engine.context import ReplicaTiming, Timing
from apcore_a2a.engine.replica.lease import Authority
from apcore_a2a.engine.replica.requests import RequestBody
from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import ReplicaRequest
from tests.engine.driving import ALICE, User, serving, settle, until
from tests.engine.shared_disk import NOTHING, OWNER, SharedDisk
from tests.fakes import COMPLETED, Gate, ScriptedAgent, status

S = TaskState
TIMING = ReplicaTiming()


class FakeClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def __call__(self) -> float:
        return self.time


def test_it_holds_while_the_lease_is_valid() -> None:
    clock = FakeClock()
    lease = SharedDisk().replicas.lease
    authority = Authority(lease, TIMING, clock=clock)
    assert not authority.holds_for("t")  # nothing was renewed or read yet
    authority.lease_renewed(clock.time)
    clock.time += lease.seconds - 0.1
    authority.requests_read(clock.time, [])
    assert authority.holds_for("t")
    clock.time += 0.1
    assert not authority.holds_for("t")


def test_it_holds_while_the_requests_of_others_were_lately_read() -> None:
    clock = FakeClock()
    authority = Authority(SharedDisk().replicas.lease, TIMING, clock=clock)
    authority.lease_renewed(clock.time)
    authority.requests_read(clock.time, [])
    clock.time += TIMING.requests_valid - 0.1
    assert authority.holds_for("t")
    clock.time += 0.1
    assert not authority.holds_for("t")


def test_it_does_not_hold_for_a_task_with_an_unfinished_request() -> None:
    clock = FakeClock()
    authority = Authority(SharedDisk().replicas.lease, TIMING, clock=clock)
    authority.lease_renewed(clock.time)
    authority.requests_read(clock.time, ["t", "t"])
    authority.request_finished("t")
    assert not authority.holds_for("t")  # the other request is unfinished
    assert authority.holds_for("u")
    authority.request_finished("t")
    assert authority.holds_for("t")


async def test_a_task_is_shown_as_in_memory_while_it_runs_and_as_in_the_store_while_its_run_is_being_stopped() -> None:
    deaf = Gate(deaf=True)
    disk = SharedDisk()
    async with serving(ScriptedAgent({"deaf": (deaf,)}), disk) as engine:
        alice = User(engine)
        task = await alice.start("deaf")
        await deaf.reached()
        disk.claim(task.id, "other")
        disk.write(task, status(S.FAILED))
        assert (await alice.get(task)).status.state is S.WORKING
        canceling = asyncio.create_task(alice.cancel(task))
        await settle()
        assert (await alice.get(task)).status.state is S.FAILED
        deaf.open()
        await asyncio.wait({canceling})
        canceling.exception()


async def test_a_task_is_read_from_the_store_if_the_requests_of_others_were_not_lately_read() -> None:
    gate = Gate()
    disk = SharedDisk()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with serving(agent, disk, replica=ReplicaTiming(requests_valid=0)) as engine:
        alice = User(engine)
        task = await alice.start("slow")
        await gate.reached()
        disk.claim(task.id, "other")
        disk.write(task, status(S.FAILED))
        assert (await alice.get(task)).status.state is S.FAILED
        gate.open()


async def test_requests_are_read_in_time_though_wake_ups_name_other_things() -> None:
    disk = SharedDisk()
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    timing = Timing(peer_cancel=0)
    async with serving(agent, disk, timing=timing) as engine:
        task = await User(engine).start("slow")
        await gate.reached()
        await disk.replicas.wakes()
        disk.replicas.requests.append(ReplicaRequest(7, task.id, OWNER, encode(RequestBody(ALICE))))
        await disk.replicas.wakes(NOTHING)
        assert disk.replicas.requests  # they have just been read
        assert engine.replica is not None
        engine.replica.followers.authority.requests_read(0, [])  # long ago
        await disk.replicas.wakes(NOTHING)
        await until(lambda: disk.replicas.rejections.get(7) == "")


async def test_followed_and_queued_tasks_are_read_in_time_though_wake_ups_name_other_things() -> None:
    disk = SharedDisk()
    agent = ScriptedAgent(default=(COMPLETED,))
    async with serving(agent, disk) as engine:
        quiet = disk.put("quiet", "other")
        watcher = await User(engine).subscribe(quiet)
        await disk.replicas.wakes()
        disk.write(quiet, COMPLETED)  # and the wake-up is lost
        disk.put("waits", "", retry_safe=True)
        await disk.replicas.wakes(NOTHING)
        assert (watcher.states, disk.runners["waits"]) == ([], "")  # they have just been read
        watcher.stream.close()
    async with serving(agent, disk, replica=ReplicaTiming(poll=0)) as engine:
        watcher = await User(engine).subscribe(disk.put("loud", "other"))
        disk.write(disk.rows["loud"].task(), COMPLETED)
        await disk.replicas.wakes(NOTHING)
        await disk.replicas.wakes(NOTHING)
        assert (await watcher.rest()).states[-1] is S.COMPLETED
        await until(lambda: disk.rows["waits"].state is S.COMPLETED)
