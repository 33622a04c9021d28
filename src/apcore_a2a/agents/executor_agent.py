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
from apcore_a2a.agents.executors import AgentExecutor, EventQueue, RequestContext, RequestContextBuilder
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, Task, TaskState

logger = logging.getLogger(__name__)

# Together less than the five seconds after which the engine ends a cancelled run without its agent.
UNWIND_TIME: Final = 1.0  # for `execute` to end once it is cancelled
CANCEL_TIME: Final = 3.0  # for `cancel`

ENDS_THE_LOOP: Final = (SystemExit, KeyboardInterrupt)  # from a task of its own, asyncio lets them through


class _ExecutorRun:
    """One `execute`, and the `cancel` that may follow. Owns both of their tasks.

    `queue` is closed when `execute` has returned, or when `cancel` has, if that was called: it is `cancel` that
    publishes CANCELED.
    """

    def __init__(self, executor: AgentExecutor, call: Call) -> None:
        self.queue = EventQueue(call.task.id)
        self._executor = executor
        self._call = call
        self._context = RequestContext(call)
        self._execution = asyncio.create_task(self._execute(), name=f"execute {call.task.id}")
        self._cancellation: asyncio.Task[None] | None = None
        # Whether the run's caller has heard how `execute` ended; if not, `close` writes it to the log.
        self._is_told = False

    async def _execute(self) -> None:
        try:
            await self._executor.execute(self._context, self.queue)
        except ENDS_THE_LOOP as error:
            raise RuntimeError(f"the executor raised {type(error).__name__}") from error
        finally:
            if self._cancellation is None:  # else `cancel` may have more to say
                self.queue.close()

    async def returned(self) -> None:
        """Wait for `execute`, and fail as it failed."""
        # Not `await self._execution`: there a cancellation of this task and one of `execute` would look the same.
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
        except ENDS_THE_LOOP as error:
            raise RuntimeError(f"the executor raised {type(error).__name__}") from error
        finally:
            self.queue.close()

    async def close(self) -> None:
        """Wait for what was started. Whoever has said the last word may tidy up; who has not is stopped."""
        try:
            if not self.queue.is_closed:
                await self._stop()
            await asyncio.wait(self._owned())
        except asyncio.CancelledError:  # the engine has waited long enough: no more tidying up
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

    def _owned(self) -> set[asyncio.Task[None]]:
        if self._cancellation is None:
            return {self._execution}
        return {self._execution, self._cancellation}

    def _report(self, task: asyncio.Task[None]) -> None:
        """Log a failure that nobody else hears of."""
        if not task.done() or task.cancelled() or self._is_told:
            return
        error = task.exception()
        if error is not None:
            logger.warning("executor failed while its run ended", exc_info=error, extra={"work": task.get_name()})


class _Informed:
    """An executor whose contexts a builder makes."""

    def __init__(self, executor: AgentExecutor, builder: RequestContextBuilder) -> None:
        self._executor = executor
        self._builder = builder

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._executor.execute(await self._builder.build(context.call), event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._executor.cancel(await self._builder.build(context.call), event_queue)


class ExecutorAgent:
    """Serves an AgentExecutor."""

    may_reply = True

    def __init__(
        self, executor: AgentExecutor, *, retry_safe: bool = False, builder: RequestContextBuilder | None = None
    ) -> None:
        self._executor = executor
        if builder is not None:
            self._executor = _Informed(executor, builder)
        self._admission = Admission(retry_safe=retry_safe)

    async def admit(self, call: Call) -> Admission:
        return self._admission

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        run = _ExecutorRun(self._executor, call)
        has_begun = call.task.status.state is not TaskState.SUBMITTED
        try:
            async for event in run.queue:
                told: Event | None = event
                if has_begun:
                    told = _without_old_state(event)
                if told is not None:
                    yield told
                has_begun = True
            await run.returned()
        except asyncio.CancelledError:
            if call.cancel.is_cancelled:
                run.cancel()
                async for event in run.queue:
                    yield event
            else:  # the server stops, or nobody wants the answer: the task itself was not cancelled
                run.give_up()
            raise
        finally:
            await run.close()

    async def cancel(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Cancel a task that is not running because it waits for its user: only `cancel` is called."""
        run = _ExecutorRun(self._executor, call)
        run.cancel()  # before `execute` could begin
        try:
            async for event in run.queue:
                yield event
        finally:
            await run.close()


def _without_old_state(event: Event) -> Event | None:
    """An event of a task that has begun; None if it has nothing to say.

    Executors like to say SUBMITTED at the start of each run. Of a task that goes on it is not true any more, and the
    engine would refuse it: no state leads back there.
    """
    if isinstance(event, Message | ArtifactUpdate) or event.status.state is not TaskState.SUBMITTED:
        return event
    if isinstance(event, Task):
        return None
    return replace(event, status=replace(event.status, state=TaskState.WORKING))
