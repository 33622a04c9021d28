"""Clients that hang up: when that ends their task, and when it does not."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.server.guard import GuardedProtocol
from tests.fakes import COMPLETED, PATIENCE, Gate, ScriptedAgent
from tests.interaction.conftest import Speak
from tests.interaction.speaking import Speaker
from tests.requirements import requirement


@pytest.fixture
async def hung_up(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """Set when the server has noticed that a connection is gone."""
    noticed, connection_lost = asyncio.Event(), GuardedProtocol.connection_lost

    def note(self: GuardedProtocol, error: Exception | None) -> None:
        connection_lost(self, error)
        noticed.set()

    monkeypatch.setattr(GuardedProtocol, "connection_lost", note)
    monkeypatch.setattr("apcore_a2a.server.streams.DISCONNECT_GRACE", 0.0)
    yield noticed


async def leave(speaker: Speaker, gate: Gate, hung_up: asyncio.Event) -> str:
    """Begin a stream and hang up; the task that is left."""
    async with speaker.stream("hi") as stream:
        task = await stream.next()
        assert isinstance(task, Task)
        await gate.reached()
    async with asyncio.timeout(PATIENCE):
        await hung_up.wait()
    return task.id


@requirement("FR-MSG-005")
async def test_a_task_whose_last_0_3_stream_is_gone_is_canceled(speak: Speak, hung_up: asyncio.Event) -> None:
    gate, agent = Gate(), ScriptedAgent()
    agent.default = (gate, COMPLETED)
    speaker = await speak(agent)
    task_id = await leave(speaker, gate, hung_up)
    if speaker.version == "1.0":  # a task does not depend on its streams (1.0 §3.5.2)
        assert await finish(speaker, gate, task_id) is TaskState.COMPLETED
        return
    told = asyncio.Event()
    agent.calls[0].cancel.on_cancel(told.set)
    async with asyncio.timeout(PATIENCE):
        await told.wait()
    async with speaker.subscribe(task_id) as stream:
        await stream.rest()
    task = await speaker.get(task_id)
    assert task.status.state is TaskState.CANCELED
    assert task.status.message is not None
    assert task.status.message.parts[0].text == "Canceled: the client disconnected"


@requirement("FR-MSG-005")
async def test_a_task_goes_on_without_streams_when_it_is_told_to(speak: Speak, hung_up: asyncio.Event) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (gate, COMPLETED)}), cancel_on_disconnect=False)
    task_id = await leave(speaker, gate, hung_up)
    assert await finish(speaker, gate, task_id) is TaskState.COMPLETED


async def test_a_task_goes_on_while_somebody_else_listens(speak: Speak, hung_up: asyncio.Event) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (gate, COMPLETED)}))
    task = await speaker.send("hi", return_immediately=True)
    await gate.reached()
    async with speaker.subscribe(task.id) as stays:
        await stays.next()
        async with speaker.subscribe(task.id) as leaves:
            await leaves.next()
        async with asyncio.timeout(PATIENCE):
            await hung_up.wait()
        gate.open()
        await stays.rest()
    assert (await speaker.get(task.id)).status.state is TaskState.COMPLETED


async def finish(speaker: Speaker, gate: Gate, task_id: str) -> TaskState:
    async with speaker.subscribe(task_id) as stream:
        await stream.next()
        gate.open()
        await stream.rest()
    return (await speaker.get(task_id)).status.state
