"""One run of an agent, from how it begins until its task is at rest: its phases, the run, and those who wait for it.

Rule: whatever the agent does, the task comes to rest in a stored state: by itself, by an exception, at the deadline, on
cancel, at shutdown. An agent that ignores its cancellation is left behind; its task is not.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator
from enum import Enum, IntEnum
from typing import Final, assert_never

from msgspec import Struct

from apcore_a2a.agent import Agent, AgentEvent, Call, Remember
from apcore_a2a.engine.agent_output import CheckedEvent, address_reply, check_event, failed_status, status_with_text
from apcore_a2a.engine.context import EngineOptions, Observer
from apcore_a2a.engine.task import (
    LiveTask,
    Saving,
    add_message,
    begin_work,
    clear_run,
    hand_on,
    may_hand_on,
    start_over,
)
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
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy
from apcore_a2a.protocol.model import Message, StatusUpdate, Task, TaskState, TaskStatus

logger = logging.getLogger(__name__)

# ---- phases ---------------------------------------------------------------------------------------------------------
# Where a run stands and which phase may follow which; how a run starts, and why it is stopped.
#
# A run is driven by one asyncio task, its *driver*, in which `Run.drive` calls the agent's generator. The agent and the
# engine take turns in it: while the agent waits or computes, the driver is in the agent's hands; between two events it
# is ours. Everything that is hard about a run is in the question what may happen to the driver from outside, and the
# answer depends on whose hands it is in. So that is the state of a run, its `Phase`:
#
#     OPENING ─► DECIDING ─► OPENING     an agent that may reply decides with its first event whether there is a task
#        │           │
#        └──► RUNNING ◄─► SAVING         the agent works; it stands at an event while the store catches up
#                │           │
#                └─► LEAVING ◄           nothing more is taken from it; it may tidy up
#                       │
#                    ENDING ─► OVER      the driver brings the task to rest, unless it is
#      ABANDONED ─► OVER                 from any phase in the agent's hands: whoever stopped the run does that
#
# A stop (cancel, deadline, shutdown) may be said in any phase. In the agent's hands (IN_AGENT) it cancels the driver,
# which the agent feels as CancelledError where it waits. In ours it is only noted: cancelling would hit a write to the
# store, and leave open whether it was made. The note is delivered when the agent waits next, or seen when its next
# event comes. An agent that goes on all the same, for `Timing.cancel_grace` seconds, is ABANDONED: its task is ended
# without it.
#
# What is not a phase, because it holds in several: why the run was stopped (`_stop`), the first save that failed
# (`_save_failure`), and whether the store has the task (`LiveTask.is_stored`).
#
# What the agent yields is checked and put into a batch where it is yielded, and folded into the task when the batch is
# saved: when the agent waits, ends, or has yielded BATCH events in a row. Folding earlier would let a read in between
# see a task that is newer than its version.


class Phase(Enum):
    """Where a run stands: whose hands the driver is in, and who may write the task."""

    OPENING = "how the run begins is on its way to the store; the agent is not called yet, or stands at its first event"
    DECIDING = "the agent has control, and its first event says whether there will be a task"
    RUNNING = "the agent has control; what it yielded is saved each time it waits"
    SAVING = "the agent stands at an event; the driver waits for the store, or for others to have their turn"
    LEAVING = "the agent has control to tidy up; nothing that it says is taken"
    ENDING = "the agent is done with; the driver brings its task to rest"
    ABANDONED = "the agent did not hear its cancellation; whoever stopped the run brings its task to rest"
    OVER = "nobody writes any more"


# By their own names, as h11 has its states: a run looks at them a dozen times for each message.
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
    LEAVING: frozenset({ENDING, OVER, ABANDONED}),
    ENDING: frozenset({OVER}),
    ABANDONED: frozenset({OVER}),
    OVER: frozenset(),
}
IN_AGENT: Final = frozenset({DECIDING, RUNNING, LEAVING})
"""The agent has the driver: only now may it be cancelled, or left behind."""


class Stop(Enum):
    """Why a run is stopped from outside, in the words its task ends with."""

    CANCEL = "Canceled by client"
    DISCONNECT = "Canceled: the client disconnected"
    TIMEOUT = "Execution timed out"
    SHUTDOWN = "Server shutdown"
    LOST = "Worker lost: the process running this task lost its lease"


# Those of a stop that make the task a failed one, each with the type that its metadata names; the others cancel it.
# The requirements have one type for what took too long (FR-ERR-005), whoever looked at the clock.
FAILING_STOPS: Final = {
    Stop.TIMEOUT: "ModuleTimeoutError",
    Stop.SHUTDOWN: "ServerShutdownError",
    Stop.LOST: "WorkerLostError",
}
NOT_OF_THE_TASK: Final = frozenset({Stop.SHUTDOWN, Stop.LOST})
"""What stops a run because of where it runs: another replica may run it again, if there is one."""


# ---- how far a run has come ------------------------------------------------------------------------------------------


class Stage(IntEnum):
    """How far a run has come, for the request that waits for its answer."""

    BEGUN = 0
    OPENED = 1
    """The sender can be answered: there is a task, an earlier task, a reply instead of a task, or an error."""
    RESTED = 2
    """The task rests, stored and published. Or its end could not be stored in time, which is an error."""


OPENED: Final = Stage.OPENED
RESTED: Final = Stage.RESTED


# ---- how a run starts ---------------------------------------------------------------------------------------------


class NewTask(Struct, frozen=True, gc=False):
    """With a new task, which is worked on at once."""

    key: str = ""


class AgentDecides(Struct, frozen=True, gc=False):
    """With the agent: its first event makes a task, or is a reply instead of one."""


class NextMessage(Struct, frozen=True, gc=False):
    """With what the user says to a task that waits."""


class Rerun(Struct, frozen=True, gc=False):
    """From the start, after the process that ran it died."""


class FromQueue(Struct, frozen=True, gc=False):
    """With a task that waited for a replica with room; nobody has begun with it."""


Start = NewTask | AgentDecides | NextMessage | Rerun | FromQueue


# ---- run ------------------------------------------------------------------------------------------------------------
# One run of an agent, from how it begins until its task is at rest.
#
# Rule: whatever the agent does, the task comes to rest in a stored state: by itself, by an exception, at the deadline,
# on cancel, at shutdown. An agent that ignores its cancellation is left behind; its task is not.
#
# What may happen to a run, and when, is said above, with its phases: read that first.

BATCH: Final = 64  # events taken from an agent in a row; then they are saved, and others get a turn
_WITH_STATUS: Final = (StatusUpdate, Task)


def stopped_status(stop: Stop) -> StatusUpdate:
    """The end of a task whose run is stopped from outside."""
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
        self.call = call
        self.phase = OPENING
        self.stage = Stage.BEGUN
        self._waiters: dict[asyncio.Future[None], Stage] = {}  # requests, each with the stage that it waits for
        self.began = 0  # the version of `call.task`, where the agent takes over
        self.earlier: str | None = None
        self.reply: Message | None = None
        self.error: A2AError | None = None
        self.quota_key = ""  # whose share of runs it takes; set by `Runs`, which counts them
        self.driver: asyncio.Task[None]
        self.stopping: asyncio.Task[None] | None = None  # set by `Runs.stop`: a run is stopped once
        self.deadline = math.inf  # by the monotonic clock; set by `Runs`, which stops the run then
        self._start = start
        self._agent = agent
        self._observer = observer
        self._timing = options.timing
        self._max_event = options.max_event_bytes
        self._max_output = options.max_output_bytes
        self._room = options.max_output_bytes  # bytes that the agent may still yield
        self._batch: list[CheckedEvent] = []  # what the agent has yielded since the last save
        self._stop: Stop | None = None
        self._save_failure: BaseException | None = None  # of a save, while the agent had control
        self.started: float | None = None  # when the agent was called, by the monotonic clock

    @property
    def output_bytes(self) -> int:
        """What the agent has yielded."""
        return self._max_output - self._room

    async def drive(self) -> None:
        """Run the agent to its end. Never raises but when it is cancelled in the middle of the end."""
        try:
            if isinstance(self._start, AgentDecides) or await self._open(self._start):
                failure = await self._run_agent()
                if self.phase is ABANDONED or self.phase is OVER:
                    return  # it came back after all; its task has been ended without it
                if self.call.cancel.was_ignored:
                    self._observer.run_abandoned(self.live.task.id)
                if self._needs_end(failure):
                    await self._end(failure)
            if isinstance(self.error, StoreUnavailableError) and self.phase is not ENDING:
                # The store may have the beginning of the run all the same, and then it needs an end.
                await self._end(self.error, in_doubt=True)
        finally:
            if self.phase is not ABANDONED and self.phase is not OVER:
                self._close()

    async def _open(self, start: Start) -> bool:
        """Store how the run begins. Whether there is something to run now."""
        live = self.live
        try:
            match start:
                case NewTask(key):
                    self.earlier = await live.create(key=key, working=True)
                case AgentDecides():
                    await live.create()
                case NextMessage():
                    self.call.waited_in = live.state
                    await add_message(live, self.call.message)
                case FromQueue():
                    await begin_work(live)
                case Rerun():
                    await start_over(live)
                case _:
                    assert_never(start)
        except A2AError as error:
            self.error = error
        except Exception:
            logger.exception("task not stored", extra={"task_id": live.task.id})
            self.error = InternalError()
        self._reach(OPENED)
        return self.error is None and self.earlier is None

    # ---- the agent at work ----------------------------------------------------------------------------------------

    async def _run_agent(self) -> BaseException | None:
        """Have the agent run; what it failed with, if it did."""
        self.started = time.monotonic()
        self._observer.run_started(self.live.task.id)
        try:
            if self._stop is None:
                self._prepare_call()
                await self._listen(self._agent.run(self.call))
        except BaseException as error:  # also SystemExit: an agent does not end the server
            return self._save_failure or error
        return self._save_failure

    def _prepare_call(self) -> None:
        """Give the agent a task of its own: what it does to it changes nothing."""
        live = self.live
        self.began = live.version
        live.rested = False
        if self.call.resumed or self.call.task is live.task:
            self.call.task = copy(live.task)
        else:
            # A new task was stored as another object; the one that the call came with is nobody else's.
            self.call.task.status = live.task.status

    async def _listen(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        """Take what the agent yields, save what is left of it at the end, then let the agent tidy up."""
        try:
            try:
                self.phase = DECIDING if isinstance(self._start, AgentDecides) else RUNNING
                await self._take_all(events)
            finally:
                if self._batch and self.phase is RUNNING:
                    self.phase = SAVING
                    if self._save_batch() is not None:
                        await self.live.flush()
                        self._note_rest()
        finally:
            if self.phase is not ABANDONED and self.phase is not OVER:
                self.phase = LEAVING
            await events.aclose()

    async def _take_all(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        """Take events until the last one, or until none is wanted any more."""
        live = self.live
        while True:
            # What `async for` does, but for the call when the agent has to wait for its next event.
            try:
                event = await notice_wait(anext(events), self._agent_waits)
            except StopAsyncIteration:
                return
            if self.phase is DECIDING and not await self._decide(event):
                continue
            if self.phase is not RUNNING or self._save_failure is not None:
                return  # it was left behind or stopped, or nothing it says can be saved
            if live.unsaved and live.must_catch_up():
                self.phase = SAVING
                await live.catch_up()
                self.phase = RUNNING
                if self._stop is not None:
                    return
            if not self._take(event):
                return
            if len(self._batch) == BATCH:
                if self._stop is not None:  # and it went on without ever waiting
                    return
                self.phase = SAVING
                self._save_batch()
                await asyncio.sleep(0)  # an agent that never waits leaves others their turn
                self.phase = RUNNING

    async def _decide(self, event: AgentEvent) -> bool:
        """The first event is a reply, or it makes the task. False if that was all it had to say."""
        checked, _ = check_event(event, self.live.task)
        if isinstance(checked, Remember):
            self.live.memo = checked.memo
            return False
        if isinstance(checked, Message):
            self.reply = address_reply(checked, self.live.task)
            self.phase = LEAVING
            self._reach(OPENED)
            return True
        is_new_task = isinstance(checked, Task) and checked.status.state is TaskState.SUBMITTED
        if isinstance(checked, Task) and is_new_task:
            self.live.adopt(checked)  # its own idea of a new task is taken as it is
        self.phase = OPENING
        opened = await self._open(self._start)
        if not opened or self._stop is not None:
            self.phase = LEAVING
            return True
        self.phase = RUNNING
        return not is_new_task

    def _take(self, event: AgentEvent) -> bool:
        """Put an event into the batch. Whether others may follow it."""
        if isinstance(event, Message) and self._agent.may_reply:  # the end of its task
            event = StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED, message=event))
        checked = check_event(event, self.live.task)
        size = len(checked[1])
        self._room -= size
        if size > self._max_event or self._room < 0:
            raise InvalidAgentResponseError("The agent's output is over its limit of bytes")
        if not isinstance(event, _WITH_STATUS):
            self._batch.append(checked)
            return True
        state = event.status.state
        if state is TaskState.CANCELED and self._stop in FAILING_STOPS:
            return False  # it was stopped, but not by its client
        self._batch.append(checked)
        return state not in TERMINAL

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
        """Save what the agent has yielded, and deliver a stop that was only noted. Never raises."""
        if self._batch and self.phase is RUNNING:
            try:
                self._save_batch()
            except Exception as error:
                self._save_failed(error)
        if self._stop is not None and self.phase in IN_AGENT:
            # Not at once: a task that cancels itself is cancelled at its next wait, which could be a write of ours.
            asyncio.get_running_loop().call_soon(self._cancel_driver)

    def _cancel_driver(self) -> None:
        if self.phase in IN_AGENT:
            self.driver.cancel()

    def _save_batch(self) -> Saving:
        batch = self._batch
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
        elif self.phase is RUNNING and not self.live.unsaved:  # in other phases the driver waits for it itself
            self._note_rest()

    def _save_failed(self, error: BaseException) -> None:
        """What the agent says cannot be saved: there is no use in waiting for it."""
        if self._save_failure is None:  # the first one: those after it are stale because of it
            self._save_failure = error
            asyncio.get_running_loop().call_soon(self._cancel_driver)

    def _note_rest(self) -> None:
        if self.live.rested:
            self._reach(RESTED)

    # ---- the end --------------------------------------------------------------------------------------------------

    def _needs_end(self, failure: BaseException | None) -> bool:
        if self.reply is not None or self.error is not None:
            return False  # there is no task
        return failure is not None or not self.live.has_ended()

    async def _end(self, failure: BaseException | None, *, in_doubt: bool = False) -> None:
        """Bring the task to rest, unless it is, however long the store takes.

        `in_doubt`: the store did not say whether it has the beginning of the run.
        """
        if self.phase is not ABANDONED:
            self.phase = ENDING
        end = self._outcome(failure)
        # An interrupted task whose agent has simply returned waits for its user; one that was stopped does not.
        resting = TERMINAL if (self._stop or failure) and not in_doubt else AT_REST
        attempt = 0
        while True:
            try:
                if not self.live.is_stored and not in_doubt:
                    in_doubt = not await self._open(AgentDecides())
                    if in_doubt and not isinstance(self.error, StoreUnavailableError):
                        return  # the store said that it does not have it
                await self._write_end(end, resting)
                return
            except (StaleWriteError, TaskNotFoundError):
                logger.warning("task is gone or taken over", extra={"task_id": self.live.task.id})
                break
            except Exception as error:
                if attempt == len(self._timing.save_retries):  # its sender need not wait any longer
                    logger.error("task end not stored yet", exc_info=error, extra={"task_id": self.live.task.id})
                    self.error = StoreUnavailableError()
                    self._reach(RESTED)
                await asyncio.sleep(self._timing.retry_pause(attempt))
                attempt += 1
        self.error = StoreUnavailableError()
        self.live.lose()

    async def _write_end(self, end: StatusUpdate, resting: frozenset[TaskState]) -> None:
        live = self.live
        await live.resync()
        if self._stop in NOT_OF_THE_TASK and live.state not in resting and may_hand_on(live):
            await hand_on(live)
            return
        if live.state not in resting:
            await live.write(end)
        await live.flush()
        if live.state is TaskState.AUTH_REQUIRED and live.stored_run is not None:
            # Its agent has returned instead of waiting for the login: a restart has nothing to run.
            await clear_run(live)

    def _outcome(self, failure: BaseException | None) -> StatusUpdate:
        """What the task ends with, if it has not ended by itself."""
        if self._stop is not None:
            return stopped_status(self._stop)
        if failure is None:
            return failed_status(AgentError("The agent ended without finishing the task"))
        if isinstance(failure, asyncio.CancelledError) and self.driver.cancelling():
            return stopped_status(Stop.SHUTDOWN)  # the loop is being torn down
        if isinstance(failure, A2AError) and not isinstance(failure, InvalidStateTransitionError):
            return failed_status(failure)
        reference = secrets.token_hex(6)
        logger.error("agent failed", exc_info=failure, extra={"task_id": self.live.task.id, "reference": reference})
        return failed_status(InternalError(reference))

    async def stop(self, reason: Stop) -> bool:
        """End the run: the token first, then asyncio's cancel, then without the agent. Called once; never raises.

        Whether the agent was left behind, and the driver with it.
        """
        self._stop = reason
        self.call.cancel.cancel()
        self._cancel_driver()  # where it may not be cancelled, the driver will see that it is stopped
        await asyncio.wait({self.driver}, timeout=self._timing.cancel_grace)
        if self.phase not in IN_AGENT:  # it has ended, or the store is slow, not the agent
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
        if self.started is not None:
            task = self.live.task
            self._observer.run_ended(task.id, task.status.state, time.monotonic() - self.started)
        self._reach(RESTED)
