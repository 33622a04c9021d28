"""An AgentExecutor whose methods are written in the test that uses it."""

import asyncio
from collections.abc import Awaitable, Callable

from apcore_a2a.agents.executors import EventQueue, RequestContext, TaskUpdater
from apcore_a2a.protocol.model import Task, TaskState, TaskStatus

Step = Callable[[RequestContext, TaskUpdater, EventQueue], Awaitable[None]]


class Scripted:
    """An executor whose methods a test defines. By default `cancel` publishes CANCELED."""

    def __init__(self, execute: Step, cancel: Step | None = None) -> None:
        self._execute = execute
        self._cancel = cancel
        self.cancelled: list[RequestContext] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._execute(context, TaskUpdater(event_queue), event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.cancelled.append(context)
        if self._cancel is None:
            await TaskUpdater(event_queue).cancel("Stopped by the agent")
        else:
            await self._cancel(context, TaskUpdater(event_queue), event_queue)


def new_task(context: RequestContext) -> Task:
    status = TaskStatus(state=TaskState.SUBMITTED)
    return Task(id=context.task_id, context_id=context.context_id, status=status, history=[context.message])


async def forever(context: RequestContext, updater: TaskUpdater, queue: EventQueue) -> None:
    await updater.start_work()
    await asyncio.Event().wait()
