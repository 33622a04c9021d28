"""The interface of an agent written as an AgentExecutor: its two methods, their context and their event queue.

Invariant: the methods and their contract are those of the AgentExecutor of a2a-sdk. Their events and contexts are our
own types.
"""

import asyncio
import logging
from typing import Any, Final, Protocol, runtime_checkable

from apcore_a2a.agent import Call, Caller
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
        """The task that the message continues. None for the first message of a task. In `cancel`, the task as it is.

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
    that waits for the user, and returns. It may also publish AUTH_REQUIRED and continue to run. `cancel` is called when
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
