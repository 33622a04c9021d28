"""Tasks in memory: the default. Rule: no operation but a listing looks at more than one task.

A task that is running is kept as the engine's live object; one at rest as its encoded bytes, which the garbage
collector never scans. Events are not kept: a running task's are in its log, and a finished task supersedes them.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from apcore_a2a.errors import OverloadedError, StaleWriteError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy
from apcore_a2a.protocol.model import Document, PushConfig, Task, TaskState, encode
from apcore_a2a.storage.cursor import Place, cut_page
from apcore_a2a.storage.task_store import Change, Page, Query, Record, TaskListResult

NOBODY: Final = "anonymous"  # who owns what is put in by `save`


class _Entry(Struct, gc=False):
    owner: str
    context_id: str
    created: int
    state: TaskState = TaskState.UNSPECIFIED
    changed_at: str = ""
    version: int = 0
    epoch: int = 0
    task: Task | None = None
    body: bytes = b""
    memo: bytes = b""
    run: bytes = b""
    key: str = ""

    def document(self) -> Document:
        return Document(self.body) if self.task is None else Document(encode(self.task))


class InMemoryTaskStore:
    """Keeps tasks in this process, the newest `max_capacity` of them, finished ones for `ttl` seconds.

    Example:
        >>> from apcore_a2a import InMemoryTaskStore
        >>> store = InMemoryTaskStore(ttl=600, max_capacity=1_000)
        >>> store.durable
        False
    """

    durable = False

    def __init__(
        self, *, ttl: float = 3600, max_capacity: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if ttl <= 0 or max_capacity < 1:
            raise ValueError("ttl and max_capacity must be positive")
        self._ttl, self._capacity, self._clock = ttl, max_capacity, clock
        self._tasks: dict[str, _Entry] = {}
        self._ended: dict[str, float] = {}  # id -> when it expires; oldest first, because the ttl is one for all
        self._by_owner: dict[str, dict[str, _Entry]] = {}
        self._by_context: dict[tuple[str, str], dict[str, _Entry]] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._push: dict[str, PushConfig] = {}
        self._created = 0

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def check(self) -> None:
        """Memory is always there."""

    async def create(self, change: Change, *, key: str = "") -> str | None:
        self._expire()
        if key and (earlier := self._keys.get((change.owner, key))) is not None:
            return earlier
        task, owner = change.task, change.owner
        if task.id in self._tasks:
            raise StaleWriteError
        if len(self._tasks) >= self._capacity:
            self._evict()
        self._created += 1
        entry = _Entry(owner=owner, context_id=task.context_id, created=self._created, key=key)
        self._tasks[task.id] = entry
        self._by_owner.setdefault(owner, {})[task.id] = entry
        self._by_context.setdefault((owner, task.context_id), {})[task.id] = entry
        if key:
            self._keys[change.owner, key] = task.id
        self._write(entry, change)
        return None

    def append(self, change: Change) -> None:
        entry = self._tasks.get(change.task.id)
        if entry is None or entry.owner != change.owner or entry.state in TERMINAL:
            raise StaleWriteError
        if entry.version != change.expected or change.epoch < entry.epoch:
            raise StaleWriteError
        self._write(entry, change)

    def _write(self, entry: _Entry, change: Change) -> None:
        task, status = change.task, change.task.status
        entry.version, entry.epoch, entry.memo, entry.run = change.version, change.epoch, change.memo, change.run
        if change.document is not None:
            entry.body, entry.task = change.document.body, None
        else:
            entry.body, entry.task = b"", task
        entry.state, entry.changed_at = status.state, status.timestamp
        if status.state in TERMINAL:
            self._ended[task.id] = self._clock() + self._ttl

    def _expire(self) -> None:
        now = self._clock()
        while self._ended and self._ended[oldest := next(iter(self._ended))] <= now:
            self._drop(oldest)

    def _evict(self) -> None:
        if not self._ended:
            raise OverloadedError("The agent is at its limit of unfinished tasks; try again later", retry_after=5)
        self._drop(next(iter(self._ended)))

    def _drop(self, task_id: str) -> None:
        entry = self._tasks.pop(task_id)
        self._ended.pop(task_id, None)
        self._push.pop(task_id, None)
        self._keys.pop((entry.owner, entry.key), None)
        owned, siblings = self._by_owner[entry.owner], self._by_context[entry.owner, entry.context_id]
        del owned[task_id], siblings[task_id]
        if not owned:
            del self._by_owner[entry.owner]
        if not siblings:
            del self._by_context[entry.owner, entry.context_id]

    def _find(self, task_id: str) -> _Entry | None:
        self._expire()
        return self._tasks.get(task_id)

    async def load(self, task_id: str, owner: str) -> Record | None:
        entry = self._find(task_id)
        return None if entry is None or entry.owner != owner else _record(entry)

    async def events(self, task_id: str, owner: str, after: int) -> Sequence[bytes] | None:
        return None

    async def page(self, query: Query) -> Page:
        self._expire()
        if query.context_id:
            found = self._by_context.get((query.owner, query.context_id), {})
        else:
            found = self._by_owner.get(query.owner, {})
        # The newest first: once the page is full, an older task costs one comparison.
        matching = [entry for entry in reversed(found.values()) if _matches(entry, query)]
        shown, cursor = cut_page(matching, _by_creation if query.by_creation else _by_status, query)
        return Page([_record(entry) for entry in shown], cursor, len(matching))

    async def orphans(self) -> list[Record]:
        return []

    async def remove(self, task_id: str, owner: str) -> bool:
        entry = self._find(task_id)
        if entry is None or entry.owner != owner:
            return False
        self._drop(task_id)
        return True

    # ---- the small contract, for code that uses the store directly ------------------------------------------------

    async def save(self, task: Task) -> None:
        """Put a task in as it is, whatever was there; it belongs to anonymous callers."""
        old = self._find(task.id)
        change = Change(
            task=copy(task),
            owner=old.owner if old else NOBODY,
            version=old.version + 1 if old else 1,
            epoch=old.epoch if old else 1,
            events=[b""],
            document=Document(encode(task)) if task.status.state in AT_REST else None,
        )
        if old is None:
            await self.create(change)
        else:
            self._ended.pop(task.id, None)  # it may run again, or end anew
            self._write(old, change)

    async def get(self, task_id: str) -> Task | None:
        entry = self._find(task_id)
        return None if entry is None else entry.document().task()

    async def list(self, context_id: str | None = None, cursor: str | None = None, limit: int = 50) -> TaskListResult:
        query = Query(owner=NOBODY, limit=limit, cursor=cursor or "", context_id=context_id or "", by_creation=True)
        page = await self.page(query)
        return TaskListResult([record.document.task() for record in page.records], page.next_cursor or None)

    async def delete(self, task_id: str) -> bool:
        entry = self._find(task_id)
        return entry is not None and await self.remove(task_id, entry.owner)

    async def save_push_config(self, task_id: str, config: PushConfig) -> None:
        self._push[task_id] = config

    async def get_push_config(self, task_id: str) -> PushConfig | None:
        return self._push.get(task_id)

    async def delete_push_config(self, task_id: str) -> bool:
        return self._push.pop(task_id, None) is not None


def _record(entry: _Entry) -> Record:
    return Record(
        document=entry.document(),
        owner=entry.owner,
        state=entry.state,
        version=entry.version,
        epoch=entry.epoch,
        memo=entry.memo,
        run=entry.run,
    )


def _matches(entry: _Entry, query: Query) -> bool:
    return query.state in (None, entry.state) and entry.changed_at >= query.changed_since


def _by_creation(entry: _Entry) -> Place:
    return "", entry.created


def _by_status(entry: _Entry) -> Place:
    return entry.changed_at, entry.created
