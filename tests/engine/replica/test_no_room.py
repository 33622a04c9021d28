"""New tasks at a replica without room: stored for another one, but not without limit, and not twice."""

import pytest

from apcore_a2a.engine.replica import requests
from apcore_a2a.errors import OverloadedError
from apcore_a2a.protocol.model import TaskState
from tests.engine.driving import User, until, words
from tests.engine.replica.test_cluster import replica, until_shown
from tests.fakes import COMPLETED, Gate, ScriptedAgent
from tests.postgres_server import shared_server

S = TaskState


async def test_a_new_task_is_refused_when_too_many_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_QUEUED_TASKS", 1)
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with replica(agent, shared_server().url(), max_active_tasks=1) as only:
        alice = User(only)
        running = await alice.start("slow")
        await gate.reached()
        waiting = await alice.start("first")
        with pytest.raises(OverloadedError, match="limit of waiting tasks") as refused:
            await alice.start("second")
        assert refused.value.retry_after == 5
        assert {task.id for task in (await alice.list()).tasks} == {running.id, waiting.id}
        gate.open()
        assert words(await until_shown(alice, waiting, S.COMPLETED)) == ["first"]
    assert len(agent.calls) == 2


async def test_a_repeated_send_to_a_full_replica_is_answered_with_the_task_that_runs_there() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with replica(agent, shared_server().url(), max_active_tasks=1) as full:
        alice = User(full)
        running = await alice.start("slow", key="k")
        await gate.reached()
        again = await alice.start("slow", key="k")
        assert (again.id, again.status.state) == (running.id, S.WORKING)
        await until(lambda: full.live_tasks == 1)  # nobody keeps the one that was not made
        assert (await alice.list()).total_size == 1
        gate.open()
        await until_shown(alice, running, S.COMPLETED)
    assert len(agent.calls) == 1


async def test_a_repeated_send_to_a_full_replica_is_answered_with_the_task_that_waits() -> None:
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
