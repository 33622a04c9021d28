"""The interface between the engine and its stores, and `TaskStore`, a smaller interface for stores that users write.

The messages of a conversation are not stored separately: they are the histories of all tasks in one context
(`Query.context_id`). What the agent remembers of the conversation is stored once for each owner and context.

Invariant, for every store: a write is atomic. A write with a stale version or epoch changes nothing. Reading a task by
its id requires the name of its owner, or ALL_OWNERS for administrators. A task that has not ended is never evicted. The
cost of a write is proportional to the size of its events.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from apcore_a2a.protocol.model import Document, PushConfig, Task, TaskState


class ConversationMemory(Struct, frozen=True, gc=False):
    """The agent's memory of one context of an owner, as JSON. It is stored in pieces: a write costs what is new.

    A piece says how many bytes of the memory before it remain, and what follows them.
    """

    number: int = 0
    """The number of the last piece. 0 if there is no memory."""
    body: bytes = b""
    pieces: int = 0
    """The number of stored pieces. The writer replaces them by a single one before they become many."""

    def after(self, write: "ConversationWrite") -> "ConversationMemory | None":
        """Return the memory after a write, or None if the write is based on an older memory."""
        if write.base not in (None, self.number):
            return None
        return ConversationMemory(self.number + 1, self.body[: write.keep] + write.tail, 1)


NO_MEMORY: Final = ConversationMemory()


class ConversationWrite(Struct, frozen=True, kw_only=True, gc=False):
    """A new piece of a conversation's memory. It replaces all pieces before it if `keep` is 0."""

    base: int | None
    """The number of the piece that the writer has read last. Another piece since then makes the write void, and the
    events are stored without it. None replaces any memory."""
    keep: int
    tail: bytes


def join_pieces(pieces: Sequence[tuple[int, int, bytes]]) -> ConversationMemory:
    """Return the memory that stored pieces (number, keep, tail) form, given in order."""
    if not pieces:
        return NO_MEMORY
    body = bytearray()
    for _, keep, tail in pieces:
        del body[keep:]
        body += tail
    return ConversationMemory(pieces[-1][0], bytes(body), len(pieces))


class Change(Struct, kw_only=True, gc=False):
    """One atomic write: new events, and the task that results from them."""

    task: Task
    """The live task with the events folded in. The engine changes it later, so a store reads it during the call."""
    owner: str
    # Version and epoch guard against two writers. A writer that missed an event has a stale version. A writer whose
    # lease expired, and whose task another process has claimed since then, has an old epoch.
    version: int
    """The number of events of the task, including these. It is the sequence number of the last event."""
    epoch: int = 1
    """The number of the claim that this writer holds. A store rejects an epoch older than the stored one."""
    events: Sequence[bytes]
    """Each new event as encoded by `v1.encode_record`, oldest first. `v1.decode_record` decodes it."""
    document: Document | None = None
    """The encoded task, if these events bring the task to rest."""
    memo: bytes = b""
    """The agent's private JSON."""
    run: bytes = b""
    """The opaque description of the current run, from which another process can repeat it. Empty for a task at rest."""
    hand_on: bool = False
    """Whether any replica that shares the store may continue the task after this write."""
    webhook: "Webhook | None" = None
    """The webhook of a new task, if the store has webhooks. It is stored with the task and receives all its events."""
    conversation: ConversationWrite | None = None
    """A new piece of the agent's memory of the task's context."""

    @property
    def expected(self) -> int:
        """The version that the stored task must have for this write to succeed."""
        return self.version - len(self.events)


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """A stored task, with the data that the engine needs to continue it."""

    document: Document  # encoded, because most documents are sent to a client as they were read
    owner: str
    state: TaskState
    version: int
    epoch: int = 1
    memo: bytes = b""
    run: bytes = b""
    runner: str | None = None
    """The name of the replica that runs the task, "" if any replica may claim the task, None if no replica runs it."""


ALL_OWNERS: Final = "*"
"""The owner that selects the tasks of all owners in `load` and `page`, for administrators. No caller has this name."""


def stored_quota_key(owner: str) -> str:
    """Return the quota key of an owner: its name without the tenant, because a client can invent tenants."""
    return owner.partition("\n")[0]  # as `Caller.owner` writes it


class Query(Struct, frozen=True, kw_only=True):
    """The filter and the order of a listing: an owner's tasks, newest first by status time or by creation."""

    owner: str  # without a default, so that a forgotten argument cannot select the tasks of all owners
    limit: int
    cursor: str = ""
    context_id: str = ""
    state: TaskState | None = None
    changed_since: str = ""
    """A timestamp in the form that we write (UTC, milliseconds, Z), so that comparing texts compares times."""
    by_creation: bool = False


class Page(Struct, frozen=True):
    records: Sequence[Record]
    next_cursor: str
    total: int


ALL_EVENTS: Final = 1_000_000_000  # more events than any task has
MAX_READ_BYTES: Final = 1024 * 1024  # total size of the events in one read; the first event is always returned
MAX_WEBHOOKS: Final = 16  # webhooks of one task


# ---- webhooks: readers of a task's event log whose cursor is stored with the task ------------------------------------


class Webhook(Struct, frozen=True, kw_only=True):
    """A push config as its owner set it, and its cursor in the event log of its task.

    Events are not copied for delivery: the event log of the task is the outbox. An event is due for delivery if its
    sequence number is above `delivered`, so the write of the event is also the write to the outbox.

    The engine sets `config` and `a2a_version` when it calls `WebhookStore.save`. The store sets the other fields.
    """

    config: PushConfig
    """The push config, with its `id` and its `task_id`."""
    a2a_version: str
    """The A2A version in which the webhook was set, and in which its events are written."""
    delivered: int = 0
    """The sequence number of the last event that was delivered."""
    latest: int = 0
    """The sequence number of the task's last event."""
    attempts: int = 0
    """The number of failed deliveries of the next event."""
    failed: bool = False
    """Whether delivery was given up. The events above `delivered` are dead letters until the webhook is saved again."""
    reason: str = ""
    """The reason for which the last delivery failed."""

    @property
    def is_waiting(self) -> bool:
        """Whether an event is due for delivery."""
        return self.delivered < self.latest and not self.failed


class Claim(Struct, frozen=True):
    """A worker's exclusive right to deliver to a webhook, until its lease expires or the webhook is saved again."""

    webhook: Webhook
    owner: str
    number: int
    """The number of this claim on the webhook. `settle` rejects an older claim."""


class DeliveryReport(Struct, frozen=True, kw_only=True):
    """The state of a webhook after a delivery. The store copies it to the webhook.

    The webhook can be claimed again after `pause` seconds. A worker that continues with the next event reports the
    duration of its claim as `pause`, so that no other worker claims the webhook.
    """

    delivered: int
    attempts: int = 0
    failed: bool = False
    reason: str = ""
    pause: float = 0.0


class Backlog(Struct, frozen=True, kw_only=True):
    """The amount of undelivered events, of all owners."""

    webhooks: int = 0
    """Number of webhooks with events due for delivery."""
    events: int = 0
    failed: int = 0
    """Number of webhooks that were given up with events undelivered."""
    oldest: float = 0.0
    """Seconds for which the longest-waiting webhook has had undelivered events."""


class Store(Protocol):
    """The store interface of the engine. The suites tests/storage/test_contract_*.py test all implementations."""

    durable: bool
    """Whether written tasks outlive the process."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def check(self) -> None:
        """Raise StoreUnavailableError if a write would fail now."""

    async def create(self, change: Change, *, key: str = "") -> str | None:
        """Store a new task and return None. If this owner used `key` before, write nothing and return that task's id.

        Raises:
            OverloadedError: the store is full of tasks that have not ended.
        """

    async def find_key(self, key: str, owner: str) -> str | None:
        """Return the id of the stored task that this owner created with `key`, or None."""

    # Not `async`, so that the order of the calls is the order of the writes. A store that has finished when the call
    # returns, such as the in-memory store, needs no further iteration of the event loop (docs/decisions/0042).
    def append(self, change: Change) -> "asyncio.Future[None] | None":
        """Write events to a task. Return None if the write is done, else a future that is done when it is durable.

        Writes are made in the order of the calls. The future (or the call) raises StaleWriteError when the expected
        version or the epoch does not match, and StoreUnavailableError when the store cannot write.
        """

    async def load(self, task_id: str, owner: str) -> Record | None: ...

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        """Return at most `limit` events after sequence number `after`, or None if they are not stored.

        Returns fewer events if they exceed MAX_READ_BYTES together, but at least one. Call again for the rest.
        """

    async def page(self, query: Query) -> Page:
        """Return one page: at most `query.limit` tasks, fewer if they would be too large together, but at least one.

        The next page, for `next_cursor`, begins directly after the last task of this one. A cursor reveals nothing
        about other owners, and is valid only for the owner that it was returned to.

        Raises:
            InvalidParamsError: this store did not return the cursor to this owner.
        """

    async def orphans(self) -> list[Record]:
        """Claim and return the tasks that a dead process left running. Called once after `open`.

        The epoch of each is raised by one.
        """

    async def remove(self, task_id: str, owner: str) -> bool: ...

    async def conversation(self, owner: str, context_id: str) -> ConversationMemory:
        """Return the agent's memory of a context. It is removed together with the last task of this owner in it."""


@runtime_checkable
class WebhookStore(Protocol):
    """The webhooks of a store's tasks, as delivery uses them. The stores of this package have it as `store.webhooks`.

    A store without webhooks serves agents without push notifications. A webhook is removed with its task. A waiting
    webhook retains its task and its events: a task that has ended neither expires nor is evicted while one of its
    webhooks waits. A failed webhook does not retain its task. (A store that outlives the process may remove a task with
    a waiting webhook after twice its TTL, because webhooks may have been disabled in the meantime.)
    """

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        """Return events as `Store.events` does. Events for which a webhook waits are always stored."""

    async def save(self, webhook: Webhook, owner: str) -> Webhook | None:
        """Store a webhook and return it as stored, or return None if this owner has no such task.

        The cursor of a new webhook starts after the task's last event. If the task is at rest, it starts before that
        event, so that a subscriber which registers too late still receives the end. A webhook that exists (same task
        and id) gets the new config and keeps its cursor. It becomes active again: `failed` and `attempts` are cleared,
        it is due immediately, and claims on it become void.

        Raises:
            InvalidParamsError: the task already has MAX_WEBHOOKS other webhooks.
        """

    async def of_task(self, task_id: str, owner: str) -> Sequence[Webhook] | None:
        """Return the webhooks of a task, ordered by id, or None if this owner has no such task."""

    async def remove(self, task_id: str, owner: str, config_id: str) -> bool:
        """Remove a webhook and return whether it existed. Claims on it become void."""

    async def failed(self, owner: str, limit: int) -> Sequence[Webhook]:
        """Return at most `limit` failed webhooks of all tasks of an owner."""

    async def claim(self, limit: int, lease: float) -> Sequence[Claim]:
        """Claim at most `limit` webhooks that wait and are due, the longest due first, each for `lease` seconds.

        Time is measured by the store's own clock. Of several processes, only one gets each webhook. Webhooks that a
        dead process had claimed may be claimed at once.
        """

    async def settle(self, claim: Claim, report: DeliveryReport) -> bool:
        """Store the result of a claim. Return False, and write nothing, if the claim is void."""

    async def task_at(self, task_id: str, owner: str, version: int) -> Document | None:
        """Return the task as of an event that is due or was just delivered, or None if the task is gone."""

    async def backlog(self) -> Backlog: ...


def webhooks_of(store: object) -> WebhookStore:
    """Return the webhooks of a store.

    Raises:
        TypeError: the store has no webhooks.
    """
    webhooks = getattr(store, "webhooks", None)
    if not isinstance(webhooks, WebhookStore):
        raise TypeError(f"push_notifications needs a store that keeps webhooks, and {type(store).__name__} does not")
    return webhooks


class Usage(Struct, frozen=True):
    """The amount of stored data: the number of tasks, and their size as JSON, including the memos of their agents.

    The memory of a conversation counts, too.
    """

    tasks: int
    bytes: int


@runtime_checkable
class ReportsUsage(Protocol):
    """An optional part of `Store`: how much data each account has stored. Storage quotas need it."""

    async def usage(self, quota_key: str) -> Usage:
        """Return the usage of a quota key (`stored_quota_key`) in all its tenants, or of ALL_OWNERS.

        The result for ALL_OWNERS may be an estimate. The call reads each task that it counts, so the engine calls it
        rarely.
        """


@runtime_checkable
class ReportsTrouble(Protocol):
    """An optional part of `Store`: the reason for which the store is unhealthy."""

    def trouble(self) -> str:
        """Return a short public reason, without paths, or "" if the store is healthy. Cheap: it reads cached state."""


def trouble_of(store: object) -> str:
    """Return the reason for which a store is unhealthy, or "" if it is healthy or does not report its condition."""
    if isinstance(store, ReportsTrouble):
        return store.trouble()
    return ""


# ---- several processes on one store -------------------------------------------------------------------------------


class FollowedTask(NamedTuple):
    """A task that this replica follows, and the version that it has of it."""

    task_id: str
    owner: str
    version: int


class TaskUpdate(Struct, gc=False):
    """The present state of a followed task, and its events since the follower's version."""

    task_id: str
    number: int | None
    """The number of the task in the store, as in `WakeUp.tasks`. None if the task was removed."""
    version: int | None
    epoch: int | None
    runner: str | None
    memo: bytes | None
    events: list[bytes]


class WakeUp(Struct, frozen=True):
    """What may have changed since the last wake-up, and is to be read again."""

    everything: bool
    """Whether wake-ups may have been lost, so that all followed tasks are to be read."""
    requests: bool
    """Whether there may be requests to this replica, or answers to its requests."""
    queue: bool
    """Whether a task may wait for any replica."""
    orphans: bool = False
    """Whether a replica was declared dead, so that its tasks can be claimed."""
    tasks: frozenset[int] = frozenset()
    """The numbers of followed tasks that have new events."""


class ReplicaRequest(NamedTuple):
    """A request of another replica to the replica that runs a task. The engine encodes and decodes `body`."""

    number: int
    task_id: str
    owner: str
    body: bytes


class ReplicaLease(Protocol):
    """The lease of this replica, measured by one clock for all replicas.

    Invariant: a replica that has not renewed its lease in time may be declared dead. A name that was declared dead
    never becomes valid again.
    """

    @property
    def seconds(self) -> float:
        """The duration of the lease after each renewal."""

    @property
    def name(self) -> str:
        """The present name of this replica."""

    @property
    def down_at(self) -> float:
        """The monotonic time at which the store last reported that it was starting up or shutting down.

        While it reports this, it serves no client, so no replica is declared dead.
        """

    async def join(self) -> None:
        """Become a replica under a new name. `Store.open` calls it; the engine calls it when the lease was lost."""

    async def renew(self) -> float | None:
        """Renew the lease, and return the seconds until the next lease of another replica expires.

        The result is 0 or less if such a lease may have expired. It is None if this replica was declared dead: then it
        has lost its claims on all tasks that it ran.
        """

    async def clean_up(self) -> None:
        """Remove the registrations and requests of dead replicas, but not their tasks."""


class TaskClaims(Protocol):
    """Claims on tasks. A claim raises the epoch of its task by one.

    Invariant: one replica has the claim on a task. The store rejects writes with the epoch of an older claim.
    """

    async def claim_orphans(self, limit: int) -> list[Record]:
        """Claim tasks of dead replicas.

        Raises:
            StoreUnavailableError: tasks may have been claimed all the same. `own_tasks` lists them then.
        """

    async def claim_queued(self, limit: int) -> list[Record]:
        """Claim tasks that wait for any replica. Owners take turns.

        Raises:
            StoreUnavailableError: as for `claim_orphans`.
        """

    async def count_queued(self, limit: int) -> int:
        """Return how many tasks wait for any replica, counted up to a limit."""

    async def claim(self, task_id: str, owner: str) -> Record | None:
        """Claim one task, whichever replica runs it, and return its record. A task that has ended is not claimed."""

    async def own_tasks(self) -> list[tuple[str, str]]:
        """Return id and owner of each task whose runner is this replica."""


class TaskWatch(Protocol):
    """The tasks that this replica follows, and the wake-ups that it receives from other replicas."""

    async def follow(self, task_id: str, owner: str) -> Record | None:
        """Return one task. From now on each replica that writes the task wakes this one."""

    async def unfollow(self, task_ids: Sequence[str]) -> None: ...

    async def is_followed_elsewhere(self, task_id: str, owner: str) -> bool:
        """Return whether another live replica follows the task, or the task has a webhook (perhaps set there)."""

    async def read_updates(self, followed: Sequence[FollowedTask]) -> list[TaskUpdate]:
        """Return the updates of these tasks, or of some, but at least one, if they are too large together."""

    async def until_woken(self, seconds: float) -> WakeUp:
        """Wait for a wake-up, at most for this time."""

    def wake_here(self) -> None:
        """Make `until_woken` return now."""


class RequestMailbox(Protocol):
    """Requests between replicas, by way of the store."""

    async def post(self, task_id: str, owner: str, runner: str, body: bytes) -> int | None:
        """Post a request to the replica that runs a task. Return its number, or None if that replica runs it no longer.

        Each body must be unique, so that a repeated call posts the request once.
        """

    async def take(self) -> list[ReplicaRequest]:
        """Take requests to this replica and return them, or an empty list. The caller calls `finish` for each."""

    async def finish(self, number: int, rejection: str = "") -> None:
        """Answer a request: it was done, or the reason why it was rejected."""

    async def answer(self, number: int) -> str | None:
        """Return the answer to a posted request: "" if it was done, the rejection, or None if it is not finished."""

    async def withdraw(self, number: int) -> bool:
        """Withdraw a posted request. Return False if it was taken before."""


class Replicas(Protocol):
    """The roles of this process, a *replica*, among the processes that share a store. Each property is one role."""

    @property
    def lease(self) -> ReplicaLease: ...

    @property
    def claims(self) -> TaskClaims: ...

    @property
    def watch(self) -> TaskWatch: ...

    @property
    def mailbox(self) -> RequestMailbox: ...


class SharedStore(Store, Protocol):
    """A store that several processes may have open at once."""

    shared: Literal[True]

    @property
    def replicas(self) -> Replicas:
        """The roles of this replica. They work while the store is open."""

    async def report_dead_process(self, pid: int) -> None:
        """Declare the replica dead that was in the process with this number, which has ended.

        The parent of that process calls it, in a process in which the store is not open.

        Raises:
            StoreUnavailableError: the store does not answer. The lease of the replica expires later.
        """


def as_shared(store: Store) -> SharedStore | None:
    """Return the store if several processes may share it, else None."""
    if getattr(store, "shared", False):
        shared: SharedStore = store  # type: ignore[assignment]  # a store with this mark has `replicas`
        return shared
    return None


class DeferringStore(Store, Protocol):
    """A store that can take a new task together with the first events of its agent (docs/lifecycle.md)."""

    def check_room(self, owner: str, size: int) -> None:
        """Raise the error of `create` if a new task of this size would be rejected now. Called before the agent runs.

        A store that only its database can answer for does nothing: it rejects the write.
        """

    def begin_create(self, change: Change) -> "asyncio.Future[None] | None":
        """Store a new task like `create`, in the order of the calls and with the result of `append`.

        A store whose `check_room` has accepted the task in the same iteration of the event loop accepts this write.
        """


def as_deferring(store: Store) -> DeferringStore | None:
    """Return the store if it can take new tasks with their first events, else None."""
    # A subclass with a `create` or an `append` of its own has to see every write.
    writes = {"begin_create", "create", "append"}
    nearest = next((kind for kind in type(store).__mro__ if writes & vars(kind).keys()), object)
    if "begin_create" not in vars(nearest):
        return None
    deferring: DeferringStore = store  # type: ignore[assignment]  # it has the method, and `check_room` with it
    return deferring


class TaskListResult(Struct, frozen=True):
    """One page of a `TaskStore`."""

    tasks: Sequence[Task]
    next_cursor: str | None = None


class SavedPushConfig(PushConfig, frozen=True):
    """The argument of `TaskStore.save_push_config`: a push config, and the version of A2A in which it was set.

    If a store returns the config without the version, events are delivered in 1.0 after a restart.
    """

    a2a_version: str = "1.0"


@runtime_checkable
class TaskStore(Protocol):
    """The small contract: a class with these seven methods can store the tasks of one process.

    Example:
        >>> from apcore_a2a import InMemoryTaskStore, TaskStore
        >>> isinstance(InMemoryTaskStore(), TaskStore)
        True
    """

    async def save(self, task: Task) -> None:
        """Store a task, replacing an earlier version with the same id. Preserve all of its JSON values.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     await store.save(Task(id="t-1", status=TaskStatus(state=TaskState.WORKING)))
        """

    async def get(self, task_id: str) -> Task | None:
        """Return the task as it was last saved, or None.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     task = await store.get("t-1")
            ...     print(None if task is None else task.status.state)
        """

    async def list(self, context_id: str | None, cursor: str | None, limit: int) -> TaskListResult:
        """Return at most `limit` tasks in a fixed order, of one conversation or of all, after `cursor`.

        The cursor is the `next_cursor` of the previous page.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     page = await store.list(None, None, 50)
            ...     print([task.id for task in page.tasks], page.next_cursor)
        """

    async def delete(self, task_id: str) -> bool:
        """Remove a task and return whether it existed.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     print(await store.delete("t-1"))
        """

    async def save_push_config(self, task_id: str, config: PushConfig) -> None:
        """Store the webhook of a task.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     await store.save_push_config("t-1", PushConfig(url="https://me.example.com/hook"))
        """

    async def get_push_config(self, task_id: str) -> PushConfig | None:
        """Return the webhook of a task, or None.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     config = await store.get_push_config("t-1")
            ...     print(None if config is None else config.url)
        """

    async def delete_push_config(self, task_id: str) -> bool:
        """Remove the webhook of a task and return whether it existed.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     print(await store.delete_push_config("t-1"))
        """


# The methods by name, so that an error can list the missing ones: `isinstance` with a protocol only returns a boolean.
METHODS: Final = ("delete", "delete_push_config", "get", "get_push_config", "list", "save", "save_push_config")


def missing_methods(store: object) -> list[str]:
    """Return the names of the methods of `TaskStore` that an object lacks."""
    missing: list[str] = []
    for name in METHODS:
        method = getattr(store, name, None)
        if not callable(method):
            missing.append(name)
    return missing
