"""Event streams that survive broken connections.

A task may run for hours. Meanwhile connections break, proxies disconnect and servers restart. `EventStream` hides this
from the caller: it is one stream over as many connections as necessary. It guarantees (docs/decisions/0031):

    The caller sees each event once and in order, or a `Task` that includes everything before it.

The first connection sends the message (SendStreamingMessage), or subscribes to a running task. Its events contain the
id of the task. When the connection breaks, the stream continues in the first of three ways that the agent supports:

1. Replay. A 0.3 agent may number its events (the `id:` line of the server-sent event). The client keeps the number of
   the last event that the caller has, and subscribes again (`tasks/resubscribe`) with `Last-Event-ID: <number>`. The
   agent then replays the later events. 0.3 does not require this, and an agent that ignores the header continues with a
   gap. Therefore the replay is accepted only if the first event has exactly the next number. An id that is not a number
   cannot be checked and is not used.
2. Snapshot. 1.0 has no replay, but SubscribeToTask begins with the present `Task` (1.0 §3.1.6). The caller receives
   that task and then the events that follow. A task equal to the last one that the caller saw is not yielded again. A
   `Task` from a 0.3 agent is accepted in the same way.
3. Polling, for all other agents. Some continue with an update although earlier updates may be missing (a2a-sdk 0.3
   does). Others reject the subscription, send no snapshot, drop each connection that they have accepted, or send an
   event that cannot be decoded. The client stops streaming and polls the task (GetTask) at growing intervals. The
   caller receives it as a `Task` whenever it has changed.

A stream counts as broken after an error of the connection, after silence for `idle_timeout`, and when it ends while the
task is still working: agents close a stream when its task rests, so any other end is accidental. The end of a stream
whose task has ended or waits for input is not a break.

Each event resets the count of failures. A connection that lasted for `idle_timeout` resets it too, because its agent
was only quiet. After `Retry.attempts` consecutive failures, the client polls an agent that accepts connections. If the
agent does not accept them, or its proxy cannot reach it, the client gives up after `Retry.reconnects`.

Before the first event there is no task to resume. A message whose stream breaks that early may have arrived, so it is
sent again only if `Retry.may_repeat` allows it, and within the call's timeout.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from apcore_a2a.client.bindings import EventWithId
from apcore_a2a.client.channel import Channel, with_idempotency_key
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

SNAPSHOT_WAIT: Final = CONNECT_TIMEOUT + 5.0  # an agent that supports snapshots sends one at once
CLOSE_WAIT: Final = 1.0  # an agent closes the stream when the task has ended
# Errors with which an agent rejects a subscription: always, for this task, or for now. The client then polls the task.
REFUSALS: Final = (UnsupportedOperationError, MethodNotFoundError, InvalidParamsError, TaskNotFoundError)


class _Recovery(Enum):
    """The reaction to a broken connection."""

    RECONNECT = auto()
    POLL = auto()
    GIVE_UP = auto()


class _CannotResume(Exception):
    """The agent's stream cannot supply the missed events, neither by replay nor by snapshot."""


class EventStream:
    """One stream over as many connections as necessary. `task_id` is given if the task is known beforehand."""

    def __init__(self, channel: Channel, options: ResolvedOptions, task_id: str = "") -> None:
        self._channel = channel
        self._retry = channel.settings.retry
        # One key for all connections: an agent that supports it recognizes a repeated message.
        self._options = with_idempotency_key(Operation.STREAM, options, self._retry)
        self._begins_with_message = not task_id
        self._task_id = task_id
        # The last event that the caller has, and the id of its frame. Keeping one event instead of the task bounds the
        # memory of a long stream.
        self._last: Event | None = None
        self._last_id = ""
        self._at_rest = False
        self._failures = 0  # consecutive failures
        self._unreadable: InvalidAgentResponseError | None = None

    async def run(self, request: Value) -> AsyncGenerator[Event]:
        """Yield all events of the stream. `request` opens its first connection."""
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
            logger.info("stream broke, reconnecting", extra={"task_id": self._task_id, "attempt": self._failures})
            await asyncio.sleep(pause)
            if self._task_id:  # otherwise the message itself is sent again
                operation = Operation.SUBSCRIBE
                request = SubscribeToTask(id=self._task_id)
                resuming = True
        async with aclosing(self._poll()) as tasks:
            async for task in tasks:
                yield task

    async def _poll(self) -> AsyncGenerator[Task]:
        """Yield the task whenever it changes, in place of its events."""
        try:
            async with aclosing(poll_task(self._channel, self._task_id, self._options)) as tasks:
                async for task in tasks:
                    yield task
        except InvalidAgentResponseError as error:
            raise self._unreadable or error from None  # if neither can be read, report the event, which failed first

    # ---- one connection ----------------------------------------------------------------------------------------

    async def _connect(self, operation: Operation, request: Value, resuming: bool) -> AsyncGenerator[Event]:
        """Yield the events of one connection that the caller has not seen."""
        replay_from = ""
        if resuming:
            replay_from = await self._replay_from()
        async with aclosing(self._channel.events(operation, request, self._options, replay_from)) as received:
            if resuming:
                first = await self._read_first(received, replay_from)
                # A snapshot that the caller already has is not progress. It does not reset the count of failures,
                # because otherwise an agent that only sends that snapshot would be retried forever.
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
        """Return the number of the last event if the agent's version can replay from it, else ""."""
        interface = await self._channel.discovery.interface()
        if interface.dialect.RULES.replay and self._last_id.isdecimal():
            return self._last_id
        return ""

    async def _read_first(self, received: AsyncGenerator[EventWithId], replay_from: str) -> EventWithId:
        """Return the first event after a break, if no event is missing before it."""
        # A snapshot comes at once or not at all. A replay may have no events yet, so only `idle_timeout` bounds it.
        wait = None if replay_from else SNAPSHOT_WAIT
        try:
            async with asyncio.timeout(wait):
                first = await anext(received)
        except (*REFUSALS, TimeoutError) as error:
            raise _CannotResume from error
        except StopAsyncIteration as error:
            raise _ended_too_early() from error
        if isinstance(first.event, Task):
            return first  # it includes all missed events
        if replay_from and first.id.isdecimal() and int(first.id) == int(replay_from) + 1:
            return first
        raise _CannotResume

    def _remember(self, received: EventWithId) -> None:
        """Record an event that the caller is about to receive."""
        event = received.event
        self._last = event
        self._last_id = received.id
        self._failures = 0
        match event:
            case Task():
                self._task_id = event.id
            case Message():
                # A message alone is the whole answer (1.0 §3.1.2). With a task it is one of several events.
                self._at_rest = not self._task_id
            case _:
                self._task_id = event.task_id or self._task_id
        if isinstance(event, Task | StatusUpdate):
            self._at_rest = event.status.state in AT_REST

    def _has_ended(self) -> bool:
        return state_of(self._last) in TERMINAL

    # ---- after a break -----------------------------------------------------------------------------------------

    def _is_over(self, error: A2AError) -> bool:
        """Return whether the break is a normal end: agents close a message's stream when its task waits for input.

        For a subscriber it is not: another client may answer, and the task then continues.
        """
        return self._at_rest and self._begins_with_message and isinstance(error, A2AConnectionError)

    def _choose_recovery(self, error: A2AError, *, lasted: float) -> _Recovery:
        """Choose the reaction to an error after a connection that lasted for so many seconds, and count the failure."""
        has_begun = self._last is not None
        if has_begun and lasted >= self._channel.settings.idle_timeout:
            self._failures = 0  # the agent was only quiet for a long time
        self._failures += 1
        if isinstance(error, InvalidAgentResponseError) and self._task_id:
            self._unreadable = error
            return _Recovery.POLL  # a new connection would repeat the unreadable event, or begin after it
        if not self._may_connect_again(error, lasted):
            return _Recovery.GIVE_UP
        if self._failures < self._retry.attempts:
            return _Recovery.RECONNECT
        was_reached = isinstance(error, A2AConnectionError) and error.sent
        if self._task_id and was_reached:
            return _Recovery.POLL  # the agent accepts connections and drops each of them
        # The agent is down, or only its proxy answers. A restart takes a while.
        if has_begun and self._failures <= self._retry.reconnects:
            return _Recovery.RECONNECT
        return _Recovery.GIVE_UP

    def _may_connect_again(self, error: A2AError, lasted: float) -> bool:
        if self._last is None:
            timeout = self._options.timeout
            if timeout is not None and lasted >= timeout:
                return False  # the timeout for the first event has passed
        elif not self._task_id:
            return False  # the stream has begun, but no event contained the id of the task
        if self._task_id:
            return self._retry.may_repeat(Operation.SUBSCRIBE, error)
        return self._retry.may_repeat(Operation.STREAM, error)


async def poll_task(channel: Channel, task_id: str, options: ResolvedOptions) -> AsyncGenerator[Task]:
    """Yield the task whenever it has changed, until it ends or waits for input."""
    # As many attempts as a stream that reconnects, because polling replaces it.
    retry = replace(channel.settings.retry, attempts=channel.settings.retry.reconnects)
    last: Task | None = None
    pause = channel.settings.poll_interval
    while True:
        task: Task = await channel.call(Operation.GET, GetTask(id=task_id), options, retry=retry)
        if task != last:
            last = task
            pause = channel.settings.poll_interval
            yield task
        # Not AUTH_REQUIRED: an agent may receive its credentials elsewhere and continue by itself (1.0 §7.6.1).
        if task.status.state in TERMINAL | {TaskState.INPUT_REQUIRED}:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, max(retry.cap, channel.settings.poll_interval))


async def wait_until_at_rest(
    channel: Channel, task_id: str, options: ResolvedOptions, *, history_length: int | None = None
) -> Task:
    """Wait until the task has ended or waits for input or authorization. Return it."""
    try:
        async with aclosing(EventStream(channel, options, task_id).run(SubscribeToTask(id=task_id))) as events:
            # No event may mean that the task ended before the subscription: 0.3 agents need not send a snapshot.
            async with asyncio.timeout(SNAPSHOT_WAIT):
                event = await anext(events, None)
            while event is not None and state_of(event) not in AT_REST:
                event = await anext(events, None)
    except A2AConnectionError:
        raise  # the stream has already exhausted its reconnects
    except (A2AError, TimeoutError):
        # The agent supports no subscriptions, or the task has ended, for which 1.0 agents reject them (§3.1.6).
        async with aclosing(poll_task(channel, task_id, options)) as tasks:
            async for task in tasks:
                if task.status.state in AT_REST:
                    break
    # The stream shows when the task rests. Its last event may be a status without artifacts and history, so get the
    # task.
    request = GetTask(id=task_id, history_length=history_length)
    result: Task = await channel.call(Operation.GET, request, options)
    return result


def _ended_too_early() -> A2AConnectionError:
    return A2AConnectionError("The agent ended the stream before the task was done")


async def _read_to_end(received: AsyncGenerator[EventWithId]) -> None:
    """Read until the agent closes the stream, so that the connection can be reused."""
    with suppress(A2AError, TimeoutError):
        async with asyncio.timeout(CLOSE_WAIT):
            async for _ in received:
                pass


def state_of(event: Event | None) -> TaskState | None:
    if isinstance(event, Task | StatusUpdate):
        return event.status.state
    return None
