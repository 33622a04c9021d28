"""When a replica answers for a task from its own memory: only while nobody can have ended it elsewhere."""

import asyncio
import time

import pytest

from apcore_a2a.engine.context import Timing
from apcore_a2a.engine.replica import lease
from apcore_a2a.engine.replica.followers import HEARD_FOR, POLL, Followers
from apcore_a2a.engine.replica.requests import Errand
from apcore_a2a.protocol.model import Task, TaskState, encode
from apcore_a2a.storage.contract import ReplicaRequest, WakeUp
from tests.engine.driving import ALICE, User, serving, settle, until
from tests.engine.shared_disk import OWNER, SharedDisk
from tests.fakes import COMPLETED, Gate, ScriptedAgent

S = TaskState
NOTHING = WakeUp(everything=False, requests=False, queue=False)


def is_own(followers: Followers, task: Task) -> bool:
    live = followers._runs.get(task.id)
    assert live is not None
    return followers.runs_here(live)


async def test_it_does_while_it_runs_the_task_has_its_lease_and_has_looked_at_what_others_ask() -> None:
    gate = Gate()
    async with serving(ScriptedAgent({"slow": (gate, COMPLETED)}), SharedDisk()) as engine:
        task = await User(engine).start("slow")
        await gate.reached()
        followers = engine._followers
        assert followers is not None
        assert is_own(followers, task)
        followers.heard(time.monotonic() - HEARD_FOR, [])
        assert not is_own(followers, task)
        followers.heard(time.monotonic(), [task.id, task.id])
        followers.obeyed(task.id)
        assert not is_own(followers, task)  # something else is still asked of it
        followers.obeyed(task.id)
        assert is_own(followers, task)
        followers.renewed(time.monotonic() - followers.replicas.lease.seconds)
        assert not is_own(followers, task)
        gate.open()


async def test_it_does_not_while_the_run_is_being_stopped() -> None:
    deaf = Gate(deaf=True)
    async with serving(ScriptedAgent({"deaf": (deaf,)}), SharedDisk()) as engine:
        task = await User(engine).start("deaf")
        await deaf.reached()
        canceling = asyncio.create_task(User(engine).cancel(task))
        await settle()
        assert engine._followers is not None
        assert not is_own(engine._followers, task)
        deaf.open()
        await canceling


async def test_what_others_ask_is_looked_at_though_wake_ups_speak_of_other_things() -> None:
    disk = SharedDisk()
    gate = Gate()
    async with serving(ScriptedAgent({"slow": (gate, COMPLETED)}), disk, timing=Timing(peer_cancel=0)) as engine:
        task = await User(engine).start("slow")
        await gate.reached()
        assert engine._followers is not None
        disk.replicas.requests.append(ReplicaRequest(7, task.id, OWNER, encode(Errand(ALICE))))
        engine._followers.heard(time.monotonic(), [])
        await disk.replicas.wakes(NOTHING)
        assert disk.replicas.requests  # it has just looked
        engine._followers.heard(time.monotonic() - 2 * POLL, [])
        await disk.replicas.wakes(NOTHING)
        await until(lambda: disk.replicas.rejections.get(7) == "")


async def test_what_is_followed_and_what_waits_is_looked_at_though_wake_ups_speak_of_other_things(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SharedDisk()
    agent = ScriptedAgent(default=(COMPLETED,))
    async with serving(agent, disk) as engine:
        alice = User(engine)
        quiet = disk.put("quiet", "other")
        watcher = await alice.subscribe(quiet)
        await disk.replicas.wakes()
        disk.write(quiet, COMPLETED)  # and the wake-up gets lost
        disk.put("waits", "", retry_safe=True)
        await disk.replicas.wakes(NOTHING)
        assert (watcher.states, disk.runners["waits"]) == ([], "")  # it has just looked
        monkeypatch.setattr(lease, "POLL", 0)
        await disk.replicas.wakes(NOTHING)
        await disk.replicas.wakes(NOTHING)
        await watcher.rest()
        assert watcher.states[-1] is S.COMPLETED
        await until(lambda: disk.rows["waits"].state is S.COMPLETED)
