"""Clients that disconnect: when that cancels their task, and when it does not."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from apcore_a2a.engine.context import Observer, Timing
from apcore_a2a.protocol.model import Task, TaskState
from tests.fakes import COMPLETED, PATIENCE, Gate, ScriptedAgent
from tests.interaction.conftest import Connect
from tests.interaction.wire_client import WireClient
from tests.requirements import requirement
from tests.timing import use_timing

Disconnected = Callable[[], Awaitable[None]]


@pytest.fixture
async def disconnected(monkeypatch: pytest.MonkeyPatch) -> Disconnected:
    """Wait until the server has closed a stream, and could have reacted to it."""
    closed = asyncio.Event()
    monkeypatch.setattr(Observer, "stream_closed", lambda self, task_id: closed.set())
    use_timing(monkeypatch, Timing(disconnect_grace=0.0))

    async def wait() -> None:
        async with asyncio.timeout(PATIENCE):
            await closed.wait()
        for _ in range(10):
            await asyncio.sleep(0)

    return wait


async def leave(client: WireClient, gate: Gate, disconnected: Disconnected) -> str:
    """Open a stream, disconnect, and return the id of its task."""
    async with client.stream("hi") as stream:
        task = await stream.next()
        assert isinstance(task, Task)
        await gate.reached()
    await disconnected()
    return task.id


@requirement("FR-MSG-005")
async def test_a_task_is_canceled_when_its_last_0_3_stream_is_closed(
    connect: Connect, disconnected: Disconnected
) -> None:
    gate, agent = Gate(), ScriptedAgent()
    agent.default = (gate, COMPLETED)
    client = await connect(agent)
    task_id = await leave(client, gate, disconnected)
    if client.version == "1.0":  # a task does not depend on its streams (1.0 §3.5.2)
        assert await finish(client, gate, task_id) is TaskState.COMPLETED
        return
    received = asyncio.Event()
    agent.calls[0].cancel.on_cancel(received.set)
    async with asyncio.timeout(PATIENCE):
        await received.wait()
    async with client.subscribe(task_id) as stream:
        await stream.rest()
    task = await client.get(task_id)
    assert task.status.state is TaskState.CANCELED
    assert task.status.message is not None
    assert task.status.message.parts[0].text == "Canceled: the client disconnected"


@requirement("FR-MSG-005")
async def test_a_task_continues_without_streams_if_cancel_on_disconnect_is_off(
    connect: Connect, disconnected: Disconnected
) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}), cancel_on_disconnect=False)
    task_id = await leave(client, gate, disconnected)
    assert await finish(client, gate, task_id) is TaskState.COMPLETED


async def test_a_task_continues_while_it_has_another_subscriber(connect: Connect, disconnected: Disconnected) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}))
    task = await client.send("hi", return_immediately=True)
    await gate.reached()
    async with client.subscribe(task.id) as stays:
        await stays.next()
        async with client.subscribe(task.id) as leaves:
            await leaves.next()
        await disconnected()
        gate.open()
        await stays.rest()
    assert (await client.get(task.id)).status.state is TaskState.COMPLETED


async def finish(client: WireClient, gate: Gate, task_id: str) -> TaskState:
    async with client.subscribe(task_id) as stream:
        await stream.next()
        gate.open()
        await stream.rest()
    return (await client.get(task_id)).status.state
