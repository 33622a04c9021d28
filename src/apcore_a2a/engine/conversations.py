"""What an agent may know besides its message: what was said before in the context, and the tasks it refers to.

Rule: only what is the caller's own. A conversation is not stored a second time: it is the histories of its tasks.
"""

from typing import Final

from msgspec.structs import replace

from apcore_a2a.agent import Call
from apcore_a2a.engine.call_context import CallContext
from apcore_a2a.protocol.model import Message, Task
from apcore_a2a.storage.task_store import Query, Store

MAX_REFERENCES: Final = 10


class Conversations:
    """Finds what was said; at most `limit` messages of it."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit

    async def tell(self, call: Call, context: CallContext) -> None:
        """Tell the agent what was said before in the context, and of the tasks that the message refers to."""
        if self._limit:
            call.history = await self._messages(call.task.context_id, context)
        found: list[Task] = []
        for task_id in call.message.reference_task_ids[:MAX_REFERENCES]:
            record = await self._store.load(task_id, context.owner)
            if record is not None:  # what is another's is not there
                found.append(record.document.task())
        call.references = tuple(found)

    async def _messages(self, context_id: str, context: CallContext) -> tuple[Message, ...]:
        """The latest messages of the caller's tasks in a context: what was said, and what the agent last answered."""
        query = Query(owner=context.owner, limit=self._limit, context_id=context_id, by_creation=True)
        said: list[Message] = []
        while True:  # a page ends early when its tasks are large
            page = await self._store.page(query)
            for record in page.records:  # the newest task first
                task = record.document.task()
                of_this_task = [*task.history]
                if task.status.message is not None:
                    of_this_task.append(task.status.message)
                said = of_this_task + said
                if len(said) >= self._limit:
                    return tuple(said[-self._limit :])
            if not page.next_cursor:
                return tuple(said)
            query = replace(query, cursor=page.next_cursor)
