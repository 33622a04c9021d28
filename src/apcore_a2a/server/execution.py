"""One run of an agent, and every way it can end.

Rule: whatever the agent does, the task comes to rest in a stored state: by itself, by an exception, at the deadline, on
cancel, at shutdown. An agent that ignores its cancellation is left behind; its task is not.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any, Final

from apcore_a2a.agent import Agent, AgentEvent, Call, Remember
from apcore_a2a.errors import (
    A2AError,
    InternalError,
    InvalidStateTransitionError,
    StaleWriteError,
    StoreUnavailableError,
    TaskNotFoundError,
)
from apcore_a2a.loop.batches import LIMIT, Batches
from apcore_a2a.loop.waiting import Progress
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy
from apcore_a2a.protocol.model import Message, StatusUpdate, Task, TaskState, TaskStatus
from apcore_a2a.server.keeping import Kept, keep, says
from apcore_a2a.server.live_task import LiveTask
from apcore_a2a.server.observer import Observer

logger = logging.getLogger(__name__)

CANCEL_GRACE: Final = 5.0  # seconds an agent has to stop before its task is ended without it
SAVE_RETRIES: Final = (0.05, 0.2, 1.0, 4.0)  # pauses between attempts to store a task's end; the last one repeats


OPENED, RESTED, ENDED = 1, 2, 3  # the stages of a run


class Stop(Enum):
    """Why a run is stopped from outside: the state and the text its task ends with."""

    CANCEL = (TaskState.CANCELED, "Canceled by client")
    DISCONNECT = (TaskState.CANCELED, "Canceled: the client disconnected")
    TIMEOUT = (TaskState.FAILED, "Execution timed out")
    SHUTDOWN = (TaskState.FAILED, "Server shutdown")


class Execution:
    """Drives one call. `begin` stores the task or the message that starts the run; without it, the first event does.

    It is OPENED when the sender can be answered: there is a task, or the `earlier` one that has the same key, or a
    `reply` instead of a task, or an `error` because nothing could be stored. It is RESTED when the task has come to
    rest, stored and published, or when that could not be stored in time, with an `error`; ENDED when the agent is
    done with, too.
    """

    def __init__(
        self,
        live: LiveTask,
        call: Call,
        *,
        agent: Agent,
        observer: Observer,
        begin: Callable[[], Awaitable[str | None]] | None,
        on_end: "Callable[[Execution], None]",
    ) -> None:
        self.live, self.call = live, call
        self.progress = Progress()
        self._agent, self._observer, self._begin, self._on_end = agent, observer, begin, on_end

    began = 0  # the version of `call.task`, where the agent takes over
    earlier: str | None = None
    reply: Message | None = None
    error: A2AError | None = None
    driver: asyncio.Task[None]
    timer: asyncio.TimerHandle | None = None  # for its deadline
    stopping: asyncio.Task[None] | None = None  # a run is stopped once: `Runs.stop`
    _stored = False
    _stop: Stop | None = None
    _over = False  # nothing more is taken from the agent
    _abandoned = False  # whoever stopped the run ends its task
    _in_doubt = False  # the store failed to say whether it has the run's beginning
    _in_agent = False  # it waits: only then may the driver be cancelled
    _started: float | None = None

    async def drive(self) -> None:
        """Run the agent to its end, in a task of its own. Never raises."""
        self.driver = asyncio.current_task()  # type: ignore[assignment]  # there is one
        failure: BaseException | None = None
        try:
            if self._begin is not None:
                await self._open(self._begin)
            if not self._over:
                failure = await self._run()
            if self._in_doubt or not (self._over or (failure is None and self.live.has_ended())):
                await self._end(failure or self.error)
        finally:
            if not self._abandoned:
                self._close()

    async def _open(self, begin: Callable[[], Awaitable[str | None]]) -> None:
        try:
            self.earlier = await begin()
        except Exception as error:
            if not isinstance(error, A2AError):
                logger.exception("task not stored", extra={"task_id": self.live.task.id})
            self.error = error if isinstance(error, A2AError) else InternalError()
            self._over, self._in_doubt = True, isinstance(error, StoreUnavailableError)
        else:
            self._stored = True
            self._over = self._over or self.earlier is not None
        self.progress.reach(OPENED)

    async def _run(self) -> BaseException | None:
        """Have the agent run; what it failed with, if it did."""
        self._started = time.monotonic()
        self._observer.run_started(self.live.task.id)
        try:
            if self._stop is None:
                self._prepare()
                batches = Batches(self._agent.run(self.call), self._keep)
                try:
                    await self._take_all(batches)
                finally:
                    self._in_agent = True
                    await batches.close()
        except BaseException as error:  # also SystemExit: an agent does not end the server
            return error
        finally:
            self._in_agent = False
        return None

    def _prepare(self) -> None:
        call, live = self.call, self.live
        self.began, live.rested = live.version, False
        if call.resumed or call.task is live.task:
            call.task = copy(live.task)
        else:  # a new task was stored as another object: the one that the call came with is the agent's own
            call.task.status = live.task.status

    async def _take_all(self, batches: Batches[AgentEvent, Kept]) -> None:
        while not (self._over or batches.ended or self.live.task.status.state in TERMINAL):
            if batch := batches.take():
                if (taking := self._take(batch) if self._stored else self._take_first(batch)) is not None:
                    await taking
            elif not batches.waits:
                return
            if batches.waits and not self._over:
                # Only here may the driver be cancelled: in the agent's own wait, never in a save.
                self._in_agent = True
                if self._stop is not None:  # said while something was saved
                    self.driver.cancel()
                await batches.wait()
                self._in_agent = False
            elif self._stop is not None:  # said while something was saved, to an agent that does not wait
                return
            elif len(batch) == LIMIT:
                await asyncio.sleep(0)  # an agent that never waits leaves others their turn

    def _keep(self, event: AgentEvent) -> tuple[Kept, bool]:
        """What is kept of an event, and whether nothing can follow: the task ends, or a message is the whole answer."""
        kept = keep(event, self.live.task)
        if isinstance(event, Message):
            return kept, self._agent.may_reply
        return kept, isinstance(event, StatusUpdate | Task) and event.status.state in TERMINAL

    def _take(self, batch: list[Kept]) -> Coroutine[Any, Any, None] | None:
        """Have events saved: that is done, or it answers what to await."""
        if self._agent.may_reply and batch and isinstance(message := batch[-1][0], Message):  # the end of its task
            end = StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED, message=message))
            batch = [*batch[:-1], keep(end, self.live.task)]
        if self._stop in (Stop.TIMEOUT, Stop.SHUTDOWN):  # the agent was stopped, but not by its client
            batch = [kept for kept in batch if not _says(kept[0], TaskState.CANCELED)]
        if (saving := self.live.save_now(batch)) is not None:
            return self._rest(saving)
        if self.live.rested:
            self.progress.reach(RESTED)
        return None

    async def _rest(self, saving: Coroutine[Any, Any, None]) -> None:
        await saving
        if self.live.rested:
            await self.live.flush()  # it may have gone on already
            self.progress.reach(RESTED)

    async def _take_first(self, batch: list[Kept]) -> None:
        batch = await self._begin_task(batch)
        if batch and not self._over and (taking := self._take(batch)) is not None:
            await taking

    async def _begin_task(self, batch: list[Kept]) -> list[Kept]:
        """Answer with a message, or begin a task: its own idea of a new task is taken as it is."""
        for index, (event, _) in enumerate(batch):
            if isinstance(event, Remember):
                self.live.memo = event.memo
                continue
            if isinstance(event, Message):
                self.reply, self._over = self.live.address(event), True
                self.progress.reach(OPENED)
                return []
            adopted = isinstance(event, Task) and event.status.state is TaskState.SUBMITTED
            if isinstance(event, Task) and adopted:
                self.live.adopt(event)
            await self._open(self.live.create)
            if self._stop is not None:  # said while the task was stored
                return []
            return batch[index + 1 :] if adopted else batch[index:]
        return []

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

    async def _end(self, failure: BaseException | None) -> None:
        """Bring the task to rest, unless it is. An interrupted task whose agent has returned waits for its user."""
        state, text = self._outcome(failure)
        resting = TERMINAL if (self._stop or failure) and not self._in_doubt else AT_REST
        attempt = 0
        while True:
            try:
                if not self._stored and not self._in_doubt:
                    await self._open(self.live.create)
                if self._stored or self._in_doubt:
                    await self.live.mend()
                    if self.live.state not in resting:
                        await self.live.write(StatusUpdate(status=TaskStatus(state=state, message=says(text))))
                    await self.live.flush()
                    if self.live.state is TaskState.AUTH_REQUIRED and self.live.run:
                        await self.live.park()
                return
            except (StaleWriteError, TaskNotFoundError):
                logger.warning("task is gone or taken over", extra={"task_id": self.live.task.id})
                break
            except Exception as error:
                if attempt == len(SAVE_RETRIES):  # its sender need not wait any longer
                    logger.error("task end not stored yet", exc_info=error, extra={"task_id": self.live.task.id})
                    self.error = StoreUnavailableError()
                    self.progress.reach(RESTED)
                await asyncio.sleep(SAVE_RETRIES[min(attempt, len(SAVE_RETRIES) - 1)])
                attempt += 1
        self.error = StoreUnavailableError()
        self.live.log.close()  # whoever watches reads the store again

    async def stop(self, reason: Stop) -> None:
        """End the run: the token first, then asyncio's cancel, then without the agent. Called once; never raises."""
        self._stop = reason
        self.call.cancel.cancel()
        if self._in_agent:  # else it will see that it is stopped
            self.driver.cancel()
        try:
            async with asyncio.timeout(CANCEL_GRACE):
                await self.progress.until(ENDED)
        except TimeoutError:
            if not self._in_agent:  # but in the store
                await self.progress.until(ENDED)
                return
            logger.warning("agent ignored its cancellation", extra={"task_id": self.live.task.id})
            self._over = self._abandoned = True
            self._observer.run_abandoned(self.live.task.id)
            await self._end(None)
            self._close()

    def _close(self) -> None:
        self._over = True
        if self._started is not None:
            self._observer.run_ended(self.live.task.id, self.live.state, time.monotonic() - self._started)
            self._started = None
        self.progress.reach(ENDED)
        self._on_end(self)


def _says(event: AgentEvent, *states: TaskState) -> bool:
    return isinstance(event, StatusUpdate | Task) and event.status.state in states
