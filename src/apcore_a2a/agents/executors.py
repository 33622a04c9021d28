"""The interface of an agent written as an AgentExecutor: its two methods, their context and their event queue.

Invariant: names and contract are those of the AgentExecutor of a2a-sdk. The values are those of our model.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, Final, Protocol, runtime_checkable

from msgspec.structs import replace

from apcore_a2a.agent import Admission, AgentEvent, Call, Caller
from apcore_a2a.agents.content import agent_message, text_of, to_parts
from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Metadata,
    SendConfiguration,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)

logger = logging.getLogger(__name__)

MAX_AHEAD: Final = 64  # events that may wait for the engine before the executor has to wait


class RequestContext:
    """The message that an executor handles, with its task, conversation and caller.

    Example:
        >>> async def execute(context: RequestContext, event_queue: EventQueue) -> None:
        ...     if context.current_task is None:
        ...         await TaskUpdater(event_queue).requires_input("Which city?")
        ...     else:
        ...         await TaskUpdater(event_queue).complete(f"Sunny in {context.get_user_input()}")
    """

    def __init__(self, call: Call) -> None:
        self.call = call

    @property
    def message(self) -> Message:
        """The message, with its parts.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(len(context.message.parts))
        """
        return self.call.message

    @property
    def task_id(self) -> str:
        """The id of the task, whether it is new or not.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(f"Task {context.task_id}")
        """
        return self.call.task.id

    @property
    def context_id(self) -> str:
        """The id of the conversation.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(f"Conversation {context.context_id}")
        """
        return self.call.task.context_id

    @property
    def current_task(self) -> Task | None:
        """The task that the message continues. None for the first message of a task.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(context.current_task is None)
        """
        if not self.call.resumed:
            return None
        return self.call.task

    @property
    def related_tasks(self) -> tuple[Task, ...]:
        """The caller's tasks that the message refers to.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete([task.id for task in context.related_tasks])
        """
        return self.call.references

    @property
    def history(self) -> tuple[Message, ...]:
        """Earlier messages of the conversation, oldest first.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(len(context.history))
        """
        return self.call.history

    @property
    def configuration(self) -> SendConfiguration:
        """The options of the sender: output modes, history length, whether the request blocks.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(list(context.configuration.accepted_output_modes))
        """
        return self.call.request.configuration

    @property
    def metadata(self) -> Metadata:
        """The metadata of the request. Empty if it has none.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(context.metadata.get("locale", "en"))
        """
        return self.call.request.metadata or {}

    @property
    def caller(self) -> Caller:
        """The caller, who sent the message.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(f"Hello, {context.caller.id}")
        """
        return self.call.caller

    def get_user_input(self, delimiter: str = "\n") -> str:
        """The text of the message.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(context.get_user_input().upper())
        """
        return text_of(self.message, delimiter)


class EventQueue:
    """The queue to which an executor publishes its events.

    A full queue makes `enqueue_event` wait. A closed queue ignores events.

    Example:
        >>> queue = EventQueue("task")
        >>> asyncio.run(TaskUpdater(queue).complete())
        >>> queue.is_closed
        True
    """

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        # The asyncio.Queue has no maximum, so that None, which ends it, always fits. The semaphore bounds the events.
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(MAX_AHEAD)
        self.is_closed = False

    async def enqueue_event(self, event: Event) -> None:
        """Publish an event. Events after a Message, a terminal state or the end of `execute` are ignored.

        Raises:
            InvalidAgentResponseError: The value is not an event, or it belongs to another task.

        Example:
            >>> queue = EventQueue("task")
            >>> status = TaskStatus(state=TaskState.WORKING)
            >>> asyncio.run(queue.enqueue_event(StatusUpdate(status=status)))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'WORKING'
        """
        self._check(event)
        await self._room.acquire()
        if self.is_closed:
            self._room.release()  # wakes the next waiting call
            about = {"task_id": self._task_id, "event": repr(type(event))}
            logger.warning("event ignored: the run is over", extra=about)
            return
        self._events.put_nowait(event)
        if _is_last(event):
            self.close()

    def _check(self, event: object) -> None:
        match event:
            case Message():  # a direct reply, which belongs to no task
                return
            case Task(id=task_id) | StatusUpdate(task_id=task_id) | ArtifactUpdate(task_id=task_id):
                if task_id not in ("", self._task_id):
                    raise InvalidAgentResponseError("The agent published an event of another task")
            case _:
                raise InvalidAgentResponseError(f"The agent published a {type(event).__name__}, which is not an event")

    def close(self) -> None:
        """Accept no more events. Published events can still be read.

        Called for the executor when `execute` ends.

        Example:
            >>> queue = EventQueue("task")
            >>> queue.close()
            >>> queue.is_closed
            True
        """
        if not self.is_closed:
            self.is_closed = True
            self._events.put_nowait(None)
            self._room.release()  # a waiting enqueue_event sees that the queue is closed, and wakes the next one

    def __aiter__(self) -> "EventQueue":
        return self

    async def __anext__(self) -> Event:
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # for the next iteration: a cancelled run reads its queue a second time
            raise StopAsyncIteration
        self._room.release()
        return event


def _is_last(event: Event) -> bool:
    """Whether this event is the last one of a run."""
    if isinstance(event, Message):
        return True
    return isinstance(event, StatusUpdate | Task) and event.status.state in TERMINAL


@runtime_checkable
class AgentExecutor(Protocol):
    """An agent with two methods.

    `execute` handles one message. It publishes a single Message, or events of a task up to a terminal state or a state
    that waits for the user, and returns. It may publish AUTH_REQUIRED and continue by itself. `cancel` is called when
    the task is cancelled, after asyncio cancelled `execute`, and publishes CANCELED.

    Example:
        >>> class Echo:
        ...     async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        ...         await TaskUpdater(event_queue).complete(context.get_user_input())
        ...
        ...     async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        ...         await TaskUpdater(event_queue).cancel()
        >>> isinstance(Echo(), AgentExecutor)
        True
    """

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Handle one message.

        Example:
            >>> async def execute(self, context, event_queue):
            ...     await TaskUpdater(event_queue).complete(context.get_user_input())
        """

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Clean up, then publish that the task is cancelled.

        Example:
            >>> async def cancel(self, context, event_queue):
            ...     await TaskUpdater(event_queue).cancel("Stopped on request")
        """


@runtime_checkable
class RequestContextBuilder(Protocol):
    """Builds the context that an executor receives, instead of a plain RequestContext.

    Example:
        >>> class Tenant(RequestContext):
        ...     @property
        ...     def database(self) -> str:
        ...         return f"tenant_{self.caller.tenant or 'shared'}"
        >>> class Tenants:
        ...     async def build(self, call: Call) -> Tenant:
        ...         return Tenant(call)
        >>> isinstance(Tenants(), RequestContextBuilder)
        True
    """

    async def build(self, call: Call) -> RequestContext:
        """Return the context of one call. An A2AError raised here fails the task with its text.

        Example:
            >>> async def build(self, call):
            ...     return RequestContext(call)
        """
        ...


class TaskUpdater:
    """Publishes the usual events of a task. Content may be text, data, bytes, parts or a Message.

    Example:
        >>> class Report:
        ...     async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        ...         updater = TaskUpdater(event_queue)
        ...         await updater.start_work("Reading the sources")
        ...         await updater.add_artifact({"pages": 12}, name="outline")
        ...         await updater.complete("Done")
    """

    # The methods have the names of those of a2a-sdk's TaskUpdater, so that executors can move between the two.

    def __init__(self, event_queue: EventQueue) -> None:
        self._queue = event_queue

    async def update_status(self, state: TaskState, content: Any = None, *, metadata: Metadata | None = None) -> None:
        """Publish a status. The content becomes its message. The metadata are merged into those of the task.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).update_status(TaskState.WORKING, metadata={"step": 2}))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'WORKING'
        """
        message = None
        if content is not None:
            message = agent_message(content)
        status = TaskStatus(state=state, message=message)
        await self._queue.enqueue_event(StatusUpdate(status=status, metadata=metadata))

    async def add_artifact(
        self,
        content: Any,
        *,
        artifact_id: str = "",
        name: str = "",
        append: bool = False,
        last_chunk: bool = True,
        metadata: Metadata | None = None,
    ) -> str:
        """Publish an artifact or a chunk of one, and return the artifact's id.

        All chunks but the last are published with `last_chunk=False`.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).add_artifact({"pages": 12}, artifact_id="outline"))
            'outline'
            >>> asyncio.run(queue.__anext__()).artifact.parts[0].data
            {'pages': 12}
        """
        artifact = Artifact(artifact_id=artifact_id or new_id(), parts=to_parts(content), name=name, metadata=metadata)
        await self._queue.enqueue_event(ArtifactUpdate(artifact=artifact, append=append, last_chunk=last_chunk))
        return artifact.artifact_id

    async def submit(self, content: Any = None) -> None:
        """Publish SUBMITTED: the task is accepted, and its work begins later.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).submit("Next in line"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'SUBMITTED'
        """
        await self.update_status(TaskState.SUBMITTED, content)

    async def start_work(self, content: Any = None) -> None:
        """Publish WORKING. Call it again to report progress.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).start_work("Reading the sources"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'WORKING'
        """
        await self.update_status(TaskState.WORKING, content)

    async def complete(self, content: Any = None) -> None:
        """End the task with COMPLETED.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).complete("Done"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'COMPLETED'
        """
        await self.update_status(TaskState.COMPLETED, content)

    async def failed(self, content: Any = None) -> None:
        """End the task with FAILED. The content says why.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).failed("The source does not answer"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'FAILED'
        """
        await self.update_status(TaskState.FAILED, content)

    async def reject(self, content: Any = None) -> None:
        """End the task with REJECTED: the agent does not do it.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).reject("Only reports are written here"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'REJECTED'
        """
        await self.update_status(TaskState.REJECTED, content)

    async def cancel(self, content: Any = None) -> None:
        """End the task with CANCELED, as its caller requested.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).cancel("Stopped on request"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'CANCELED'
        """
        await self.update_status(TaskState.CANCELED, content)

    async def requires_input(self, content: Any = None) -> None:
        """Publish INPUT_REQUIRED with a question. The reply starts a new call of `execute`.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).requires_input("Which city?"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'INPUT_REQUIRED'
        """
        await self.update_status(TaskState.INPUT_REQUIRED, content)

    async def requires_auth(self, content: Any = None) -> None:
        """Publish AUTH_REQUIRED: the user has to log in elsewhere.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).requires_auth("Log in at https://idp.example"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'AUTH_REQUIRED'
        """
        await self.update_status(TaskState.AUTH_REQUIRED, content)


# ---- executor agent -------------------------------------------------------------------------------------------------
# Adapts an AgentExecutor to an Agent: `execute` runs on an asyncio task of its own, and its events keep their order.
#
# Invariant: a run owns the asyncio tasks that it starts. When the engine's call of `run` ends, `execute` has returned
# or was cancelled, and `cancel` was called if a cancel was requested.

# Together less than the five seconds after which the engine ends a cancelled run without waiting for its agent.
UNWIND_TIME: Final = 1.0  # seconds in which a cancelled `execute` has to end
CANCEL_TIME: Final = 3.0  # seconds for `cancel`

ENDS_THE_LOOP: Final = (SystemExit, KeyboardInterrupt)  # raised in an asyncio task, they end the event loop


class _ExecutorRun:
    """One call of `execute`, and the call of `cancel` that may follow. Owns the asyncio tasks of both.

    `queue` closes when `execute` returns. If `cancel` was called, it closes when `cancel` returns, because `cancel`
    publishes CANCELED.
    """

    def __init__(self, executor: AgentExecutor, call: Call) -> None:
        self.queue = EventQueue(call.task.id)
        self._executor = executor
        self._call = call
        self._context = RequestContext(call)
        self._execution = asyncio.create_task(self._execute(), name=f"execute {call.task.id}")
        self._cancellation: asyncio.Task[None] | None = None
        # Whether `returned` has reported how `execute` ended. If not, `close` logs a failure.
        self._is_reported = False

    async def _execute(self) -> None:
        try:
            await self._executor.execute(self._context, self.queue)
        except ENDS_THE_LOOP as error:
            raise RuntimeError(f"the executor raised {type(error).__name__}") from error
        finally:
            if self._cancellation is None:  # else `cancel` may still publish
                self.queue.close()

    async def returned(self) -> None:
        """Wait for `execute`, and raise the exception that it raised."""
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
        await asyncio.wait({self._execution}, timeout=UNWIND_TIME)  # not longer: it may end only after `cancel`
        try:
            async with asyncio.timeout(CANCEL_TIME):
                await self._executor.cancel(self._context, self.queue)
        except ENDS_THE_LOOP as error:
            raise RuntimeError(f"the executor raised {type(error).__name__}") from error
        finally:
            self.queue.close()

    async def close(self) -> None:
        """Wait for both asyncio tasks. After its last event `execute` may clean up; without one it is stopped first."""
        try:
            if not self.queue.is_closed:
                await self._stop()
            await asyncio.wait(self._owned())
        except asyncio.CancelledError:  # the engine does not wait any longer: stop the cleanup as well
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
        async for _ in self.queue:  # discard the events, so that the executor does not wait for room
            pass

    def _owned(self) -> set[asyncio.Task[None]]:
        if self._cancellation is None:
            return {self._execution}
        return {self._execution, self._cancellation}

    def _report(self, task: asyncio.Task[None]) -> None:
        """Log a failure that `returned` has not reported."""
        if not task.done() or task.cancelled() or self._is_reported:
            return
        error = task.exception()
        if error is not None:
            logger.warning("executor failed while its run ended", exc_info=error, extra={"work": task.get_name()})


class _BuildingContext:
    """An executor that receives the contexts of a RequestContextBuilder."""

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
        self, executor: AgentExecutor, *, retry_safe: bool = False, builder: RequestContextBuilder | None = None
    ) -> None:
        self._executor = executor
        if builder is not None:
            self._executor = _BuildingContext(executor, builder)
        self._admission = Admission(retry_safe=retry_safe)

    async def admit(self, call: Call) -> Admission:
        return self._admission

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        run = _ExecutorRun(self._executor, call)
        has_begun = call.task.status.state is not TaskState.SUBMITTED
        try:
            async for event in run.queue:
                published: Event | None = event
                if has_begun:
                    published = _without_submitted(event)
                if published is not None:
                    yield published
                has_begun = True
            await run.returned()
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
        run = _ExecutorRun(self._executor, call)
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
