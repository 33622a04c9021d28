"""From a message to a run: which task it goes on with, whether the agent takes it, what the agent may know.

Rule: whatever can be refused is refused here, before a task exists.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from msgspec import json
from msgspec.structs import replace

from apcore_a2a.agent import Agent, Call, CancelToken
from apcore_a2a.engine.call_context import Origin
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.engine.options import Options
from apcore_a2a.engine.run import OPENED, Execution
from apcore_a2a.engine.runs import Runs, decode_run
from apcore_a2a.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
    Violation,
)
from apcore_a2a.ids_and_time import new_id, utc_now
from apcore_a2a.protocol.model import Document, Message, Role, SendMessage, Task, TaskState, TaskStatus
from apcore_a2a.storage.task_store import Query, Record, Store

Snapshot = tuple[Document, int]  # a task, and the sequence number of the last event in it

MAX_REFERENCES: Final = 10
MAX_ATTEMPTS: Final = 3  # runs of a retry-safe task whose process died


class Intake:
    """Takes messages in for an engine."""

    def __init__(self, agent: Agent, store: Store, runs: Runs, options: Options) -> None:
        self._agent, self._store, self._runs, self._options = agent, store, runs, options

    async def begin(self, request: SendMessage, origin: Origin, *, wait: bool) -> Execution | Snapshot:
        """Start the run a message asks for, up to where its sender can be answered.

        A Snapshot when there is no run to wait for: it ended before, or it is not yet its turn and `wait` is false.
        """
        message = request.message
        if message.role is not Role.USER:
            raise InvalidParamsError("Invalid message role", [Violation("message.role", "must be the user's")])
        if request.configuration.task_push_notification_config is not None:
            raise PushNotificationNotSupportedError
        self._runs.check_room()
        task_id = message.task_id
        if not task_id and message.context_id and origin.rules.resume_by_context:
            task_id = await self._waiting(message, origin)
        begun: Execution | Snapshot
        if task_id:
            async with self.live(task_id, origin) as live:
                begun = await self._continue(live, request, origin, wait=wait)
            if not isinstance(begun, Execution):
                return begun
        else:
            call = self._new_task(request, origin)
            if message.context_id or message.reference_task_ids:
                await self._inform(call, origin)
            admission = await self._agent.admit(call)
            begun = self._runs.begin(call, retry_safe=admission.retry_safe, key=self._key(call.message, origin))
        if begun.progress.stage < OPENED:
            await begun.progress.until(OPENED)
        if begun.error is not None:
            raise begun.error
        return begun if begun.earlier is None else await self._earlier(begun.earlier, origin)

    async def _earlier(self, task_id: str, origin: Origin) -> Execution | Snapshot:
        """What came of a send that is the same as this one."""
        running = self._runs.running(task_id)
        if running is not None:
            return running
        record = await self.load(task_id, origin)
        return record.document, record.version

    def _new_task(self, request: SendMessage, origin: Origin) -> Call:
        message = request.message
        task = Task(
            id=new_id(),
            context_id=message.context_id or new_id(),
            status=TaskStatus(state=TaskState.SUBMITTED, timestamp=utc_now()),
            metadata=request.metadata,
        )
        said = replace(message, message_id=message.message_id or new_id(), task_id=task.id, context_id=task.context_id)
        task.history = [said]
        return self._new_call(replace(request, message=said), task, origin)

    def _key(self, message: Message, origin: Origin) -> str:
        """What makes a send the same as an earlier one; empty when nothing does."""
        return origin.idempotency_key or (message.message_id if self._options.same_message_same_task else "")

    # ---- a task's next message ------------------------------------------------------------------------------------

    async def _waiting(self, message: Message, origin: Origin) -> str:
        """The task that a message without taskId goes on with: the only one of its context that waits for input."""
        query = Query(owner=origin.owner, limit=2, context_id=message.context_id, state=TaskState.INPUT_REQUIRED)
        waiting = (await self._store.page(query)).records
        return waiting[0].document.task().id if len(waiting) == 1 else ""

    async def _continue(
        self, live: LiveTask, request: SendMessage, origin: Origin, *, wait: bool
    ) -> Execution | Snapshot:
        context_id = request.message.context_id
        if context_id and context_id != live.task.context_id:
            wrong = Violation("message.contextId", "is not the context of message.taskId")
            raise InvalidParamsError("contextId does not match the task", [wrong])
        if self._is_repeated(live, request.message, origin):
            return self._runs.running(live.task.id) or await live.latest()
        if live.has_ended():
            raise UnsupportedOperationError(f"Task {live.task.id} has ended; send a new message without taskId")
        version, admitted = live.version, await self._admit(live, request, origin)
        place = live.join_queue()
        turn = self._take_turn(live, request, origin, admitted, version, place)
        if wait or place is None:
            return await turn
        self._runs.later(turn, live)
        return await live.latest()

    def _is_repeated(self, live: LiveTask, message: Message, origin: Origin) -> bool:
        return bool(self._key(message, origin)) and message.message_id in {
            said.message_id for said in live.task.history
        }

    async def _admit(self, live: LiveTask, request: SendMessage, origin: Origin) -> tuple[Call, bool]:
        call = self._new_call(request, live.task, origin)
        await self._inform(call, origin)
        call.resumed, call.memo = True, json.decode(live.memo) if live.memo else None
        return call, (await self._agent.admit(call)).retry_safe

    async def _take_turn(
        self,
        live: LiveTask,
        request: SendMessage,
        origin: Origin,
        admitted: tuple[Call, bool],
        version: int,
        place: "asyncio.Future[None] | None",
    ) -> Execution | Snapshot:
        await live.wait_turn(place)
        execution = None
        try:
            await live.mend()
            if not self._is_repeated(live, request.message, origin):  # else it waited beside its twin
                if live.version != version:  # the task went on while the message waited: what was known of it is old
                    admitted = await self._admit(live, request, origin)
                execution = self._runs.resume(live, *admitted)
        finally:
            if execution is None:
                live.turn.give()
        return execution or await live.latest()

    # ---- what the agent may know ----------------------------------------------------------------------------------

    def _new_call(self, request: SendMessage, task: Task, origin: Origin) -> Call:
        return Call(request=request, task=task, caller=origin.caller, headers=origin.headers, cancel=CancelToken())

    async def _inform(self, call: Call, origin: Origin) -> None:
        """Tell the agent what was said before in the context, and of the tasks that the message refers to."""
        if self._options.context_messages:
            call.history = await self._conversation(call.task.context_id, origin)
        if references := call.message.reference_task_ids[:MAX_REFERENCES]:
            found = [await self._store.load(id, origin.owner) for id in references]
            call.references = tuple(record.document.task() for record in found if record is not None)

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
        return tuple(said[-limit:])

    # ---- tasks ----------------------------------------------------------------------------------------------------

    async def load(self, task_id: str, origin: Origin) -> Record:
        record = await self._store.load(task_id, origin.owner)
        if record is None:
            raise TaskNotFoundError(task_id)
        return record

    @asynccontextmanager
    async def live(self, task_id: str, origin: Origin) -> AsyncIterator[LiveTask]:
        """A task of the caller's, live for as long as it is needed here."""
        live = self._runs.find(task_id, origin.owner) or self._runs.revive(await self.load(task_id, origin))
        with live.held():
            yield live

    async def recover(self) -> None:
        """Run again what a dead process left, if its agent allows that; end the rest."""
        for record in await self._store.orphans():
            live, run = self._runs.revive(record), decode_run(record.run)
            if run is None or not run.retry_safe or run.attempt >= MAX_ATTEMPTS:
                await self._runs.give_up(live)
                continue
            origin = Origin(caller=run.caller)
            call = self._new_call(run.request, live.task, origin)
            await self._inform(call, origin)
            call.history = tuple(said for said in call.history if said.message_id != call.message.message_id)
            call.resumed, call.memo = run.resumed, run.memo
            await self._runs.rerun(live, call, run)
