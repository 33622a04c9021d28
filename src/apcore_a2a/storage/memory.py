"""Tasks in memory: the default. Rule: but for listings, no operation costs more the more tasks there are.

A task that is running is kept as the engine's live object; one at rest as its encoded bytes, which the garbage
collector never scans. Events are not kept: a running task's are in its log, and a finished task supersedes them.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.errors import OverloadedError, StaleWriteError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy
from apcore_a2a.protocol.model import Document, PushConfig, Task, TaskState, encode
from apcore_a2a.storage.cursor import Place, cut_page
from apcore_a2a.storage.task_store import Change, Page, Query, Record, TaskListResult

NOBODY: Final = "anonymous"  # who owns what is put in by `save`
MAX_EXPIRED: Final = 16  # tasks that one call lets go: however many have expired, nobody waits for all of them


class _Entry(Struct, gc=False, eq=False):
    id: str
    owner: str
    context_id: str
    key: str
    created: int
    state: TaskState = TaskState.UNSPECIFIED
    changed_at: str = ""
    version: int = 0
    epoch: int = 0
    task: Task | None = None
    body: bytes = b""
    memo: bytes = b""
    run: bytes = b""
    expires: float = inf


class _Owned(Struct):
    """The tasks of one owner. Nearly every context has one task, so only one with more costs a dictionary."""

    tasks: dict[str, _Entry]
    contexts: dict[str, _Entry | dict[str, _Entry]]

    def within(self, context_id: str) -> dict[str, _Entry]:
        same = self.contexts.get(context_id, {})
        return same if isinstance(same, dict) else {same.id: same}


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
        self._owners: dict[str, _Owned] = {}
        # The first to end is the first to expire: the ttl is one for all. Not a dictionary: to find its first key, it
        # passes all that were removed before it, which took 93 µs for each `load` in a full store of 100,000.
        self._ended: deque[_Entry] = deque()
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
        task, owner = change.task, change.owner
        if key and (earlier := self._find(self._keys.get((owner, key), ""))) is not None:
            return earlier.id
        if self._find(task.id) is not None:
            raise StaleWriteError
        if len(self._tasks) >= self._capacity:
            self._evict()
        self._created += 1
        entry = _Entry(task.id, owner, task.context_id, key, self._created)
        self._put(entry)
        if key:
            self._keys[owner, key] = task.id
        self._write(entry, change)
        return None

    def append(self, change: Change) -> None:
        entry = self._tasks.get(change.task.id)
        if entry is None or entry.owner != change.owner or entry.state in TERMINAL:
            raise StaleWriteError
        if entry.version != change.version - len(change.events) or change.epoch < entry.epoch:
            raise StaleWriteError
        self._write(entry, change)

    def _put(self, entry: _Entry) -> None:
        self._tasks[entry.id] = entry
        owned = self._owners.get(entry.owner)
        if owned is None:
            owned = self._owners[entry.owner] = _Owned({}, {})
        owned.tasks[entry.id] = entry
        same = owned.contexts.setdefault(entry.context_id, entry)
        if isinstance(same, dict):
            same[entry.id] = entry
        elif same is not entry:
            owned.contexts[entry.context_id] = {same.id: same, entry.id: entry}

    def _write(self, entry: _Entry, change: Change) -> None:
        task, document = change.task, change.document
        status = task.status
        entry.version, entry.epoch, entry.memo, entry.run = change.version, change.epoch, change.memo, change.run
        entry.task, entry.body = (task, b"") if document is None else (None, document.body)
        entry.state, entry.changed_at = status.state, status.timestamp
        if status.state in TERMINAL:
            entry.expires = self._clock() + self._ttl
            self._ended.append(entry)

    # ---- what leaves -------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        ended, now = self._ended, self._clock()
        for _ in range(MAX_EXPIRED):
            if not ended or ended[0].expires > now:
                return
            self._drop(ended.popleft())

    def _evict(self) -> None:
        while self._ended:
            if self._drop(self._ended.popleft()):
                return
        raise OverloadedError("The agent is at its limit of unfinished tasks; try again later", retry_after=5)

    def _drop(self, entry: _Entry) -> bool:
        """Let a task go; false when its entry is an empty place among the ended."""
        if self._tasks.get(entry.id) is not entry:
            return False
        del self._tasks[entry.id]
        self._push.pop(entry.id, None)
        self._keys.pop((entry.owner, entry.key), None)
        owned = self._owners[entry.owner]
        del owned.tasks[entry.id]
        same = owned.contexts[entry.context_id]
        if isinstance(same, dict) and len(same) > 1:
            del same[entry.id]
        else:
            del owned.contexts[entry.context_id]
        if not owned.tasks:
            del self._owners[entry.owner]
        return True

    def _vacate(self, entry: _Entry) -> None:
        """An entry that is no task's any more leaves an empty place among the ended, until those are the majority."""
        entry.body = entry.memo = b""
        if len(self._ended) > 2 * len(self._tasks):
            self._ended = deque(each for each in self._ended if self._tasks.get(each.id) is each)

    # ---- reads -------------------------------------------------------------------------------------------------------

    def _find(self, task_id: str) -> _Entry | None:
        entry = self._tasks.get(task_id)
        if entry is None or entry.expires > self._clock():
            return entry
        self._drop(entry)
        return None

    async def load(self, task_id: str, owner: str) -> Record | None:
        entry = self._find(task_id)
        return None if entry is None or entry.owner != owner else _record(entry)

    async def events(self, task_id: str, owner: str, after: int) -> Sequence[bytes] | None:
        return None

    async def page(self, query: Query) -> Page:
        owned, now = self._owners.get(query.owner) or _Owned({}, {}), self._clock()
        found = owned.within(query.context_id) if query.context_id else owned.tasks
        # The newest first: once the page is full, an older task costs one comparison.
        matching = [
            entry
            for entry in reversed(found.values())
            if entry.expires > now and query.state in (None, entry.state) and entry.changed_at >= query.changed_since
        ]
        shown, cursor = cut_page(matching, _by_creation if query.by_creation else _by_status, query)
        return Page([_record(entry) for entry in shown], cursor, len(matching))

    async def orphans(self) -> list[Record]:
        return []

    async def remove(self, task_id: str, owner: str) -> bool:
        entry = self._find(task_id)
        if entry is None or entry.owner != owner:
            return False
        self._drop(entry)
        self._vacate(entry)
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
            entry = replace(old, expires=inf)  # it may run again, or end anew
            self._put(entry)
            self._write(entry, change)
            self._vacate(old)

    async def get(self, task_id: str) -> Task | None:
        entry = self._find(task_id)
        return None if entry is None else _document(entry).task()

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


def _document(entry: _Entry) -> Document:
    return Document(entry.body if entry.task is None else encode(entry.task))


def _record(entry: _Entry) -> Record:
    return Record(
        document=_document(entry),
        owner=entry.owner,
        state=entry.state,
        version=entry.version,
        epoch=entry.epoch,
        memo=entry.memo,
        run=entry.run,
    )


def _by_creation(entry: _Entry) -> Place:
    return "", entry.created


def _by_status(entry: _Entry) -> Place:
    return entry.changed_at, entry.created
