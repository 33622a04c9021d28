"""The AgentExecutor contract of a2a-sdk, sentence by sentence, kept by our engine for executors of a2a-sdk.

Each docstring is the sentence. The executors are what their authors would write: a2a-sdk's classes and helpers only.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from a2a.helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import a2a_pb2 as pb

from apcore_a2a.protocol.model import ArtifactUpdate, Message, StatusUpdate, Task, TaskState
from tests.conversations import contents, talk_to, text_of

Step = Callable[[RequestContext, EventQueue, TaskUpdater], Awaitable[None]]


class Scripted(AgentExecutor):
    """An executor whose methods are written in the test."""

    def __init__(self, execute: Step, cancel: Step | None = None) -> None:
        self._execute, self._cancel = execute, cancel

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._execute(context, event_queue, updater_for(context, event_queue))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        if self._cancel is None:
            raise NotImplementedError("cancel not supported")
        await self._cancel(context, event_queue, updater_for(context, event_queue))


def updater_for(context: RequestContext, queue: EventQueue) -> TaskUpdater:
    assert context.task_id and context.context_id
    return TaskUpdater(queue, context.task_id, context.context_id)


def task_of(context: RequestContext) -> pb.Task:
    assert context.message is not None
    return new_task_from_user_message(context.message)


async def test_events_of_every_kind_are_published_to_the_queue() -> None:
    """Publish Task or Message events, or TaskStatusUpdateEvent / TaskArtifactUpdateEvent to the event_queue."""

    async def work(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await queue.enqueue_event(task_of(context))
        await updater.start_work(updater.new_agent_message([pb.Part(text="Looking")]))
        await updater.add_artifact([pb.Part(text=context.get_user_input())], artifact_id="a", name="answer")
        await updater.add_artifact([pb.Part(text="!")], artifact_id="a", append=True, last_chunk=True)
        await updater.complete(new_text_message("Done"))

    async with talk_to(Scripted(work)) as user:
        events = await user.stream("Hello")
    kinds = [type(event) for event in events]
    assert kinds == [Task, StatusUpdate, ArtifactUpdate, ArtifactUpdate, StatusUpdate]
    chunks = [event for event in events if isinstance(event, ArtifactUpdate)]
    assert [(chunk.artifact.parts[0].text, chunk.append, chunk.last_chunk) for chunk in chunks] == [
        ("Hello", False, False),
        ("!", True, True),
    ]
    statuses = [event.status for event in events if isinstance(event, StatusUpdate)]
    assert [(status.state, text_of(status.message)) for status in statuses] == [
        (TaskState.WORKING, "Looking"),
        (TaskState.COMPLETED, "Done"),
    ]


async def test_an_immediate_response_is_a_single_message() -> None:
    """Immediate response: Enqueue a SINGLE Message object."""

    async def reply(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await queue.enqueue_event(new_text_message("Hello to you"))

    async with talk_to(Scripted(reply)) as user:
        answer = await user.ask("Hello")
        assert isinstance(answer, Message) and text_of(answer) == "Hello to you"
        assert [type(event) for event in await user.stream("Hello")] == [Message]


async def test_a_second_message_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """A SINGLE Message object."""

    async def reply(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await queue.enqueue_event(new_text_message("one"))
        await queue.enqueue_event(new_text_message("two"))

    async with talk_to(Scripted(reply)) as user:
        assert text_of(await user.ask("Hello")) == "one"
    assert "event ignored: the run is over" in caplog.messages


async def test_return_immediately_waits_for_the_first_event() -> None:
    """The framework waits with response to return_immediately=True until the first event is enqueued."""
    gate, end = asyncio.Event(), asyncio.Event()

    async def work(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await gate.wait()
        await queue.enqueue_event(task_of(context))
        await end.wait()
        await updater.complete()

    async with talk_to(Scripted(work)) as user, asyncio.TaskGroup() as group:
        answer = group.create_task(user.task("Go", now=True))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not answer.done()
        gate.set()
        task = await answer
        assert task.status.state is TaskState.SUBMITTED
        assert [text_of(message) for message in task.history] == ["Go"]
        end.set()
        await user.until(task, TaskState.COMPLETED)


async def test_return_immediately_may_be_answered_with_a_message() -> None:
    """The first event (Message or Task)."""

    async def reply(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await queue.enqueue_event(new_text_message("Hi"))

    async with talk_to(Scripted(reply)) as user:
        assert text_of(await user.ask("Hello", now=True)) == "Hi"


async def test_execute_is_not_called_concurrently() -> None:
    """The framework guarantees single execution per request; execute() will not be called concurrently."""
    running, most, gate = 0, 0, asyncio.Event()

    async def work(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if context.current_task is None:
            await queue.enqueue_event(task_of(context))
        await gate.wait()
        await updater.requires_input()
        running -= 1

    async with talk_to(Scripted(work)) as user, asyncio.TaskGroup() as group:
        task = await user.task("one", now=True)
        others = [group.create_task(user.task(text, task=task)) for text in ("two", "three")]
        for _ in range(20):
            await asyncio.sleep(0)
        gate.set()
        assert [(await other).status.state for other in others] == [TaskState.INPUT_REQUIRED] * 2
    assert most == 1


@pytest.mark.parametrize("before", [True, False], ids=["before any event", "after the task"])
async def test_an_unhandled_exception_fails_the_task(before: bool) -> None:
    """Unhandled exceptions raised by execute() will be caught by the framework and result in TASK_STATE_ERROR."""

    async def breaks(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        if not before:
            await queue.enqueue_event(task_of(context))
        raise ValueError("secret")

    async with talk_to(Scripted(breaks)) as user:
        task = await user.task("Go")
    assert task.status.state is TaskState.FAILED  # what A2A 1.0 calls it
    assert "secret" not in text_of(task)


async def test_the_queue_ignores_events_once_execute_has_completed(caplog: pytest.LogCaptureFixture) -> None:
    """Once execute() completes (returns or raises), the executor must not access the event_queue anymore."""
    kept: list[TaskUpdater] = []

    async def leaks(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        kept.append(updater)
        await updater.requires_input()

    async with talk_to(Scripted(leaks)) as user:
        task = await user.task("Go")
        await kept[0].complete()
        assert (await user.look(task)).status.state is TaskState.INPUT_REQUIRED
    assert "event ignored: the run is over" in caplog.messages


@pytest.mark.parametrize(
    ("method", "state"),
    [
        (TaskUpdater.complete, TaskState.COMPLETED),
        (TaskUpdater.failed, TaskState.FAILED),
        (TaskUpdater.reject, TaskState.REJECTED),
        (TaskUpdater.cancel, TaskState.CANCELED),
        (TaskUpdater.requires_input, TaskState.INPUT_REQUIRED),
        (TaskUpdater.requires_auth, TaskState.AUTH_REQUIRED),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_the_executor_brings_the_task_to_rest(
    method: Callable[[TaskUpdater, pb.Message], Awaitable[None]], state: TaskState
) -> None:
    """Before completing, publish a TaskStatusUpdateEvent to transition to a terminal or an interrupted state."""

    async def work(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await updater.submit()
        await updater.start_work()
        await method(updater, new_text_message("So it ended"))

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Go")
    assert (task.status.state, text_of(task)) == (state, "So it ended")


async def test_input_required_yields_control_and_resumes_with_the_users_input() -> None:
    """The executor publishes INPUT_REQUIRED and returns. The request will resume once user input is provided."""
    seen: list[tuple[str, str]] = []

    async def work(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        current = context.current_task
        seen.append((context.get_user_input(), "" if current is None else pb.TaskState.Name(current.status.state)))
        if current is None:
            await queue.enqueue_event(task_of(context))
            await updater.requires_input(updater.new_agent_message([pb.Part(text="Which city?")]))
        else:
            await updater.add_artifact([pb.Part(text=f"Sunny in {context.get_user_input()}")])
            await updater.complete()

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Weather")
        assert (task.status.state, text_of(task)) == (TaskState.INPUT_REQUIRED, "Which city?")
        task = await user.task("Rome", task=task)
    assert (task.status.state, contents(task)) == (TaskState.COMPLETED, [["Sunny in Rome"]])
    assert seen == [("Weather", ""), ("Rome", "TASK_STATE_INPUT_REQUIRED")]  # as a2a-sdk's own server shows it


async def test_in_bound_authentication_calls_execute_again() -> None:
    """In-bound: the agent returns; the framework will call execute() again once the user response is received."""

    async def work(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        if context.current_task is None:
            await updater.requires_auth(new_text_message("Password?"))
        else:
            await updater.complete(new_text_message(context.get_user_input()))

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Go")
        assert task.status.state is TaskState.AUTH_REQUIRED
        task = await user.task("sesame", task=task)
    assert (task.status.state, text_of(task)) == (TaskState.COMPLETED, "sesame")


async def test_out_of_bound_authentication_waits_and_continues() -> None:
    """Out-of-bound: it should not return, but wait for the provider and then continue execution."""
    logged_in = asyncio.Event()

    async def work(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await updater.requires_auth(new_text_message("Log in at example.com"))
        await logged_in.wait()
        await updater.start_work()
        await updater.complete()

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Go")
        assert task.status.state is TaskState.AUTH_REQUIRED
        logged_in.set()
        await user.until(task, TaskState.COMPLETED)


async def test_a_cancellation_request_cancels_execute_and_calls_cancel() -> None:
    """The async task running execute() is cancelled (CancelledError), and cancel() is explicitly called.

    It publishes CANCELED for the task identified by the task_id in the context. The context has the task as it is now.
    """
    order: list[str] = []
    found: list[tuple[bool, int, list[str]]] = []

    async def work(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await queue.enqueue_event(task_of(context))
        await updater.add_artifact([pb.Part(text="half of it")], artifact_id="draft")
        await updater.start_work()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            order.append("execute cancelled")
            raise

    async def cancel(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        current = context.current_task
        assert current is not None
        order.append("cancel called")
        artifacts = [artifact.artifact_id for artifact in current.artifacts]
        found.append((current.id == context.task_id, current.status.state, artifacts))
        await updater.cancel(new_text_message("As you wish"))

    async with talk_to(Scripted(work, cancel)) as user:
        task = await user.task("Go", now=True)
        await user.until(task, TaskState.WORKING)
        task = await user.cancel(task)
    assert order == ["execute cancelled", "cancel called"]
    assert found == [(True, pb.TASK_STATE_WORKING, ["draft"])]
    assert (task.status.state, text_of(task)) == (TaskState.CANCELED, "As you wish")


async def test_an_executor_without_support_for_cancel_is_still_cancelled() -> None:
    async def work(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await queue.enqueue_event(task_of(context))
        await asyncio.Event().wait()

    async with talk_to(Scripted(work)) as user:
        task = await user.cancel(await user.task("Go", now=True))
    assert task.status.state is TaskState.CANCELED
