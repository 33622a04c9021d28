"""The end of an engine: nothing new, a grace for what runs, and a last word for every stream."""

import asyncio

import pytest

from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import OverloadedError, UnsupportedOperationError
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import User, metadata_of, serving, settle, soon, text_of, until
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent
from tests.requirements import requirement

S = TaskState


@requirement("FR-SRV-005", "NFR-REL-001")
async def test_what_ends_within_the_grace_ends_as_it_would_and_nothing_new_is_taken() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED), "ask": (ASKS,)})
    async with serving(agent, shutdown_timeout=30) as engine:
        alice = User(engine)
        parked = await alice.send("ask")
        watcher = await alice.stream("slow")
        await gate.reached()
        before = engine.draining
        engine.begin_drain()
        engine.begin_drain()
        assert (before, engine.draining) == (False, True)
        for refused in (alice.send("new"), alice.send("answer", task_id=parked.id), alice.stream("new")):
            with pytest.raises(OverloadedError, match="shutting down"):
                await refused
        with pytest.raises(OverloadedError, match="shutting down"):
            await alice.subscribe(parked)
        closing = asyncio.create_task(engine.close())
        gate.open()
        assert (await watcher.rest()).states[-1] is S.COMPLETED
        await soon(closing)
        assert (await alice.get(parked)).status.state is S.INPUT_REQUIRED


@requirement("FR-SRV-005", "NFR-REL-001")
async def test_what_does_not_end_within_the_grace_fails_and_every_stream_is_told() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, COMPLETED), "ask": (ASKS,)})
    async with serving(agent) as engine:
        alice = User(engine)
        parked = await alice.send("ask")
        running, waiting = await alice.stream("slow"), await alice.subscribe(parked)
        sending = asyncio.create_task(alice.send("slow"))
        await running.until_seq(2)
        task = running.entries[0].event
        assert isinstance(task, Task)
        late = asyncio.create_task(alice.send("more", task_id=task.id))
        await until(lambda: len(agent.calls) == 3)
        await soon(engine.close())
        assert (await running.rest()).states[-1] is S.FAILED
        assert (await waiting.rest()).states == [S.INPUT_REQUIRED]  # its task waits on; the stream just ends
        failed = await sending
        assert (failed.status.state, text_of(failed)) == (S.FAILED, "Server shutdown")
        assert metadata_of(failed) == {"type": "ServerShutdownError", "code": -32603}
        with pytest.raises((OverloadedError, UnsupportedOperationError)):
            await late
        assert (await alice.get(parked)).status.state is S.INPUT_REQUIRED
    assert len(agent.calls) == 3


async def test_a_message_whose_turn_comes_during_the_drain_is_refused_and_its_task_waits_on() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (gate, ASKS)})
    async with serving(agent, shutdown_timeout=30) as engine:
        alice = User(engine)
        task = await alice.start("slow")
        await gate.reached()
        queued = asyncio.create_task(alice.send("answer", task_id=task.id))
        await settle()
        closing = asyncio.create_task(engine.close())
        await settle()
        gate.open()
        with pytest.raises(OverloadedError, match="shutting down"):
            await queued
        await soon(closing)
        assert (await alice.get(task)).status.state is S.INPUT_REQUIRED
    assert len(agent.calls) == 1


async def test_an_engine_that_was_never_used_closes() -> None:
    await soon(Engine(ScriptedAgent(), InMemoryTaskStore()).close())
