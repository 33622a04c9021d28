# mypy: ignore-errors
# Typed against a2a-sdk 0.3.x, which cannot be installed beside the 1.x that mypy sees.
"""Serves an executor written for a2a-sdk 0.3.x. Runs in the environment of 0.3.x, with our dependencies after it."""

import sys

sys.path.append(sys.argv[1])  # last, so that the a2a-sdk of this environment is found first

from a2a.server.agent_execution import AgentExecutor, RequestContext, SimpleRequestContextBuilder
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import (
    DataPart,
    FilePart,
    FileWithBytes,
    InternalError,
    Part,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
    UnsupportedOperationError,
)
from a2a.utils import new_agent_text_message, new_task
from a2a.utils.errors import ServerError

from apcore_a2a import serve


class Waits:
    """Events after this one are never sent."""


class Echo(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        if text == "message":
            await event_queue.enqueue_event(new_agent_text_message("just words"))
        elif text == "refuse":
            raise ServerError(error=UnsupportedOperationError(message="Only echoes, please"))
        elif text == "break":
            raise ServerError(error=InternalError(message=""))
        elif text == "odd":
            await event_queue.enqueue_event(Waits())
        elif text == "empty":
            await event_queue.enqueue_event(new_agent_text_message("x").model_copy(update={"parts": []}))
        elif text == "whole":
            status = TaskStatus(state=TaskState.completed)
            await event_queue.enqueue_event(Task(id=context.task_id, context_id=context.context_id, status=status))
        else:
            await self._work(context, event_queue, text)

    async def _work(self, context: RequestContext, event_queue: EventQueue, text: str) -> None:
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        if text == "ask":
            await updater.requires_input(new_agent_text_message("Go on?", task.context_id, task.id), final=True)
            return
        call = context.call_context
        told = {
            "user": call.user.user_name,
            "headers": call.state["headers"],
            "extensions": sorted(context.requested_extensions),
            "metadata": context.metadata,
            "turns": len(task.history or []),
            "data": [part.root.data for part in context.message.parts if part.root.kind == "data"],
        }
        file = FileWithBytes(bytes="aGVsbG8xMjM=", name="a.bin", mime_type="application/octet-stream")
        parts = [Part(root=TextPart(text=text)), Part(root=DataPart(data=told)), Part(root=FilePart(file=file))]
        await updater.add_artifact(parts, name="echo")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task
        await TaskUpdater(event_queue, task.id, task.context_id).cancel()


serve(Echo(), host="127.0.0.1", port=0, request_context_builder=SimpleRequestContextBuilder())
