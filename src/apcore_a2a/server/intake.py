"""From a message to a run: which task it goes on with, whether the agent takes it, what the agent may know.

Rule: whatever can be refused is refused here, before a task exists.
"""

from typing import Final

from msgspec import json
from msgspec.structs import replace

from apcore_a2a.agent import Agent, Call
from apcore_a2a.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
    Violation,
)
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Document, Message, Role, SendMessage, Task, TaskState, TaskStatus
from apcore_a2a.server.execution import Execution
from apcore_a2a.server.live_task import LiveTask
from apcore_a2a.server.options import Options
from apcore_a2a.server.origin import Origin
from apcore_a2a.server.runs import Runs
from apcore_a2a.server.stamps import new_id, utc_now
from apcore_a2a.storage.task_store import Query, Record, Store

MAX_REFERENCES: Final = 10


class Intake:
    """Takes messages in for an engine."""

    def __init__(self, agent: Agent, store: Store, runs: Runs, options: Options) -> None:
        self._agent, self._store, self._runs, self._options = agent, store, runs, options

    async def begin(self, request: SendMessage, origin: Origin, *, stream: bool = False) -> Execution | Document:
        """Start the run a message asks for. A Document when there is no run to wait for."""
        message = request.message
        if message.role is not Role.USER:
            raise InvalidParamsError("Invalid message role", [Violation("message.role", "must be the user's")])
        if request.configuration.task_push_notification_config is not None:
            raise PushNotificationNotSupportedError
        self._runs.check_room()
        live = await self._continued(message, origin)
        if live is not None:
            try:
                wait = stream or not request.configuration.return_immediately
                return await self._resume(live, request, origin, wait=wait)
            except BaseException:
                self._runs.release(live)
                raise
        task = Task(
            id=new_id(),
            context_id=message.context_id or new_id(),
            status=TaskStatus(state=TaskState.SUBMITTED, timestamp=utc_now()),
            metadata=request.metadata,
        )
        message = replace(
            message, message_id=message.message_id or new_id(), task_id=task.id, context_id=task.context_id
        )
        task.history = [message]
        call = await self._call(
            replace(request, message=message), task, origin, new_context=not request.message.context_id
        )
        admission = await self._agent.admit(call)
        key = origin.idempotency_key or (message.message_id if self._options.same_message_same_task else "")
        begun = await self._runs.begin(call, retry_safe=admission.retry_safe, key=key)
        return begun if isinstance(begun, Execution) else await self._earlier(begun, origin)

    async def _earlier(self, task_id: str, origin: Origin) -> Execution | Document:
        """The run, or the outcome, of an earlier send with the same key."""
        running = self._runs.running(task_id)
        return running or (await self.load(task_id, origin)).document

    async def _continued(self, message: Message, origin: Origin) -> LiveTask | None:
        """The task that a message goes on with, if any."""
        if message.task_id:
            return await self.live(message.task_id, origin)
        if not (origin.rules.resume_by_context and message.context_id):
            return None
        query = Query(owner=origin.owner, limit=2, context_id=message.context_id, state=TaskState.INPUT_REQUIRED)
        waiting = (await self._store.page(query)).records
        return self._runs.revive(waiting[0]) if len(waiting) == 1 else None

    async def _resume(
        self, live: LiveTask, request: SendMessage, origin: Origin, *, wait: bool
    ) -> Execution | Document:
        context_id = request.message.context_id
        if context_id and context_id != live.task.context_id:
            wrong = Violation("message.contextId", "is not the context of message.taskId")
            raise InvalidParamsError("contextId does not match the task", [wrong])
        if live.state in TERMINAL:
            raise UnsupportedOperationError(f"Task {live.task.id} has ended; send a new message without taskId")
        call = await self._call(request, live.task, origin, new_context=False)
        call.resumed, call.memo = True, json.decode(live.memo) if live.memo else None
        admission = await self._agent.admit(call)
        if wait:
            return await self._runs.resume(live, call, retry_safe=admission.retry_safe)
        self._runs.later(live, call, retry_safe=admission.retry_safe)
        return (await live.latest())[0]

    async def _call(self, request: SendMessage, task: Task, origin: Origin, *, new_context: bool) -> Call:
        call = self._runs.call(request, task, origin.caller)
        call.headers = origin.headers
        if not new_context:
            call.history = await self._conversation(task.context_id, origin)
        if request.message.reference_task_ids:
            found = [
                await self._store.load(id, origin.owner) for id in request.message.reference_task_ids[:MAX_REFERENCES]
            ]
            call.references = tuple(record.document.task() for record in found if record is not None)
        return call

    async def _conversation(self, context_id: str, origin: Origin) -> tuple[Message, ...]:
        """The latest messages of the caller's tasks in a context: what was said, and what the agent last answered."""
        limit = self._options.context_messages
        query = Query(owner=origin.owner, limit=limit, context_id=context_id, by_creation=True)
        said: list[Message] = []
        for record in (await self._store.page(query)).records:
            task = record.document.task()
            answer = [task.status.message] if task.status.message else []
            said = [*task.history, *answer, *said]
            if len(said) >= limit:
                break
        return tuple(said[-limit:]) if limit else ()

    async def load(self, task_id: str, origin: Origin) -> Record:
        record = await self._store.load(task_id, origin.owner)
        if record is None:
            raise TaskNotFoundError(task_id)
        return record

    async def live(self, task_id: str, origin: Origin) -> LiveTask:
        live = self._runs.find(task_id, origin.owner)
        return live or self._runs.revive(await self.load(task_id, origin))
