"""One run of an agent, and every way it can end.

Rule: whatever the agent does, the task comes to rest in a stored state: by itself, by an exception, at the deadline, on
cancel, at shutdown. An agent that ignores its cancellation is left behind; its task is not.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from enum import Enum
from typing import Final

from msgspec import Struct

from apcore_a2a.agent import Agent, AgentEvent, Call, Remember
from apcore_a2a.engine.agent_output import Kept, keep, says
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.engine.observer import Observer
from apcore_a2a.engine.waiting import Progress
from apcore_a2a.engine.watched import Watched
from apcore_a2a.errors import (
    A2AError,
    InternalError,
    InvalidStateTransitionError,
    StaleWriteError,
    StoreUnavailableError,
    TaskNotFoundError,
)
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy
from apcore_a2a.protocol.model import Message, StatusUpdate, Task, TaskState, TaskStatus

logger = logging.getLogger(__name__)

LIMIT: Final = 64  # events taken from an agent at once; then they are saved, and others get a turn
CANCEL_GRACE: Final = 5.0  # seconds an agent has to stop before its task is ended without it
SAVE_RETRIES: Final = (0.05, 0.2, 1.0, 4.0)  # pauses between attempts to store a task's end; the last one repeats


OPENED, RESTED = 1, 2  # what its sender may wait for


class Phase(Enum):
    """Where a run stands: who has control, and who may write its task."""

    OPENING = "how the run begins is on its way to the store; the agent is not called yet, or stands at its first event"
    DECIDING = "the agent has control, and its first event says whether there will be a task"
    RUNNING = "the agent has control; what it yielded is saved each time it waits"
    SAVING = "the agent stands at an event, and the run waits for the store, or for others to have their turn"
    LEAVING = "the agent has control to tidy up; nothing that it says is taken"
    ENDING = "the agent is done with; the run brings its task to rest"
    ABANDONED = "the agent did not hear its cancellation; whoever stopped the run brings its task to rest"
    OVER = "nobody writes any more"


_P: Final = Phase
MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    _P.OPENING: frozenset({_P.DECIDING, _P.RUNNING, _P.LEAVING, _P.ENDING, _P.OVER}),
    _P.DECIDING: frozenset({_P.OPENING, _P.LEAVING, _P.ABANDONED}),
    _P.RUNNING: frozenset({_P.SAVING, _P.LEAVING, _P.ABANDONED}),
    _P.SAVING: frozenset({_P.RUNNING, _P.LEAVING}),
    _P.LEAVING: frozenset({_P.ENDING, _P.OVER, _P.ABANDONED}),
    _P.ENDING: frozenset({_P.OVER}),
    _P.ABANDONED: frozenset({_P.OVER}),
    _P.OVER: frozenset(),
}
IN_AGENT: Final = frozenset({_P.DECIDING, _P.RUNNING, _P.LEAVING})  # only then may the driver be cancelled, or left


class Stop(Enum):
    """Why a run is stopped from outside: the state and the text its task ends with."""

    CANCEL = (TaskState.CANCELED, "Canceled by client")
    DISCONNECT = (TaskState.CANCELED, "Canceled: the client disconnected")
    TIMEOUT = (TaskState.FAILED, "Execution timed out")
    SHUTDOWN = (TaskState.FAILED, "Server shutdown")


class NewTask(Struct, frozen=True, gc=False):
    """The run begins with a new task, which is worked on at once."""

    key: str = ""


class AgentDecides(Struct, frozen=True, gc=False):
    """The run begins with the agent: its first event makes a task, or is a reply instead of one."""


class NextMessage(Struct, frozen=True, gc=False):
    """The run begins with what the user says to a task that waits."""


class Rerun(Struct, frozen=True, gc=False):
    """The run begins anew what a dead process left."""


Start = NewTask | AgentDecides | NextMessage | Rerun


class Execution:
    """Drives one call.

    It is OPENED when the sender can be answered: there is a task, or the `earlier` one that has the same key, or a
    `reply` instead of a task, or an `error` because nothing could be stored. It is RESTED when the task has come to
    rest, stored and published, or when that could not be stored in time, with an `error`.
    """

    def __init__(self, live: LiveTask, call: Call, start: Start, *, agent: Agent, observer: Observer) -> None:
        self.live = live
        self.call = call
        self.phase = Phase.OPENING
        self.progress = Progress()
        self.began = 0  # the version of `call.task`, where the agent takes over
        self.earlier: str | None = None
        self.reply: Message | None = None
        self.error: A2AError | None = None
        self.timer: asyncio.TimerHandle | None = None  # for its deadline
        self.stopping: asyncio.Task[None] | None = None  # a run is stopped once: `Runs.stop`
        self.driver: asyncio.Task[None]  # set by whoever starts it, before its first step
        self._start = start
        self._agent = agent
        self._observer = observer
        self._batch: list[Kept] = []  # what the agent has yielded since it last waited
        self._stop: Stop | None = None  # said in any phase; acted upon when the agent waits, or is done with
        self._failure: BaseException | None = None  # of a save, while the agent had control
        self._started: float | None = None

    async def drive(self) -> None:
        """Run the agent to its end, in a task of its own. Never raises."""
        try:
            if isinstance(self._start, AgentDecides) or await self._open(self._start):
                failure = await self._run()
                if self.phase is Phase.ABANDONED or self.phase is Phase.OVER:  # it came back after all; too late
                    return
                if self.reply is None and self.error is None and not (failure is None and self.live.has_ended()):
                    await self._end(failure)
            if isinstance(self.error, StoreUnavailableError) and self.phase is not Phase.ENDING:
                await self._end(self.error, in_doubt=True)  # the store may have it all the same
        finally:
            if self.phase is not Phase.ABANDONED and self.phase is not Phase.OVER:
                self._close()

    async def _open(self, start: Start) -> bool:
        """Store how the run begins. Whether the store has said that it has it, and nobody else's earlier."""
        live = self.live
        try:
            match start:
                case NewTask(key):
                    self.earlier = await live.create(key=key, working=True)
                case AgentDecides():
                    await live.create()
                case NextMessage():
                    await live.hear(self.call.message)
                case Rerun():
                    await live.start_anew()
        except A2AError as error:
            self.error = error
        except Exception:
            logger.exception("task not stored", extra={"task_id": live.task.id})
            self.error = InternalError()
        self.progress.reach(OPENED)
        return self.error is None and self.earlier is None

    async def _run(self) -> BaseException | None:
        """Have the agent run; what it failed with, if it did."""
        self._started = time.monotonic()
        self._observer.run_started(self.live.task.id)
        try:
            if self._stop is None:
                self._prepare()
                await self._listen(self._agent.run(self.call))
        except BaseException as error:  # also SystemExit: an agent does not end the server
            return self._failure or error
        return self._failure

    def _prepare(self) -> None:
        call, live = self.call, self.live
        self.began, live.rested = live.version, False
        if call.resumed or call.task is live.task:
            call.task = copy(live.task)
        else:  # a new task was stored as another object: the one that the call came with is the agent's own
            call.task.status = live.task.status

    async def _listen(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        """Take what the agent yields, save what is left of it at the end, then let the agent tidy up."""
        try:
            try:
                self.phase = Phase.DECIDING if isinstance(self._start, AgentDecides) else Phase.RUNNING
                await self._take_all(events)
            finally:
                if self._batch and self.phase is Phase.RUNNING:
                    self.phase = Phase.SAVING
                    if self._save() is not None:
                        await self.live.flush()
                        self._rest()
        finally:
            if self.phase is not Phase.ABANDONED and self.phase is not Phase.OVER:
                self.phase = Phase.LEAVING
            await events.aclose()

    async def _take_all(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        """Take events until the last one, or until none is wanted any more."""
        async for event in Watched(events, self._agent_waits):
            if self.phase is Phase.DECIDING and not await self._decide(event):
                continue
            if self.phase is not Phase.RUNNING or self._failure is not None:
                return  # it was left behind or stopped, or nothing it says can be saved
            if self.live.must_catch_up:
                self.phase = Phase.SAVING
                await self.live.catch_up()
                self.phase = Phase.RUNNING
                if self._stop is not None:
                    return
            if not self._take(event):
                return
            if len(self._batch) == LIMIT:
                if self._stop is not None:  # and it went on without ever waiting
                    return
                self.phase = Phase.SAVING
                self._save()
                await asyncio.sleep(0)  # an agent that never waits leaves others their turn
                self.phase = Phase.RUNNING

    def _take(self, event: AgentEvent) -> bool:
        """Put an event into the batch. Whether others may follow it."""
        if isinstance(event, Message) and self._agent.may_reply:  # the end of its task
            event = StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED, message=event))
        state = event.status.state if isinstance(event, StatusUpdate | Task) else None
        if state is TaskState.CANCELED and self._stop in (Stop.TIMEOUT, Stop.SHUTDOWN):
            return False  # it was stopped, but not by its client
        self._batch.append(keep(event, self.live.task))
        return state not in TERMINAL

    async def _decide(self, event: AgentEvent) -> bool:
        """The first event is a reply, or it makes the task. False if it says nothing more, and the agent may go on."""
        kept, _ = keep(event, self.live.task)
        match kept:
            case Remember():
                self.live.memo = kept.memo
                return False
            case Message():
                self.reply = self.live.address(kept)
                self.phase = Phase.LEAVING
                self.progress.reach(OPENED)
                return True
            case Task() if kept.status.state is TaskState.SUBMITTED:  # its own idea of a new task is taken as it is
                self.live.adopt(kept)
        self.phase = Phase.OPENING
        stored = await self._open(self._start)
        self.phase = Phase.RUNNING if stored and self._stop is None else Phase.LEAVING
        return not stored or self._stop is not None or not _is_new(kept)

    # ---- saves ----------------------------------------------------------------------------------------------------

    def _agent_waits(self) -> None:
        """Save what the agent has yielded, and have its wait cancelled if that is due. Never raises."""
        if self._batch and self.phase is Phase.RUNNING:
            try:
                self._save()
            except Exception as error:
                self._fail(error)
        if self._stop is not None and self.phase in IN_AGENT:
            asyncio.get_running_loop().call_soon(self._cancel)  # not here: the agent is not waiting yet

    def _cancel(self) -> None:
        if self.phase in IN_AGENT:
            self.driver.cancel()

    def _save(self) -> "asyncio.Future[None] | None":
        batch = self._batch
        self._batch = []
        saved = self.live.save_now(batch)
        if saved is not None:
            saved.add_done_callback(self._saved)
        elif self.live.rested:
            self.progress.reach(RESTED)
        return saved

    def _saved(self, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._fail(error)
        elif self.phase is Phase.RUNNING and not self.live.unsaved:  # else the driver sees to it
            self._rest()

    def _rest(self) -> None:
        if self.live.rested:
            self.progress.reach(RESTED)

    def _fail(self, error: BaseException) -> None:
        """What the agent says cannot be saved: there is no use in waiting for it."""
        if self._failure is None:
            self._failure = error
            asyncio.get_running_loop().call_soon(self._cancel)

    # ---- ends -----------------------------------------------------------------------------------------------------

    def _outcome(self, failure: BaseException | None) -> tuple[TaskState, str]:
        if self._stop is not None:
            return self._stop.value
        if failure is None:
            return TaskState.FAILED, "The agent ended without finishing the task"
        if isinstance(failure, asyncio.CancelledError) and self.driver.cancelling():
            return Stop.SHUTDOWN.value
        if isinstance(failure, A2AError) and not isinstance(failure, InvalidStateTransitionError):
            return TaskState.FAILED, failure.message
        reference = secrets.token_hex(6)
        logger.error("agent failed", exc_info=failure, extra={"task_id": self.live.task.id, "reference": reference})
        return TaskState.FAILED, f"Internal error (reference {reference})"

    async def _end(self, failure: BaseException | None, *, in_doubt: bool = False) -> None:
        """Bring the task to rest, unless it is. An interrupted task whose agent has returned waits for its user."""
        if self.phase is not Phase.ABANDONED:
            self.phase = Phase.ENDING
        live = self.live
        state, text = self._outcome(failure)
        resting = TERMINAL if (self._stop or failure) and not in_doubt else AT_REST
        attempt = 0
        while True:
            try:
                if not live.is_stored and not in_doubt and not await self._open(AgentDecides()):
                    if not isinstance(self.error, StoreUnavailableError):
                        return
                    in_doubt = True
                await live.mend()
                if live.state not in resting:
                    await live.write(StatusUpdate(status=TaskStatus(state=state, message=says(text))))
                await live.flush()
                if live.state is TaskState.AUTH_REQUIRED and live.run:
                    await live.park()
                return
            except (StaleWriteError, TaskNotFoundError):
                logger.warning("task is gone or taken over", extra={"task_id": live.task.id})
                break
            except Exception as error:
                if attempt == len(SAVE_RETRIES):  # its sender need not wait any longer
                    logger.error("task end not stored yet", exc_info=error, extra={"task_id": live.task.id})
                    self.error = StoreUnavailableError()
                    self.progress.reach(RESTED)
                await asyncio.sleep(SAVE_RETRIES[min(attempt, len(SAVE_RETRIES) - 1)])
                attempt += 1
        self.error = StoreUnavailableError()
        live.log.close()  # whoever watches reads the store again

    async def stop(self, reason: Stop) -> bool:
        """End the run: the token first, then asyncio's cancel, then without the agent. Called once; never raises.

        Whether the agent was left behind, and the driver with it.
        """
        self._stop = reason
        self.call.cancel.cancel()
        self._cancel()  # where it may not be cancelled, it will see that it is stopped
        await asyncio.wait({self.driver}, timeout=CANCEL_GRACE)
        if self.phase not in IN_AGENT:  # but in the store
            await asyncio.wait({self.driver})
            return False
        logger.warning("agent ignored its cancellation", extra={"task_id": self.live.task.id})
        self.phase = Phase.ABANDONED
        self._observer.run_abandoned(self.live.task.id)
        await self._end(None)
        self._close()
        return True

    def _close(self) -> None:
        self.phase = Phase.OVER
        if self._started is not None:
            self._observer.run_ended(self.live.task.id, self.live.state, time.monotonic() - self._started)
        self.progress.reach(RESTED)


def _is_new(event: AgentEvent) -> bool:
    return isinstance(event, Task) and event.status.state is TaskState.SUBMITTED
