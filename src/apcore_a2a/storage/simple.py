"""A store of yours with only the seven methods of `TaskStore`, made to serve the engine, in one process.

Rule: what the engine needs beside the task (owner, version, epoch, …) travels in the task's metadata under one reserved
name, and is taken out on every read. Saves of one task are made in order; those that wait become one.
"""

import asyncio
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.errors import A2AError, StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy
from apcore_a2a.protocol.model import Document, Task, TaskState, encode
from apcore_a2a.storage.cursor import Place, cut_page
from apcore_a2a.storage.task_store import Change, Page, Query, Record, TaskStore, missing_methods

RESERVED: Final = "apcore-a2a"
PAGE: Final = 200  # tasks asked for at a time
MAX_KEYS: Final = 10_000
RUNNING: Final = (TaskState.SUBMITTED, TaskState.WORKING)

T = TypeVar("T")


class _Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What travels in the metadata."""

    owner: str
    created: int
    """Nanoseconds since 1970, made to differ: the order of creation."""
    version: int
    epoch: int
    key: str = ""
    memo: str = ""
    run: str = ""


class _Stored(Struct, frozen=True):
    task: Task
    kept: _Kept

    @property
    def state(self) -> TaskState:
        return self.task.status.state

    def matches(self, query: Query) -> bool:
        status = self.task.status
        return (
            self.kept.owner == query.owner
            and query.context_id in ("", self.task.context_id)
            and query.state in (None, status.state)
            and status.timestamp >= query.changed_since
        )

    def place(self, query: Query) -> Place:
        return "" if query.by_creation else self.task.status.timestamp, self.kept.created

    def pack(self) -> Task:
        metadata = {**(self.task.metadata or {}), RESERVED: msgspec.to_builtins(self.kept)}
        return replace(self.task, metadata=metadata)

    def to_record(self) -> Record:
        return Record(
            document=Document(encode(self.task)),
            owner=self.kept.owner,
            state=self.state,
            version=self.kept.version,
            epoch=self.kept.epoch,
            memo=b64decode(self.kept.memo),
            run=b64decode(self.kept.run),
        )


def _unpack(task: Task | None) -> _Stored | None:
    """A task and what was kept with it; None for one that the engine did not save, and that so has no owner."""
    metadata = {} if task is None else dict(task.metadata or {})
    if task is None or RESERVED not in metadata:
        return None
    try:
        kept = msgspec.convert(metadata.pop(RESERVED), _Kept)
    except msgspec.ValidationError:
        return None
    return _Stored(replace(task, metadata=metadata or None), kept)


class _Save(Struct):
    """A change that waits to be saved, with the task as it was when it came."""

    task: Task
    change: Change
    key: str | None
    """The idempotency key of a new task, perhaps empty; None for a change to a task that exists."""
    future: "asyncio.Future[None]"

    def follows(self, head: _Stored | None) -> bool:
        change = self.change
        if head is None or self.key is not None:
            return head is None and self.key is not None
        return (
            head.kept.owner == change.owner
            and head.kept.version == change.expected
            and head.kept.epoch <= change.epoch
            and head.state not in TERMINAL
        )

    def resolve(self, error: A2AError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class SimpleStore:
    """Serves the engine from any `TaskStore`. A listing reads every task of its context, or every task there is.

    `durable` is what your class says of itself: an attribute of that name.

    Example:
        >>> from apcore_a2a.storage.memory import InMemoryTaskStore
        >>> SimpleStore(InMemoryTaskStore()).durable
        False
    """

    def __init__(self, tasks: TaskStore) -> None:
        if missing := missing_methods(tasks):
            raise TypeError(f"{type(tasks).__name__} lacks methods of TaskStore: {', '.join(missing)}")
        self.durable = getattr(tasks, "durable", False) is True
        self._tasks = tasks
        self._heads: dict[str, _Stored] = {}  # of tasks that run here, so that a save need not read first
        self._waiting: dict[str, list[_Save]] = {}
        self._saving: dict[str, asyncio.Task[None]] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._keyed = asyncio.Lock()
        self._last_created = 0

    async def open(self) -> None:
        """The store is yours to open."""

    async def close(self) -> None:
        """Return when all is saved; the store is yours to close."""
        while self._saving:
            await asyncio.wait(self._saving.values())

    async def check(self) -> None:
        """As near as the seven methods come: ask for a task that is not there."""
        await _translated(self._tasks.get(""))

    async def create(self, change: Change, *, key: str = "") -> str | None:
        if not key:
            await self._submit(change, key)
            return None
        async with self._keyed:  # of two creations with one key, the second waits to see what becomes of the first
            earlier = self._keys.get((change.owner, key))
            if earlier is not None and await self.load(earlier, change.owner) is not None:
                return earlier
            await self._submit(change, key)
            self._remember(change.owner, key, change.task.id)
        return None

    def append(self, change: Change) -> "asyncio.Future[None]":
        return self._submit(change, None)

    async def load(self, task_id: str, owner: str) -> Record | None:
        stored = _unpack(await _translated(self._tasks.get(task_id)))
        return None if stored is None or stored.kept.owner != owner else stored.to_record()

    async def events(self, task_id: str, owner: str, after: int) -> Sequence[bytes] | None:
        return None

    async def page(self, query: Query) -> Page:
        matching = [stored async for stored in self._list(query.context_id) if stored.matches(query)]
        shown, cursor = cut_page(matching, lambda stored: stored.place(query), query)
        return Page([stored.to_record() for stored in shown], cursor, len(matching))

    async def orphans(self) -> list[Record]:
        if not self.durable:
            return []
        found = []
        async for stored in self._list(""):
            if stored.kept.key:
                self._remember(stored.kept.owner, stored.kept.key, stored.task.id)
            if stored.state in RUNNING or (stored.state is TaskState.AUTH_REQUIRED and stored.kept.run):
                found.append(_Stored(stored.task, replace(stored.kept, epoch=stored.kept.epoch + 1)))
        for claimed in found:
            await _translated(self._tasks.save(claimed.pack()))
        return [claimed.to_record() for claimed in found]

    async def remove(self, task_id: str, owner: str) -> bool:
        if saving := self._saving.get(task_id):
            await asyncio.wait({saving})
        if await self.load(task_id, owner) is None:
            return False
        self._heads.pop(task_id, None)
        return await _translated(self._tasks.delete(task_id))

    def _remember(self, owner: str, key: str, task_id: str) -> None:
        self._keys.pop((owner, key), None)
        self._keys[owner, key] = task_id
        if len(self._keys) > MAX_KEYS:
            del self._keys[next(iter(self._keys))]

    async def _list(self, context_id: str) -> AsyncIterator[_Stored]:
        cursor: str | None = None
        while True:
            result = await _translated(self._tasks.list(context_id or None, cursor, PAGE))
            for task in result.tasks:
                if (stored := _unpack(task)) is not None:
                    yield stored
            if not result.next_cursor or result.next_cursor == cursor:
                return
            cursor = result.next_cursor

    # ---- saves, in order for each task -------------------------------------------------------------------------------

    def _submit(self, change: Change, key: str | None) -> "asyncio.Future[None]":
        loop, task_id = asyncio.get_running_loop(), change.task.id
        save = _Save(copy(change.task), change, key, loop.create_future())
        self._waiting.setdefault(task_id, []).append(save)
        if task_id not in self._saving:  # `close` awaits them all
            self._saving[task_id] = loop.create_task(self._save_waiting(task_id))
        return save.future

    async def _save_waiting(self, task_id: str) -> None:
        try:
            while batch := self._waiting.pop(task_id, None):
                await self._save(task_id, batch)
        finally:
            del self._saving[task_id]

    async def _save(self, task_id: str, batch: list[_Save]) -> None:
        """Take the changes that follow one another, and save what they lead to."""
        try:
            head = self._heads.pop(task_id, None) or _unpack(await _translated(self._tasks.get(task_id)))
            before = head
            for save in batch:
                if save.follows(head):
                    head = self._advance(head, save)
                else:
                    save.resolve(StaleWriteError())
            if head is not None and head is not before:
                await _translated(self._tasks.save(head.pack()))
        except StoreUnavailableError as error:
            for save in batch:
                save.resolve(error)
            return
        if head is not None and head.state not in AT_REST:
            self._heads[task_id] = head
        for save in batch:
            save.resolve(None)

    def _advance(self, head: _Stored | None, save: _Save) -> _Stored:
        change = save.change
        if head is None:
            self._last_created = max(time.time_ns(), self._last_created + 1)
        kept = _Kept(
            owner=change.owner,
            created=self._last_created if head is None else head.kept.created,
            version=change.version,
            epoch=change.epoch,
            key=save.key or "" if head is None else head.kept.key,
            memo=b64encode(change.memo).decode(),
            run=b64encode(change.run).decode(),
        )
        return _Stored(save.task, kept)


async def _translated(answer: Awaitable[T]) -> T:
    """Whatever goes wrong in a store of yours, the engine sees a store that is not available."""
    try:
        return await answer
    except Exception as error:
        raise StoreUnavailableError from error
