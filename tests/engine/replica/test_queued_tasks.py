"""New tasks at a replica without room: stored for another one, up to a limit, and once for each key."""

import pytest

from apcore_a2a.engine.context import ReplicaTiming
from apcore_a2a.errors import OverloadedError
from apcore_a2a.protocol.model import TaskState
from tests.engine.driving import User, until, words
from tests.engine.replica.scenario import replica, until_shown
from tests.fakes import COMPLETED, Gate, ScriptedAgent
from tests.postgres_server import shared_server

S = TaskState


async def test_a_new_task_is_rejected_if_too_many_wait_for_room() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    one = ReplicaTiming(max_queued=1)
    async with replica(agent, shared_server().url(), max_active_tasks=1, replica=one) as only:
        alice = User(only)
        running = await alice.start("slow")
        await gate.reached()
        waiting = await alice.start("first")
        with pytest.raises(OverloadedError, match="limit of waiting tasks") as rejected:
            await alice.start("second")
        assert rejected.value.retry_after == 5
        assert {task.id for task in (await alice.list()).tasks} == {running.id, waiting.id}
        gate.open()
        assert words(await until_shown(alice, waiting, S.COMPLETED)) == ["first"]
    assert len(agent.calls) == 2


async def test_a_repeated_send_to_a_full_replica_returns_the_task_that_runs_there() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with replica(agent, shared_server().url(), max_active_tasks=1) as full:
        alice = User(full)
        running = await alice.start("slow", key="k")
        await gate.reached()
        again = await alice.start("slow", key="k")
        assert (again.id, again.status.state) == (running.id, S.WORKING)
        await until(lambda: full.live_tasks == 1)  # the task that was not created is not kept
        assert (await alice.list()).total_size == 1
        gate.open()
        await until_shown(alice, running, S.COMPLETED)
    assert len(agent.calls) == 1


async def test_a_repeated_send_to_a_full_replica_returns_the_task_that_waits() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with replica(agent, shared_server().url(), max_active_tasks=1) as full:
        alice = User(full)
        await alice.start("slow")
        await gate.reached()
        waiting = await alice.start("quick", key="k")
        again = await alice.start("quick", key="k")
        assert (again.id, again.status.state) == (waiting.id, S.SUBMITTED)
        assert (await alice.list()).total_size == 2
        gate.open()
        await until_shown(alice, waiting, S.COMPLETED)
    assert len(agent.calls) == 2
