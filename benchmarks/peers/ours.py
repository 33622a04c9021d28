"""Our server, as `serve()` runs it, with the agent described in `serving`, or with one apcore module."""

import asyncio
from collections.abc import AsyncGenerator

from apcore_a2a.agent import ANONYMOUS, Admission, AgentEvent, Call
from apcore_a2a.app.serve import ServeOptions, build, run_at
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Document,
    Part,
    StatusUpdate,
    TaskState,
    TaskStatus,
    decode_task,
    encode,
)
from apcore_a2a.settings import Limits
from apcore_a2a.storage.contract import Change, Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.storage.sqlite.store import SQLiteStore
from benchmarks.peers.serving import CHUNK, arguments, finished, prepare

MANY = 10_000_000


class Obedient:
    """An agent that follows the commands in `serving`."""

    may_reply = False

    def __init__(self, *, retry_safe: bool = False) -> None:
        self._admission = Admission(retry_safe=retry_safe)

    async def admit(self, call: Call) -> Admission:
        return self._admission

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        work = await prepare(str(call.message.parts[0].text))
        for number in range(work.chunks):
            artifact = Artifact(artifact_id="answer", parts=[Part(text=CHUNK)])
            yield ArtifactUpdate(artifact=artifact, append=number > 0, last_chunk=number == work.chunks - 1)
            if work.yields:
                await asyncio.sleep(0)
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


agent = Obedient()


async def fill(store: Store, tasks: int) -> None:
    """Store finished tasks as the engine would, 200 at a time."""

    async def create(first: int) -> None:
        for number in range(first, tasks, 200):
            body = encode(finished(number))
            task = decode_task(body)
            record = v1.encode_record(task)
            await store.create(Change(task=task, owner=ANONYMOUS, version=1, events=[record], document=Document(body)))

    async with asyncio.TaskGroup() as group:
        for first in range(200):
            group.create_task(create(first))


def make_store(path: str, url: str) -> Store:
    if url:
        from apcore_a2a.storage.postgres.store import PostgresStore

        return PostgresStore(url)
    if path:
        return SQLiteStore(path, max_tasks=MANY)
    return InMemoryTaskStore(max_capacity=MANY, max_bytes=1000 * MANY)


def main() -> None:
    given = arguments()
    store = make_store(given.sqlite, given.postgres)
    target: object = agent
    if given.kind == "apcore":
        from benchmarks.peers.modules import registry

        target = registry()
    options = ServeOptions(
        task_store=store,
        on_startup=[lambda: fill(store, given.fill)],
        limits=Limits(
            max_active_tasks=20_000,
            max_streams=20_000,
            max_streams_per_caller=20_000,
            max_active_tasks_per_caller=20_000,
            max_connections=40_000,
            max_connections_per_address=40_000,
        ),
        shutdown_timeout=1,
    )
    if given.kind == "repeatable":
        target = Obedient(retry_safe=True)
    if given.kind == "webhooks":
        options["push_notifications"] = True
        options["allow_insecure_webhooks"] = True
    app = build(target, options, host="127.0.0.1", port=given.port)
    run_at(app, app.settings, log_level="warning")


if __name__ == "__main__":
    main()
