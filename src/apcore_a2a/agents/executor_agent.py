"""An AgentExecutor as an Agent: its `execute` on a task of its own, its events in the order it published them.

Rule: the run owns what it starts. When the engine lets go of it, `execute` has returned or was cancelled, and `cancel`
was called if somebody asked for that.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final

from msgspec.structs import replace

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.agents.executors import AgentExecutor, EventQueue, RequestContext
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, Task, TaskState

logger = logging.getLogger(__name__)

# Together less than the five seconds after which the engine ends a cancelled run without its agent.
UNWIND_TIME: Final = 1.0  # for `execute` to end once it is cancelled
CANCEL_TIME: Final = 3.0  # for `cancel`


class _Run:
    """One `execute`, and the `cancel` that may follow. Owns both of their tasks."""

    def __init__(self, executor: AgentExecutor, call: Call) -> None:
        self.queue = EventQueue(call.task.id)
        self._executor, self._call, self._context = executor, call, RequestContext(call)
        self._execution = asyncio.create_task(self._execute(), name=f"execute {call.task.id}")
        self._cancellation: asyncio.Task[None] | None = None
        self._is_told = False  # how `execute` ended

    async def _execute(self) -> None:
        try:
            await self._executor.execute(self._context, self.queue)
        except SystemExit as error:  # would end the loop, from a task of its own
            raise RuntimeError("the executor called sys.exit") from error
        finally:
            if self._cancellation is None:
                self.queue.close()

    async def returned(self) -> None:
        """Wait for `execute`, and fail as it failed."""
        await asyncio.wait({self._execution})
        self._is_told = True
        if self._execution.cancelled():
            raise RuntimeError("the executor cancelled itself")
        self._execution.result()

    def cancel(self) -> None:
        """Stop `execute` and call `cancel`, in bounded time; the queue closes when that is done."""
        if self._cancellation is None:
            self._execution.cancel()
            self._cancellation = asyncio.create_task(self._cancel(), name=f"cancel {self._call.task.id}")

    def give_up(self) -> None:
        """Stop `execute`. Nobody asked for a cancel: the engine cannot take what the executor says."""
        self.queue.close()
        self._execution.cancel()

    async def _cancel(self) -> None:
        await asyncio.wait({self._execution}, timeout=UNWIND_TIME)  # not longer: `cancel` may be what ends it
        try:
            async with asyncio.timeout(CANCEL_TIME):
                await self._executor.cancel(self._context, self.queue)
        finally:
            self.queue.close()

    async def close(self) -> None:
        """Wait for what was started. Whoever has said the last word may tidy up; who has not is stopped."""
        try:
            if not self.queue.is_closed:
                await self._stop()
            await asyncio.wait(self._owned())
        except asyncio.CancelledError:
            for task in self._owned():
                task.cancel()
            await asyncio.wait(self._owned(), timeout=UNWIND_TIME)
            raise
        finally:
            for task in self._owned():
                self._report(task)

    async def _stop(self) -> None:
        if not self._call.cancel.is_cancelled:
            self.give_up()
            return
        self.cancel()
        async for _ in self.queue:  # nobody takes them any more, but nobody shall wait for room
            pass

    def _owned(self) -> "set[asyncio.Task[None]]":
        return {task for task in (self._execution, self._cancellation) if task is not None}

    def _report(self, task: "asyncio.Task[None]") -> None:
        """What nobody else hears of."""
        if task.done() and not task.cancelled() and not self._is_told and (error := task.exception()) is not None:
            logger.warning("executor failed while its run ended", exc_info=error, extra={"work": task.get_name()})


class ExecutorAgent:
    """Serves an AgentExecutor."""

    may_reply = True

    def __init__(self, executor: AgentExecutor, *, retry_safe: bool = False) -> None:
        self._executor = executor
        self._admission = Admission(retry_safe=retry_safe)

    async def admit(self, call: Call) -> Admission:
        return self._admission

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        run = _Run(self._executor, call)
        begun = call.task.status.state is not TaskState.SUBMITTED
        try:
            async for event in run.queue:
                if (fitting := _fit(event, begun)) is not None:
                    yield fitting
                begun = True
            await run.returned()
        except asyncio.CancelledError:
            if call.cancel.is_cancelled:
                run.cancel()
                async for event in run.queue:
                    yield event
            else:
                run.give_up()
            raise
        finally:
            await run.close()

    async def cancel(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Cancel a task that is not running because it waits for its user: only `cancel` is called."""
        run = _Run(self._executor, call)
        run.cancel()  # before `execute` could begin
        try:
            async for event in run.queue:
                yield event
        finally:
            await run.close()


def _fit(event: Event, begun: bool) -> Event | None:
    """Executors like to say SUBMITTED at the start of each run; of a task that has begun it is not true any more."""
    if not begun or isinstance(event, Message | ArtifactUpdate) or event.status.state is not TaskState.SUBMITTED:
        return event
    if isinstance(event, Task):
        return None
    return replace(event, status=replace(event.status, state=TaskState.WORKING))
