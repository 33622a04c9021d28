"""Which tasks are live, who runs them, and how all of it begins and ends.

Rule: a task has one LiveTask while anybody runs or watches it, and one run at a time; the next message waits its turn.
"""

import asyncio
import logging
import time
from typing import Final

from msgspec import Struct, json
from msgspec.structs import replace

from apcore_a2a.agent import Agent, Call, Caller, CancelToken
from apcore_a2a.errors import A2AError, OverloadedError, UnsupportedOperationError
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Message, SendMessage, StatusUpdate, Task, TaskState, TaskStatus, encode
from apcore_a2a.server.crew import Crew
from apcore_a2a.server.execution import CANCEL_GRACE, Execution, Stop
from apcore_a2a.server.live_task import LiveTask, says
from apcore_a2a.server.observer import Observer
from apcore_a2a.server.options import Options
from apcore_a2a.server.stamps import new_id
from apcore_a2a.storage.task_store import Record, Store

logger = logging.getLogger(__name__)

MAX_QUEUED: Final = 32  # messages that may wait for one running task
MAX_ATTEMPTS: Final = 3  # runs of a retry-safe task whose process died


class Run(Struct, omit_defaults=True):
    """What a durable store keeps of a run, so that another process can run it again."""

    request: SendMessage
    caller: Caller
    retry_safe: bool = False
    attempt: int = 1


_RUN: Final = json.Decoder(Run)


class Runs:
    """The live tasks of an engine."""

    def __init__(self, agent: Agent, store: Store, *, observer: Observer, options: Options) -> None:
        self.draining = False
        self._agent, self._store, self._observer = agent, store, observer
        self._timeout, self._limit = options.execution_timeout, options.max_active_tasks
        self._live: dict[str, LiveTask] = {}
        self._active: dict[str, Execution] = {}
        self._crew = Crew()

    def __len__(self) -> int:
        return len(self._active)

    def check_room(self) -> None:
        if self.draining:
            raise OverloadedError("The agent is shutting down", retry_after=5)
        if len(self._active) >= self._limit:
            raise OverloadedError("The agent is at its limit of running tasks; try again later")

    def call(self, request: SendMessage, task: Task, caller: Caller) -> Call:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        return Call(request=request, task=task, caller=caller, cancel=CancelToken(), deadline=deadline)

    def find(self, task_id: str, owner: str) -> LiveTask | None:
        live = self._live.get(task_id)
        return live if live is not None and live.owner == owner else None

    def revive(self, record: Record) -> LiveTask:
        """The live task of a record, with nobody running it yet."""
        task = record.document.task()
        live = self._live.get(task.id)
        if live is None:
            live = LiveTask(task, owner=record.owner, store=self._store, version=record.version)
            live.epoch, live.memo = record.epoch, record.memo
            self._live[task.id] = live
        return live

    def release(self, live: LiveTask) -> None:
        """Forget a live task that nobody runs or watches."""
        if not live.readers and not live.queued and not live.turn.locked():
            self._live.pop(live.task.id, None)

    def running(self, task_id: str) -> Execution | None:
        return self._active.get(task_id)

    async def begin(self, call: Call, *, retry_safe: bool, key: str) -> "Execution | str":
        """Start the run of a new task; or the id of the earlier task that has the same key."""
        live = LiveTask(call.task, owner=call.caller.owner, store=self._store)
        self._note(live, call, retry_safe)
        stored = bool(key) or not self._agent.may_reply
        await live.turn.acquire()
        if stored and (earlier := await live.create(key=key)) is not None:
            return earlier
        # No await between the store's answer and this: nobody finds the task without its live one.
        self._live[call.task.id] = live
        return self._launch(live, call, stored=stored)

    async def resume(self, live: LiveTask, call: Call, *, retry_safe: bool) -> Execution:
        """Run the next message of a task, when it is its turn."""
        if live.queued >= MAX_QUEUED:
            raise OverloadedError("Too many messages wait for this task; try again later")
        live.queued += 1
        try:
            await live.turn.acquire()
        finally:
            live.queued -= 1
        try:
            await live.mend()
            if live.state in TERMINAL:
                raise UnsupportedOperationError(f"Task {live.task.id} has ended; send a new message without taskId")
            self._note(live, call, retry_safe)
            working = StatusUpdate(status=TaskStatus(state=TaskState.WORKING))
            await live.write(working, said=_addressed(call.message, live.task))
            await live.flush()
        except A2AError:
            live.turn.release()
            raise
        return self._launch(live, call, stored=True)

    def later(self, live: LiveTask, call: Call, *, retry_safe: bool) -> None:
        """The same for a sender who does not wait."""
        self._crew.start(self._resume_quietly(live, call, retry_safe), name=f"queued message {live.task.id}")

    async def _resume_quietly(self, live: LiveTask, call: Call, retry_safe: bool) -> None:
        try:
            await self.resume(live, call, retry_safe=retry_safe)
        except A2AError as error:
            logger.warning("queued message not taken", extra={"task_id": live.task.id, "reason": error.message})
            self.release(live)

    def _note(self, live: LiveTask, call: Call, retry_safe: bool) -> None:
        if self._store.durable:
            live.run = encode(Run(call.request, call.caller, retry_safe))

    def _launch(self, live: LiveTask, call: Call, *, stored: bool) -> Execution:
        execution = Execution(live, call, agent=self._agent, observer=self._observer, stored=stored)
        self._active[live.task.id] = execution
        self._crew.start(self._drive(execution), name=f"run {live.task.id}")
        return execution

    async def _drive(self, execution: Execution) -> None:
        loop = asyncio.get_running_loop()
        timer = None if self._timeout is None else loop.call_later(self._timeout, self.stop, execution, Stop.TIMEOUT)
        try:
            await execution.drive()
        finally:
            if timer is not None:
                timer.cancel()
            self._finished(execution)

    def _finished(self, execution: Execution) -> None:
        live = execution.live
        if self._active.get(live.task.id) is execution:
            del self._active[live.task.id]
            live.turn.release()
            self.release(live)

    def stop(self, execution: Execution, reason: Stop) -> "asyncio.Task[None]":
        """End a run from outside; done when its task is at rest, with or without the agent."""
        return self._crew.start(self._stop(execution, reason), name=f"stop {execution.live.task.id}")

    async def _stop(self, execution: Execution, reason: Stop) -> None:
        await execution.stop(reason)
        self._finished(execution)  # an abandoned agent holds no turn

    async def recover(self) -> None:
        """End or run again what a dead process left."""
        for record in await self._store.orphans():
            live = self.revive(record)
            run = _decode_run(record.run)
            if run is not None and run.retry_safe and run.attempt < MAX_ATTEMPTS:
                live.run = encode(replace(run, attempt=run.attempt + 1))
                await live.turn.acquire()
                self._launch(live, self.call(run.request, live.task, run.caller), stored=True)
                continue
            status = TaskStatus(
                state=TaskState.FAILED, message=says("Worker lost: the process running this task ended")
            )
            await live.write(StatusUpdate(status=status))
            await live.flush()
            self.release(live)

    async def drain(self, grace: float) -> None:
        """Take nothing new, let runs finish for `grace` seconds, then end the rest as failed, and every stream."""
        await self._crew.join(grace)
        for execution in list(self._active.values()):
            self.stop(execution, Stop.SHUTDOWN)
        await self._crew.join(CANCEL_GRACE + 1)
        await self._crew.dismiss(1)
        for live in list(self._live.values()):
            live.log.close()


def _addressed(message: Message, task: Task) -> Message:
    return replace(message, task_id=task.id, context_id=task.context_id, message_id=message.message_id or new_id())


def _decode_run(body: bytes) -> Run | None:
    try:
        return _RUN.decode(body) if body else None
    except ValueError:  # written by another version
        return None
