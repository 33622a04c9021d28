"""The contract of AgentExecutors, tested through a real engine."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.agents.content import agent_message
from apcore_a2a.agents.executors import AgentExecutor, EventQueue, RequestContext, TaskUpdater
from apcore_a2a.engine.context import CallContext
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import ArtifactUpdate, Message, StatusUpdate, Task, TaskState
from tests.conversations import contents, make_call, talk_to, text_of
from tests.scripted_executor import Scripted, new_task


async def test_a_single_message_answers_without_a_task() -> None:
    async def reply(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await queue.enqueue_event(agent_message(context.get_user_input()))

    async with talk_to(Scripted(reply)) as user:
        answer = await user.ask("Hello")
    assert isinstance(answer, Message) and text_of(answer) == "Hello"


async def test_a_task_and_its_updates_arrive_in_the_order_of_publication() -> None:
    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await queue.enqueue_event(new_task(context))
        await updater.start_work("Looking")
        artifact_id = await updater.add_artifact("one", name="answer", last_chunk=False)
        await updater.add_artifact(" two", artifact_id=artifact_id, append=True)
        await updater.complete("Done")

    async with talk_to(Scripted(work)) as user:
        events = await user.stream("Go")
    assert [type(event) for event in events] == [Task, StatusUpdate, ArtifactUpdate, ArtifactUpdate, StatusUpdate]
    chunks = [(event.append, event.last_chunk) for event in events if isinstance(event, ArtifactUpdate)]
    assert chunks == [(False, False), (True, True)]
    statuses = [
        (event.status.state, text_of(event.status.message)) for event in events if isinstance(event, StatusUpdate)
    ]
    assert statuses == [(TaskState.WORKING, "Looking"), (TaskState.COMPLETED, "Done")]


async def test_an_executor_need_not_publish_a_task() -> None:
    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.add_artifact({"n": 2**70})
        await updater.complete()

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Go")
    assert (task.status.state, contents(task)) == (TaskState.COMPLETED, [[{"n": 2**70}]])


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
async def test_a_task_rests_in_the_state_that_was_published(
    method: Callable[[TaskUpdater, str], Awaitable[None]], state: TaskState
) -> None:
    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.submit()
        await updater.start_work()
        await method(updater, "So it ended")

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Go")
    assert (task.status.state, text_of(task)) == (state, "So it ended")


async def test_an_immediate_answer_waits_for_the_first_event() -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await gates[0].wait()
        await updater.start_work()
        await gates[1].wait()
        await updater.complete()

    async with talk_to(Scripted(work)) as user, asyncio.TaskGroup() as group:
        answer = group.create_task(user.task("Go", now=True))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not answer.done()
        gates[0].set()
        assert (await answer).status.state is TaskState.WORKING
        gates[1].set()


async def test_execute_is_called_again_when_the_user_has_answered() -> None:
    seen: list[tuple[str, Task | None]] = []

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        seen.append((context.get_user_input(), context.current_task))
        if context.current_task is None:
            await updater.requires_input("Which city?")
        else:
            await updater.complete([message.parts[0].text for message in context.history])

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Weather")
        assert (task.status.state, text_of(task)) == (TaskState.INPUT_REQUIRED, "Which city?")
        task = await user.task("Rome", task=task)
    assert task.status.state is TaskState.COMPLETED
    assert [text for text, _ in seen] == ["Weather", "Rome"]
    assert seen[0][1] is None and seen[1][1] is not None and seen[1][1].id == task.id


async def test_out_of_band_authentication_continues_by_itself() -> None:
    logged_in = asyncio.Event()

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.requires_auth("Log in at example.com")
        await logged_in.wait()
        await updater.start_work()
        await updater.complete()

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Go")
        assert task.status.state is TaskState.AUTH_REQUIRED
        logged_in.set()
        assert (await user.until(task, TaskState.COMPLETED)).status.state is TaskState.COMPLETED


async def test_in_band_authentication_continues_with_the_users_message() -> None:
    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        if context.current_task is None:
            await updater.requires_auth("Password?")
        else:
            await updater.complete(context.get_user_input())

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Go")
        assert task.status.state is TaskState.AUTH_REQUIRED
        task = await user.task("sesame", task=task)
    assert (task.status.state, text_of(task)) == (TaskState.COMPLETED, "sesame")


async def test_two_messages_to_one_task_are_executed_one_after_the_other() -> None:
    running, most = 0, 0
    gate = asyncio.Event()

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await updater.start_work()
        await gate.wait()
        await updater.requires_input()
        running -= 1

    async with talk_to(Scripted(work)) as user, asyncio.TaskGroup() as group:
        task = await user.task("one", now=True)
        second = group.create_task(user.task("two", task=task))
        third = group.create_task(user.task("three", task=task))
        for _ in range(20):
            await asyncio.sleep(0)
        gate.set()
        await second, await third
    assert most == 1


@pytest.mark.parametrize(
    "error",
    [ValueError("secret"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()],
    ids=repr,
)
async def test_an_exception_fails_the_task_and_its_text_is_not_sent(error: BaseException) -> None:
    async def breaks(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.start_work()
        raise error

    async with talk_to(Scripted(breaks)) as user:
        task = await user.task("Go")
    assert task.status.state is TaskState.FAILED
    assert text_of(task).startswith("Internal error")


async def test_an_a2a_error_fails_the_task_with_its_text_even_before_any_event() -> None:
    async def breaks(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        raise AgentError("Out of tokens")

    async with talk_to(Scripted(breaks)) as user:
        task = await user.task("Go")
    assert (task.status.state, text_of(task)) == (TaskState.FAILED, "Out of tokens")


async def test_an_executor_that_returns_without_a_final_state_fails_its_task() -> None:
    async def nothing(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.start_work()

    async with talk_to(Scripted(nothing)) as user:
        assert (await user.task("Go")).status.state is TaskState.FAILED


async def test_publishing_submitted_again_has_no_effect() -> None:
    async def forgetful(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await queue.enqueue_event(new_task(context))
        await updater.submit("Received")
        await updater.requires_input()

    async with talk_to(Scripted(forgetful)) as user:
        task = await user.task("one")
        assert task.status.state is TaskState.INPUT_REQUIRED
        task = await user.task("two", task=task)
    assert task.status.state is TaskState.INPUT_REQUIRED
    assert [text_of(message) for message in task.history if message.role == "ROLE_USER"] == ["one", "two"]


async def test_an_executor_may_publish_a_task_that_the_engine_has_already_stored() -> None:
    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await queue.enqueue_event(new_task(context))
        await updater.complete("Done")

    async with talk_to(Scripted(work)) as user:
        user.context = CallContext(idempotency_key="key")
        task = await user.task("Go")
        assert (await user.task("Go")).id == task.id
    assert (task.status.state, text_of(task)) == (TaskState.COMPLETED, "Done")


async def test_the_context_has_the_data_of_the_request() -> None:
    seen: list[RequestContext] = []

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        seen.append(context)
        await updater.complete()

    async with talk_to(Scripted(work)) as user:
        task = await user.task("Go")
    context = seen[0]
    assert (context.task_id, context.context_id, context.related_tasks) == (task.id, task.context_id, ())
    assert (context.metadata, context.caller.id) == ({}, "anonymous")
    assert not context.configuration.return_immediately


async def test_an_executor_can_declare_its_runs_safe_to_repeat() -> None:
    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None: ...

    class Safe(Scripted):
        retry_safe = True

    executor: AgentExecutor = Safe(work)
    assert (await as_agent(executor).admit(make_call())).retry_safe
    assert not (await as_agent(Scripted(work)).admit(make_call())).retry_safe
