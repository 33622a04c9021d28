"""The stores under test, and `Author`, which writes a task as the engine does.

The suites test_contract_*.py run the same tests for each entry of `STORES`. A new store is a new entry.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import AT_REST, copy, document_of, fold
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Event,
    Message,
    Part,
    PushConfig,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)
from apcore_a2a.storage.contract import Change, Page, Query, Store, TaskListResult, Webhook
from apcore_a2a.storage.custom import TaskStoreAdapter
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.storage.postgres.store import Pooler, PostgresStore
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.pgbouncer import shared_pooler
from tests.postgres_server import shared_server

ALICE, BOB = "alice", "bob"
TTL = 100.0
Json = dict[str, Any]


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class DictStore:
    """A minimal store of a user: seven methods over two dictionaries."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.push: dict[str, PushConfig] = {}

    async def save(self, task: Task) -> None:
        self.tasks[task.id] = task

    async def get(self, task_id: str) -> Task | None:
        return self.tasks.get(task_id)

    async def list(self, context_id: str | None, cursor: str | None, limit: int) -> TaskListResult:
        start, end = int(cursor or 0), int(cursor or 0) + limit
        found = [task for task in self.tasks.values() if context_id in (None, task.context_id)]
        return TaskListResult(found[start:end], str(end) if end < len(found) else None)

    async def delete(self, task_id: str) -> bool:
        return self.tasks.pop(task_id, None) is not None

    async def save_push_config(self, task_id: str, config: PushConfig) -> None:
        self.push[task_id] = config

    async def get_push_config(self, task_id: str) -> PushConfig | None:
        return self.push.get(task_id)

    async def delete_push_config(self, task_id: str) -> bool:
        return self.push.pop(task_id, None) is not None


class StoreOfDicts:
    """A store written to the ten methods of the technical design, over dictionaries of JSON."""

    def __init__(self) -> None:
        self.tasks: dict[str, str] = {}
        self.push: dict[str, Json] = {}
        self.contexts: dict[str, Sequence[Json]] = {}

    async def save(self, task: Json) -> None:
        self.tasks[task["id"]] = json.dumps(task)

    async def get(self, task_id: str) -> Json | None:
        if task_id not in self.tasks:
            return None
        return dict(json.loads(self.tasks[task_id]))

    async def list(self, context_id: str | None = None, cursor: str | None = None, limit: int = 50) -> Json:
        start, end = int(cursor or 0), int(cursor or 0) + limit
        found = [json.loads(task) for task in self.tasks.values()]
        found = [task for task in found if context_id in (None, task.get("contextId"))]
        return {"tasks": found[start:end], "nextCursor": str(end) if end < len(found) else None}

    async def delete(self, task_id: str) -> bool:
        return self.tasks.pop(task_id, None) is not None

    async def update_status(self, task_id: str, status: Json) -> Json:
        task = json.loads(self.tasks[task_id]) | {"status": status}
        await self.save(task)
        return dict(task)

    async def save_push_config(self, task_id: str, config: Json) -> None:
        self.push[task_id] = config

    async def get_push_config(self, task_id: str) -> Json | None:
        return self.push.get(task_id)

    async def delete_push_config(self, task_id: str) -> bool:
        return self.push.pop(task_id, None) is not None

    async def save_context(self, context_id: str, messages: Sequence[Json]) -> None:
        self.contexts[context_id] = messages

    async def get_context(self, context_id: str) -> Sequence[Json] | None:
        return self.contexts.get(context_id)


class Kind(NamedTuple):
    make: Callable[[Path, Clock, int], Store]
    """Makes the store from a directory, a clock, and the maximum number of tasks."""
    retains: bool = True
    """Whether the store has a TTL and a capacity."""
    replays: bool = False
    """Whether the store stores events."""


def pooled(mode: str, clock: Callable[[], float], tasks: int) -> PostgresStore:
    """Return a PostgreSQL store behind a pooler in this mode."""
    url = shared_pooler(mode).url(shared_server().url())
    return PostgresStore(url, ttl=TTL, max_tasks=tasks, clock=clock, pooler=Pooler(mode))


STORES = {
    "memory": Kind(lambda _, clock, tasks: InMemoryTaskStore(ttl=TTL, max_capacity=tasks, clock=clock)),
    "sqlite": Kind(
        lambda path, clock, tasks: SQLiteStore(
            path / "tasks.db", ttl=TTL, max_tasks=tasks, clock=clock, monotonic=clock
        ),
        replays=True,
    ),
    "postgres": Kind(
        lambda _, clock, tasks: PostgresStore(shared_server().url(), ttl=TTL, max_tasks=tasks, clock=clock),
        replays=True,
    ),
    "pgbouncer session": Kind(lambda _, clock, tasks: pooled("session", clock, tasks), replays=True),
    "pgbouncer transaction": Kind(lambda _, clock, tasks: pooled("transaction", clock, tasks), replays=True),
    "simple": Kind(lambda *_: TaskStoreAdapter(DictStore()), retains=False),
    "dicts": Kind(lambda *_: TaskStoreAdapter(StoreOfDicts()), retains=False),
}

_ticks = count(1)


def timestamp(tick: int | None = None) -> str:
    """Return a timestamp as we write it, later than all earlier ones unless the tick is given."""
    seconds, millis = divmod(next(_ticks) if tick is None else tick, 1000)
    return f"2026-01-01T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{millis:03}Z"


class Author:
    """Writes one task as the engine does: folds each event into the live task, and passes both to the store."""

    def __init__(self, task_id: str, *, owner: str = ALICE, context_id: str = "talk", at: str | None = None) -> None:
        said = Message(message_id=f"{task_id}-1", role=Role.USER, parts=(Part(text="Hello"),))
        status = TaskStatus(state=TaskState.SUBMITTED, timestamp=timestamp() if at is None else at)
        self.task = Task(id=task_id, context_id=context_id, status=status, history=[said])
        self.owner, self.version, self.epoch = owner, 0, 1
        self.memo, self.run = b"", b'{"run":1}'
        self.records: list[bytes] = []

    def create(self) -> Change:
        return self.change([copy(self.task)])

    def status(self, state: TaskState, *, at: str | None = None) -> Change:
        status = TaskStatus(state=state, timestamp=timestamp() if at is None else at)
        return self.change([StatusUpdate(status=status, task_id=self.task.id, context_id=self.task.context_id)])

    def work(self) -> Change:
        return self.status(TaskState.WORKING)

    def complete(self, *, at: str | None = None) -> Change:
        return self.status(TaskState.COMPLETED, at=at)

    def chunk(self, text: str, *more: str) -> Change:
        return self.change([self.piece(each) for each in (text, *more)])

    def piece(self, text: str) -> ArtifactUpdate:
        artifact = Artifact(artifact_id="c9f1a2a4-7d3e-4b52-9d5c-2f0d8f2b6a10", parts=[Part(text=text)])
        return ArtifactUpdate(artifact=artifact, task_id=self.task.id, context_id=self.task.context_id, append=True)

    def change(self, events: Sequence[Event], *, said: Message | None = None) -> Change:
        """Return one write of these events. The first event is caused by the message."""
        records = []
        for event in events:
            applied = fold(self.task, event) if self.version else event
            records.append(v1.encode_record(applied, said))
            if said is not None:
                fold(self.task, said)
                said = None
            self.version += 1
        self.records += records
        at_rest = self.task.status.state in AT_REST
        return Change(
            task=self.task,
            owner=self.owner,
            version=self.version,
            epoch=self.epoch,
            events=records,
            document=document_of(self.task) if at_rest else None,
            memo=self.memo,
            run=b"" if at_rest else self.run,
        )

    def rival(self) -> "Author":
        """Return a second writer of the same task, in the present state of this one."""
        rival = Author(self.task.id, owner=self.owner, context_id=self.task.context_id, at="")
        rival.task, rival.version, rival.epoch = copy(self.task), self.version, self.epoch
        rival.memo, rival.run, rival.records = b'"rival"', b'"rival"', list(self.records)
        return rival


async def append(store: Store, change: Change) -> None:
    """Append a change, and wait until it is done. Raises a rejection, whether the call or the future raises it."""
    future = store.append(change)
    if future is not None:
        await asyncio.wait_for(future, 5)


async def write_task(store: Store, author: Author, *states: TaskState) -> Author:
    """Create the author's task, and write these states to it."""
    assert await store.create(author.create()) is None
    for state in states:
        await append(store, author.status(state))
    return author


def hook(task_id: str = "t", config_id: str = "w", *, url: str = "https://example.com/hook") -> Webhook:
    """Return a webhook of a task, set in A2A 0.3."""
    return Webhook(config=PushConfig(url=url, id=config_id, task_id=task_id, token="secret"), a2a_version="0.3")


async def create_with_webhook(store: Store, author: Author, webhook: Webhook) -> Author:
    """Create the author's task together with a webhook."""
    change = author.create()
    change.webhook = webhook
    assert await store.create(change) is None
    return author


async def assert_holds(store: Store, author: Author) -> None:
    """Assert that the stored task equals the author's."""
    record = await store.load(author.task.id, author.owner)
    assert record is not None
    assert record.document.body == document_of(author.task).body
    assert (record.owner, record.state) == (author.owner, author.task.status.state)
    assert (record.version, record.epoch) == (author.version, author.epoch)
    at_rest = author.task.status.state in AT_REST
    assert (record.memo, record.run) == (author.memo, b"" if at_rest else author.run)


async def pages(store: Store, query: Query) -> list[Page]:
    """Return all pages of a listing."""
    found = [await store.page(query)]
    while found[-1].next_cursor:
        found.append(await store.page(replace(query, cursor=found[-1].next_cursor)))
    return found


async def ids(store: Store, query: Query) -> list[str]:
    """Return the ids of all tasks in a listing, in its order."""
    return [record.document.task().id for page in await pages(store, query) for record in page.records]
