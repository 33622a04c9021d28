"""Messages that are sent twice: what makes them the same, and what came of the first.

Rule: a repeat makes nothing and needs no room. Who makes a task asks the store for the key as it writes; only a message
that meets a limit is looked up before.
"""

from apcore_a2a.engine.call_context import CallContext
from apcore_a2a.engine.elsewhere import Elsewhere
from apcore_a2a.engine.event_log import Snapshot
from apcore_a2a.engine.followers import Followers
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.engine.run import Run
from apcore_a2a.engine.runs import Runs
from apcore_a2a.errors import TaskNotFoundError
from apcore_a2a.protocol.model import Message
from apcore_a2a.storage.task_store import Store


class Repeats:
    """Finds what came of messages that were sent before."""

    def __init__(self, store: Store, runs: Runs, followers: Followers | None, *, by_message_id: bool) -> None:
        self._store = store
        self._runs = runs
        self._followers = followers
        self._by_message_id = by_message_id

    def key_of(self, message: Message, context: CallContext) -> str:
        """What makes a send the same as an earlier one; empty when nothing does."""
        if not context.idempotency_key and self._by_message_id:
            return message.message_id
        return context.idempotency_key

    def is_in(self, live: LiveTask, message: Message, context: CallContext) -> bool:
        """Whether a message to a task was said there before."""
        if not self.key_of(message, context):
            return False
        return any(said.message_id == message.message_id for said in live.task.history)

    async def find(self, message: Message, context: CallContext, *, wait: bool) -> Run | Snapshot | Elsewhere | None:
        """What came of the send that a message without a task repeats; None if it repeats none."""
        key = self.key_of(message, context)
        if not key:
            return None
        task_id = await self._store.find_key(key, context.owner)
        if task_id is None:
            return None
        return await self.outcome(task_id, context, wait=wait)

    async def outcome(self, task_id: str, context: CallContext, *, wait: bool) -> Run | Snapshot | Elsewhere:
        """What came of a send that made this task."""
        run = self._runs.running(task_id)
        if run is not None:
            return run
        if self._followers is not None and wait:
            live = await self._followers.look(task_id, context.owner, follow=True)
            live.hold()
            return Elsewhere(live, None)
        record = await self._store.load(task_id, context.owner)
        if record is None:
            raise TaskNotFoundError(task_id)
        return Snapshot(record.document, record.version)
