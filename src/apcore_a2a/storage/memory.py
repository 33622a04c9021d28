"""The store in memory, which is the default.

Invariant: except for listings, the cost of an operation does not depend on the number of tasks.

A running task is stored as the engine's live object. A task at rest is stored as its encoded bytes, which the garbage
collector never scans. Events are not stored, because the event log holds those of a running task, and a finished task
replaces them. As an exception, events for webhooks are stored until they are delivered (`webhook_table`).

Ended tasks are in two queues in the order of their ends, which is the order of expiry and eviction: one queue of all
tasks, and one of each quota key. A task enters the queues when it has ended and no webhook waits for its events. If a
task is removed before its turn, its entries stay in the queues as *stale* entries, which are skipped.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, TypedDict, Unpack

from msgspec.structs import replace

from apcore_a2a.errors import LimitExceededError, OverloadedError, StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy
from apcore_a2a.protocol.model import Document, PushConfig, Task, encode
from apcore_a2a.storage.contract import (
    ALL_EVENTS,
    ALL_OWNERS,
    NO_MEMORY,
    Change,
    ConversationMemory,
    ConversationWrite,
    Page,
    Query,
    Record,
    TaskListResult,
    Usage,
    stored_quota_key,
)
from apcore_a2a.storage.cursor import KEY_SIZE, PageTokens
from apcore_a2a.storage.owner_index import HeldBytes, OwnerIndex, QuotaShare, StoredTask, find_page
from apcore_a2a.storage.webhook_table import MemoryWebhooks, WebhookTable

TTL: Final = 3600.0  # seconds


class MoreOptions(TypedDict, total=False):
    """Rarely used options of `InMemoryTaskStore`."""

    max_tasks_per_owner: int
    """Maximum number of tasks of one account, in all its tenants. Defaults to `max_capacity`."""
    ttl: float
    """The old name of `ttl_seconds`."""


def read_ttl(ttl_seconds: float, more: MoreOptions) -> float:
    """Return the time for which finished tasks are stored, given by either of its names.

    Raises:
        TypeError: both names are given, or an option does not exist.
    """
    unknown = sorted(more.keys() - MoreOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"InMemoryTaskStore has no parameter {', '.join(unknown)}")
    if "ttl" not in more:
        return ttl_seconds
    if ttl_seconds != TTL:
        raise TypeError("ttl is the old name of ttl_seconds: give one of the two")
    return more["ttl"]


ANONYMOUS: Final = "anonymous"  # the owner of tasks stored by `save`
MAX_EXPIRED: Final = 16  # expired tasks that one call removes: no caller waits until all of them are removed
MAX_SWEPT: Final = 1_000  # expired tasks that a listing removes: it reads many tasks anyway
MAX_CAPACITY: Final = 10_000  # tasks
MAX_BYTES: Final = 256 * 1024 * 1024

SHARE_FULL: Final = "You are at your limit of unfinished tasks; try again later"
FULL: Final = "The agent is at its limit of unfinished tasks; try again later"


def _size_of(change: Change) -> int:
    """Return the bytes of a new task."""
    if change.document is None:
        return len(change.memo) + sum(map(len, change.events))
    return len(change.memo) + len(change.document.body)


class InMemoryTaskStore:
    """Stores at most `max_capacity` tasks in this process, finished ones for `ttl_seconds`.

    All tasks together take at most `max_bytes` as JSON, those of one account at most `max_bytes_per_owner` (by default
    half of `max_bytes`). An account has at most `max_tasks_per_owner` tasks, if given. The limits count an account in
    all its tenants. The finished tasks that ended first are evicted. If there are none, new tasks are rejected.

    A conversation consists of the messages of all tasks in one context. An agent receives the latest
    `max_context_messages` of them.

    Example:
        >>> from apcore_a2a import InMemoryTaskStore
        >>> store = InMemoryTaskStore(ttl_seconds=600, max_capacity=1_000, max_context_messages=20)
        >>> store.durable
        False
    """

    durable = False

    def __init__(
        self,
        *,
        ttl_seconds: float = TTL,
        max_capacity: int = MAX_CAPACITY,
        max_context_messages: int = 100,
        max_bytes: int = MAX_BYTES,
        max_bytes_per_owner: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        **more: Unpack[MoreOptions],
    ) -> None:
        ttl = read_ttl(ttl_seconds, more)
        if max_bytes_per_owner is None:
            max_bytes_per_owner = (max_bytes + 1) // 2
        max_tasks_per_owner = more.get("max_tasks_per_owner", max_capacity)
        limits = (ttl, max_capacity, max_bytes, max_bytes_per_owner, max_tasks_per_owner, max_context_messages)
        if not all(limit > 0 for limit in limits):  # also rejects NaN
            raise ValueError("ttl_seconds, the other limits and max_context_messages must be positive")
        self.max_context_messages = max_context_messages
        self._ttl = ttl
        self._capacity = max_capacity
        self._max_bytes = max_bytes
        self._max_bytes_per_owner = max_bytes_per_owner
        self._max_tasks_per_owner = max_tasks_per_owner
        self._held = HeldBytes()
        self._clock = clock
        self._tokens = PageTokens(secrets.token_bytes(KEY_SIZE))
        self._tasks: dict[str, StoredTask] = {}
        self._indexes: dict[str, OwnerIndex] = {}  # by owner, removed with the owner's last task
        self._shares: dict[str, QuotaShare] = {}  # by quota key, removed with its last task
        # The first to end is the first to expire, because all tasks have the same TTL. Not a dictionary: to find its
        # first key, Python skips all keys that were removed, which took 93 µs per `load` in a full store of 100,000.
        self._ended: deque[StoredTask] = deque()
        self._keys: dict[tuple[str, str], str] = {}  # (owner, idempotency key) → id of the task made with it
        self._remembering: dict[tuple[str, str], StoredTask] = {}  # (owner, context) → the task with its memory
        self._webhooks = WebhookTable(clock)
        self._webhook_bytes: dict[str, int] = {}  # by task: the bytes for its webhooks, as last counted
        self.webhooks = MemoryWebhooks(self._webhooks, find=self._find_own, recount=self._count_webhook_bytes)
        self._push_configs: dict[str, PushConfig] = {}  # for the small contract `TaskStore`
        self._created = 0  # number of tasks ever created, which is the number of the last one

    async def open(self) -> None:
        """Do nothing: memory needs no opening."""

    async def close(self) -> None:
        """Do nothing: memory needs no closing."""

    async def check(self) -> None:
        """Do nothing: memory is always available."""

    async def create(self, change: Change, *, key: str = "") -> str | None:
        if key:
            self._expire()
            earlier = self._find(self._keys.get((change.owner, key), ""))
            if earlier is not None:
                return earlier.id
        size = _size_of(change)
        if change.task.id in self._tasks:
            self._check_is_new(change.task.id)
        self.check_room(change.owner, size)
        self._add(change, key, size)
        return None

    def check_room(self, owner: str, size: int) -> None:
        """Evict ended tasks until a new task of this size fits. Raise as `create` if that is not enough."""
        self._expire()
        index = self._indexes.get(owner)
        share = self._share_of(owner) if index is None else index.share
        is_full = len(self._tasks) >= self._capacity or self._held.all + size > self._max_bytes
        is_share_full = share.tasks >= self._max_tasks_per_owner or share.held.all + size > self._max_bytes_per_owner
        if is_full or is_share_full:
            self._make_room(share, size)

    def begin_create(self, change: Change) -> None:
        """Store a task for which `check_room` has found room, together with the first events of its agent."""
        if change.task.id in self._tasks:
            self._check_is_new(change.task.id)
        self._add(change, "", _size_of(change))

    def _check_is_new(self, task_id: str) -> None:
        if self._find(task_id) is not None:
            raise StaleWriteError

    def _add(self, change: Change, key: str, size: int) -> None:
        task = change.task
        owner = change.owner
        index = self._indexes.get(owner)
        if index is None:  # not setdefault, which would create and discard an index for each task
            index = OwnerIndex(self._share_of(owner))
        share = index.share
        self._indexes[owner] = index
        self._shares[share.quota_key] = share
        share.add()
        self._created += 1
        stored = StoredTask(task.id, owner, task.context_id, key, self._created)
        self._tasks[task.id] = stored
        index.add(stored)
        if key:
            self._keys[owner, key] = task.id
        if change.webhook is not None:
            self._webhooks.begin(task.id, owner, change.webhook)
        if change.conversation is not None:
            size += self._write_conversation(stored, change.conversation)
        self._write(stored, change, size, index)

    def _share_of(self, owner: str) -> QuotaShare:
        quota_key = stored_quota_key(owner)
        share = self._shares.get(quota_key)
        if share is None:
            return QuotaShare(quota_key)
        return share

    def append(self, change: Change) -> None:
        # The size is computed inline, because this runs for each event of a stream.
        # Not through `_find`: only a task that has not ended accepts events, and such a task does not expire.
        stored = self._tasks.get(change.task.id)
        if stored is None or stored.owner != change.owner or stored.state in TERMINAL:
            raise StaleWriteError
        # The first comparison is `change.expected`, inlined to save a call for every event.
        if stored.version != change.version - len(change.events) or change.epoch < stored.epoch:
            raise StaleWriteError
        # If unfinished tasks alone exceed the limit, none of them may grow. The end of a task is always accepted,
        # because it makes room.
        held = self._held
        if held.all - held.ended > self._max_bytes and change.task.status.state not in TERMINAL:
            raise StoreUnavailableError("The agent has no memory left for unfinished tasks; try again later")
        if change.document is None:
            size = stored.extra_bytes + len(stored.body) + sum(map(len, change.events))
            if change.memo is not stored.memo:
                size += len(change.memo) - len(stored.memo)
        else:
            size = len(change.memo) + len(change.document.body)
            if stored.conversation is not None:
                size += len(stored.conversation.body)
        if change.conversation is not None:
            size += self._write_conversation(stored, change.conversation)
        self._write(stored, change, size, self._indexes[stored.owner])

    def _write(self, stored: StoredTask, change: Change, size: int, index: OwnerIndex) -> None:
        """Apply the change. `size` is the size of the task after it, and `index` that of its owner."""
        status = change.task.status
        document = change.document
        grown = size - stored.extra_bytes - len(stored.body)
        if document is None:
            stored.task = change.task
            stored.body = b""
            stored.extra_bytes = size
        else:
            stored.task = None
            stored.body = document.body
            stored.extra_bytes = size - len(document.body)
        stored.version = change.version
        stored.epoch = change.epoch
        stored.memo = change.memo
        stored.run = change.run
        stored.state = status.state
        stored.changed_at = status.timestamp
        held = self._held
        held_by_owner = index.share.held
        held.all += grown
        held_by_owner.all += grown
        has_ended = status.state in TERMINAL
        if has_ended:
            index.move_to_ended(stored)
        if stored.id in self._webhooks.tasks:
            self._webhooks.add_events(stored.id, change.events, status.state)
            self._count_webhook_bytes(stored)
        elif has_ended:
            self._make_evictable(stored, index.share)
        if held.all > self._max_bytes or held_by_owner.all > self._max_bytes_per_owner:
            self._shrink(stored, index.share)

    # ---- memory of conversations -------------------------------------------------------------------------------------

    async def conversation(self, owner: str, context_id: str) -> ConversationMemory:
        stored = self._remembering.get((owner, context_id))
        if stored is None or stored.conversation is None or self._find(stored.id) is None:
            return NO_MEMORY
        return stored.conversation

    def _write_conversation(self, stored: StoredTask, write: ConversationWrite) -> int:
        """Move the memory of the conversation to this task, and return by how many bytes the task grows.

        The memory is stored with one task of the context, and its bytes count as bytes of that task.
        """
        key = stored.owner, stored.context_id
        before = self._remembering.get(key)
        memory = (before and before.conversation) or NO_MEMORY
        written = memory.after(write)
        if written is None:
            return 0
        stored.conversation = written
        self._remembering[key] = stored
        if before is stored:
            return len(written.body) - len(memory.body)
        if before is not None:
            before.conversation = None
            self._count_conversation(before, -len(memory.body))
        return len(written.body)

    def _count_conversation(self, stored: StoredTask, grown: int) -> None:
        """Count the bytes of a memory at a task that is not being written."""
        stored.extra_bytes += grown
        for held in (self._held, self._indexes[stored.owner].share.held):
            held.all += grown
            if stored.expires < inf:
                held.ended += grown

    def _pass_on_conversation(self, removed: StoredTask, index: OwnerIndex) -> None:
        """Keep the memory at another task of the context, or remove it with the last one."""
        key = removed.owner, removed.context_id
        if self._remembering.get(key) is not removed:
            return
        del self._remembering[key]
        other = index.any_of(removed.context_id)
        if other is not None and removed.conversation is not None:
            other.conversation = removed.conversation
            self._remembering[key] = other
            self._count_conversation(other, len(removed.conversation.body))

    # ---- expiry and eviction -----------------------------------------------------------------------------------------

    def _make_evictable(self, stored: StoredTask, share: QuotaShare) -> None:
        """Let a task expire or be evicted, because it has ended and no webhook waits for its events."""
        stored.expires = self._clock() + self._ttl
        self._ended.append(stored)
        share.allow_eviction(stored)
        size = stored.extra_bytes + len(stored.body)
        if self._webhook_bytes:
            size += self._webhook_bytes.get(stored.id, 0)
        self._held.ended += size
        share.held.ended += size

    def _count_webhook_bytes(self, stored: StoredTask) -> None:
        """Count the bytes for a task's webhooks again, and update whether the task may be evicted."""
        before = self._webhook_bytes.pop(stored.id, 0)
        size = 0
        is_waiting = False
        webhooks = self._webhooks.tasks.get(stored.id)
        if webhooks is not None:
            size = self._webhook_bytes[stored.id] = webhooks.size
            is_waiting = webhooks.is_waiting
        share = self._indexes[stored.owner].share
        if stored.expires < inf:  # it becomes evictable again below; its present entry in the queue is stale
            stored.expires = inf
            share.prevent_eviction()
            self._held.ended -= stored.size + before
            share.held.ended -= stored.size + before
        self._held.all += size - before
        share.held.all += size - before
        if stored.state in TERMINAL and not is_waiting:
            self._make_evictable(stored, share)

    def _expire(self, limit: int = MAX_EXPIRED) -> None:
        """Remove at most `limit` expired tasks, in the order of their ends."""
        ended = self._ended
        now = self._clock()
        for _ in range(limit):
            if not ended or now < ended[0].expires < inf:  # infinite: a stale entry
                return
            self._drop_if_evictable(ended.popleft())

    def _make_room(self, share: QuotaShare, size: int) -> None:
        """Evict ended tasks until a new task of this size fits, both in the store and in the share of its quota key.

        Raises:
            OverloadedError: it cannot fit beside the unfinished tasks. No task is evicted.
            LimitExceededError: it cannot fit beside the unfinished tasks of the same quota key. No task is evicted.
        """
        held = self._held
        own = share.held
        max_others = self._max_bytes - size
        max_own_others = self._max_bytes_per_owner - size
        is_share_full = own.all - own.ended > max_own_others or share.unfinished >= self._max_tasks_per_owner
        if is_share_full and share.quota_key != ANONYMOUS:  # all anonymous callers have one share
            raise LimitExceededError(SHARE_FULL, retry_after=5)
        if is_share_full or held.all - held.ended > max_others:
            raise OverloadedError(FULL, retry_after=5)
        while own.all > max_own_others or share.tasks >= self._max_tasks_per_owner:
            self._evict_of(share)
        if len(self._tasks) >= self._capacity:
            self._evict()
        while held.all > max_others:
            self._evict()

    def _shrink(self, written: StoredTask, share: QuotaShare) -> None:
        """Evict ended tasks until a task that has grown fits, but never that task, because its subscribers read it."""
        while share.held.all > self._max_bytes_per_owner and share.first_ended() not in (None, written):
            self._evict_of(share)
        while self._held.all > self._max_bytes and self._ended and self._ended[0] is not written:
            self._drop_if_evictable(self._ended.popleft())

    def _evict(self) -> None:
        """Evict the task that ended first."""
        while self._ended:
            if self._drop_if_evictable(self._ended.popleft()):
                return
        raise OverloadedError(FULL, retry_after=5)

    def _evict_of(self, share: QuotaShare) -> None:
        """Evict the task of one quota key that ended first."""
        first = share.first_ended()
        assert first is not None  # checked by the caller
        self._drop(first)
        self._sweep_stale()

    def _drop_if_evictable(self, stored: StoredTask) -> bool:
        """Remove a task that was in the queue. Return False if the entry is stale."""
        return stored.expires < inf and self._drop(stored)

    def _drop(self, stored: StoredTask) -> bool:
        if self._tasks.get(stored.id) is not stored:
            return False
        del self._tasks[stored.id]
        self._webhooks.tasks.pop(stored.id, None)
        self._push_configs.pop(stored.id, None)
        self._keys.pop((stored.owner, stored.key), None)
        index = self._indexes[stored.owner]
        index.remove(stored)
        self._release(stored, index.share)
        if stored.conversation is not None:
            self._pass_on_conversation(stored, index)
        index.share.remove()
        if index.is_empty:
            del self._indexes[stored.owner]
        if not index.share.tasks:
            del self._shares[index.share.quota_key]
        return True

    def _release(self, stored: StoredTask, share: QuotaShare) -> None:
        """Subtract the bytes of a task from all counts."""
        size = stored.size + self._webhook_bytes.pop(stored.id, 0)
        for held in (self._held, share.held):
            held.all -= size
            if stored.expires < inf:
                held.ended -= size
        if stored.expires < inf:
            share.prevent_eviction()
        stored.expires = inf  # makes its entries in the queues stale
        stored.body = b""
        stored.memo = b""

    def _sweep_stale(self) -> None:
        """Remove the stale entries from the queue when they are the majority.

        Removing one entry would take a search. Removed in bulk, each costs a constant time on average.
        """
        if len(self._ended) > 2 * len(self._tasks):
            self._ended = deque(stored for stored in self._ended if stored.expires < inf)

    # ---- reads -------------------------------------------------------------------------------------------------------

    def _find(self, task_id: str) -> StoredTask | None:
        stored = self._tasks.get(task_id)
        if stored is None or stored.expires > self._clock():
            return stored
        self._drop(stored)
        return None

    def _find_own(self, task_id: str, owner: str) -> StoredTask | None:
        stored = self._find(task_id)
        if stored is None or stored.owner != owner:
            return None
        return stored

    async def find_key(self, key: str, owner: str) -> str | None:
        stored = self._find(self._keys.get((owner, key), ""))
        return None if stored is None else stored.id

    async def load(self, task_id: str, owner: str) -> Record | None:
        stored = self._find(task_id) if owner == ALL_OWNERS else self._find_own(task_id, owner)
        return None if stored is None else stored.record()

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        return await self.webhooks.events(task_id, owner, after, limit)  # other events are not stored

    async def page(self, query: Query) -> Page:
        start = self._tokens.parse(query)
        self._expire(MAX_SWEPT)
        shown, last, total = find_page(self._indexes, query, start)
        return Page([stored.record() for stored in shown], self._tokens.seal(last, query.owner), total)

    async def usage(self, quota_key: str) -> Usage:
        if quota_key == ALL_OWNERS:
            return Usage(len(self._tasks), self._held.all)
        share = self._shares.get(quota_key)
        if share is None:
            return Usage(0, 0)
        return Usage(share.tasks, share.held.all)

    async def orphans(self) -> list[Record]:
        return []  # no task outlives its process

    async def remove(self, task_id: str, owner: str) -> bool:
        stored = self._find_own(task_id, owner)
        if stored is None:
            return False
        self._drop(stored)
        self._sweep_stale()
        return True

    # ---- the small contract TaskStore, for code that uses the store directly -----------------------------------------

    async def save(self, task: Task) -> None:
        """Store a task as it is, replacing any task with the same id. A new task belongs to anonymous callers.

        Example:
            >>> import asyncio
            >>> from apcore_a2a.protocol.model import TaskState, TaskStatus
            >>> async def main(store: InMemoryTaskStore) -> str:
            ...     await store.save(Task(id="t-1", status=TaskStatus(state=TaskState.WORKING)))
            ...     return (await store.list()).tasks[0].id
            >>> asyncio.run(main(InMemoryTaskStore()))
            't-1'
        """
        document = None
        if task.status.state in AT_REST:
            document = Document(encode(task))
        event = b""  # a placeholder that raises the version by one: its content is not stored
        old = self._find(task.id)
        if old is None:
            new = Change(task=copy(task), owner=ANONYMOUS, version=1, events=[event], document=document)
            await self.create(new)
            return
        change = Change(
            task=copy(task),
            owner=old.owner,
            version=old.version + 1,
            epoch=old.epoch,
            events=[event],
            document=document,
        )
        self._replace(old, change)

    def _replace(self, old: StoredTask, change: Change) -> None:
        # A new entry, because the old one may be in the queues of ended tasks, and the task may run or end again.
        stored = replace(old, expires=inf, body=b"", memo=b"", extra_bytes=0)
        self._tasks[old.id] = stored
        index = self._indexes[old.owner]
        index.remove(old)
        self._release(old, index.share)
        index.add(stored)
        size = 0  # for a running task the sizes of its events are counted, and this one has none
        if change.document is not None:
            size = len(change.document.body)
        if stored.conversation is not None:
            self._remembering[stored.owner, stored.context_id] = stored
            size += len(stored.conversation.body)
        self._write(stored, change, size, index)
        self._sweep_stale()

    async def get(self, task_id: str) -> Task | None:
        """Return a copy of the task, or None.

        Example:
            >>> import asyncio
            >>> asyncio.run(InMemoryTaskStore().get("t-1")) is None
            True
        """
        stored = self._find(task_id)
        return None if stored is None else stored.document().task()

    async def list(self, context_id: str | None = None, cursor: str | None = None, limit: int = 50) -> TaskListResult:
        """Return one page of the tasks of anonymous callers, newest first.

        Example:
            >>> import asyncio
            >>> asyncio.run(InMemoryTaskStore().list(limit=10)).tasks
            []
        """
        query = Query(owner=ANONYMOUS, limit=limit, cursor=cursor or "", context_id=context_id or "", by_creation=True)
        page = await self.page(query)
        return TaskListResult([record.document.task() for record in page.records], page.next_cursor or None)

    async def delete(self, task_id: str) -> bool:
        """Remove a task of any owner and return whether it existed.

        Example:
            >>> import asyncio
            >>> asyncio.run(InMemoryTaskStore().delete("t-1"))
            False
        """
        stored = self._find(task_id)
        return stored is not None and await self.remove(task_id, stored.owner)

    async def save_push_config(self, task_id: str, config: PushConfig) -> None:
        """Store the webhook of a task, replacing an earlier one.

        Example:
            >>> async def main(store: InMemoryTaskStore) -> None:
            ...     await store.save_push_config("t-1", PushConfig(url="https://me.example.com/hook"))
        """
        self._push_configs[task_id] = config

    async def get_push_config(self, task_id: str) -> PushConfig | None:
        """Return the webhook of a task, or None.

        Example:
            >>> import asyncio
            >>> asyncio.run(InMemoryTaskStore().get_push_config("t-1")) is None
            True
        """
        for webhook in self._webhooks.listed(task_id):
            return webhook.config
        return self._push_configs.get(task_id)

    async def delete_push_config(self, task_id: str) -> bool:
        """Remove the webhook of a task and return whether it existed.

        Example:
            >>> import asyncio
            >>> asyncio.run(InMemoryTaskStore().delete_push_config("t-1"))
            False
        """
        return self._push_configs.pop(task_id, None) is not None
