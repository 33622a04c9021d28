"""A run: one call of the agent, from its start until its task rests. Its phases and stages, its starts and its stops.

Invariant: whatever the agent does, its task comes to rest in a stored state: by itself, after an exception, at the
deadline, on cancel, at shutdown. An agent that ignores its cancellation is abandoned, and its task ends without it.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator
from enum import Enum, IntEnum
from typing import Any, Final, assert_never

from msgspec import Struct

from apcore_a2a.agent import Agent, AgentEvent, Call, Remember
from apcore_a2a.engine.agent_output import (
    CheckedEvent,
    RunOutput,
    address_reply,
    check_event,
    failed_status,
    status_with_text,
)
from apcore_a2a.engine.answer_forms import ENDS_TEXTS, repeat_texts
from apcore_a2a.engine.context import EngineOptions, Observer, RunTimes
from apcore_a2a.engine.task import LiveTask, Saving
from apcore_a2a.engine.turn_writes import add_message, begin_work, clear_run, hand_on, may_hand_on, start_over
from apcore_a2a.engine.waiting import notice_wait
from apcore_a2a.errors import (
    A2AError,
    AgentError,
    InternalError,
    InvalidAgentResponseError,
    InvalidStateTransitionError,
    StaleWriteError,
    StoreUnavailableError,
    TaskNotFoundError,
)
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, StreamFinal, copy
from apcore_a2a.protocol.model import ArtifactUpdate, Message, StatusUpdate, Task, TaskState, TaskStatus
from apcore_a2a.trace_context import continue_trace

logger = logging.getLogger(__name__)

# ---- phases ---------------------------------------------------------------------------------------------------------
#
# Each run has one asyncio task, its *driver*. It executes `Run.drive`, which iterates over the agent's events, so the
# agent and the engine alternate in it. While the agent computes or waits, the agent has control. Between two events the
# engine has control. Whether the driver may be cancelled from outside depends on which of them has control. This is the
# hard part of a run, so a run stores it as its state, the `Phase`:
#
#     OPENING ─► DECIDING ─► OPENING     an agent that may reply decides with its first event whether there is a task
#        │           │
#        └──► RUNNING ◄─► SAVING         the agent works; it stops at an event while the store catches up
#                │           │
#                └─► LEAVING ◄           the engine takes no more events; the agent may clean up
#                       │                (OPENING again, if the store has not confirmed a task that it got late)
#                    ENDING ─► OVER      the driver brings the task to rest, unless it rests already
#      ABANDONED ─► OVER                 from any phase with the agent in control: `Run.stop` brings the task to rest
#
# A stop (cancel, deadline, shutdown) may come in any phase. While the agent has control (IN_AGENT), the stop cancels
# the driver, and the agent gets a CancelledError where it waits. While the engine has control, the stop is only
# recorded: a cancellation would hit a write to the store, and the result of the write would be unknown. The stop takes
# effect when the agent waits next, or when its next event comes. An agent that still runs `Timing.cancel_grace` seconds
# later is ABANDONED, and its task ends without it.
#
# Three facts hold in several phases: why the run was stopped (`_stop`), `_save_failure`, and `LiveTask.is_stored`.
#
# Each event is checked and added to a batch when the agent yields it. The batch is folded into the task and saved when
# the agent waits, ends, or has yielded BATCH events in a row. If it were folded at once, a read before the save would
# return a task that is newer than its version.
#
# A run of a new task may begin in the middle (AfterFirstStep): `first_step` has run the agent until its first wait.


class Phase(Enum):
    """The state of a run: whether the agent or the engine has control, and which code may write the task."""

    OPENING = "the start of the run is being stored; the agent is not called yet, or waits at its first event"
    DECIDING = "the agent has control, and its first event decides whether there will be a task"
    RUNNING = "the agent has control; its events are saved each time it waits"
    SAVING = "the agent waits at an event; the driver waits for the store, or lets other asyncio tasks run"
    LEAVING = "the agent has control to clean up; its events are ignored"
    ENDING = "the agent has finished; the driver brings its task to rest"
    ABANDONED = "the agent ignored its cancellation; `Run.stop` brings its task to rest"
    OVER = "the run writes nothing more"


# Module constants, as in h11, because a run reads them a dozen times for each message.
OPENING: Final = Phase.OPENING
DECIDING: Final = Phase.DECIDING
RUNNING: Final = Phase.RUNNING
SAVING: Final = Phase.SAVING
LEAVING: Final = Phase.LEAVING
ENDING: Final = Phase.ENDING
ABANDONED: Final = Phase.ABANDONED
OVER: Final = Phase.OVER

# Which phase may follow which. The tests check every assignment of `Run.phase` against this table.
MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    OPENING: frozenset({DECIDING, RUNNING, LEAVING, ENDING, OVER}),
    DECIDING: frozenset({OPENING, LEAVING, ABANDONED}),
    RUNNING: frozenset({SAVING, LEAVING, ABANDONED}),
    SAVING: frozenset({RUNNING, LEAVING}),
    LEAVING: frozenset({OPENING, ENDING, OVER, ABANDONED}),
    ENDING: frozenset({OVER}),
    ABANDONED: frozenset({OVER}),
    OVER: frozenset(),
}
IN_AGENT: Final = frozenset({DECIDING, RUNNING, LEAVING})
"""The phases in which the agent has control. Only then may the driver be cancelled or abandoned."""


class Stop(Enum):
    """Why a run is stopped from outside. The value is the text of the task's last status."""

    CANCEL = "Canceled by client"
    DISCONNECT = "Canceled: the client disconnected"
    TIMEOUT = "Execution timed out"
    SHUTDOWN = "Server shutdown"
    LOST = "Worker lost: the process running this task lost its lease"


# The stops after which the task has failed, each with the error type in its metadata. After the others it is canceled.
# The requirements have one type for all timeouts (FR-ERR-005).
FAILING_STOPS: Final = {
    Stop.TIMEOUT: "ModuleTimeoutError",
    Stop.SHUTDOWN: "ServerShutdownError",
    Stop.LOST: "WorkerLostError",
}
PROCESS_STOPS: Final = frozenset({Stop.SHUTDOWN, Stop.LOST})
"""The stops that concern this process and not the task. Another replica may run the task again, if there is one."""


# ---- how far a run has come ------------------------------------------------------------------------------------------


class Stage(IntEnum):
    """How far a run has come, for the request that waits for its answer."""

    BEGUN = 0
    OPENED = 1
    """The sender can be answered: there is a task, an earlier task, a reply instead of a task, or an error."""
    RESTED = 2
    """The task rests, stored and published. Or its end could not be stored in time, which is an error."""


BEGUN: Final = Stage.BEGUN
OPENED: Final = Stage.OPENED
RESTED: Final = Stage.RESTED


# ---- how a run starts ---------------------------------------------------------------------------------------------


class NewTask(Struct, frozen=True, gc=False):
    """A start that stores a new task, in the state WORKING, before the agent is called."""

    key: str = ""
    """The idempotency key of the request. If it was used before, nothing runs, and `Run.earlier` is that task's id."""


class AgentDecides(Struct, frozen=True, gc=False):
    """A start that calls the agent before there is a task. The agent's first event is a reply, or creates the task."""


class AfterFirstStep(Struct, frozen=True):
    """A start in the middle: after the first step of an agent, whose new task is not stored yet (`first_step`)."""

    events: AsyncGenerator[AgentEvent, None]
    step: Any
    """What the run awaits first: an awaitable of the agent's next event."""
    started: float
    """When the agent was called, by the monotonic clock."""
    output: RunOutput
    """The output so far, which counts against the limits of the run."""
    has_events: bool
    """Whether the agent has yielded an event in its first step."""


class NextMessage(Struct, frozen=True, gc=False):
    """A start with the next message of the user, to a task that waits for its user."""


class Rerun(Struct, frozen=True, gc=False):
    """A repetition of a run from its beginning, after the process that ran it ended or lost its lease."""

    begun: Task
    """The task as it was when the run began: with its message, and with all that earlier runs produced."""


class FromQueue(Struct, frozen=True, gc=False):
    """The first start of a task that was stored to wait for a replica with room."""


Start = NewTask | AgentDecides | AfterFirstStep | NextMessage | Rerun | FromQueue


# ---- run ------------------------------------------------------------------------------------------------------------

BATCH: Final = 64  # events taken from an agent in a row before they are saved and other asyncio tasks run
_WITH_STATUS: Final = (StatusUpdate, Task)
_ENDS_RUN: Final = TERMINAL | {TaskState.INPUT_REQUIRED}  # in AUTH_REQUIRED, the agent may go on by itself


def _end_task(events: list[CheckedEvent]) -> bool:
    """Return whether these events of an agent end its task, or ask its user."""
    if not events:
        return False
    last, _ = events[-1]
    return isinstance(last, _WITH_STATUS) and last.status.state in _ENDS_RUN


def stopped_status(stop: Stop) -> StatusUpdate:
    """Return the last status of a task whose run is stopped from outside."""
    if stop in FAILING_STOPS:
        return failed_status(AgentError(stop.value, kind=FAILING_STOPS[stop]))
    return status_with_text(TaskState.CANCELED, stop.value)


class Run:
    """One call of the agent, driven from phase to phase until its task rests.

    `Runs` starts a run: it sets `driver` to the asyncio task that awaits `drive`, and cleans up when `drive` returns,
    or when `stop` reports that the driver was abandoned.

    The request that sent the message waits for a stage with `until`. Then it reads the result: `earlier`, the id of a
    task with the same key, `reply`, a message instead of a task, or `error`. If all are unset, the task is in `live`.
    """

    def __init__(
        self, live: LiveTask, call: Call, start: Start, *, agent: Agent, observer: Observer, options: EngineOptions
    ) -> None:
        self.live = live
        self.output = start.output if type(start) is AfterFirstStep else RunOutput(call, options)
        self.call = call
        self.phase = OPENING
        self.stage = BEGUN
        self._waiters: dict[asyncio.Future[None], Stage] = {}  # requests, each with the stage that it waits for
        self.start_version = 0  # the version of `call.task` when the agent is called. 0 before that
        self.earlier: str | None = None
        self.reply: Message | None = None
        self.error: A2AError | None = None
        self.is_elsewhere = False  # whether another replica continues the task, or may continue it
        self.quota_key = ""  # the quota that the run counts against; set by `Runs`
        self.driver: asyncio.Task[None]
        self.stopping: asyncio.Task[None] | None = None  # set by `Runs.stop`, which stops a run once
        self.deadline = math.inf  # by the monotonic clock; set by `Runs`, which stops the run then
        self._start = start
        self._agent = agent
        self._observer = observer
        self._timing = options.timing
        self._stream_final = options.stream_final
        self._shows_exceptions = options.show_exceptions
        self._batch: list[CheckedEvent] = []  # the events since the last save
        self._stop: Stop | None = None
        self._save_failure: BaseException | None = None  # the error of a save while the agent had control
        self.started: float | None = None  # when the agent was called, by the monotonic clock
        self._first_save: float | None = None  # when the first event was handed to the store, by the same clock
        self._last_save: float | None = None

    async def drive(self) -> None:
        """Run the agent to its end. Raises only CancelledError, and only if cancelled at its end."""
        try:
            if type(self._start) is AgentDecides or await self._open(self._start):
                failure = await self._run_agent()
                if self.phase is ABANDONED or self.phase is OVER:
                    return  # the agent returned after it was abandoned; its task has ended without it
                if self.call.cancel.was_ignored:
                    self._observer.run_abandoned(self.live.task.id)
                if not self.live.is_stored and self.live.is_being_created:
                    self.phase = OPENING
                    self._answer(await self.live.creation_error())
                if self._needs_end(failure):
                    await self._end(failure)
            if isinstance(self.error, StoreUnavailableError) and self.phase is not ENDING:
                # The store may have the start of the run all the same. Then the task needs an end.
                await self._end(self.error, in_doubt=True)
        finally:
            if self.phase is not ABANDONED and self.phase is not OVER:
                self._close()

    async def _open(self, start: Start) -> bool:
        """Store the start of the run. Return whether there is something to run now."""
        live = self.live
        try:
            match start:
                case NewTask(key):
                    self.earlier = await live.create(key=key, working=True)
                case AgentDecides():
                    await live.create()
                case AfterFirstStep():
                    return True  # the sender is answered when the task is stored
                case NextMessage():
                    self.call.waited_in = live.state
                    await add_message(live, self.call.message)
                case FromQueue():
                    await begin_work(live)
                case Rerun(begun):
                    await start_over(live, begun)
                case _:
                    assert_never(start)
        except Exception as error:  # a store may raise anything
            self._answer(error)
        self._answer(None)
        return self.error is None and self.earlier is None

    def _answer(self, error: BaseException | None) -> None:
        """Let the sender be answered. With an error of the store, there is no task."""
        if isinstance(error, A2AError):
            self.error = error
        elif error is not None:
            logger.error("task not stored", exc_info=error, extra={"task_id": self.live.task.id})
            self.error = InternalError()
        self._reach(OPENED)

    # ---- the agent at work ----------------------------------------------------------------------------------------

    async def _run_agent(self) -> BaseException | None:
        """Run the agent. Return the error it failed with, or None."""
        start = self._start
        try:
            if type(start) is AfterFirstStep:
                self.started = start.started
                if start.has_events:  # the run passes them to the store now, or when the agent waits in its first step
                    self._first_save = time.monotonic()
                    self._last_save = self._first_save
                await self._consume(start.events, start.step)
            elif self._begin_agent():
                events = self._agent.run(self.call)
                await self._consume(events, anext(events))
        except BaseException as error:  # also SystemExit: an agent must not end the server
            return self._save_failure or error
        return self._save_failure

    def _begin_agent(self) -> bool:
        """Prepare the call of the agent. Return whether it is called: not if the run was stopped before."""
        self.started = time.monotonic()
        self._observer.run_started(self.live.task.id, self.call)
        if self.call.headers:
            continue_trace(self.call.headers)
        if self._stop is not None:
            return False
        self._prepare_call()
        return True

    def _prepare_call(self) -> None:
        """Give the agent a copy of the task, so that its changes have no effect."""
        live = self.live
        self.start_version = live.version
        live.rested = False
        self.call.read_conversation = live.recall
        if self.call.resumed or self.call.task is live.task:
            self.call.task = copy(live.task)
        else:
            # `LiveTask.create` continues with a copy of a new task, so only the call refers to this object.
            self.call.task.status = live.task.status

    async def _consume(self, events: AsyncGenerator[AgentEvent, None], step: Any) -> None:  # Any: as in AfterFirstStep
        """Take the agent's events, save the rest of them at the end, then let the agent clean up."""
        try:
            try:
                self.phase = DECIDING if type(self._start) is AgentDecides else RUNNING
                await self._take_all(events, step)
            finally:
                if (self._batch or self.live.is_deferred) and self.phase is RUNNING:
                    self.phase = SAVING
                    if self._save_batch() is not None:
                        await self.live.flush()
                        self._note_rest()
        finally:
            if self.phase is not ABANDONED and self.phase is not OVER:
                self.phase = LEAVING
            await events.aclose()

    async def _take_all(self, events: AsyncGenerator[AgentEvent, None], step: Any) -> None:  # Any: as in AfterFirstStep
        """Take events until the last one, or until the run takes no more."""
        live = self.live
        while True:
            # This is `async for`, with a call before the agent waits for its next event.
            try:
                event = await notice_wait(step, self._agent_waits)
            except StopAsyncIteration:
                return
            if self.phase is DECIDING and not await self._decide(event):
                step = anext(events)
                continue
            if self.phase is not RUNNING or self._save_failure is not None:
                return  # the run was abandoned or stopped, or its events cannot be saved
            if live.unsaved and live.must_catch_up():
                self.phase = SAVING
                await live.catch_up()
                self.phase = RUNNING
                if self._stop is not None:
                    return
            if not self._take(event):
                return
            if len(self._batch) == BATCH:
                if self._stop is not None:  # the agent has not waited since the stop
                    return
                self.phase = SAVING
                self._save_batch()
                await asyncio.sleep(0)  # lets other asyncio tasks run, even if the agent never waits
                self.phase = RUNNING
            step = anext(events)

    async def _decide(self, event: AgentEvent) -> bool:
        """Use the first event as the reply, or make the task. Return whether the event has to be taken as well."""
        checked_event = check_event(event, self.live.task, self.output.data)
        checked, _ = checked_event
        if isinstance(checked, Remember):
            self.output.count_memo(checked_event)
            self.live.remember(checked)
            return False
        if isinstance(checked, Message):
            self.reply = address_reply(checked, self.live.task)
            self.phase = LEAVING
            self._reach(OPENED)
            return True
        is_new_task = isinstance(checked, Task) and checked.status.state is TaskState.SUBMITTED
        if isinstance(checked, Task) and is_new_task:
            self.live.adopt(checked)  # the new task is stored as the agent yielded it
        self.phase = OPENING
        opened = await self._open(self._start)
        if not opened or self._stop is not None:
            self.phase = LEAVING
            return True
        self.phase = RUNNING
        return not is_new_task

    def _take(self, event: AgentEvent) -> bool:
        """Add an event to the batch. Return whether more events may follow."""
        if type(event) is Message and self._agent.may_reply:  # a reply ends the task
            event = StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED, message=event))
        checked = self.output.check(event, self.live.task)
        if type(event) is not StatusUpdate and type(event) is not Task:
            self._batch.append(checked)
            return True
        state = event.status.state
        if self._stop in FAILING_STOPS and state is TaskState.CANCELED:
            return False  # the run was stopped, but not by its client
        final = self.call.stream_final or self._stream_final
        if final != "append" and state in ENDS_TEXTS:
            checked = self._repeat_texts(checked, final)
        self._batch.append(checked)
        return state not in TERMINAL

    def _repeat_texts(self, end: CheckedEvent, final: StreamFinal) -> CheckedEvent:
        """Send the texts of this run once more as a whole. Return its last status, which may have the text, too."""
        self._save_batch()  # folds all pieces into the task
        for event in repeat_texts(end[0], self.live.task, self.output.artifacts, final=final):
            repeated = check_event(event, self.live.task)
            if self.output.is_too_large(repeated):  # the agent itself has only sent smaller events
                logger.warning("text too long to be repeated", extra={"task_id": self.live.task.id})
            elif isinstance(event, ArtifactUpdate):
                self._batch.append(repeated)
            else:
                end = repeated
        self.output.artifacts = {}
        return end

    # ---- how far it has come ----------------------------------------------------------------------------------------

    async def until(self, stage: Stage) -> None:
        """Wait until the run has reached a stage."""
        if self.stage >= stage:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = stage
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    def _reach(self, stage: Stage) -> None:
        if stage <= self.stage:
            return
        self.stage = stage
        for waiter, wanted in self._waiters.items():
            if wanted <= stage and not waiter.done():
                waiter.set_result(None)

    # ---- saving ---------------------------------------------------------------------------------------------------

    def _agent_waits(self) -> None:
        """Save the batch, and deliver a stop that was only recorded. Never raises."""
        if (self._batch or self.live.is_deferred) and self.phase is RUNNING:
            try:
                self._save_batch()
            except Exception as error:
                self._save_failed(error)
        if self._stop is not None and self.phase in IN_AGENT:
            # Not a direct call: the driver is the current asyncio task here. `_cancel_driver` runs while the driver
            # waits, and checks the phase again, so that no write to the store is cancelled.
            asyncio.get_running_loop().call_soon(self._cancel_driver)

    def _cancel_driver(self) -> None:
        if self.phase in IN_AGENT:
            self.driver.cancel()

    def _save_batch(self) -> Saving:
        batch = self._batch
        if batch:
            self._last_save = time.monotonic()
            if self._first_save is None:
                self._first_save = self._last_save
        self._batch = []
        saving = self.live.begin_save(batch)
        if saving is None:
            self._note_rest()
        else:
            saving.add_done_callback(self._batch_saved)
        return saving

    def _batch_saved(self, done: "asyncio.Future[None]") -> None:
        error = self.live.save_error
        if error is not None:
            self._save_failed(error)
            return
        self._reach(OPENED)
        if self.phase is RUNNING and not self.live.unsaved:  # in other phases the driver waits for the save itself
            self._note_rest()

    def _save_failed(self, error: BaseException) -> None:
        """Cancel the agent, because its events cannot be saved."""
        if self._save_failure is None:  # later failures follow from the first one
            self._save_failure = error
            asyncio.get_running_loop().call_soon(self._cancel_driver)

    def _note_rest(self) -> None:
        self._reach(RESTED if self.live.rested else OPENED)

    # ---- the end --------------------------------------------------------------------------------------------------

    def _needs_end(self, failure: BaseException | None) -> bool:
        if self.reply is not None or self.error is not None:
            return False  # there is no task
        return failure is not None or not self.live.has_ended()

    async def _end(self, failure: BaseException | None, *, in_doubt: bool = False) -> None:
        """Bring the task to rest, unless it rests already. Retry for as long as the store is unavailable.

        `in_doubt`: it is unknown whether the store has the start of the run.
        """
        if self.phase is not ABANDONED:
            self.phase = ENDING
        end = self._outcome(failure)
        # A task in INPUT_REQUIRED or AUTH_REQUIRED rests if the agent has returned. It does not rest if the agent
        # raised an error or was stopped, because nothing could continue it.
        resting = TERMINAL if (self._stop or failure) and not in_doubt else AT_REST
        in_doubt = in_doubt or self.live.is_being_created  # the agent was abandoned before the store has its task
        attempt = 0
        while True:
            try:
                if not self.live.is_stored and not in_doubt:
                    in_doubt = not await self._open(AgentDecides())
                    if in_doubt and not isinstance(self.error, StoreUnavailableError):
                        return  # the store does not have the task
                await self._write_end(end, resting)
                return
            except (StaleWriteError, TaskNotFoundError):
                text = "task was not stored" if in_doubt else "task is gone or taken over"
                logger.warning(text, extra={"task_id": self.live.task.id})
                break
            except Exception as error:
                if attempt == len(self._timing.save_retries):  # the sender gets an error and waits no longer
                    logger.error("task end not stored yet", exc_info=error, extra={"task_id": self.live.task.id})
                    self.error = StoreUnavailableError()
                    self._reach(RESTED)
                await asyncio.sleep(self._timing.retry_pause(attempt))
                attempt += 1
        self.error = StoreUnavailableError()
        self.is_elsewhere = self.live.is_shared
        self.live.lose()

    async def _write_end(self, end: StatusUpdate, resting: frozenset[TaskState]) -> None:
        live = self.live
        lost = await live.resync()
        if _end_task(lost):  # the agent has ended its task, and only the write failed
            live.begin_save(lost)
            await live.flush()
            return
        if self._stop in PROCESS_STOPS and live.state not in resting and may_hand_on(live):
            await hand_on(live)
            self.is_elsewhere = True
            return
        if live.state not in resting:
            await live.write(end)
        await live.flush()
        if live.state is TaskState.AUTH_REQUIRED and live.stored_run is not None:
            # The agent has returned instead of waiting for the login, so a restart has nothing to run.
            await clear_run(live)

    def _outcome(self, failure: BaseException | None) -> StatusUpdate:
        """Return the last status of a task that has not ended by itself."""
        if self._stop is not None:
            return stopped_status(self._stop)
        if failure is None:
            return failed_status(AgentError("The agent ended without finishing the task"))
        if isinstance(failure, asyncio.CancelledError) and self.driver.cancelling():
            return stopped_status(Stop.SHUTDOWN)  # the event loop is shutting down
        cause = failure if self._shows_exceptions else None
        if isinstance(failure, A2AError) and not isinstance(failure, InvalidStateTransitionError):
            if isinstance(failure, InvalidAgentResponseError) and failure.__cause__ is not None:
                log = {"task_id": self.live.task.id, "reason": failure.message, "cause": repr(failure.__cause__)}
                logger.warning("agent output rejected", extra=log)
            return failed_status(failure, cause=cause)
        reference = secrets.token_hex(6)
        logger.error("agent failed", exc_info=failure, extra={"task_id": self.live.task.id, "reference": reference})
        return failed_status(InternalError(reference), cause=cause)

    async def stop(self, reason: Stop) -> bool:
        """End the run: by its cancel token, then by cancelling the driver, then without the agent. Never raises.

        It is called once. Return whether the agent was abandoned, and the driver with it.
        """
        self._stop = reason
        self.call.cancel.cancel(copy(self.live.task))
        self._cancel_driver()  # while the engine has control, the driver checks `_stop` itself
        await asyncio.wait({self.driver}, timeout=self._timing.cancel_grace)
        if self.phase not in IN_AGENT:  # the run has ended, or it waits for the store and not for the agent
            await asyncio.wait({self.driver})
            return False
        logger.warning("agent ignored its cancellation", extra={"task_id": self.live.task.id})
        self.phase = ABANDONED
        self._observer.run_abandoned(self.live.task.id)
        await self._end(None)
        self._close()
        return True

    def _close(self) -> None:
        self.phase = OVER
        self.call.read_conversation = None  # an abandoned agent must not take the memory from later runs
        if self.started is not None:
            task = self.live.task
            self._observer.run_ended(task.id, self.call, task.status.state, self._times(self.started))
        self._reach(RESTED)

    def _times(self, started: float) -> RunTimes:
        now = time.monotonic()
        if self._first_save is None or self._last_save is None:
            return RunTimes(now - started, None, None)
        return RunTimes(now - started, self._first_save - started, self._last_save - started)
