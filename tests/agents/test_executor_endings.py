"""The cancellation and the end of a run of an AgentExecutor."""

import asyncio

import pytest

from apcore_a2a.agents.executor_agent import CancelLimits, ExecutorAgent
from apcore_a2a.agents.executors import EventQueue, RequestContext, TaskUpdater
from apcore_a2a.engine.context import EngineOptions
from apcore_a2a.protocol.model import Task, TaskState
from tests.conversations import contents, talk_to, text_of
from tests.scripted_executor import Scripted, forever, new_task


async def test_execute_is_cancelled_first_and_then_cancel_is_called() -> None:
    order: list[str] = []

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        try:
            await forever(context, updater, queue)
        except asyncio.CancelledError:
            order.append("execute was cancelled")
            raise

    async def stop(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        order.append("cancel was called")
        await updater.cancel("As you wish")

    executor = Scripted(work, stop)
    async with talk_to(executor) as user:
        task = await user.cancel(await user.task("Go", now=True))
    assert order == ["execute was cancelled", "cancel was called"]
    assert (task.status.state, text_of(task)) == (TaskState.CANCELED, "As you wish")
    assert [context.task_id for context in executor.cancelled] == [task.id]


async def test_cancel_sees_the_task_as_it_is_and_not_as_it_was_at_the_start() -> None:
    found: list[tuple[TaskState, str] | None] = []

    def note(context: RequestContext) -> None:
        current = context.current_task
        found.append(None if current is None else (current.status.state, text_of(current)))

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        note(context)
        await updater.start_work("Half done")
        await asyncio.Event().wait()

    async def stop(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        note(context)

    async with talk_to(Scripted(work, stop)) as user:
        task = await user.task("Go", now=True)
        await user.until(task, TaskState.WORKING)
        await user.cancel(task)
    assert found == [None, (TaskState.WORKING, "Half done")]


async def test_a_cancelled_task_is_canceled_even_if_the_executor_publishes_nothing() -> None:
    async def silent(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None: ...

    async with talk_to(Scripted(forever, silent)) as user:
        task = await user.cancel(await user.task("Go", now=True))
    assert (task.status.state, text_of(task)) == (TaskState.CANCELED, "Canceled by client")


async def test_a_cancel_that_fails_is_logged_and_the_task_is_still_canceled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        raise NotImplementedError("cancel not supported")

    async with talk_to(Scripted(forever, fails)) as user:
        task = await user.cancel(await user.task("Go", now=True))
    assert task.status.state is TaskState.CANCELED
    assert "executor failed while its run ended" in caplog.messages


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()], ids=repr)
async def test_a_cancel_that_raises_a_base_exception_does_not_end_the_server(error: BaseException) -> None:
    async def ends(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        raise error

    async with talk_to(Scripted(forever, ends)) as user:
        task = await user.cancel(await user.task("Go", now=True))
    assert task.status.state is TaskState.CANCELED


async def test_an_executor_may_end_its_task_while_it_is_being_cancelled() -> None:
    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        try:
            await forever(context, updater, queue)
        except asyncio.CancelledError:
            await updater.add_artifact("so far")
            await updater.cancel("Stopped halfway")
            raise

    executor = Scripted(work)
    async with talk_to(executor) as user:
        task = await user.cancel(await user.task("Go", now=True))
    assert (text_of(task), contents(task)) == ("Stopped halfway", [["so far"]])
    assert len(executor.cancelled) == 1


async def test_cancel_is_called_even_if_execute_swallows_its_cancellation() -> None:
    async def stubborn(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        try:
            await forever(context, updater, queue)
        except asyncio.CancelledError:
            return

    executor = Scripted(stubborn)
    async with talk_to(executor) as user:
        task = await user.cancel(await user.task("Go", now=True))
    assert (task.status.state, text_of(task)) == (TaskState.CANCELED, "Stopped by the agent")


async def test_cancel_can_end_an_execute_that_ignores_its_cancellation() -> None:
    stopped = asyncio.Event()
    ended = asyncio.Event()

    async def stubborn(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.start_work()
        while not stopped.is_set():
            try:
                await stopped.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async def stop(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        stopped.set()
        await updater.cancel()

    agent = ExecutorAgent(Scripted(stubborn, stop), limits=CancelLimits(unwind=0.01))
    async with talk_to(agent) as user:
        task = await user.cancel(await user.task("Go", now=True))
        assert task.status.state is TaskState.CANCELED
    assert ended.is_set()


async def test_a_cancel_that_never_returns_is_abandoned(caplog: pytest.LogCaptureFixture) -> None:

    async def hangs(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await asyncio.Event().wait()

    agent = ExecutorAgent(Scripted(forever, hangs), limits=CancelLimits(cancel=0.01))
    async with talk_to(agent) as user:
        task = await user.cancel(await user.task("Go", now=True))
    assert task.status.state is TaskState.CANCELED
    assert "executor failed while its run ended" in caplog.messages


async def test_an_executor_may_clean_up_after_its_last_event() -> None:
    gate = asyncio.Event()
    cleaned_up = asyncio.Event()

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.complete()
        await gate.wait()
        cleaned_up.set()

    async with talk_to(Scripted(work), EngineOptions(shutdown_timeout=5)) as user:
        assert (await user.task("Go")).status.state is TaskState.COMPLETED
        assert not cleaned_up.is_set()
        gate.set()
    assert cleaned_up.is_set()


async def test_an_executor_that_cleans_up_for_too_long_is_cancelled_at_shutdown() -> None:
    ended = asyncio.Event()

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        try:
            await updater.complete()
            await asyncio.Event().wait()
        finally:
            ended.set()

    executor = Scripted(work)
    async with talk_to(executor) as user:
        task = await user.task("Go")
    assert ended.is_set() and executor.cancelled == []
    assert task.status.state is TaskState.COMPLETED


async def test_an_executor_that_fails_after_its_last_event_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        await updater.complete()
        raise ValueError("too late")

    async with talk_to(Scripted(work)) as user:
        assert (await user.task("Go")).status.state is TaskState.COMPLETED
    assert "executor failed while its run ended" in caplog.messages


async def test_a_run_whose_event_is_rejected_cancels_its_executor() -> None:
    ended = asyncio.Event()

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        try:
            await updater.update_status(TaskState.UNSPECIFIED)
            await asyncio.Event().wait()
        finally:
            ended.set()

    executor = Scripted(work)
    async with talk_to(executor) as user:
        assert (await user.task("Go")).status.state is TaskState.FAILED
        await asyncio.wait_for(ended.wait(), 5)
    assert executor.cancelled == []


async def test_runs_leave_no_asyncio_tasks_behind() -> None:
    before = asyncio.all_tasks()

    async def work(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
        if context.get_user_input() == "task":
            await queue.enqueue_event(new_task(context))
            await updater.complete()
        elif context.get_user_input() == "wait":
            await forever(context, updater, queue)
        else:
            raise ValueError

    async with talk_to(Scripted(work)) as user:
        tasks = [await user.ask(text, now=True) for text in ("task", "wait", "fail", "wait")]
        assert isinstance(tasks[1], Task)
        await user.cancel(tasks[1])
    assert asyncio.all_tasks() == before
