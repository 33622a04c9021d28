"""`ExecutorAgent`, which adapts an AgentExecutor to an Agent.

`execute` runs on an asyncio task of its own, and its events keep their order.

Invariant: a run owns the asyncio tasks that it starts. When the engine's call of `run` ends, `execute` has returned or
was cancelled, and `cancel` was called if a cancel was requested.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.agents.executors import AgentExecutor, EventQueue, RequestContext, RequestContextBuilder
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, Task, TaskState

logger = logging.getLogger(__name__)


ENDS_THE_LOOP: Final = (SystemExit, KeyboardInterrupt)  # an asyncio task that raises one of these ends the event loop


class CancelLimits(Struct, frozen=True):
    """Time limits for the end of a cancelled run, in seconds.

    Together they are less than the five seconds after which the engine ends the run without waiting for its agent.
    """

    unwind: float = 1.0
    """For `execute`, after it was cancelled."""
    cancel: float = 3.0
    """For `cancel`."""


DEFAULT_LIMITS: Final = CancelLimits()


class _ExecutorRun:
    """One call of `execute`, and the call of `cancel` that may follow. Owns the asyncio tasks of both.

    `queue` closes when `execute` returns. If `cancel` was called, it closes when `cancel` returns, because `cancel`
    publishes CANCELED.
    """

    def __init__(self, executor: AgentExecutor, call: Call, limits: CancelLimits) -> None:
        self.queue = EventQueue(call.task.id)
        self._executor = executor
        self._call = call
        self._limits = limits
        self._context = RequestContext(call)
        self._execution = asyncio.create_task(self._execute(), name=f"execute {call.task.id}")
        self._cancellation: asyncio.Task[None] | None = None
        # Whether `wait_for_execute` has reported how `execute` ended. If not, `close` logs a failure.
        self._is_reported = False

    async def _execute(self) -> None:
        try:
            await self._executor.execute(self._context, self.queue)
        except ENDS_THE_LOOP as error:
            raise RuntimeError(f"the executor raised {type(error).__name__}") from error
        finally:
            if self._cancellation is None:  # else `cancel` may still publish
                self.queue.close()

    async def wait_for_execute(self) -> None:
        """Wait until `execute` ends, and raise its exception, if any."""
        # `await self._execution` could not tell a cancellation of this task from one of `execute`.
        await asyncio.wait({self._execution})
        self._is_reported = True
        if self._execution.cancelled():
            raise RuntimeError("the executor cancelled itself")
        self._execution.result()

    def cancel(self) -> None:
        """Stop `execute` and call `cancel`, in bounded time. The queue closes when `cancel` has returned."""
        if self._cancellation is None:
            self._execution.cancel()
            self._cancellation = asyncio.create_task(self._cancel(), name=f"cancel {self._call.task.id}")

    def give_up(self) -> None:
        """Stop `execute` without calling `cancel`: the run ends, but the task is not cancelled."""
        self.queue.close()
        self._execution.cancel()

    async def _cancel(self) -> None:
        # The context of `cancel` has the task as it is now. That of `execute` has it as it was at the start.
        call = replace(self._call, task=self._call.cancel.task or self._call.task, resumed=True)
        await asyncio.wait({self._execution}, timeout=self._limits.unwind)  # some executors end only after `cancel`
        try:
            async with asyncio.timeout(self._limits.cancel):
                await self._executor.cancel(RequestContext(call), self.queue)
        except ENDS_THE_LOOP as error:
            raise RuntimeError(f"the executor raised {type(error).__name__}") from error
        finally:
            self.queue.close()

    async def close(self) -> None:
        """Wait for both asyncio tasks.

        If the queue is closed, `execute` may still clean up, and is not stopped. Otherwise it is stopped first.
        """
        try:
            if not self.queue.is_closed:
                await self._stop()
            await asyncio.wait(self._owned())
        except asyncio.CancelledError:  # the engine does not wait any longer: stop the cleanup as well
            for task in self._owned():
                task.cancel()
            await asyncio.wait(self._owned(), timeout=self._limits.unwind)
            raise
        finally:
            for task in self._owned():
                self._report(task)

    async def _stop(self) -> None:
        if not self._call.cancel.is_cancelled:
            self.give_up()
            return
        self.cancel()
        async for _ in self.queue:  # discard the events, so that the executor does not wait for room
            pass

    def _owned(self) -> set[asyncio.Task[None]]:
        if self._cancellation is None:
            return {self._execution}
        return {self._execution, self._cancellation}

    def _report(self, task: asyncio.Task[None]) -> None:
        """Log a failure that `wait_for_execute` has not reported."""
        if not task.done() or task.cancelled() or self._is_reported:
            return
        error = task.exception()
        if error is not None:
            logger.warning("executor failed while its run ended", exc_info=error, extra={"work": task.get_name()})


class _ExecutorWithBuilder:
    """Passes the contexts of a RequestContextBuilder to an executor."""

    def __init__(self, executor: AgentExecutor, builder: RequestContextBuilder) -> None:
        self._executor = executor
        self._builder = builder

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._executor.execute(await self._builder.build(context.call), event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._executor.cancel(await self._builder.build(context.call), event_queue)


class ExecutorAgent:
    """Adapts an AgentExecutor to an Agent."""

    may_reply = True

    def __init__(
        self,
        executor: AgentExecutor,
        *,
        retry_safe: bool = False,
        builder: RequestContextBuilder | None = None,
        limits: CancelLimits = DEFAULT_LIMITS,
    ) -> None:
        self._executor = executor
        if builder is not None:
            self._executor = _ExecutorWithBuilder(executor, builder)
        self._limits = limits
        self._admission = Admission(retry_safe=retry_safe)

    async def admit(self, call: Call) -> Admission:
        return self._admission

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        run = _ExecutorRun(self._executor, call, self._limits)
        has_begun = call.task.status.state is not TaskState.SUBMITTED
        try:
            async for event in run.queue:
                published: Event | None = event
                if has_begun:
                    published = _without_submitted(event)
                if published is not None:
                    yield published
                has_begun = True
            await run.wait_for_execute()
        except asyncio.CancelledError:
            if call.cancel.is_cancelled:
                run.cancel()
                async for event in run.queue:
                    yield event
            else:  # the server stops, or the last stream is gone: the task itself was not cancelled
                run.give_up()
            raise
        finally:
            await run.close()

    async def cancel(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Cancel a task that waits for its user and does not run. Calls only the executor's `cancel`."""
        run = _ExecutorRun(self._executor, call, self._limits)
        run.cancel()  # before `execute` can begin
        try:
            async for event in run.queue:
                yield event
        finally:
            await run.close()


def _without_submitted(event: Event) -> Event | None:
    """Return an event of a task that has begun, with WORKING instead of SUBMITTED. None for a Task in SUBMITTED.

    Many executors publish SUBMITTED at the start of each run. The engine rejects that state for a task that continues,
    because no transition leads back to it.
    """
    if isinstance(event, Message | ArtifactUpdate) or event.status.state is not TaskState.SUBMITTED:
        return event
    if isinstance(event, Task):
        return None
    return replace(event, status=replace(event.status, state=TaskState.WORKING))
