"""Runs of AgentExecutors whose reader stops, stalls or is cancelled, without an engine."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from apcore_a2a.agent import AgentEvent
from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.agents.executor_agent import ExecutorAgent
from apcore_a2a.agents.executors import MAX_AHEAD, EventQueue, RequestContext, TaskUpdater
from apcore_a2a.protocol.model import ArtifactUpdate, StatusUpdate, TaskState
from tests.conversations import make_call
from tests.scripted_executor import Scripted, forever


async def test_events_published_before_the_cancel_are_not_lost() -> None:
    """A run that is cancelled with a full queue yields all queued events, then its final event."""
    full = asyncio.Event()

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.start_work()
        for number in range(MAX_AHEAD):
            await updater.add_artifact(number)
        full.set()
        await updater.add_artifact("has to wait")

    call = make_call()
    events = as_agent(Scripted(work)).run(call)
    async with asyncio.timeout(5):
        await anext(events)
        await full.wait()
        call.cancel.cancel()
        told = [await events.athrow(asyncio.CancelledError())]
        with pytest.raises(asyncio.CancelledError):
            while True:
                told.append(await anext(events))
    chunks = [event.artifact.parts[0].data for event in told if isinstance(event, ArtifactUpdate)]
    assert chunks == [*range(MAX_AHEAD)]
    assert isinstance(told[-1], StatusUpdate) and told[-1].status.state is TaskState.CANCELED


async def test_a_cancel_while_an_event_is_being_stored_calls_cancel() -> None:
    """The engine takes no more events, but `cancel` is called, and the executor does not wait for room forever."""
    told = asyncio.Event()

    async def stop(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        for _ in range(2 * MAX_AHEAD):
            await updater.start_work()
        told.set()

    call = make_call()
    async with asyncio.timeout(5):
        events = as_agent(Scripted(forever, stop)).run(call)
        await anext(events)
        call.cancel.cancel()
        await events.aclose()
    assert told.is_set()


async def test_a_run_that_is_cancelled_while_it_ends_leaves_nothing_running() -> None:
    before, asked = asyncio.all_tasks(), asyncio.Event()

    async def hangs(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        asked.set()
        await asyncio.Event().wait()

    call = make_call()
    events = as_agent(Scripted(forever, hangs)).run(call)
    await anext(events)
    call.cancel.cancel()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        closing = group.create_task(_close(events))
        await asked.wait()
        closing.cancel()
    assert asyncio.all_tasks() == before


async def _close(events: AsyncGenerator[AgentEvent, None]) -> None:
    await events.aclose()


async def test_a_reader_at_the_end_can_still_stop_the_cleanup_of_an_executor() -> None:
    completed = asyncio.Event()

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.complete()
        await asyncio.Event().wait()

    async def read() -> None:
        async for _ in as_agent(Scripted(work)).run(make_call()):
            completed.set()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        reader = group.create_task(read())
        await completed.wait()
        reader.cancel()
    assert reader.cancelled()


async def test_a_task_that_waits_for_its_user_is_cancelled_without_execute() -> None:
    async def never(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        raise AssertionError

    executor, call = Scripted(never), make_call()
    events = [event async for event in ExecutorAgent(executor).cancel(call)]
    assert [event.status.state for event in events if isinstance(event, StatusUpdate)] == [TaskState.CANCELED]
    assert [context.task_id for context in executor.cancelled] == [call.task.id]
