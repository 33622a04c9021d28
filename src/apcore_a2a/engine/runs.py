"""The runs of an engine: live tasks, start and stop of runs, background work, and the log lines of tasks.

Invariant: a task has one LiveTask while a holder needs it, and at most one run. The asyncio tasks that are started here
are awaited here. Every run that ends, by itself or without its agent, is cleaned up by `_finish`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from msgspec import json

from apcore_a2a.agent import ANONYMOUS, Agent, AgentEvent, Call, Caller, CancelToken
from apcore_a2a.clean_text import clean_line
from apcore_a2a.engine.context import EngineOptions, Observer
from apcore_a2a.engine.first_step import FirstStep
from apcore_a2a.engine.run import OVER, AfterFirstStep, Run, Start, Stop, stopped_status
from apcore_a2a.engine.stored_limits import StoredLimits
from apcore_a2a.engine.stored_run import StoredRun
from apcore_a2a.engine.task import LiveTask, TaskRegistry
from apcore_a2a.engine.waiting import current_task
from apcore_a2a.errors import A2AError, LimitExceededError, OverloadedError, StoreUnavailableError
from apcore_a2a.protocol.lifecycle import TERMINAL, copy
from apcore_a2a.protocol.model import Message, Role, SendMessage, Task, TaskState
from apcore_a2a.quota import QuotaCounter
from apcore_a2a.storage.contract import Record, SharedStore, Store, as_shared

logger = logging.getLogger(__name__)

SHUTTING_DOWN: Final = "The agent is shutting down"


class Runs:
    """The live tasks of an engine and their runs."""

    def __init__(
        self,
        agent: Agent,
        store: Store,
        *,
        observer: Observer,
        options: EngineOptions,
        stored: StoredLimits | None = None,
    ) -> None:
        self.draining = False
        self.stored = stored
        self._agent = agent
        self._store = store
        self.observer = observer
        self._options = options
        self.timing = options.timing
        self._timeout = options.execution_timeout
        self._limit = options.max_active_tasks
        self._limit_per_caller = options.max_active_tasks_per_caller
        self._registry = TaskRegistry(store, observer, options)
        self._live = self._registry.tasks
        self._active: dict[str, Run] = {}  # by task id
        # Places reserved for the next run of a task: the quota key by task id. A reservation is void when the turn of
        # its task is free. Void reservations are removed only when there would be no room otherwise.
        self._reservations: dict[str, str] = {}
        self._places = QuotaCounter()  # of runs and reservations
        self._background = BackgroundWork()
        self._deadline_timer: asyncio.TimerHandle | None = None  # for the first deadline of a run

    @property
    def longest_run(self) -> float | None:
        """Return the timeout of a run in seconds, or None if it has none."""
        return self._timeout

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def room(self) -> int:
        """Return how many more runs may start."""
        return self._limit - self._places.total

    def check_draining(self) -> None:
        if self.draining:
            raise OverloadedError(SHUTTING_DOWN, retry_after=5)

    def check_room(self, quota_key: str) -> None:
        """Raise an error if the engine, or this quota key, is at its limit of runs, or if the engine shuts down."""
        self.check_draining()
        if self._has_room(quota_key):
            return
        if self._reservations:
            self._release_void_places()
        if self.room <= 0:
            raise OverloadedError("The agent is at its limit of running tasks; try again later")
        if not self._has_room(quota_key):
            raise LimitExceededError("You are at your limit of running tasks; wait for one to end")

    def _has_room(self, quota_key: str) -> bool:
        if self._places.total >= self._limit:
            return False
        return not self._places.is_used_up(quota_key, self._limit_per_caller, self._options.anonymous_divisor)

    def reserve_place(self, live: LiveTask, quota_key: str) -> None:
        """Reserve a place for the run of a task's next message. A running task passes on its own place instead.

        The place stays reserved while the turn of the task is taken. Call this right before joining the queue.

        Raises:
            OverloadedError: the engine has no room for a run.
            LimitExceededError: the quota key is at its limit.
        """
        task_id = live.task.id
        if task_id in self._active or task_id in self._reservations:
            return
        self.check_room(quota_key)
        self._reservations[task_id] = quota_key
        self._places.add(quota_key)

    def _release_void_places(self) -> None:
        for task_id, quota_key in list(self._reservations.items()):
            live = self._live.get(task_id)
            if live is None or not live.turn.is_taken:
                del self._reservations[task_id]
                self._places.subtract(quota_key)

    # ---- live tasks -----------------------------------------------------------------------------------------------

    def find(self, task_id: str, owner: str) -> LiveTask | None:
        """Return the live task with this id, if it belongs to the owner."""
        live = self._live.get(task_id)
        if live is None or live.owner != owner:
            return None
        return live

    def get(self, task_id: str) -> LiveTask | None:
        """Return the live task with this id, of any owner. Not for requests of callers."""
        return self._live.get(task_id)

    def add(self, task: Task, owner: str, quota_key: str) -> LiveTask:
        """Return a LiveTask for a new task, whose first run has the turn. Raise as `check_room` if there is no room."""
        self.check_room(quota_key)
        return LiveTask(task, owner, self._registry)

    def add_queued(self, task: Task, owner: str) -> LiveTask:
        """Return a LiveTask for a new task that any replica with room may run. Its turn is free."""
        self.check_draining()
        live = LiveTask(task, owner, self._registry)
        live.turn.give()
        return live

    def revive(self, record: Record) -> LiveTask:
        """Return the LiveTask of a record: the one in memory, or a new one. It has to be held before the next await."""
        task = record.document.task()
        live = self._live.get(task.id)
        if live is not None:
            return live
        return LiveTask(task, record.owner, self._registry, record)

    # ---- starting -------------------------------------------------------------------------------------------------

    def running(self, task_id: str) -> Run | None:
        return self._active.get(task_id)

    def launch(self, live: LiveTask, call: Call, start: Start, *, quota_key: str) -> Run:
        """Start a run of a live task, whose turn has to be taken. The run counts against `quota_key`."""
        run = self._add_run(live, call, start, quota_key)
        if self._timeout is not None:
            self._set_deadline(run, time.monotonic() + self._timeout)
        self._places.add(quota_key)
        if self._reservations:
            kept = self._reservations.pop(live.task.id, None)
            if kept is not None:
                self._places.subtract(kept)
        run.driver = self._background.start(self._drive(run), name=f"run {live.task.id}")
        return run

    def _add_run(self, live: LiveTask, call: Call, start: Start, quota_key: str) -> Run:
        run = Run(live, call, start, agent=self._agent, observer=self.observer, options=self._options)
        run.quota_key = quota_key
        self._active[live.task.id] = run
        live.hold()  # until `end_run`
        if call.headers:
            live.belong_to(call.headers)
        return run

    def launch_first_step(self, call: Call, owner: str, stored_run: StoredRun | None) -> FirstStep:
        """Start the first step of an agent with a new task. It counts as a run. Raise as `check_room`.

        Only for a store that `as_deferring` accepts.
        """
        self.check_room(call.quota_key)
        first = FirstStep(call, owner, agent=self._agent, registry=self._registry, stored_run=stored_run)
        if self._timeout is not None:
            call.deadline = time.monotonic() + self._timeout
        self._places.add(call.quota_key)
        self._background.start(self._drive_first_step(first), name=f"run {call.task.id}")
        return first

    async def _drive_first_step(self, first: FirstStep) -> None:
        """Execute the first step of an agent, and drive the run that takes over, if one does."""
        run = None
        try:
            start = first.execute()
            if start is not None:
                run = self._take_over(first, start)
            elif first.saving is not None:
                await first.until_saved(first.saving)
        except (
            asyncio.CancelledError
        ):  # by the shutdown, which waits no longer for the store, or by the agent's own timer
            self._places.subtract(first.call.quota_key)
            first.fail(StoreUnavailableError())
            raise
        except BaseException as error:  # of the store, whatever it is: the sender waits for it
            first.fail(error)
        if run is not None:
            await self._drive(run)
            return
        self._places.subtract(first.call.quota_key)
        if self.stored is not None:
            self.stored.add(first.owner, first.output.size)
        if first.is_stored and logs_info():
            log_rest(first.call, first.task, time.monotonic() - first.started)

    def _take_over(self, first: FirstStep, start: AfterFirstStep) -> Run:
        """Return a run that continues after the first step of its agent."""
        call = first.call
        live = first.make_live()
        run = self._add_run(live, call, start, call.quota_key)
        if call.deadline is not None:
            self._set_deadline(run, call.deadline)
        run.driver = current_task()
        first.settle(run)
        return run

    async def _drive(self, run: Run) -> None:
        try:
            await run.drive()
        finally:
            # An abandoned run has been finished by `_stop`. Its driver may return hours later.
            if run.phase is OVER and self._active.get(run.live.task.id) is run:
                self._finish(run)

    # All runs have the same timeout, so the run that started first has the first deadline. One timer serves all runs: a
    # timer for each would cost 4 % of a message to an agent that answers at once.

    def _set_deadline(self, run: Run, deadline: float) -> None:
        run.deadline = deadline
        run.call.deadline = deadline
        if self._deadline_timer is None:
            pause = deadline - time.monotonic()
            self._deadline_timer = asyncio.get_running_loop().call_later(pause, self._stop_overdue)

    def _stop_overdue(self) -> None:
        """Stop the runs whose deadlines have passed, and set the timer for the next deadline."""
        self._deadline_timer = None
        now = time.monotonic()
        for run in self._active.values():  # in the order in which they started
            if run.deadline > now:
                pause = run.deadline - now
                self._deadline_timer = asyncio.get_running_loop().call_later(pause, self._stop_overdue)
                return
            self.stop(run, Stop.TIMEOUT)

    def _finish(self, run: Run) -> None:
        del self._active[run.live.task.id]
        if self.stored is not None:
            self.stored.add(run.live.owner, run.output.size)
        if run.started is not None and logs_info():
            self._log_rest(run, time.monotonic() - run.started)
        run.live.end_run()
        if run.live.turn.is_taken:  # the next message has the turn, and gets the place: it must not be rejected now
            self._reservations[run.live.task.id] = run.quota_key
        else:
            self._places.subtract(run.quota_key)

    def _log_rest(self, run: Run, seconds: float) -> None:
        if run.reply is not None:
            log_reply(run.call, seconds)
        elif run.live.is_stored:  # if not, there is no task, and its sender got the reason
            log_rest(run.call, run.live.task, seconds)

    def all_live(self) -> list[LiveTask]:
        return list(self._live.values())

    def all_running(self) -> list[Run]:
        return list(self._active.values())

    def in_background(self, work: Coroutine[Any, Any, object], live: LiveTask) -> None:
        """Run the work of a queued message in the background, because its sender does not wait."""
        live.hold()  # here and not in the work: the last other holder may release the task before the work begins
        self._background.start(self._run_and_log(work, live), name=f"queued message {live.task.id}")

    async def _run_and_log(self, work: Coroutine[Any, Any, object], live: LiveTask) -> None:
        try:
            await work
        except A2AError as error:
            logger.warning(
                "queued message rejected", extra={"task_id": live.task.id, "reason": clean_line(error.message)}
            )
        finally:
            live.release()

    # ---- stopping -------------------------------------------------------------------------------------------------

    def stop(self, run: Run, reason: Stop) -> "asyncio.Task[None]":
        """Stop a run once. The returned asyncio task is done when the A2A task rests, with or without the agent."""
        if run.stopping is None:
            run.stopping = self._background.start(self._stop(run, reason), name=f"stop {run.live.task.id}")
        return run.stopping

    async def _stop(self, run: Run, reason: Stop) -> None:
        was_abandoned = await run.stop(reason)
        if was_abandoned:
            self._finish(run)
            self._background.abandon(run.driver)

    def stop_unless_watched(self, live: LiveTask) -> None:
        """Cancel the run of a task that has no subscriber, unless one comes back within the grace period."""
        run = self.running(live.task.id)
        if run is not None:
            live.when_unwatched(self.timing.disconnect_grace, partial(self._stop_unwatched, run))

    def _stop_unwatched(self, run: Run) -> None:
        shared = as_shared(self._store)
        if shared is None:
            self.stop(run, Stop.DISCONNECT)
        else:
            self._background.start(self._stop_unless_watched_elsewhere(run, shared), name="look for subscribers")

    async def _stop_unless_watched_elsewhere(self, run: Run, store: SharedStore) -> None:
        """Stop a run, unless its client has subscribed at another replica after it lost its stream."""
        live = run.live
        try:
            is_followed = await store.replicas.watch.is_followed_elsewhere(live.task.id, live.owner)
        except StoreUnavailableError:
            return  # it is unknown, so the task goes on
        if not is_followed and self.running(live.task.id) is run:
            self.stop(run, Stop.DISCONNECT)

    def cancel(self, live: LiveTask, caller: Caller) -> "asyncio.Task[None]":
        """Cancel a task for its client. Never raises: the state of the task is the result."""
        return self._background.start(self._cancel(live, caller), name=f"cancel {live.task.id}")

    async def _cancel(self, live: LiveTask, caller: Caller) -> None:
        with live.held(), live.canceling():
            try:
                run = self.running(live.task.id)
                if run is not None:
                    await asyncio.wait({self.stop(run, Stop.CANCEL)})
                # If the task has not ended, it waited for its user, or a message took the turn in between.
                await live.turn.take()
                live.hold()
                try:
                    await self._cancel_waiting(live, caller)
                except StoreUnavailableError:
                    await self._resync_later(live)
                    raise
                finally:
                    live.end_run()  # the hook may have used the memory of the conversation, as a run does
            except A2AError as error:
                logger.warning(
                    "cancel not stored", extra={"task_id": live.task.id, "reason": clean_line(error.message)}
                )

    async def _resync_later(self, live: LiveTask) -> None:
        """Read the task again after a failed write, when the store answers, so that readers see the stored state."""
        for attempt in range(self.timing.max_resync_attempts):
            await asyncio.sleep(self.timing.retry_pause(attempt))
            try:
                await live.resync()
                return
            except A2AError as error:
                logger.warning(
                    "task not read again yet", extra={"task_id": live.task.id, "reason": clean_line(error.message)}
                )
        live.log.close()  # its readers read the store again

    async def _cancel_waiting(self, live: LiveTask, caller: Caller) -> None:
        """Cancel a task that does not run. The agent's `cancel` hook may yield events first, in bounded time."""
        await live.resync()
        if live.state in TERMINAL:
            return
        said = _last_user_message(live.task)
        hook: Callable[[Call], AsyncGenerator[AgentEvent, None]] | None = getattr(self._agent, "cancel", None)
        if hook is not None and said is not None:
            call = _cancel_call(live, said, caller)
            hook_run = self._background.start(_run_cancel_hook(hook, call, live), name=f"cancel hook {live.task.id}")
            _, late = await asyncio.wait({hook_run}, timeout=self.timing.cancel_hook)
            if late:
                hook_run.cancel()
                self._background.abandon(hook_run)  # it may ignore its cancellation
            await live.resync()
        if live.state not in TERMINAL:
            await live.write(stopped_status(Stop.CANCEL))
        log_end(live.task, caller)

    async def drain(self, grace: float) -> None:
        """Let runs finish for `grace` seconds. Then end the other runs as failed, and close every stream."""
        await self._background.join(grace)
        for run in list(self._active.values()):
            self.stop(run, Stop.SHUTDOWN)
        await self._background.join(self.timing.cancel_grace + self.timing.cancel_margin)
        await self._background.cancel_all(1)
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        for live in list(self._live.values()):
            live.log.close()


# ---- the agent's cancel hook ----------------------------------------------------------------------------------------


def _last_user_message(task: Task) -> Message | None:
    for message in reversed(task.history):
        if message.role is Role.USER:
            return message
    return None


def _cancel_call(live: LiveTask, said: Message, caller: Caller) -> Call:
    token = CancelToken()
    token.cancel()
    call = Call(request=SendMessage(message=said), task=copy(live.task), caller=caller, cancel=token)
    call.resumed = True
    call.read_conversation = live.recall
    if live.memo:
        call.memo = json.decode(live.memo)
    return call


async def _run_cancel_hook(
    hook: Callable[[Call], AsyncGenerator[AgentEvent, None]], call: Call, live: LiveTask
) -> None:
    """Call the agent's `cancel` and write the events it yields. Never raises."""
    try:
        async with aclosing(hook(call)) as events:
            async for event in events:
                await live.write(event)
                if live.state in TERMINAL:
                    return
    except BaseException:  # the agent's code may raise anything, also SystemExit: its task is canceled all the same
        logger.exception("agent's cancel failed", extra={"task_id": live.task.id})


# ---- work that outlives a request -----------------------------------------------------------------------------------
#
# asyncio.TaskGroup is not suitable: it waits forever for a child that ignores its cancellation, and one child's
# exception cancels its siblings. An agent may do both. BackgroundWork logs the exception, leaves the siblings alone,
# and ends in bounded time.


class BackgroundWork:
    """The asyncio tasks of one owner, which start, end and are cancelled together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        # Abandoned tasks. The references keep the garbage collector from removing them before they end.
        self._abandoned: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._abandoned.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            logger.error("background work failed", exc_info=error, extra={"work": task.get_name()})

    def abandon(self, task: "asyncio.Task[None]") -> None:
        """Stop waiting for a task that ignored its cancellation. It may still end by itself."""
        if not task.done():
            self._tasks.discard(task)
            self._abandoned.add(task)

    async def join(self, seconds: float) -> bool:
        """Wait for all tasks, at most `seconds`. Return whether all have ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
        return not self._tasks

    async def cancel_all(self, seconds: float) -> None:
        """Cancel every task once, wait a bounded time, and log the names of the tasks that still run."""
        for task in set(self._tasks):
            task.cancel()
        await self.join(seconds)
        left = self._tasks | self._abandoned
        if left:
            logger.warning("work ignored its cancellation", extra={"work": [task.get_name() for task in left]})


# ---- log lines of tasks ---------------------------------------------------------------------------------------------
# One line at level info for each task that comes to rest. Invariant: ids, names, states and times, but no contents.
#
# Text that a client chose is cleaned, so that it cannot start a new line with any log formatter.

MAX_NAME: Final = 64  # characters of a skill or a caller
_NAMES: Final = {state: state.removeprefix("TASK_STATE_").lower() for state in TaskState}


def logs_info() -> bool:
    """Return whether level info is enabled. Checked first, because most of a line's cost is to build it."""
    return logger.isEnabledFor(logging.INFO)


def log_rest(call: Call, task: Task, seconds: float) -> None:
    """Log that a run has ended. Its task has ended, too, or waits for its user."""
    fields = _fields(task, call.caller)
    fields["skill"] = _clean(_skill_of(call))
    fields["seconds"] = round(seconds, 4)
    if task.status.state in TERMINAL:
        logger.info("task ended", extra=fields)
    else:
        logger.info("task waits", extra=fields)


def log_reply(call: Call, seconds: float) -> None:
    """Log that an agent has answered with a message and without a task."""
    fields = {"skill": _clean(_skill_of(call)), "caller": name_of(call.caller), "seconds": round(seconds, 4)}
    logger.info("message answered", extra=fields)


def log_end(task: Task, caller: Caller) -> None:
    """Log that a waiting task was canceled, and so has ended without a run."""
    logger.info("task ended", extra=_fields(task, caller))


def log_recovered(task: Task, outcome: str) -> None:
    """Log what became of a task whose process ended."""
    logger.info("task recovered", extra={"task_id": task.id, "outcome": outcome})


def _fields(task: Task, caller: Caller) -> dict[str, object]:
    fields: dict[str, object] = {
        "task_id": task.id,
        "state": _NAMES[task.status.state],
        "caller": name_of(caller),
    }
    if task.status.state is TaskState.FAILED and task.status.message is not None:
        # The error type and the reference that the client got. The log has the exception under the same reference.
        metadata = task.status.message.metadata or {}
        for name in ("type", "reference"):
            if name in metadata:
                fields[name] = _clean(str(metadata[name]))
    return fields


def _skill_of(call: Call) -> str:
    """Return the skill that the agent chose, or the one that the client asked for."""
    if call.skill:
        return call.skill
    for metadata in (call.message.metadata, call.request.metadata):
        skill = (metadata or {}).get("skillId")
        if isinstance(skill, str):
            return skill
    return ""


def name_of(caller: Caller) -> str:
    """Return the name of a caller, cleaned for a log line."""
    if not caller.is_authenticated:
        return ANONYMOUS
    return _clean(caller.id)


def _clean(name: str) -> str:
    # Nearly all names need no cleaning. This check costs a tenth of it.
    if name.isascii() and name.isprintable() and len(name) <= MAX_NAME:
        return name
    return clean_line(name, MAX_NAME)
