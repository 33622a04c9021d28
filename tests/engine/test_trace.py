"""The trace of a request belongs to its run, also if another process or another replica runs the message."""

from collections.abc import Mapping
from typing import Any

from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.event_log import fold_records
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import Document, Task, TaskState
from tests.engine.driving import QUICK, User, request, serving, soon, until
from tests.engine.fake_disk import FakeDisk
from tests.engine.replica.scenario import replica, replicas, until_shown
from tests.engine.test_recovery import dying
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent
from tests.postgres_server import shared_server

S = TaskState


def trace(digit: int) -> dict[str, str]:
    return {"traceparent": f"00-{str(digit) * 32}-00f067aa0ba902b7-01", "tracestate": "a=1", "baggage": f"run={digit}"}


async def start(engine: Engine, text: str, headers: Mapping[str, str], **fields: Any) -> Task:
    """Send a message of Alice with the headers of a trace, without waiting. Any: the fields of the message."""
    context = User(engine).context(headers=headers)
    answer = await soon(engine.send_message(request(text, now=True, **fields), context))
    assert isinstance(answer, Document)
    return answer.task()


async def test_runs_after_a_crash_continue_the_traces_of_their_messages() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS)}, default=(ASKS,), retry_safe=True)
    async with dying(agent, FakeDisk()) as (engine, left):
        task = await start(engine, "first", trace(1))
        await gate.reached()
        await start(engine, "second", trace(2), task_id=task.id)
        await start(engine, "third", {}, task_id=task.id)
    gate.open()
    async with serving(agent, left[0], timing=QUICK) as engine:
        await until(lambda: engine.live_tasks == 0)
    assert [call.headers for call in agent.calls] == [trace(1), trace(1), trace(2), {}]


async def test_a_queued_message_continues_its_own_trace() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS)}, default=(ASKS,))
    async with serving(agent, timing=QUICK) as engine:
        task = await start(engine, "first", trace(1))
        await gate.reached()
        await start(engine, "second", trace(2), task_id=task.id)
        gate.open()
        await until(lambda: engine.live_tasks == 0)
    assert [call.headers for call in agent.calls] == [trace(1), trace(2)]


async def test_a_message_that_another_replica_received_continues_its_trace() -> None:
    gate = Gate()
    agent = ScriptedAgent({"first": (gate, ASKS)}, default=(COMPLETED,))
    async with replicas(agent, shared_server().url()) as (here, there):
        task = await start(here.engine, "first", trace(1))
        await gate.reached()
        await start(there.engine, "second", trace(2), task_id=task.id)
        gate.open()
        await until_shown(there, task, S.COMPLETED)
    assert [call.headers for call in agent.calls] == [trace(1), trace(2)]


async def test_a_task_that_waited_for_a_replica_with_room_continues_its_trace() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED)})
    async with replica(agent, shared_server().url(), max_active_tasks=1) as full:
        await start(full, "slow", {})
        await gate.reached()
        waiting = await start(full, "quick", trace(3))
        gate.open()
        await until_shown(User(full), waiting, S.COMPLETED)
    assert [call.headers for call in agent.calls] == [{}, trace(3)]


async def test_a_follower_publishes_events_without_their_trace() -> None:
    disk = FakeDisk()
    async with serving(ScriptedAgent(), disk) as engine:
        task = await start(engine, "go", {})
    first, *rest = disk.rows[task.id].events
    followed, _ = v1.decode_record(first)
    assert isinstance(followed, Task)
    entries = fold_records(followed, [v1.encode_traced(trace(1), record) for record in rest], after=1)
    assert [entry.body for entry in entries] == rest and followed.status.state is S.COMPLETED


async def test_without_a_webhook_no_stored_event_has_a_trace() -> None:
    disk = FakeDisk()
    async with serving(ScriptedAgent(), disk) as engine:
        task = await start(engine, "go", trace(1))
        await until(lambda: engine.live_tasks == 0)
    assert [v1.trace_of(record) for record in disk.rows[task.id].events] == [{}, {}, {}]
