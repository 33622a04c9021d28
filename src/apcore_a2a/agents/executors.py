"""What an agent written as an AgentExecutor sees: its two methods, what they get, and where they publish.

Rule: the words and the contract are A2A's own AgentExecutor's; the values are our model's.
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

MAX_AHEAD: Final = 64  # events an executor may be ahead of the engine


class RequestContext:
    """What an executor may know about the message it gets.

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
        """The message itself, with its parts.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(len(context.message.parts))
        """
        return self.call.message

    @property
    def task_id(self) -> str:
        """The id of the task, new or not.

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
        """The task that the message goes on with; None when the message is its first.

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
        """What the sender wishes for: output modes, history length, whether it waits.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(list(context.configuration.accepted_output_modes))
        """
        return self.call.request.configuration

    @property
    def metadata(self) -> Metadata:
        """The metadata of the request; empty if it has none.

        Example:
            >>> async def execute(context, event_queue):
            ...     await TaskUpdater(event_queue).complete(context.metadata.get("locale", "en"))
        """
        return self.call.request.metadata or {}

    @property
    def caller(self) -> Caller:
        """Who asks.

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
    """Where an executor publishes. A full one makes `enqueue_event` wait; a closed one takes nothing.

    Example:
        >>> queue = EventQueue("task")
        >>> asyncio.run(TaskUpdater(queue).complete())
        >>> queue.is_closed
        True
    """

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        # The queue itself has no maximum: None, which ends it, must always find room. The semaphore is the maximum.
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(MAX_AHEAD)
        self.is_closed = False

    async def enqueue_event(self, event: Event) -> None:
        """Publish an event. What comes after a Message, a terminal state or the end of `execute` is ignored.

        Raises:
            InvalidAgentResponseError: it is no event, or an event of another task.

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
            self._room.release()  # for the next who waits
            about = {"task_id": self._task_id, "event": repr(type(event))}
            logger.warning("event ignored: the run is over", extra=about)
            return
        self._events.put_nowait(event)
        if _is_last(event):
            self.close()

    def _check(self, event: object) -> None:
        match event:
            case Message():  # the answer to a message, which belongs to no task yet
                return
            case Task(id=task_id) | StatusUpdate(task_id=task_id) | ArtifactUpdate(task_id=task_id):
                if task_id not in ("", self._task_id):
                    raise InvalidAgentResponseError("The agent published an event of another task")
            case _:
                raise InvalidAgentResponseError(f"The agent published a {type(event).__name__}, which is not an event")

    def close(self) -> None:
        """Take nothing more; what was published can still be read. An executor need not call it: its end does.

        Example:
            >>> queue = EventQueue("task")
            >>> queue.close()
            >>> queue.is_closed
            True
        """
        if not self.is_closed:
            self.is_closed = True
            self._events.put_nowait(None)
            self._room.release()  # whoever waits for room learns that there is no use in it, and wakes the next one

    def __aiter__(self) -> "EventQueue":
        return self

    async def __anext__(self) -> Event:
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)  # for the next who iterates: a run may be read again while it is cancelled
            raise StopAsyncIteration
        self._room.release()
        return event


def _is_last(event: Event) -> bool:
    """Whether an executor has nothing more to say after this event."""
    if isinstance(event, Message):
        return True
    return isinstance(event, StatusUpdate | Task) and event.status.state in TERMINAL


@runtime_checkable
class AgentExecutor(Protocol):
    """An agent as two methods.

    `execute` handles one message: it publishes a single Message, or a task's events up to a terminal state or one that
    waits for the user, and returns. It may publish AUTH_REQUIRED and go on by itself. `cancel` is called when the task
    is cancelled, after asyncio cancelled `execute`, and publishes CANCELED.

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
        """Say that the task is cancelled, after tidying up.

        Example:
            >>> async def cancel(self, context, event_queue):
            ...     await TaskUpdater(event_queue).cancel("Stopped on request")
        """


@runtime_checkable
class RequestContextBuilder(Protocol):
    """Makes what an executor gets to see, in place of a plain RequestContext.

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
        """The context of one call; an A2AError raised here fails the task with its text.

        Example:
            >>> async def build(self, call):
            ...     return RequestContext(call)
        """
        ...


class TaskUpdater:
    """Publishes the usual events. Content may be text, data, bytes, parts or a Message.

    Example:
        >>> class Report:
        ...     async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        ...         updater = TaskUpdater(event_queue)
        ...         await updater.start_work("Reading the sources")
        ...         await updater.add_artifact({"pages": 12}, name="outline")
        ...         await updater.complete("Done")
    """

    # Its methods have the names of a2a-sdk's TaskUpdater, so that executors can be moved between the two.

    def __init__(self, event_queue: EventQueue) -> None:
        self._queue = event_queue

    async def update_status(self, state: TaskState, content: Any = None, *, metadata: Metadata | None = None) -> None:
        """Publish a status; the content becomes its message, the metadata are added to the task's.

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
        """Publish an artifact, or a chunk of one: then `last_chunk=False` until the last. The artifact's id.

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
        """Say that the task is taken, and will be worked on later.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).submit("Next in line"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'SUBMITTED'
        """
        await self.update_status(TaskState.SUBMITTED, content)

    async def start_work(self, content: Any = None) -> None:
        """Say that the task is worked on; again and again, to report progress.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).start_work("Reading the sources"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'WORKING'
        """
        await self.update_status(TaskState.WORKING, content)

    async def complete(self, content: Any = None) -> None:
        """End the task: it is done.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).complete("Done"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'COMPLETED'
        """
        await self.update_status(TaskState.COMPLETED, content)

    async def failed(self, content: Any = None) -> None:
        """End the task: it went wrong, and the content says why.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).failed("The source does not answer"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'FAILED'
        """
        await self.update_status(TaskState.FAILED, content)

    async def reject(self, content: Any = None) -> None:
        """End the task: it will not be done.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).reject("Only reports are written here"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'REJECTED'
        """
        await self.update_status(TaskState.REJECTED, content)

    async def cancel(self, content: Any = None) -> None:
        """End the task, because its caller asked for that.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).cancel("Stopped on request"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'CANCELED'
        """
        await self.update_status(TaskState.CANCELED, content)

    async def requires_input(self, content: Any = None) -> None:
        """Ask the user; `execute` is called again with the answer.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).requires_input("Which city?"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'INPUT_REQUIRED'
        """
        await self.update_status(TaskState.INPUT_REQUIRED, content)

    async def requires_auth(self, content: Any = None) -> None:
        """Wait for the user to log in elsewhere.

        Example:
            >>> queue = EventQueue("task")
            >>> asyncio.run(TaskUpdater(queue).requires_auth("Log in at https://idp.example"))
            >>> asyncio.run(queue.__anext__()).status.state.name
            'AUTH_REQUIRED'
        """
        await self.update_status(TaskState.AUTH_REQUIRED, content)


# ---- executor agent -------------------------------------------------------------------------------------------------
# An AgentExecutor as an Agent: its `execute` on a task of its own, its events in the order it published them.
#
# Rule: the run owns what it starts. When the engine lets go of it, `execute` has returned or was cancelled, and
# `cancel` was called if somebody asked for that.

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
