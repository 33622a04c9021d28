"""The event queue of executors: bounded, closed at the end, and for one task only."""

import asyncio

import pytest

from apcore_a2a.agents.content import agent_message
from apcore_a2a.agents.executors import MAX_AHEAD, EventQueue, RequestContext, TaskUpdater
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Event, Part, StatusUpdate, TaskState, TaskStatus
from tests.conversations import talk_to, text_of
from tests.scripted_executor import Scripted


async def test_events_after_the_final_event_are_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def hasty(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.complete("Done")
        await updater.add_artifact("too late")
        await queue.enqueue_event(agent_message("too late"))

    async with talk_to(Scripted(hasty)) as user:
        task = await user.task("Go")
        task = await user.look(task)
    assert (task.status.state, text_of(task), task.artifacts) == (TaskState.COMPLETED, "Done", [])
    assert caplog.messages.count("event ignored: the run is over") == 2


async def test_events_after_execute_has_returned_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[EventQueue] = []

    async def leaky(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        kept.append(queue)
        await updater.requires_input()

    async with talk_to(Scripted(leaky)) as user:
        task = await user.task("Go")
        await kept[0].enqueue_event(StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED)))
        assert (await user.look(task)).status.state is TaskState.INPUT_REQUIRED
    assert "event ignored: the run is over" in caplog.messages


async def test_a_full_queue_makes_its_publisher_wait() -> None:
    queue, published = EventQueue("t"), 0

    async def publish() -> None:
        nonlocal published
        for number in range(3 * MAX_AHEAD):
            update = ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[Part(data=number)]))
            await queue.enqueue_event(update)
            published += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(publish())
        for _ in range(5 * MAX_AHEAD):
            await asyncio.sleep(0)
        assert published == MAX_AHEAD
        seen = [await anext(queue) for _ in range(3 * MAX_AHEAD)]
    assert [event.artifact.parts[0].data for event in seen if isinstance(event, ArtifactUpdate)] == [*range(192)]


async def test_waiting_publishers_return_when_the_queue_closes() -> None:
    queue = EventQueue("t")
    update = ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[]))
    for _ in range(MAX_AHEAD):
        await queue.enqueue_event(update)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(queue.enqueue_event(update))
        await asyncio.sleep(0)
        queue.close()
    assert len([event async for event in queue]) == MAX_AHEAD


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        ("text", "The agent published a str, which is not an event"),
        (
            StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED), task_id="other"),
            "The agent published an event of another task",
        ),
    ],
)
async def test_a_value_that_is_not_an_event_of_this_task_fails_it(event: Event, complaint: str) -> None:
    async def wrong(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await queue.enqueue_event(event)

    async with talk_to(Scripted(wrong)) as user:
        task = await user.task("Go")
    assert (task.status.state, text_of(task)) == (TaskState.FAILED, complaint)
