"""An executor written for a2a-sdk, served unchanged. The agent does not import this package.

pip install 'apcore-a2a[sdk]'
python examples/sdk_executor.py
apcore-a2a send http://127.0.0.1:8000 "hello world"
"""

from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater

from apcore_a2a import serve


class Shout(AgentExecutor):
    """Returns text in upper case, and greets with a message instead of a task."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        if text.lower() in ("hello", "hi"):
            await event_queue.enqueue_event(new_text_message("Hello!"))  # a message without a task
            return
        if context.current_task is None and context.message is not None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.start_work()
        if not text:
            await updater.requires_input(new_text_message("What shall I say?"))
            return
        await updater.add_artifact([new_text_part(text.upper())], name="shout", last_chunk=True)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.cancel(new_text_message("Fine, I'll be quiet."))


if __name__ == "__main__":
    serve(Shout(), host="127.0.0.1", port=8000)
