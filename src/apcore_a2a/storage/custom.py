"""An adapter that serves the engine from any `TaskStore`, in one process.

Invariant: the data that the engine needs in addition to a task (owner, version, epoch, …) is stored in the task's
metadata under one reserved name, and is removed on every read.
"""

import asyncio
import logging
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.errors import A2AError, StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, copy
from apcore_a2a.protocol.model import Document, PushConfig, Task, TaskState, encode
from apcore_a2a.storage.contract import (
    ALL_EVENTS,
    ALL_OWNERS,
    NO_MEMORY,
    Backlog,
    Change,
    Claim,
    ConversationMemory,
    ConversationWrite,
    DeliveryReport,
    Page,
    Query,
    Record,
    SavedPushConfig,
    TaskStore,
    Usage,
    Webhook,
    missing_methods,
    stored_quota_key,
)
from apcore_a2a.storage.cursor import KEY_SIZE, Cursor, PageRoom, PageTokens, Position, newest
from apcore_a2a.storage.dict_store import DictTaskStore, takes_dicts
from apcore_a2a.storage.webhook_table import WebhookTable

logger = logging.getLogger(__name__)

# ---- saved tasks ----------------------------------------------------------------------------------------------------

RESERVED: Final = "apcore-a2a"

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Bookkeeping(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's data about a task, stored in the metadata of the task."""

    owner: str
    created: int
    """The time of creation in nanoseconds since 1970, made unique. It defines the order of creation."""
    version: int
    epoch: int
    key: str = ""
    memo: str = ""
    run: str = ""
    conversation: str = ""
    """The agent's memory of the context, if this task has written it. The highest number in the context is valid."""
    conversation_number: int = 0


class SavedTask(Struct, frozen=True):
    """A task without the reserved metadata, and its bookkeeping."""

    task: Task
    bookkeeping: Bookkeeping

    @property
    def state(self) -> TaskState:
        return self.task.status.state

    def matches(self, query: Query) -> bool:
        status = self.task.status
        return (
            query.owner in (self.bookkeeping.owner, ALL_OWNERS)
            and query.context_id in ("", self.task.context_id)
            and query.state in (None, status.state)
            and status.timestamp >= query.changed_since
        )

    def position(self, query: Query) -> Position:
        if query.by_creation:
            return "", self.bookkeeping.created
        return self.task.status.timestamp, self.bookkeeping.created

    def pack(self) -> Task:
        """Return the task with its bookkeeping in the metadata, as the user's store receives it."""
        metadata = {**(self.task.metadata or {}), RESERVED: msgspec.to_builtins(self.bookkeeping)}
        return replace(self.task, metadata=metadata)

    def to_record(self) -> Record:
        return Record(
            document=Document(encode(self.task)),
            owner=self.bookkeeping.owner,
            state=self.state,
            version=self.bookkeeping.version,
            epoch=self.bookkeeping.epoch,
            memo=b64decode(self.bookkeeping.memo),
            run=b64decode(self.bookkeeping.run),
        )


def unpack(task: Task | None) -> SavedTask | None:
    """Return a task of the user's store and its bookkeeping, or None if the engine did not save it.

    A task that the engine did not save has no owner.

    Raises:
        StoreUnavailableError: the store returned an object that is not a task.
    """
    if task is not None and not isinstance(task, Task):
        raise StoreUnavailableError from TypeError(f"a TaskStore gave a {type(task).__name__} for a Task")
    if task is None or not task.metadata or RESERVED not in task.metadata:
        return None
    metadata = dict(task.metadata)  # a copy, because the task belongs to the user's store
    try:
        bookkeeping = msgspec.convert(metadata.pop(RESERVED), Bookkeeping)
    except msgspec.ValidationError:
        return None
    return SavedTask(replace(task, metadata=metadata or None), bookkeeping)


async def call_store(method: Callable[[*Arguments], Awaitable[T]], *arguments: *Arguments) -> T:
    """Call a method of the user's store, and raise StoreUnavailableError for any exception of it."""
    try:
        return await method(*arguments)
    except Exception as error:  # foreign code
        raise StoreUnavailableError from error


UNHEALTHY_TIME: Final = 10.0  # seconds for which a failed save makes the store unhealthy, if no other save succeeds

# ---- webhooks -------------------------------------------------------------------------------------------------------
# The user's store holds only the first webhook of each task, because `TaskStore` has a single one. The other webhooks
# are in memory.
#
# Invariant: a webhook is added between two saves of its task, so that it misses no event and receives none twice.

MAX_SETTLED: Final = (
    10_000  # tasks with webhooks; above it, webhooks of ended tasks with nothing to deliver are dropped
)


class PendingWebhook(Struct):
    """A webhook that waits for earlier saves of its task. It receives the events after them."""

    webhook: Webhook
    owner: str
    future: "asyncio.Future[Webhook | None]"


class AdapterWebhooks:
    """The `WebhookStore` of the adapter. `enqueue` calls `add` with a webhook after the saves that wait now."""

    def __init__(
        self,
        tasks: TaskStore,
        table: WebhookTable,
        *,
        enqueue: Callable[[str, PendingWebhook], None],
    ) -> None:
        self._tasks = tasks
        self._table = table
        self._enqueue = enqueue

    async def save(self, webhook: Webhook, owner: str) -> Webhook | None:
        pending = PendingWebhook(webhook, owner, asyncio.get_running_loop().create_future())
        self._enqueue(webhook.config.task_id, pending)
        if len(self._table.tasks) >= MAX_SETTLED:
            self._table.drop_settled()
        saved = await pending.future
        if saved is not None:
            await self.save_first(webhook.config.task_id)
        return saved

    def add(self, pending: PendingWebhook, saved: SavedTask | None) -> None:
        """Add a webhook to the task as it was last saved. It receives the events of later saves."""
        if pending.future.done():
            return
        if saved is None or saved.bookkeeping.owner != pending.owner:
            pending.future.set_result(None)
            return
        try:
            added = self._table.save(
                pending.webhook,
                pending.owner,
                document=encode(saved.task),
                state=saved.state,
                version=saved.bookkeeping.version,
            )
        except A2AError as error:
            pending.future.set_exception(error)
        else:
            pending.future.set_result(added)

    async def save_first(self, task_id: str) -> None:
        """Save the first webhook of a task in the user's store."""
        for webhook in self._table.listed(task_id)[:1]:
            fields = {name: getattr(webhook.config, name) for name in PushConfig.__struct_fields__}
            saved = SavedPushConfig(**fields, a2a_version=webhook.a2a_version)
            await call_store(self._tasks.save_push_config, task_id, saved)

    async def restore(self, saved: SavedTask) -> None:
        """Load the webhook that an earlier process stored. It receives the events from now on."""
        task_id = saved.task.id
        found = await call_store(self._tasks.get_push_config, task_id)
        if found is None or task_id in self._table.tasks:
            return
        config = PushConfig(**{name: getattr(found, name) for name in PushConfig.__struct_fields__})
        webhook = Webhook(config=config, a2a_version=getattr(found, "a2a_version", "1.0"))
        self.add(PendingWebhook(webhook, saved.bookkeeping.owner, asyncio.get_running_loop().create_future()), saved)

    async def of_task(self, task_id: str, owner: str) -> Sequence[Webhook] | None:
        saved = unpack(await call_store(self._tasks.get, task_id))
        if saved is None or saved.bookkeeping.owner != owner:
            return None
        if saved.state not in TERMINAL:
            await self.restore(saved)
        return self._table.listed(task_id)

    async def remove(self, task_id: str, owner: str, config_id: str) -> bool:
        if await self.of_task(task_id, owner) is None or not self._table.remove(task_id, config_id):
            return False
        await call_store(self._tasks.delete_push_config, task_id)
        await self.save_first(task_id)
        return True

    async def failed(self, owner: str, limit: int) -> Sequence[Webhook]:
        return self._table.failed(owner, limit)

    async def claim(self, limit: int, lease: float) -> Sequence[Claim]:
        return self._table.claim(limit, lease)

    async def settle(self, claim: Claim, report: DeliveryReport) -> bool:
        return self._table.settle(claim, report)

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        task_webhooks = self._table.tasks.get(task_id)
        if task_webhooks is None or task_webhooks.owner != owner:
            return None
        return task_webhooks.read(after, limit)

    async def task_at(self, task_id: str, owner: str, version: int) -> Document | None:
        task_webhooks = self._table.tasks.get(task_id)
        if task_webhooks is None or task_webhooks.owner != owner:
            return None
        return task_webhooks.task_at(version)

    async def backlog(self) -> Backlog:
        return self._table.backlog()


# ---- the adapter ----------------------------------------------------------------------------------------------------
# Invariant: saves of one task are made in order, and those that wait are coalesced into one.
#
# `TaskStore` has no compare-and-set, so the adapter implements that of `Store`. There is one worker for each task that
# is being saved. It checks each waiting change against the last saved state, as a database would, and then saves the
# resulting state, so that two saves of one task are never reordered. This holds within one process, which is all that
# the adapter promises.

PAGE: Final = 200  # tasks per call of `TaskStore.list`
RUNNING: Final = (TaskState.SUBMITTED, TaskState.WORKING)


class _PendingSave(Struct):
    """A change that waits to be saved, with the task as it was when the change was submitted."""

    task: Task
    change: Change
    key: str | None
    """The idempotency key of a new task, possibly empty. None for a change to an existing task."""
    future: "asyncio.Future[None]"

    def follows(self, saved: SavedTask | None) -> bool:
        """Return whether the change applies to the task as it was last saved. A new task requires None."""
        is_new = self.key is not None
        if saved is None:
            return is_new
        change = self.change
        return (
            not is_new
            and saved.bookkeeping.owner == change.owner
            and saved.bookkeeping.version == change.expected
            and saved.bookkeeping.epoch <= change.epoch
            and saved.state not in TERMINAL
        )

    def resolve(self, error: A2AError | None) -> None:
        """Complete the future, unless it is done or cancelled."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class TaskStoreAdapter:
    """Serves the engine from any `TaskStore`, or from a store whose tasks are dictionaries.

    A listing reads every task of its context, or every task of the store.

    The adapter is `durable` if the user's store has `durable = True`. `close` waits at most `close_timeout` seconds for
    the last saves. The last `max_keys` idempotency keys are in memory, because `TaskStore` has no lookup by key.

    The first webhook of a task is stored in the user's store. Other webhooks and all cursors are in memory.

    Example:
        >>> from apcore_a2a.storage.memory import InMemoryTaskStore
        >>> TaskStoreAdapter(InMemoryTaskStore()).durable
        False
    """

    def __init__(
        self,
        tasks: Any,  # Any: a TaskStore, or one whose tasks are dictionaries
        *,
        close_timeout: float = 10.0,
        max_keys: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        missing = missing_methods(tasks)
        if missing:
            raise TypeError(f"{type(tasks).__name__} lacks methods of TaskStore: {', '.join(missing)}")
        self.durable = getattr(tasks, "durable", False) is True
        self._tasks: TaskStore = DictTaskStore(tasks) if takes_dicts(tasks) else tasks
        self._last_saved: dict[str, SavedTask] = {}  # of running tasks, so that a save need not read the task first
        self._waiting: dict[str, list[_PendingSave | PendingWebhook]] = {}  # by task, in the order of submission
        self._saving: dict[str, asyncio.Task[None]] = {}  # the worker of each task that is being saved
        self._keys: dict[tuple[str, str], str] = {}  # (owner, idempotency key) → task id, the oldest first
        self._max_keys = max_keys
        self._close_timeout = close_timeout
        self._key_lock = asyncio.Lock()
        self._last_created = 0
        self._tokens = PageTokens(secrets.token_bytes(KEY_SIZE))  # tokens of an earlier process become invalid
        self._clock = clock
        self._save_failed_at = float("-inf")  # the time of the last failed save, unless a later one succeeded
        self._webhooks = WebhookTable()
        self.webhooks = AdapterWebhooks(self._tasks, self._webhooks, enqueue=self._enqueue)

    async def open(self) -> None:
        """Do nothing: the user opens the store."""

    async def close(self) -> None:
        """Wait for the last saves, at most `close_timeout` seconds. The user closes the store."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._close_timeout
        while self._saving and loop.time() < end:
            await asyncio.wait(self._saving.values(), timeout=end - loop.time())
        if self._saving:
            logger.error("tasks not saved: the store does not answer", extra={"tasks": len(self._saving)})

    async def check(self) -> None:
        """Read a task that does not exist, which is the closest to a health check that the seven methods allow."""
        await call_store(self._tasks.get, "")

    def trouble(self) -> str:
        # Not until the next save: while the server is unhealthy, a load balancer sends no message that would save.
        if self._clock() - self._save_failed_at < UNHEALTHY_TIME:
            return "the task store fails to save tasks"
        return ""

    async def create(self, change: Change, *, key: str = "") -> str | None:
        if not key:
            await self._create(change, key)
            return None
        async with self._key_lock:  # of two creations with the same key, the second waits for the result of the first
            earlier = await self.find_key(key, change.owner)
            if earlier is not None:
                return earlier
            await self._create(change, key)
            self._remember(change.owner, key, change.task.id)
        return None

    async def _create(self, change: Change, key: str) -> None:
        await self._submit(change, key)
        if change.webhook is not None:
            await self.webhooks.save_first(change.task.id)

    async def find_key(self, key: str, owner: str) -> str | None:
        earlier = self._keys.get((owner, key))
        if earlier is None or await self.load(earlier, owner) is None:
            return None
        return earlier

    def append(self, change: Change) -> "asyncio.Future[None]":
        return self._submit(change, None)

    async def load(self, task_id: str, owner: str) -> Record | None:
        saved = unpack(await call_store(self._tasks.get, task_id))
        if saved is None or owner not in (saved.bookkeeping.owner, ALL_OWNERS):
            return None
        return saved.to_record()

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        return await self.webhooks.events(task_id, owner, after, limit)

    async def conversation(self, owner: str, context_id: str) -> ConversationMemory:
        newest: Bookkeeping | None = None
        async for saved in self._list(context_id):
            found = saved.bookkeeping
            if found.owner == owner and saved.task.context_id == context_id and found.conversation_number:
                if newest is None or newest.conversation_number < found.conversation_number:
                    newest = found
        if newest is None:
            return NO_MEMORY
        return ConversationMemory(newest.conversation_number, b64decode(newest.conversation), 1)

    async def page(self, query: Query) -> Page:
        start = self._tokens.parse(query)
        matching = [saved async for saved in self._list(query.context_id) if saved.matches(query)]
        found = newest(matching, lambda saved: saved.position(query), query, start)
        shown: list[Record] = []
        room = PageRoom(query)
        for saved in found:
            record = saved.to_record()
            if not room.reserve(len(record.document.body)):
                break
            shown.append(record)
        last = None
        if len(shown) < len(found):
            last = Cursor(query.by_creation, *found[len(shown) - 1].position(query))
        return Page(shown, self._tokens.seal(last, query.owner), len(matching))

    async def usage(self, quota_key: str) -> Usage:
        """Return the usage by reading every task, as a listing does: the seven methods have no owner parameter."""
        tasks = 0
        size = 0
        async for saved in self._list(""):
            if quota_key in (stored_quota_key(saved.bookkeeping.owner), ALL_OWNERS):
                record = saved.to_record()
                tasks += 1
                size += len(record.document.body) + len(record.memo)
        return Usage(tasks, size)

    async def orphans(self) -> list[Record]:
        if not self.durable:
            return []
        orphans: list[SavedTask] = []
        async for saved in self._list(""):
            bookkeeping = saved.bookkeeping
            if bookkeeping.key:  # every task is read here, so the keys of earlier processes are loaded, too
                self._remember(bookkeeping.owner, bookkeeping.key, saved.task.id)
            # A run may continue while its task waits for authorization, and a message may be in the task's queue.
            is_waiting_run = saved.state not in TERMINAL and bookkeeping.run != ""
            if saved.state in RUNNING or is_waiting_run:
                claimed = SavedTask(saved.task, replace(bookkeeping, epoch=bookkeeping.epoch + 1))
                orphans.append(claimed)
        # After the listing, not during it: a store need not support writes while it lists.
        for claimed in orphans:
            await call_store(self._tasks.save, claimed.pack())
            await self.webhooks.restore(claimed)
        return [claimed.to_record() for claimed in orphans]

    async def remove(self, task_id: str, owner: str) -> bool:
        saving = self._saving.get(task_id)
        if saving is not None:
            await asyncio.wait({saving})  # otherwise the save in progress would restore the task
        record = await self.load(task_id, owner)
        if record is None or record.owner != owner:
            return False
        self._last_saved.pop(task_id, None)
        if self._webhooks.tasks.pop(task_id, None) is not None:
            await call_store(self._tasks.delete_push_config, task_id)
        return await call_store(self._tasks.delete, task_id)

    def _remember(self, owner: str, key: str, task_id: str) -> None:
        self._keys.pop((owner, key), None)  # moves it to the end: the least recently used key is dropped first
        self._keys[owner, key] = task_id
        if len(self._keys) > self._max_keys:
            del self._keys[next(iter(self._keys))]

    async def _list(self, context_id: str) -> AsyncIterator[SavedTask]:
        cursor: str | None = None
        while True:
            result = await call_store(self._tasks.list, context_id or None, cursor, PAGE)
            for task in result.tasks:
                saved = unpack(task)
                if saved is not None:
                    yield saved
            if not result.next_cursor or result.next_cursor == cursor:  # the same cursor again would never end
                return
            cursor = result.next_cursor

    # ---- saves, in order for each task -------------------------------------------------------------------------------

    def _submit(self, change: Change, key: str | None) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        task_id = change.task.id
        # A copy, because the task changes while its save waits.
        save = _PendingSave(copy(change.task), change, key, loop.create_future())
        self._enqueue(task_id, save)
        return save.future

    def _enqueue(self, task_id: str, pending: _PendingSave | PendingWebhook) -> None:
        self._waiting.setdefault(task_id, []).append(pending)
        if task_id not in self._saving:  # `close` awaits all of these workers
            self._saving[task_id] = asyncio.get_running_loop().create_task(self._save_waiting(task_id))

    async def _save_waiting(self, task_id: str) -> None:
        try:
            while task_id in self._waiting:
                batch = self._waiting.pop(task_id)
                saves = [pending for pending in batch if isinstance(pending, _PendingSave)]
                webhooks = [pending for pending in batch if isinstance(pending, PendingWebhook)]
                try:
                    latest = await self._save(task_id, saves)
                except StoreUnavailableError as error:
                    for webhook in webhooks:
                        if not webhook.future.done():
                            webhook.future.set_exception(error)
                    continue
                for webhook in webhooks:
                    self.webhooks.add(webhook, latest)
        finally:
            del self._saving[task_id]

    async def _save(self, task_id: str, batch: list[_PendingSave]) -> SavedTask | None:
        """Reject stale changes, save the result of the others, and return the task as saved."""
        applied: list[_PendingSave] = []
        try:
            # Removed here, and set again only after a successful save: after a failed one, the task is read again.
            before = self._last_saved.pop(task_id, None)
            if before is None:
                before = unpack(await call_store(self._tasks.get, task_id))
            latest = before
            for save in batch:
                if save.follows(latest):
                    latest = self._apply(save, latest)
                    latest = await self._add_conversation(latest, save.change.conversation)
                    applied.append(save)
                else:
                    save.resolve(StaleWriteError())
            if latest is not None and latest is not before:
                await call_store(self._tasks.save, latest.pack())
                self._save_failed_at = float("-inf")
        except StoreUnavailableError as error:
            self._save_failed_at = self._clock()
            for save in batch:
                save.resolve(error)
            raise
        if latest is not None and latest.state not in AT_REST:
            self._last_saved[task_id] = latest
        for save in applied:
            self._add_webhook_events(save)
        for save in batch:
            save.resolve(None)
        return latest

    async def _add_conversation(self, saved: SavedTask, write: ConversationWrite | None) -> SavedTask:
        """Return the task with the memory of its conversation. The memory is stored in the task that writes it."""
        if write is None:
            return saved
        before = await self.conversation(saved.bookkeeping.owner, saved.task.context_id)
        if before.number < saved.bookkeeping.conversation_number:  # an earlier write of the same batch
            body = b64decode(saved.bookkeeping.conversation)
            before = ConversationMemory(saved.bookkeeping.conversation_number, body)
        memory = before.after(write)
        if memory is None:
            return saved
        body_text = b64encode(memory.body).decode()
        kept = replace(saved.bookkeeping, conversation=body_text, conversation_number=memory.number)
        return SavedTask(saved.task, kept)

    def _add_webhook_events(self, saved: _PendingSave) -> None:
        """Pass the saved events to the webhooks of the task, if it has any."""
        change = saved.change
        task_id = saved.task.id
        if change.webhook is not None and saved.key is not None:
            self._webhooks.begin(task_id, change.owner, change.webhook)
        task_webhooks = self._webhooks.tasks.get(task_id)
        if task_webhooks is not None:
            self._webhooks.add_events(task_id, change.events, saved.task.status.state)

    def _apply(self, save: _PendingSave, latest: SavedTask | None) -> SavedTask:
        """Return the task with the change applied, or a new task."""
        change = save.change
        if latest is None:
            # The wall-clock time, so that the order outlives the process, but unique for each task.
            self._last_created = max(time.time_ns(), self._last_created + 1)
            created = self._last_created
            key = save.key or ""
            conversation = ""
            conversation_number = 0
        else:
            created = latest.bookkeeping.created
            key = latest.bookkeeping.key
            conversation = latest.bookkeeping.conversation
            conversation_number = latest.bookkeeping.conversation_number
        bookkeeping = Bookkeeping(
            owner=change.owner,
            created=created,
            version=change.version,
            epoch=change.epoch,
            key=key,
            # As text, because the user's store may write the metadata as JSON.
            memo=b64encode(change.memo).decode(),
            run=b64encode(change.run).decode(),
            conversation=conversation,
            conversation_number=conversation_number,
        )
        return SavedTask(save.task, bookkeeping)
