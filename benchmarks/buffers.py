"""The memory that the streams of one task keep for past events, counted in the application's process."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncGenerator
from typing import Any

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.app.application import Application
from apcore_a2a.app.serve import build_app
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, StatusUpdate, TaskState, TaskStatus
from benchmarks import wire
from benchmarks.peers.serving import CHUNK
from benchmarks.servers import OURS
from benchmarks.streams import MARK, TASK_ID

CHUNKS = 1_000
DEADLINE = 30.0


class Gated:
    """An agent that waits, yields all its chunks, and waits again before it ends."""

    may_reply = False

    def __init__(self) -> None:
        self.begin, self.end = asyncio.Event(), asyncio.Event()

    async def admit(self, call: Call) -> Admission:
        return Admission()

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        await self.begin.wait()
        for number in range(CHUNKS):
            yield ArtifactUpdate(artifact=Artifact(artifact_id="answer", parts=[Part(text=CHUNK)]), append=number > 0)
            await asyncio.sleep(0)
        await self.end.wait()
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


class Watcher:
    """A client without a socket that reads all data at once."""

    def __init__(self, body: str) -> None:
        self._request = [{"type": "http.request", "body": body.encode()}]
        self.events, self.head = 0, b""
        self._wanted, self._reached = 1, asyncio.Event()

    async def receive(self) -> Any:  # Any: a message of ASGI
        return self._request.pop() if self._request else await asyncio.Event().wait()

    async def send(self, message: Any) -> None:
        body = message.get("body", b"")
        self.head = self.head or body
        self.events += body.count(MARK)
        if self.events >= self._wanted:
            self._reached.set()

    async def watch(self, app: Application) -> None:
        headers = [(b"content-type", b"application/json"), (b"a2a-version", b"1.0")]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        await app(scope, self.receive, self.send)

    def want(self, more: int) -> None:
        self._wanted, self._reached = self.events + more, asyncio.Event()

    async def until_reached(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self._reached.wait()


async def measure_kept(streams: int) -> int:
    """Return the bytes by which the process has grown when this many streams of one task have read all its chunks."""
    agent = Gated()
    app = build_app(agent)
    async with asyncio.TaskGroup() as group:
        watchers = [Watcher(wire.stream(OURS, "begin"))]
        group.create_task(watchers[0].watch(app))
        await watchers[0].until_reached()
        task_id = TASK_ID.findall(watchers[0].head)[0].decode()
        for _ in range(streams - 1):
            watchers.append(Watcher(wire.subscribe(OURS, task_id)))
            group.create_task(watchers[-1].watch(app))
            await watchers[-1].until_reached()
        for watcher in watchers:
            watcher.want(CHUNKS)
        tracemalloc.start()
        agent.begin.set()
        for watcher in watchers:
            await watcher.until_reached()
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        agent.end.set()
    await app.close()
    return kept
