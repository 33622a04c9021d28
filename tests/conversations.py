"""Conversations with an agent through a real engine on a memory store. Every wait has a time limit."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from typing import Any
from uuid import uuid4

from msgspec import UNSET

from apcore_a2a.agent import Call, Caller, CancelToken
from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.engine.context import CallContext, EngineOptions
from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.event_log import LogEntry
from apcore_a2a.engine.streams import Events
from apcore_a2a.errors import UnsupportedOperationError
from apcore_a2a.protocol.model import (
    CancelTask,
    Document,
    Event,
    GetTask,
    Message,
    Part,
    Role,
    SendConfiguration,
    SendMessage,
    SubscribeToTask,
    Task,
    TaskState,
    TaskStatus,
)
from apcore_a2a.storage.memory import InMemoryTaskStore

PATIENCE = 5  # seconds
NOW = SendConfiguration(return_immediately=True)


def to_message(content: str | Part | Message, **fields: Any) -> Message:  # Any: the fields of a Message
    if isinstance(content, Message):
        return content
    part = Part(text=content) if isinstance(content, str) else content
    return Message(message_id=str(uuid4()), role=Role.USER, parts=(part,), **fields)


async def batches(stream: Events) -> AsyncGenerator[list[LogEntry], None]:
    """Yield the batches of a stream as they arrive."""
    while (batch := stream.take()) is not None:
        if batch:
            yield batch
        else:
            await stream.wait()


class Conversation:
    """A user of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.context = CallContext()

    async def ask(
        self, content: str | Part | Message, *, task: Task | None = None, now: bool = False
    ) -> Task | Message:
        """Send a message, and return the response, immediately or when the task is at rest."""
        message = to_message(content, **({} if task is None else {"task_id": task.id}))
        request = SendMessage(message=message, configuration=NOW if now else SendConfiguration())
        async with asyncio.timeout(PATIENCE):
            answer = await self.engine.send_message(request, self.context)
        return answer.task() if isinstance(answer, Document) else answer

    async def task(self, content: str | Part | Message, *, task: Task | None = None, now: bool = False) -> Task:
        """Send a message whose response must be a task, and return the task."""
        answer = await self.ask(content, task=task, now=now)
        assert isinstance(answer, Task)
        return answer

    async def stream(self, content: str | Part | Message, *, task: Task | None = None) -> list[Event]:
        """Send a message, and return all events of its run."""
        message = to_message(content, **({} if task is None else {"task_id": task.id}))
        async with asyncio.timeout(PATIENCE):
            stream = await self.engine.stream_message(SendMessage(message=message), self.context)
            with closing(stream):
                return [entry.event async for batch in batches(stream) for entry in batch]

    async def cancel(self, task: Task) -> Task:
        async with asyncio.timeout(PATIENCE):
            return (await self.engine.cancel_task(CancelTask(id=task.id), self.context)).task()

    async def look(self, task: Task) -> Task:
        found = await self.engine.get_task(GetTask(id=task.id), self.context)
        return found.task() if isinstance(found, Document) else found

    async def watch(self, task: Task) -> AsyncGenerator[Task, None]:
        """Yield the task after each of its events, until it has ended."""
        try:
            stream = await self.engine.subscribe(SubscribeToTask(id=task.id), self.context)
        except UnsupportedOperationError:  # it has ended
            yield await self.look(task)
            return
        with closing(stream):
            async for _ in batches(stream):
                yield await self.look(task)

    async def until(self, task: Task, *states: TaskState) -> Task:
        """Wait until the task is in one of the states, and return it."""
        async with asyncio.timeout(PATIENCE), aclosing(self.watch(task)) as tasks:
            return await anext(task async for task in tasks if task.status.state in states)


@asynccontextmanager
async def talk_to(
    thing: Any, options: EngineOptions | None = None
) -> AsyncIterator[Conversation]:  # Any: what as_agent takes
    engine = Engine(as_agent(thing), InMemoryTaskStore(), options=options or EngineOptions(shutdown_timeout=0.1))
    await engine.open()
    await engine.recover()
    try:
        yield Conversation(engine)
    finally:
        async with asyncio.timeout(PATIENCE):
            await engine.close()


def text_of(answer: Task | Message | None) -> str:
    """Return the text of a message, or of the status message of a task."""
    message = answer.status.message if isinstance(answer, Task) else answer
    return "" if message is None else "|".join(str(part.text) for part in message.parts)


def content_of(part: Part) -> object:
    return next(value for value in (part.text, part.raw, part.url, part.data) if value is not UNSET)


def contents(task: Task) -> list[list[object]]:
    """Return the contents of each artifact of a task."""
    return [[content_of(part) for part in artifact.parts] for artifact in task.artifacts]


def make_call(content: str | Part | Message = "Hello") -> Call:
    """Return the call of an engine for the first message of a task."""
    message = to_message(content)
    task = Task(id="task", context_id="context", status=TaskStatus(state=TaskState.SUBMITTED), history=[message])
    return Call(request=SendMessage(message=message), task=task, caller=Caller(), cancel=CancelToken())
