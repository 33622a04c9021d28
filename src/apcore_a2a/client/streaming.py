"""Streams that outlive their connections.

A task may run for hours; connections break, proxies hang up, servers restart. None of that is the caller's business:
`EventStream` is one stream over as many connections as it takes. It keeps one promise (docs/decisions/0031):

    The caller sees each event once and in order, or a `Task` that stands for everything before it.

The first connection sends the message (SendStreamingMessage), or subscribes to a task that is under way. Its events
tell the id of the task. When it breaks, the stream goes on by the first of three ways that the agent can do:

1. Replay. An agent of 0.3 may give each event a number (the `id:` line of the server-sent event). We keep the number
   of the last event that the caller has, and subscribe again (`tasks/resubscribe`) with `Last-Event-ID: <number>`;
   the agent plays back what came after it. Nothing in 0.3 obliges an agent to do so, and one that ignores the header
   goes on in the middle. So we believe it only if the first event has the very next number. An id that is no number
   cannot be checked, so it is not used.
2. Snapshot. 1.0 knows no replay, but SubscribeToTask begins with the `Task` as it is now (1.0 §3.1.6). That task is
   given to the caller, and then the events that follow it. If it equals what the caller saw last, it is no news and is
   kept back. An agent of 0.3 that answers with a `Task` is taken at its word as well.
3. Polling. Some agents go on with an update though others may be missing before it (a2a-sdk 0.3 does), refuse to
   subscribe, send no snapshot, take us back again and again only to hang up, or send an event that cannot be read. They
   are not listened to any more: we ask for the task (GetTask) in growing intervals, and the caller gets it as a `Task`
   whenever it has changed.

What is a break? An error of the connection; silence for `idle_timeout`; and an end of the stream while the task is
still working: agents close a stream when its task rests, so any other end is an accident. An end when the task has
ended or waits for somebody is none.

How long do we try? Each event sets the count of failures back to zero, and so does a connection that lasted for
`idle_timeout`: its agent was merely quiet. After `Retry.attempts` failures in a row, an agent that accepted our
connection is polled. One that is not there, or away behind its proxy, is given up after `Retry.reconnects`.

Before the first event there is nothing to go back to. A message whose stream breaks that early may have arrived, so it
is sent again only where `Retry.may_repeat` allows it, and within the call's timeout.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from apcore_a2a.client.channel import Channel, EventWithId, with_idempotency_key
from apcore_a2a.client.options import ResolvedOptions
from apcore_a2a.client.transport import CONNECT_TIMEOUT
from apcore_a2a.errors import (
    A2AConnectionError,
    A2AError,
    InvalidAgentResponseError,
    InvalidParamsError,
    MethodNotFoundError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import (
    Event,
    GetTask,
    Message,
    Operation,
    StatusUpdate,
    SubscribeToTask,
    Task,
    TaskState,
    Value,
)

logger = logging.getLogger(__name__)

SNAPSHOT_WAIT: Final = CONNECT_TIMEOUT + 5.0  # an agent that resumes with a snapshot sends it at once
CLOSE_WAIT: Final = 1.0  # and one whose task has ended closes the stream
# How an agent says that it cannot subscribe to tasks, or not to this one, or not any more.
REFUSALS: Final = (UnsupportedOperationError, MethodNotFoundError, InvalidParamsError, TaskNotFoundError)


class _Recovery(Enum):
    """What to do about a broken connection."""

    RECONNECT = auto()
    POLL = auto()
    GIVE_UP = auto()


class _CannotResume(Exception):
    """What was missed cannot be had from the agent's stream: neither by replay nor by snapshot."""


class EventStream:
    """One stream, over as many connections as it takes. `task_id`: the task, if it is known before the first event."""

    def __init__(self, channel: Channel, options: ResolvedOptions, task_id: str = "") -> None:
        self._channel = channel
        self._retry = channel.settings.retry
        # One key for all connections: an agent that honours it takes a repeated message for what it is.
        self._options = with_idempotency_key(Operation.STREAM, options, self._retry)
        self._begins_with_message = not task_id
        self._task_id = task_id
        # Of what the caller has: the last event, and the id of its frame. One event, not the task: a long stream
        # costs no memory.
        self._last: Event | None = None
        self._last_id = ""
        self._at_rest = False
        self._failures = 0  # in a row
        self._unreadable: InvalidAgentResponseError | None = None

    async def run(self, request: Value) -> AsyncGenerator[Event]:
        """The events, to the end of the stream; `request` is what it begins with."""
        operation = Operation.STREAM if self._begins_with_message else Operation.SUBSCRIBE
        resuming = False
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
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
                recovery = self._choose_recovery(error, lasted=clock() - started)
                if recovery is _Recovery.GIVE_UP:
                    raise
                if recovery is _Recovery.POLL:
                    break
                pause = self._retry.pause(self._failures, error)
            logger.info("stream broke; connecting again", extra={"task_id": self._task_id, "attempt": self._failures})
            await asyncio.sleep(pause)
            if self._task_id:  # else the message itself is sent again
                operation = Operation.SUBSCRIBE
                request = SubscribeToTask(id=self._task_id)
                resuming = True
        async with aclosing(self._poll()) as tasks:
            async for task in tasks:
                yield task

    async def _poll(self) -> AsyncGenerator[Task]:
        """The task in place of its events."""
        try:
            async with aclosing(poll_task(self._channel, self._task_id, self._options)) as tasks:
                async for task in tasks:
                    yield task
        except InvalidAgentResponseError as error:
            raise self._unreadable or error from None  # if both cannot be read, the event came first

    # ---- one connection ----------------------------------------------------------------------------------------

    async def _connect(self, operation: Operation, request: Value, resuming: bool) -> AsyncGenerator[Event]:
        """What one connection brings that the caller has not seen, to the end of the stream."""
        replay_from = ""
        if resuming:
            replay_from = await self._replay_from()
        async with aclosing(self._channel.events(operation, request, self._options, replay_from)) as received:
            if resuming:
                first = await self._read_first(received, replay_from)
                # A snapshot that the caller has already is no news, and no progress either: it leaves the count of
                # failures as it is, or an agent that only ever sends that one would be asked for ever.
                if first.event != self._last:
                    self._remember(first)
                    yield first.event
            while not self._has_ended():
                item = await anext(received, None)
                if item is None:
                    break
                self._remember(item)
                yield item.event
            if self._has_ended():
                await _read_to_end(received)
        if not self._at_rest:
            raise _ended_too_early()

    async def _replay_from(self) -> str:
        """The last event's number, if the agent's version can play back from there; else ""."""
        interface = await self._channel.discovery.interface()
        if interface.dialect.RULES.replay and self._last_id.isdecimal():
            return self._last_id
        return ""

    async def _read_first(self, received: AsyncGenerator[EventWithId], replay_from: str) -> EventWithId:
        """The first event after a break, if nothing is missing before it."""
        # A snapshot comes at once or not at all. A replay may have nothing to play back yet: there `idle_timeout` is
        # the only bound.
        wait = None if replay_from else SNAPSHOT_WAIT
        try:
            async with asyncio.timeout(wait):
                first = await anext(received)
        except (*REFUSALS, TimeoutError) as error:
            raise _CannotResume from error
        except StopAsyncIteration as error:
            raise _ended_too_early() from error
        if isinstance(first.event, Task):
            return first  # it stands for whatever was missed
        if replay_from and first.id.isdecimal() and int(first.id) == int(replay_from) + 1:
            return first
        raise _CannotResume

    def _remember(self, received: EventWithId) -> None:
        """The caller is about to get this event."""
        event = received.event
        self._last = event
        self._last_id = received.id
        self._failures = 0
        match event:
            case Task():
                self._task_id = event.id
            case Message():
                # Alone it is the whole answer (1.0 §3.1.2); of a task it is one event among others.
                self._at_rest = not self._task_id
            case _:
                self._task_id = event.task_id or self._task_id
        if isinstance(event, Task | StatusUpdate):
            self._at_rest = event.status.state in AT_REST

    def _has_ended(self) -> bool:
        return state_of(self._last) in TERMINAL

    # ---- after a break -----------------------------------------------------------------------------------------

    def _is_over(self, error: A2AError) -> bool:
        """Whether a break matters no more: an agent hangs up on a message's stream when it waits for input.

        Who subscribed to a task follows it beyond that: others may answer, and it goes on.
        """
        return self._at_rest and self._begins_with_message and isinstance(error, A2AConnectionError)

    def _choose_recovery(self, error: A2AError, *, lasted: float) -> _Recovery:
        """What to do about an error after a connection that lasted so many seconds; counts the failure."""
        has_begun = self._last is not None
        if has_begun and lasted >= self._channel.settings.idle_timeout:
            self._failures = 0  # it was merely quiet for long
        self._failures += 1
        if isinstance(error, InvalidAgentResponseError) and self._task_id:
            self._unreadable = error
            return _Recovery.POLL  # the next connection would begin with the same event, or after it
        if not self._may_connect_again(error, lasted):
            return _Recovery.GIVE_UP
        if self._failures < self._retry.attempts:
            return _Recovery.RECONNECT
        was_reached = isinstance(error, A2AConnectionError) and error.sent
        if self._task_id and was_reached:
            return _Recovery.POLL  # it takes us back again and again, and each time hangs up
        # Nobody is there, or a proxy answers for an agent that is away: restarts take a while.
        if has_begun and self._failures <= self._retry.reconnects:
            return _Recovery.RECONNECT
        return _Recovery.GIVE_UP

    def _may_connect_again(self, error: A2AError, lasted: float) -> bool:
        if self._last is None:
            timeout = self._options.timeout
            if timeout is not None and lasted >= timeout:
                return False  # the caller has waited long enough for a first event
        elif not self._task_id:
            return False  # something has begun, but no event said of which task it was
        if self._task_id:
            return self._retry.may_repeat(Operation.SUBSCRIBE, error)
        return self._retry.may_repeat(Operation.STREAM, error)


async def poll_task(channel: Channel, task_id: str, options: ResolvedOptions) -> AsyncGenerator[Task]:
    """The task, whenever it has changed, until it ends or waits for input."""
    # As patient as a stream that reconnects: this goes on in its place.
    retry = replace(channel.settings.retry, attempts=channel.settings.retry.reconnects)
    last: Task | None = None
    pause = channel.settings.poll_interval
    while True:
        task: Task = await channel.call(Operation.GET, GetTask(id=task_id), options, retry=retry)
        if task != last:
            last = task
            pause = channel.settings.poll_interval
            yield task
        # Not AUTH_REQUIRED: an agent may get its credentials elsewhere and go on by itself (1.0 §7.6.1).
        if task.status.state in TERMINAL | {TaskState.INPUT_REQUIRED}:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, max(retry.cap, channel.settings.poll_interval))


async def wait_until_at_rest(
    channel: Channel, task_id: str, options: ResolvedOptions, *, history_length: int | None = None
) -> Task:
    """The task once it has ended or waits for somebody."""
    try:
        async with aclosing(EventStream(channel, options, task_id).run(SubscribeToTask(id=task_id))) as events:
            # Silence may be that of a task which ended before we came: agents of 0.3 need not send a snapshot.
            async with asyncio.timeout(SNAPSHOT_WAIT):
                event = await anext(events, None)
            while event is not None and state_of(event) not in AT_REST:
                event = await anext(events, None)
    except A2AConnectionError:
        raise  # it was looked for long enough
    except (A2AError, TimeoutError):
        # It cannot subscribe, whatever it calls that; or the task has ended already, which 1.0 refuses (§3.1.6).
        async with aclosing(poll_task(channel, task_id, options)) as tasks:
            async for task in tasks:
                if task.status.state in AT_REST:
                    break
    # The stream said when, not what: its last event may be a mere status, without artifacts and history.
    request = GetTask(id=task_id, history_length=history_length)
    result: Task = await channel.call(Operation.GET, request, options)
    return result


def _ended_too_early() -> A2AConnectionError:
    return A2AConnectionError("The agent ended the stream before the task was done")


async def _read_to_end(received: AsyncGenerator[EventWithId]) -> None:
    """Let the agent close the stream, so that the connection can be used again."""
    with suppress(A2AError, TimeoutError):
        async with asyncio.timeout(CLOSE_WAIT):
            async for _ in received:
                pass


def state_of(event: Event | None) -> TaskState | None:
    if isinstance(event, Task | StatusUpdate):
        return event.status.state
    return None
