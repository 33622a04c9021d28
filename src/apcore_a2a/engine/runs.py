"""Which tasks are live, who runs them, and how all of it begins and ends.

Rule: a task has one LiveTask while anybody runs or watches it, and one run at a time; the next message waits its turn.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from msgspec import Struct, json
from msgspec.structs import replace

from apcore_a2a.agent import Agent, Call, Caller
from apcore_a2a.engine.agent_output import says
from apcore_a2a.engine.crew import Crew
from apcore_a2a.engine.farewell import farewell
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.engine.observer import Observer
from apcore_a2a.engine.options import Options
from apcore_a2a.engine.run import CANCEL_GRACE, AgentDecides, Execution, NewTask, NextMessage, Phase, Rerun, Start, Stop
from apcore_a2a.errors import A2AError, OverloadedError, UnsupportedOperationError
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import SendMessage, StatusUpdate, TaskState, TaskStatus, encode
from apcore_a2a.storage.task_store import Record, Store

logger = logging.getLogger(__name__)

FAREWELL: Final = 4.0  # seconds an agent has to say something about a canceled task that waits
SHUTTING_DOWN: Final = "The agent is shutting down"
LOST: Final = "Worker lost: the process running this task ended"


class Run(Struct, omit_defaults=True):
    """What a durable store keeps of a run, so that another process can run it again."""

    request: SendMessage
    caller: Caller
    retry_safe: bool = False
    resumed: bool = False
    memo: Any = None
    attempt: int = 1


_RUN: Final = json.Decoder(Run)


def decode_run(body: bytes) -> Run | None:
    try:
        return _RUN.decode(body) if body else None
    except ValueError:  # written by another version
        return None


class Runs:
    """The live tasks of an engine."""

    def __init__(self, agent: Agent, store: Store, *, observer: Observer, options: Options) -> None:
        self.draining = False
        self._agent, self._store, self._observer = agent, store, observer
        self._timeout, self._limit = options.execution_timeout, options.max_active_tasks
        self._live: dict[str, LiveTask] = {}
        self._active: dict[str, Execution] = {}
        self._crew = Crew()

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def live(self) -> int:
        return len(self._live)

    def check_room(self) -> None:
        if self.draining:
            raise OverloadedError(SHUTTING_DOWN, retry_after=5)
        if len(self._active) >= self._limit:
            raise OverloadedError("The agent is at its limit of running tasks; try again later")

    # ---- live tasks -----------------------------------------------------------------------------------------------

    def find(self, task_id: str, owner: str) -> LiveTask | None:
        live = self._live.get(task_id)
        return live if live is not None and live.owner == owner else None

    def revive(self, record: Record) -> LiveTask:
        """The live task of a record, with nobody running it yet; to be held before the next await."""
        task = record.document.task()
        live = self._live.get(task.id)
        if live is None:
            live = LiveTask(
                task, self._live, owner=record.owner, store=self._store, version=record.version, epoch=record.epoch
            )
            live.memo = record.memo
        return live

    def stop_unless_watched(self, live: LiveTask, seconds: float) -> None:
        """End a run after a while, unless somebody takes an interest in its task again."""
        running = self.running(live.task.id)
        if running is not None:
            live.when_unwatched(seconds, partial(self.stop, running, Stop.DISCONNECT))

    # ---- runs -----------------------------------------------------------------------------------------------------

    def running(self, task_id: str) -> Execution | None:
        return self._active.get(task_id)

    def begin(self, call: Call, *, retry_safe: bool, key: str) -> Execution:
        """Start the run of a new task."""
        self.check_room()
        live = LiveTask(call.task, self._live, owner=call.caller.owner, store=self._store)
        live.turn.is_taken = True
        if self._store.durable:
            self._note(live, call, retry_safe)
        agent_decides = self._agent.may_reply and not key
        return self._launch(live, call, AgentDecides() if agent_decides else NewTask(key))

    def check_turn(self, live: LiveTask) -> None:
        """Refuse a message whose turn it is, when there is nothing left to say it to."""
        if self.draining:
            raise OverloadedError(SHUTTING_DOWN, retry_after=5)
        if live.is_closed():
            raise UnsupportedOperationError(f"Task {live.task.id} has ended; send a new message without taskId")

    def resume(self, live: LiveTask, call: Call, retry_safe: bool) -> Execution:
        """Run the next message of a task whose turn it is."""
        self.check_turn(live)
        if self._store.durable:
            self._note(live, call, retry_safe)
        return self._launch(live, call, NextMessage())

    async def rerun(self, live: LiveTask, call: Call, run: Run) -> None:
        """Run again from the start what a dead process left; what it had made by then is made anew."""
        await live.turn.take()  # at once: nobody else has it
        live.run = encode(replace(run, attempt=run.attempt + 1))
        self._launch(live, call, Rerun())

    async def give_up(self, live: LiveTask) -> None:
        """End what a dead process left and nobody may run again."""
        with live.held():
            await live.write(StatusUpdate(status=TaskStatus(state=TaskState.FAILED, message=says(LOST))))

    def later(self, work: Coroutine[Any, Any, object], live: LiveTask) -> None:
        """Have a message wait for its turn without its sender."""
        self._crew.start(self._quietly(work, live), name=f"queued message {live.task.id}")

    async def _quietly(self, work: Coroutine[Any, Any, object], live: LiveTask) -> None:
        with live.held():
            try:
                await work
            except A2AError as error:
                logger.warning("queued message not taken", extra={"task_id": live.task.id, "reason": error.message})

    def _note(self, live: LiveTask, call: Call, retry_safe: bool) -> None:
        live.run = encode(Run(call.request, call.caller, retry_safe, call.resumed, call.memo))

    def _launch(self, live: LiveTask, call: Call, start: Start) -> Execution:
        call.deadline = None if self._timeout is None else time.monotonic() + self._timeout
        execution = Execution(live, call, start, agent=self._agent, observer=self._observer)
        self._active[live.task.id] = execution
        live.hold()
        execution.driver = self._crew.start(self._drive(execution), name=f"run {live.task.id}")
        if self._timeout is not None:
            loop = asyncio.get_running_loop()
            execution.timer = loop.call_later(self._timeout, self.stop, execution, Stop.TIMEOUT)
        return execution

    async def _drive(self, execution: Execution) -> None:
        try:
            await execution.drive()
        finally:
            if execution.phase is Phase.OVER and self._active.get(execution.live.task.id) is execution:
                self._finished(execution)  # else it was left behind: that is for whoever left it to say

    def _finished(self, execution: Execution) -> None:
        if execution.timer is not None:
            execution.timer.cancel()
        live = execution.live
        del self._active[live.task.id]
        live.turn.give()
        live.release()

    # ---- ends -----------------------------------------------------------------------------------------------------

    def stop(self, execution: Execution, reason: Stop) -> "asyncio.Task[None]":
        """End a run from outside, once; done when its task is at rest, with or without the agent."""
        if execution.stopping is None:
            name = f"stop {execution.live.task.id}"
            execution.stopping = self._crew.start(self._stop(execution, reason), name=name)
        return execution.stopping

    async def _stop(self, execution: Execution, reason: Stop) -> None:
        if await execution.stop(reason):
            self._finished(execution)
            self._crew.disown(execution.driver)

    def cancel(self, live: LiveTask, caller: Caller) -> "asyncio.Task[None]":
        """End a task for its client. Never raises: whether it came to that is the task's state."""
        return self._crew.start(self._cancel(live, caller), name=f"cancel {live.task.id}")

    async def _cancel(self, live: LiveTask, caller: Caller) -> None:
        with live.held(), live.canceling():
            try:
                if (running := self.running(live.task.id)) is not None:
                    await asyncio.wait({self.stop(running, Stop.CANCEL)})
                async with live.turn:
                    await self._end_parked(live, caller)
            except A2AError as error:
                logger.warning("cancel not stored", extra={"task_id": live.task.id, "reason": error.message})

    async def _end_parked(self, live: LiveTask, caller: Caller) -> None:
        await live.mend()
        if live.state not in TERMINAL:
            await self._say_farewell(live, caller)
            await live.mend()
        if live.state not in TERMINAL:
            state, text = Stop.CANCEL.value
            await live.write(StatusUpdate(status=TaskStatus(state=state, message=says(text))))

    async def _say_farewell(self, live: LiveTask, caller: Caller) -> None:
        work = farewell(self._agent, live, caller)
        saying = self._crew.start(work, name=f"farewell {live.task.id}")
        _, late = await asyncio.wait({saying}, timeout=FAREWELL)
        if late:
            saying.cancel()
            self._crew.disown(saying)  # it may not hear that

    async def drain(self, grace: float) -> None:
        """Take nothing new, let runs finish for `grace` seconds, then end the rest as failed, and every stream."""
        await self._crew.join(grace)
        for execution in list(self._active.values()):
            self.stop(execution, Stop.SHUTDOWN)
        await self._crew.join(CANCEL_GRACE + 1)
        await self._crew.dismiss(1)
        for live in list(self._live.values()):
            live.log.close()
