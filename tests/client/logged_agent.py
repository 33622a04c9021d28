"""An agent with one task and numbered events. Its connection can be cut after any of them.

It sends the next event when the test confirms that the last one arrived (`seen`), so that each cut is at the intended
event. `missed` events happen while no client is connected.
"""

import asyncio
from collections.abc import Iterable, Iterator

from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.jsonrpc import format_result
from apcore_a2a.protocol.lifecycle import copy, fold
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Operation,
    Part,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.client.scripted import STREAM_END, STREAM_HEAD, Request, chunk, reset, respond

SENDS = {"SendStreamingMessage", "message/stream"}
READS = {"GetTask", "tasks/get"}


def status(state: TaskState) -> StatusUpdate:
    return StatusUpdate(task_id="t-1", context_id="c-1", status=TaskStatus(state=state))


def counting(chunks: int) -> list[Event]:
    """Return the events of a counting task: submitted, working, so many chunks of one artifact, completed."""
    task = Task(id="t-1", context_id="c-1", status=TaskStatus(state=TaskState.SUBMITTED))
    pieces = (
        ArtifactUpdate(
            task_id="t-1",
            context_id="c-1",
            append=n > 0,
            artifact=Artifact(artifact_id="a-1", parts=[Part(text=str(n))]),
        )
        for n in range(chunks)
    )
    return [task, status(TaskState.WORKING), *pieces, status(TaskState.COMPLETED)]


def replayed(events: Iterable[Event]) -> Task:
    """Return the task of a caller that applies each event, and replaces everything by a `Task`."""
    state: Task | None = None
    for event in events:
        if isinstance(event, Task):
            state = copy(event)
        else:
            assert state is not None
            fold(state, event)
    assert state is not None
    return state


class LoggedAgent:
    def __init__(self, dialect: Dialect, events: list[Event], *, cuts: Iterable[int], missed: int = 0) -> None:
        self._dialect = dialect
        self.events = events
        self._missed = missed
        self._cuts: Iterator[int] = iter(cuts)
        self._acknowledged = asyncio.Semaphore(0)
        self.position = 0
        """The number of events that have happened."""
        self.connections = 0

    def seen(self) -> None:
        """Confirm that the client has the last event."""
        self._acknowledged.release()

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        method = request.json["method"]
        if method in READS:
            writer.write(respond(self._frame(request, self._dialect.encode_result(Operation.GET, self.task()))))
            return
        self.connections += 1
        writer.write(STREAM_HEAD)
        if method not in SENDS:
            await self._resume(request, writer)
        await self._follow(request, writer)

    async def _resume(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.position = min(self.position + self._missed, len(self.events))
        last = request.headers.get("last-event-id")
        if self._dialect is v03 and last is not None:
            for number in range(int(last), self.position):
                await self._send(request, writer, self.events[number], number + 1)
        else:
            await self._send(request, writer, self.task(), self.position)

    async def _follow(self, request: Request, writer: asyncio.StreamWriter) -> None:
        for _ in range(next(self._cuts, len(self.events))):
            if self.position == len(self.events):
                break
            self.position += 1
            await self._send(request, writer, self.events[self.position - 1], self.position)
        if self.position < len(self.events):
            reset(writer)
        else:
            writer.write(STREAM_END)

    async def _send(self, request: Request, writer: asyncio.StreamWriter, event: Event, id: int) -> None:
        frame = self._frame(request, self._dialect.encode_event(event))
        writer.write(chunk(b"id: %d\ndata: %b\n\n" % (id, frame)))
        await writer.drain()
        await self._acknowledged.acquire()

    def _frame(self, request: Request, result: bytes) -> bytes:
        return format_result(b'"%b"' % request.json["id"].encode(), result)

    def task(self) -> Task:
        return replayed(self.events[: self.position])
