"""Clients that disconnect: when that cancels their task, and when it does not."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from apcore_a2a.engine.context import Observer, Timing
from apcore_a2a.protocol.model import Task, TaskState
from tests.fakes import COMPLETED, PATIENCE, Gate, ScriptedAgent
from tests.interaction.conftest import Speak
from tests.interaction.speaking import Speaker
from tests.requirements import requirement
from tests.timing import use_timing

HungUp = Callable[[], Awaitable[None]]


@pytest.fixture
async def hung_up(monkeypatch: pytest.MonkeyPatch) -> HungUp:
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


async def leave(speaker: Speaker, gate: Gate, hung_up: HungUp) -> str:
    """Open a stream, disconnect, and return the id of its task."""
    async with speaker.stream("hi") as stream:
        task = await stream.next()
        assert isinstance(task, Task)
        await gate.reached()
    await hung_up()
    return task.id


@requirement("FR-MSG-005")
async def test_a_task_is_canceled_when_its_last_0_3_stream_is_closed(speak: Speak, hung_up: HungUp) -> None:
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
async def test_a_task_continues_without_streams_if_cancel_on_disconnect_is_off(speak: Speak, hung_up: HungUp) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (gate, COMPLETED)}), cancel_on_disconnect=False)
    task_id = await leave(speaker, gate, hung_up)
    assert await finish(speaker, gate, task_id) is TaskState.COMPLETED


async def test_a_task_continues_while_it_has_another_subscriber(speak: Speak, hung_up: HungUp) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (gate, COMPLETED)}))
    task = await speaker.send("hi", return_immediately=True)
    await gate.reached()
    async with speaker.subscribe(task.id) as stays:
        await stays.next()
        async with speaker.subscribe(task.id) as leaves:
            await leaves.next()
        await hung_up()
        gate.open()
        await stays.rest()
    assert (await speaker.get(task.id)).status.state is TaskState.COMPLETED


async def finish(speaker: Speaker, gate: Gate, task_id: str) -> TaskState:
    async with speaker.subscribe(task_id) as stream:
        await stream.next()
        gate.open()
        await stream.rest()
    return (await speaker.get(task_id)).status.state
