"""Streams that outlive their connections.

Rule: the caller sees each event once and in order, or a `Task` that stands for everything before it. After a broken
connection the stream goes on
- with the next event, if the agent numbers its events and plays back what was missed (0.3 with `Last-Event-ID`);
- else with a `Task`, the state the agent is in, and the events that follow it (1.0 `SubscribeToTask`);
- else with a `Task` each time it has changed: an agent that would go on in the middle is asked, not listened to.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from apcore_a2a.client.channel import Call, Channel, Received, keyed
from apcore_a2a.client.transport import CONNECT_TIMEOUT
from apcore_a2a.errors import (
    A2AConnectionError,
    A2AError,
    InvalidParamsError,
    MethodNotFoundError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import Event, GetTask, Message, StatusUpdate, SubscribeToTask, Task, TaskState, Value
from apcore_a2a.protocol.operations import Operation

logger = logging.getLogger(__name__)

SNAPSHOT_WAIT: Final = CONNECT_TIMEOUT + 5.0  # an agent that resumes with a snapshot sends it at once
CLOSE_WAIT: Final = 1.0  # and one whose task has ended closes the stream
# How an agent says that it cannot subscribe to tasks, or not to this one, or not any more.
REFUSALS: Final = (UnsupportedOperationError, MethodNotFoundError, InvalidParamsError, TaskNotFoundError)


class _Step(Enum):
    """What to do about a break."""

    RECONNECT = auto()
    POLL = auto()
    RAISE = auto()


class _CannotResume(Exception):
    """What was missed cannot be had from the agent's stream."""


class EventStream:
    """One stream, over as many connections as it takes. `task_id`: the task, if it is known before the first event."""

    def __init__(self, channel: Channel, call: Call, task_id: str = "") -> None:
        self._channel, self._retry = channel, channel.settings.retry
        self._call = keyed(Operation.STREAM, call, self._retry)
        self._begun_as = Operation.SUBSCRIBE if task_id else Operation.STREAM
        self._task_id, self._cursor = task_id, ""
        self._last: Event | None = None
        self._at_rest = False
        self._failures = 0

    async def run(self, request: Value) -> AsyncGenerator[Event]:
        operation, resuming = self._begun_as, False
        while True:
            started = asyncio.get_running_loop().time()
            try:
                async with aclosing(self._connect(operation, request, resuming)) as events:
                    async for event in events:
                        yield event
                return
            except _CannotResume:
                break
            except A2AError as error:
                if self._is_over(error):
                    return
                step = self._next_step(error, asyncio.get_running_loop().time() - started)
                if step is _Step.RAISE:
                    raise
                if step is _Step.POLL:
                    break
                pause = self._retry.pause(self._failures, error)
            logger.info("stream broke; connecting again", extra={"task_id": self._task_id, "attempt": self._failures})
            await asyncio.sleep(pause)
            if self._task_id:
                operation, request, resuming = Operation.SUBSCRIBE, SubscribeToTask(id=self._task_id), True
        async with aclosing(poll(self._channel, self._task_id, self._call)) as tasks:
            async for task in tasks:
                yield task

    def _is_over(self, error: A2AError) -> bool:
        """Whether a break matters no more: an agent hangs up on a message's stream when it waits for input."""
        return self._at_rest and self._begun_as is Operation.STREAM and isinstance(error, A2AConnectionError)

    def _next_step(self, error: A2AError, lasted: float) -> _Step:
        retry, first = self._retry, self._last is None
        if not first and lasted >= self._channel.settings.idle_timeout:
            self._failures = 0  # it was merely quiet for long
        self._failures += 1
        late = first and self._call.timeout is not None and lasted >= self._call.timeout
        operation = Operation.SUBSCRIBE if self._task_id else Operation.STREAM
        if late or not retry.may_repeat(operation, error) or not (first or self._task_id):
            return _Step.RAISE
        if self._failures < retry.attempts:
            return _Step.RECONNECT
        if self._task_id and isinstance(error, A2AConnectionError) and error.sent:
            return _Step.POLL  # it takes us back again and again, and each time hangs up
        return _Step.RECONNECT if self._failures <= retry.reconnects and not first else _Step.RAISE

    async def _connect(self, operation: Operation, request: Value, resuming: bool) -> AsyncGenerator[Event]:
        """What one connection brings that the caller has not seen, to the end of the stream."""
        cursor = await self._replay_from() if resuming else ""
        async with aclosing(self._channel.events(operation, request, self._call, cursor)) as received:
            first = await self._resume(received, cursor) if resuming else None
            if first is not None and first.event != self._last:  # else the caller has that very task
                self._note(first)
                yield first.event
            while not self._has_ended() and (one := await anext(received, None)) is not None:
                self._note(one)
                yield one.event
            if self._has_ended():
                await _drain(received)
        if not self._at_rest:
            raise _ended()

    async def _replay_from(self) -> str:
        """The last event's number, if the agent's version can play back from there (1.0 begins with a snapshot)."""
        interface = await self._channel.discovery.interface()
        return self._cursor if interface.dialect.RULES.replay and self._cursor.isdecimal() else ""

    async def _resume(self, received: AsyncGenerator[Received], cursor: str) -> Received:
        """The first event after a break, if nothing is missing before it."""
        try:
            async with asyncio.timeout(None if cursor else SNAPSHOT_WAIT):
                first = await anext(received)
        except (*REFUSALS, TimeoutError) as error:
            raise _CannotResume from error
        except StopAsyncIteration as error:
            raise _ended() from error
        follows = cursor and first.id.isdecimal() and int(first.id) == int(cursor) + 1
        if not follows and not isinstance(first.event, Task):
            raise _CannotResume
        return first

    def _note(self, received: Received) -> None:
        event, self._cursor = received
        self._last, self._failures = event, 0
        match event:
            case Task():
                self._task_id = event.id
            case Message():
                self._at_rest = not self._task_id
            case _:
                self._task_id = event.task_id or self._task_id
        if isinstance(event, Task | StatusUpdate):
            self._at_rest = event.status.state in AT_REST

    def _has_ended(self) -> bool:
        return state_of(self._last) in TERMINAL


async def poll(channel: Channel, task_id: str, call: Call) -> AsyncGenerator[Task]:
    """The task, whenever it has changed, until it ends or waits for input."""
    retry = replace(channel.settings.retry, attempts=channel.settings.retry.reconnects)
    last, pause = None, channel.settings.poll_interval
    while True:
        task: Task = await channel.call(Operation.GET, GetTask(id=task_id), call, retry=retry)
        if task != last:
            last, pause = task, channel.settings.poll_interval
            yield task
        if task.status.state in TERMINAL | {TaskState.INPUT_REQUIRED}:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, retry.cap)


async def settle(channel: Channel, task_id: str, call: Call) -> Task:
    """The task once it has ended or waits for somebody."""
    try:
        async with aclosing(EventStream(channel, call, task_id).run(SubscribeToTask(id=task_id))) as events:
            async for event in events:
                if state_of(event) in AT_REST:
                    break
    except REFUSALS:
        async with aclosing(poll(channel, task_id, call)) as tasks:
            async for task in tasks:
                if task.status.state in AT_REST:
                    break
    result: Task = await channel.call(Operation.GET, GetTask(id=task_id), call)
    return result


def _ended() -> A2AConnectionError:
    return A2AConnectionError("The agent ended the stream before the task was done")


async def _drain(received: AsyncGenerator[Received]) -> None:
    """Let the agent close the stream, so that the connection can be used again."""
    with suppress(A2AError, TimeoutError):
        async with asyncio.timeout(CLOSE_WAIT):
            async for _ in received:
                pass


def state_of(event: Event | None) -> TaskState | None:
    return event.status.state if isinstance(event, Task | StatusUpdate) else None
