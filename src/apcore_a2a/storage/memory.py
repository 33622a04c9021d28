"""Tasks in memory: the default. Rule: but for listings, no operation costs more the more tasks there are.

A task that is running is kept as the engine's live object; one at rest as its encoded bytes, which the garbage
collector never scans. Events are not kept: a running task's are in its log, and a finished task supersedes them.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from msgspec.structs import replace

from apcore_a2a.errors import OverloadedError, StaleWriteError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy
from apcore_a2a.protocol.model import Document, PushConfig, Task, encode
from apcore_a2a.storage.owner_index import Entry, Shelf
from apcore_a2a.storage.task_store import Change, Page, Query, Record, TaskListResult

NOBODY: Final = "anonymous"  # who owns what is put in by `save`
MAX_EXPIRED: Final = 16  # tasks that one call lets go: however many have expired, nobody waits for all of them


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
        self._tasks: dict[str, Entry] = {}
        self._shelves: dict[str, Shelf] = {}
        # The first to end is the first to expire: the ttl is one for all. Not a dictionary: to find its first key, it
        # passes all that were removed before it, which took 93 µs for each `load` in a full store of 100,000.
        self._ended: deque[Entry] = deque()
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
        if task.id in self._tasks and self._find(task.id) is not None:
            raise StaleWriteError
        if len(self._tasks) >= self._capacity:
            self._evict()
        self._created += 1
        entry = self._tasks[task.id] = Entry(task.id, owner, task.context_id, key, self._created)
        shelf = self._shelves.get(owner)
        if shelf is None:
            shelf = self._shelves[owner] = Shelf()
        shelf.add(entry)
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

    def _write(self, entry: Entry, change: Change) -> None:
        task, document = change.task, change.document
        status = task.status
        entry.version, entry.epoch, entry.memo, entry.run = change.version, change.epoch, change.memo, change.run
        entry.task, entry.body = (task, b"") if document is None else (None, document.body)
        entry.state, entry.changed_at = status.state, status.timestamp
        if status.state in TERMINAL:
            entry.expires = self._clock() + self._ttl
            self._ended.append(entry)
            self._shelves[entry.owner].end(entry)

    # ---- what leaves -------------------------------------------------------------------------------------------------

    def _expire(self, limit: int = MAX_EXPIRED) -> None:
        ended, now = self._ended, self._clock()
        for _ in range(limit):
            if not ended or ended[0].expires > now:
                return
            self._drop(ended.popleft())

    def _evict(self) -> None:
        while self._ended:
            if self._drop(self._ended.popleft()):
                return
        raise OverloadedError("The agent is at its limit of unfinished tasks; try again later", retry_after=5)

    def _drop(self, entry: Entry) -> bool:
        """Let a task go; false when its entry is an empty place among the ended."""
        if self._tasks.get(entry.id) is not entry:
            return False
        del self._tasks[entry.id]
        self._push.pop(entry.id, None)
        self._keys.pop((entry.owner, entry.key), None)
        shelf = self._shelves[entry.owner]
        shelf.drop(entry)
        if not shelf.contexts:
            del self._shelves[entry.owner]
        return True

    def _vacate(self, entry: Entry) -> None:
        """An entry that is no task's any more leaves an empty place among the ended, until those are the majority."""
        entry.body = entry.memo = b""
        if len(self._ended) > 2 * len(self._tasks):
            self._ended = deque(each for each in self._ended if self._tasks.get(each.id) is each)

    # ---- reads -------------------------------------------------------------------------------------------------------

    def _find(self, task_id: str) -> Entry | None:
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
        self._expire(len(self._ended))
        shown, cursor, total = (self._shelves.get(query.owner) or Shelf()).page(query)
        return Page([_record(entry) for entry in shown], cursor, total)

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
            self._tasks[task.id] = entry
            shelf = self._shelves[old.owner]
            shelf.drop(old)
            shelf.add(entry)
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


def _document(entry: Entry) -> Document:
    return Document(entry.body if entry.task is None else encode(entry.task))


def _record(entry: Entry) -> Record:
    return Record(
        document=_document(entry),
        owner=entry.owner,
        state=entry.state,
        version=entry.version,
        epoch=entry.epoch,
        memo=entry.memo,
        run=entry.run,
    )
