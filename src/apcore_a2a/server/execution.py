"""One run of an agent, and every way it can end.

Rule: whatever the agent does, the task comes to rest in a stored state: by itself, by an exception, at the deadline, on
cancel, at shutdown. An agent that ignores its cancellation is left behind; its task is not.
"""

import asyncio
import logging
import secrets
import time
from contextlib import aclosing
from enum import Enum
from typing import Final

from apcore_a2a.agent import Agent, AgentEvent, Call
from apcore_a2a.errors import A2AError, InvalidStateTransitionError, OverloadedError, StaleWriteError
from apcore_a2a.protocol.lifecycle import AT_REST, INTERRUPTED, TERMINAL
from apcore_a2a.protocol.model import Message, StatusUpdate, Task, TaskState, TaskStatus
from apcore_a2a.server.live_task import LiveTask, says
from apcore_a2a.server.observer import Observer

logger = logging.getLogger(__name__)

CANCEL_GRACE: Final = 5.0  # seconds an agent has to stop before its task is ended without it
SAVE_RETRIES: Final = (0.05, 0.2, 1.0, 4.0)  # pauses between attempts to store a task's end


class Stop(Enum):
    """Why a run is stopped from outside: the state and the text its task ends with."""

    CANCEL = (TaskState.CANCELED, "Canceled by client")
    DISCONNECT = (TaskState.CANCELED, "Canceled: the client disconnected")
    TIMEOUT = (TaskState.FAILED, "Execution timed out")
    SHUTDOWN = (TaskState.FAILED, "Server shutdown")


class Execution:
    """Drives one call.

    `opened` is set when the sender can be answered: there is a task, or a `reply` instead of one, or an `error` because
    the task could not be stored. `rested` is set when the task has come to rest, stored and published; `ended` when
    the agent is done with, too.
    """

    def __init__(self, live: LiveTask, call: Call, *, agent: Agent, observer: Observer, stored: bool) -> None:
        self.live, self.call = live, call
        self.opened, self.rested, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.reply: Message | None = None
        self.error: A2AError | None = None
        self._agent, self._observer = agent, observer
        self._stored = stored
        self._stop: Stop | None = None
        self._over = False  # nothing more is taken from the agent
        self._driver: asyncio.Task[None] | None = None

    async def drive(self) -> None:
        """Run the agent to its end. Never raises."""
        self._driver = asyncio.current_task()
        started = time.monotonic()
        self._observer.run_started(self.live.task.id)
        try:
            if self._stop is None:
                await self._run()
            await self._end(*self._outcome(None))
        except BaseException as error:  # also SystemExit: an agent does not end the server
            await self._end(*self._outcome(error))
        finally:
            self._close()
            self._observer.run_ended(self.live.task.id, self.live.state, time.monotonic() - started)

    async def _run(self) -> None:
        if self._stored:
            self.opened.set()
            await self._take(StatusUpdate(status=TaskStatus(state=TaskState.WORKING)))
        async with aclosing(self._agent.run(self.call)) as events:
            async for event in events:
                await self._take(event)
                if self._over or self.live.state in TERMINAL:
                    return

    async def _take(self, event: AgentEvent) -> None:
        if self._over:
            return
        if not self._stored:
            if isinstance(event, Message):
                self.reply, self._over = self.live.address(event), True
                self.opened.set()
                return
            adopted = isinstance(event, Task) and event.status.state is TaskState.SUBMITTED
            await self._open(event if adopted else None)
            if adopted:
                return
        elif isinstance(event, Message) and self._agent.may_reply:
            event = StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED, message=event))
        await self.live.write(event)
        if self.live.state in AT_REST:
            self.rested.set()

    async def _open(self, task: AgentEvent | None) -> None:
        """The agent has begun a task, so store it; its own idea of a new task is taken as it is."""
        try:
            if isinstance(task, Task):
                self.live.adopt(task)
            await self.live.create()
        except A2AError as error:
            self.error, self._over = error, True
            raise
        self._stored = True
        self.opened.set()

    def _outcome(self, error: BaseException | None) -> tuple[TaskState, str]:
        if self._stop is not None:
            return self._stop.value
        if error is None:
            return TaskState.FAILED, "The agent ended without finishing the task"
        if isinstance(error, asyncio.CancelledError):
            return Stop.SHUTDOWN.value
        if isinstance(error, A2AError) and not isinstance(error, InvalidStateTransitionError):
            return TaskState.FAILED, error.message
        reference = secrets.token_hex(6)
        logger.error("agent failed", exc_info=error, extra={"task_id": self.live.task.id, "reference": reference})
        return TaskState.FAILED, f"Internal error (reference {reference})"

    async def _end(self, state: TaskState, text: str) -> None:
        """Bring the task to rest, unless it is. An interrupted task whose agent has returned waits for its user."""
        resting = TERMINAL if self._stop else TERMINAL | INTERRUPTED
        pauses = iter(SAVE_RETRIES)
        while not self._over:
            try:
                if not self._stored:
                    await self._open(None)
                await self.live.mend()
                if self.live.state not in resting:
                    await self.live.write(StatusUpdate(status=TaskStatus(state=state, message=says(text))))
                await self.live.flush()
                return
            except OverloadedError as error:
                pause = next(pauses, None)
                if self.error is not None or pause is None:
                    logger.error("task end not stored", exc_info=error, extra={"task_id": self.live.task.id})
                    break
                await asyncio.sleep(pause)
            except StaleWriteError:
                logger.warning("task was taken over", extra={"task_id": self.live.task.id})
                break
        if self.reply is None:
            self.live.log.close()  # whoever watches reads the store again

    async def stop(self, reason: Stop) -> None:
        """End the run: the token first, then asyncio's cancel, then without the agent. Never raises."""
        if self._stop is None:
            self._stop = reason
            self.call.cancel.cancel()
            if self._driver is not None:  # not begun yet: it will see that it is stopped
                self._driver.cancel()
        try:
            async with asyncio.timeout(CANCEL_GRACE):
                await self.ended.wait()
        except TimeoutError:
            logger.warning("agent ignored its cancellation", extra={"task_id": self.live.task.id})
            self._observer.run_abandoned(self.live.task.id)
            await self._end(*self._stop.value)
            self._close()

    def _close(self) -> None:
        self._over = True
        for event in (self.opened, self.rested, self.ended):
            event.set()
