"""What the engine asks of a store, and the smaller contract that any class of yours can meet.

A conversation is not stored a second time: it is the histories of the tasks of one context (`Query.context_id`).
Rules every store keeps: a write is whole or not at all; one whose version or epoch is stale changes nothing; no task is
read without its owner; a task that has not ended is never evicted; the cost of a write is the size of its events.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from apcore_a2a.protocol.model import Document, PushConfig, Task, TaskState


class Change(Struct, kw_only=True, gc=False):
    """One atomic write: the events, and the task they lead to."""

    task: Task
    """The live task with the events folded in. It moves on after the call, so a store reads it before it returns."""
    owner: str
    # Version and epoch guard against two writers: the one who comes late has a stale version, the one who was thought
    # dead, and whose task another process has claimed meanwhile, an old epoch.
    version: int
    """The number of events the task has had, these included: the sequence number of the last one."""
    epoch: int = 1
    """Which claim on the task this writer holds. A store refuses an older one than it has seen."""
    events: Sequence[bytes]
    """Each new event as `v1.encode_record` wrote it, oldest first; `v1.decode_record` reads it back."""
    document: Document | None = None
    """The task encoded; given when these events bring it to rest."""
    memo: bytes = b""
    """The agent's private JSON."""
    run: bytes = b""
    """What is being run, for another process to run it again; opaque. Empty once the task is at rest."""
    hand_on: bool = False
    """Whether any other replica may go on with it from here, where several share a store."""
    webhook: "Webhook | None" = None
    """Of a new task, if the store has webhooks: stored with it, it gets its events from the first on."""

    @property
    def expected(self) -> int:
        """The version that must be stored for this write to be taken."""
        return self.version - len(self.events)


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """A stored task, and what the engine needs to go on with it."""

    document: Document  # encoded, because most of what is read is sent as it is
    owner: str
    state: TaskState
    version: int
    epoch: int = 1
    memo: bytes = b""
    run: bytes = b""
    runner: str | None = None
    """Which replica runs it, where several share a store: its name, "" for any replica, or None for no replica."""


ALL_OWNERS: Final = "*"
"""The owner that selects the tasks of all owners in `load` and `page`, for administrators. No caller has this name."""


def stored_quota_key(owner: str) -> str:
    """Who an owner is without the tenant, which a client may make up: whose share it is of what is limited."""
    return owner.partition("\n")[0]  # as `Caller.owner` writes it


class Query(Struct, frozen=True, kw_only=True):
    """Which of an owner's tasks to list, newest first by status time (or by creation)."""

    owner: str  # without a default: nobody lists everybody's tasks because something was left out
    limit: int
    cursor: str = ""
    context_id: str = ""
    state: TaskState | None = None
    changed_since: str = ""
    """A timestamp in our own form (UTC, milliseconds, Z): texts compare as times do."""
    by_creation: bool = False


class Page(Struct, frozen=True):
    records: Sequence[Record]
    next_cursor: str
    total: int


ALL: Final = 1_000_000_000  # more events than any task has
MAX_READ_BYTES: Final = 1024 * 1024  # of events in one read, after the first
MAX_WEBHOOKS: Final = 16  # of one task


# ---- webhooks: readers of a task's log whose cursor is kept with the task --------------------------------------------


class Webhook(Struct, frozen=True, kw_only=True):
    """A push config as its owner set it, and how far the events of its task have got.

    Nothing is copied for it: the log of the task is its outbox. An event that is stored while the webhook is there is
    to be delivered because its number is above `delivered`; the write of the event is the write to the outbox.

    Whoever saves one gives `config` and `a2a_version`; the rest is the store's to fill in.
    """

    config: PushConfig
    """With its `id` and its `task_id`."""
    a2a_version: str
    """The version in which it was set, and in which its events are written."""
    delivered: int = 0
    """The sequence number of the last event that has arrived."""
    latest: int = 0
    """The sequence number of the task's last event."""
    attempts: int = 0
    """How often the next event was tried in vain."""
    failed: bool = False
    """Given up: the events above `delivered` are kept with the task as dead letters, until it is saved again."""
    reason: str = ""
    """Why the last attempt was in vain."""

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to deliver."""
        return self.delivered < self.latest and not self.failed


class Claim(Struct, frozen=True):
    """A webhook that one worker may deliver to, until its lease ends or the webhook is saved anew."""

    webhook: Webhook
    owner: str
    number: int
    """Which claim on this webhook it is: an older one can settle nothing."""


class DeliveryReport(Struct, frozen=True, kw_only=True):
    """What came of a claim. The webhook takes all of it over, and may be claimed again after `pause` seconds.

    A worker that goes on with the next event reports `pause=lease`: nobody else may claim it meanwhile.
    """

    delivered: int
    attempts: int = 0
    failed: bool = False
    reason: str = ""
    pause: float = 0.0


class Backlog(Struct, frozen=True, kw_only=True):
    """How much is still to be delivered, of all owners."""

    webhooks: int = 0
    """Those that wait for an event to be delivered."""
    events: int = 0
    failed: int = 0
    """Webhooks that were given up with events undelivered."""
    oldest: float = 0.0
    """Seconds for which the webhook that waits longest has had something undelivered."""


class Store(Protocol):
    """What the engine asks of a store. One suite, tests/storage/contract.py, holds every implementation to it."""

    durable: bool
    """Whether what was written outlives the process."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def check(self) -> None:
        """Raise StoreUnavailableError if a write would fail now."""

    async def create(self, change: Change, *, key: str = "") -> str | None:
        """Store a new task. If this owner used `key` before, write nothing and answer that task's id.

        Raises:
            OverloadedError: full of tasks that have not ended.
        """

    async def find_key(self, key: str, owner: str) -> str | None:
        """The id of the task that this owner made with `key`, if it is kept."""

    # Not `async`: the order of the calls is that of the writes, and a store that is done when the call returns, as
    # memory is, costs no turn of the loop (docs/decisions/0042).
    def append(self, change: Change) -> "asyncio.Future[None] | None":
        """Write events to a task; None when that is done, else a future for when it is durable.

        Writes are made in the order of the calls. The future (or the call) raises StaleWriteError when the expected
        version or the epoch does not match, StoreUnavailableError when the store cannot write.
        """

    async def load(self, task_id: str, owner: str) -> Record | None: ...

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL) -> Sequence[bytes] | None:
        """The next events above sequence number `after`, at most `limit`; None when they are not kept.

        Fewer if they are more than MAX_READ_BYTES together, but one at least: whoever wants the rest asks again.
        """

    async def page(self, query: Query) -> Page:
        """One page: at most `query.limit` tasks, and fewer if they would be too large together, but one at least.

        The cursor goes on exactly after the last task shown, tells nothing of other owners, and serves its own alone.

        Raises:
            InvalidParamsError: the cursor is not one that this store gave to this owner.
        """

    async def orphans(self) -> list[Record]:
        """Called once after `open`: the tasks that a dead process left running, each with its epoch raised by one."""

    async def remove(self, task_id: str, owner: str) -> bool: ...


@runtime_checkable
class WebhookStore(Protocol):
    """The webhooks of a store's tasks: what delivery asks for. Each store of ours has it as its attribute `webhooks`.

    A store without it serves an agent that has no push notifications. Webhooks go with their task. One that waits
    keeps its task and its events: a task that has ended neither expires nor makes room while a webhook of it waits. One
    that has failed keeps nobody. (A store that outlives the process may let such a task go after twice its TTL: perhaps
    webhooks were switched off meanwhile.)
    """

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL) -> Sequence[bytes] | None:
        """As in `Store`; those that a webhook waits for are kept."""

    async def save(self, webhook: Webhook, owner: str) -> Webhook | None:
        """Keep a webhook; the same as it is kept, or None if this owner has no such task.

        A new one begins after the task's last event; on a task at rest with that event, so that nobody misses an end
        that came first. One that is there (task and id) gets the new config, keeps its cursor, and is alive again:
        `failed` and `attempts` are cleared, it is due now, and a claim on it is void.

        Raises:
            InvalidParamsError: the task has MAX_WEBHOOKS others.
        """

    async def of_task(self, task_id: str, owner: str) -> Sequence[Webhook] | None:
        """Those of a task, in the order of their ids; None if this owner has no such task."""

    async def remove(self, task_id: str, owner: str, config_id: str) -> bool:
        """Forget one; a claim on it is void."""

    async def failed(self, owner: str, limit: int) -> Sequence[Webhook]:
        """Those of all tasks of an owner that were given up, at most `limit`."""

    async def claim(self, limit: int, lease: float) -> Sequence[Claim]:
        """At most `limit` webhooks that wait and are due, the longest due first, each for `lease` seconds.

        By the store's own clock; of several processes, one gets each. What a process had claimed that is known to be
        dead may be claimed at once.
        """

    async def settle(self, claim: Claim, report: DeliveryReport) -> bool:
        """Write down what came of a claim; false, and nothing is written, if the claim is void."""

    async def task_at(self, task_id: str, owner: str, version: int) -> Document | None:
        """The task as of an event that a webhook of it has not got yet, or just got; None if it is gone."""

    async def backlog(self) -> Backlog: ...


def webhooks_of(store: object) -> WebhookStore:
    """The webhooks of a store.

    Raises:
        TypeError: it keeps none.
    """
    webhooks = getattr(store, "webhooks", None)
    if not isinstance(webhooks, WebhookStore):
        raise TypeError(f"push_notifications needs a store that keeps webhooks, and {type(store).__name__} does not")
    return webhooks


class Usage(Struct, frozen=True):
    """How much is kept: tasks, and the bytes that they have as JSON, with what their agents remember."""

    tasks: int
    bytes: int


@runtime_checkable
class ReportsUsage(Protocol):
    """What a `Store` may have beside: how much it keeps of whom. One without it serves without limits of that."""

    async def usage(self, quota_key: str) -> Usage:
        """Of a quota key (`stored_quota_key`) under all its tenants; of ALL_OWNERS, all there is, perhaps an estimate.

        It costs a look at each task that is counted, so it is asked seldom.
        """


@runtime_checkable
class ReportsTrouble(Protocol):
    """What a `Store` may have beside: a word on what is wrong with it. One without it works as well."""

    def trouble(self) -> str:
        """A short reason that anybody may read, without paths; empty when all is well. Remembered, so it is cheap."""


def trouble_of(store: object) -> str:
    """What a store says is wrong with it; empty when all is well, or when it does not say."""
    if isinstance(store, ReportsTrouble):
        return store.trouble()
    return ""


# ---- several processes on one store -------------------------------------------------------------------------------


class Followed(NamedTuple):
    """A task that somebody here watches, and what is known of it."""

    task_id: str
    owner: str
    version: int


class News(Struct, gc=False):
    """What a followed task is now, and its events since."""

    task_id: str
    number: int | None
    """Of the task in the store, as `Hint.tasks` has it; None when there is no such task any more."""
    version: int | None
    epoch: int | None
    runner: str | None
    memo: bytes | None
    events: list[bytes]


class Hint(Struct, frozen=True):
    """What may have happened: to some tasks by their numbers in the store, or to any."""

    everything: bool
    commands: bool
    queue: bool
    tasks: frozenset[int] = frozenset()


class Command(NamedTuple):
    """What another replica asks of the one that runs a task; `body` is the engine's."""

    number: int
    task_id: str
    owner: str
    body: bytes


class Replicas(Protocol):
    """What a `Store` has beside when several processes share it: this process, a *replica*, among the others.

    Rules: a replica that has not renewed its lease in time, by one clock for all, may be taken for dead, and then is
    dead for good under its name; a task is claimed by one replica, and what was said under an older claim is refused
    from then on.
    """

    lease: float
    """Seconds for which a beat holds."""

    @property
    def name(self) -> str: ...

    @property
    def down_at(self) -> float:
        """When the store last said, to whomever here, that it serves nobody: then nobody was taken for dead, either."""

    async def join(self) -> None:
        """Be a replica under a new name. `open` does it; again when the lease was lost."""

    async def beat(self) -> float | None:
        """Renew the lease; None when others have taken this replica for dead, and with it all that was run here.

        Else the seconds until the next of the others may be dead; 0 or less when one of them may be now.
        """

    async def tidy(self) -> None:
        """Remove what dead replicas left behind."""

    async def claim_dead(self, limit: int) -> list[Record]:
        """Claim tasks of dead replicas, each with its epoch raised by one.

        Raises:
            StoreUnavailableError: they may be claimed all the same; `own_tasks` has them then.
        """

    async def claim_queued(self, limit: int) -> list[Record]:
        """Claim tasks that wait for any replica, the owners in turn."""

    async def count_queued(self, limit: int) -> int:
        """How many tasks wait for any replica, counted up to a limit."""

    async def claim(self, task_id: str, owner: str) -> Record | None:
        """Claim one task, whoever runs it; as it is now, if it has ended meanwhile."""

    async def own_tasks(self) -> list[tuple[str, str]]:
        """Id and owner of every task that is this replica's to go on with."""

    async def follow(self, task_id: str, owner: str) -> Record | None:
        """One task; whoever writes it from now on wakes this replica."""

    async def unfollow(self, task_ids: Sequence[str]) -> None: ...

    async def is_watched(self, task_id: str, owner: str) -> bool:
        """Whether another replica follows the task, or it has a webhook: it may have been given one there."""

    async def news(self, followed: Sequence[Followed]) -> list[News]:
        """What became of these tasks; of one at least, if it is too much at once."""

    async def until_woken(self, seconds: float) -> Hint:
        """Wait until another replica has something to say, at most so long."""

    def wake_here(self) -> None:
        """Have `until_woken` return now."""

    async def post(self, task_id: str, owner: str, runner: str, body: bytes) -> int | None:
        """Ask something of the replica that runs a task; None when it is not that one any more.

        No two bodies are the same, so that one is posted once.
        """

    async def take(self) -> list[Command]:
        """What others ask of this one, or some of it: nothing when all is taken. Each is to be finished."""

    async def finish(self, number: int, refusal: str = "") -> None:
        """It was done, or why it was not."""

    async def answer(self, number: int) -> str | None:
        """What came of a command that was posted: "" when it was done, else why not; None while it is not finished."""

    async def withdraw(self, number: int) -> bool:
        """Take a command back; false when it was taken before."""


class SharedStore(Store, Protocol):
    """A store that several processes may have open at once."""

    shared: Literal[True]

    @property
    def replicas(self) -> Replicas:
        """While it is open."""


def as_shared(store: Store) -> SharedStore | None:
    """The store, if several processes may share it."""
    if getattr(store, "shared", False):
        shared: SharedStore = store  # type: ignore[assignment]  # a store that says so has what it takes
        return shared
    return None


class TaskListResult(Struct, frozen=True):
    """One page of a `TaskStore`."""

    tasks: Sequence[Task]
    next_cursor: str | None = None


class SavedPushConfig(PushConfig, frozen=True):
    """What `TaskStore.save_push_config` is given: the config, and the version of A2A in which it was set.

    A store that gives back the config without it gets its events in 1.0 after a restart.
    """

    a2a_version: str = "1.0"


@runtime_checkable
class TaskStore(Protocol):
    """The small contract: a class with these seven methods can keep tasks, for one process.

    Example:
        >>> from apcore_a2a import InMemoryTaskStore, TaskStore
        >>> isinstance(InMemoryTaskStore(), TaskStore)
        True
    """

    async def save(self, task: Task) -> None:
        """Keep a task, in the place of what was kept under its id. It may hold anything JSON can; keep all of it.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     await store.save(Task(id="t-1", status=TaskStatus(state=TaskState.WORKING)))
        """

    async def get(self, task_id: str) -> Task | None:
        """The task as it was saved last; None if there is none.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     task = await store.get("t-1")
            ...     print(None if task is None else task.status.state)
        """

    async def list(self, context_id: str | None, cursor: str | None, limit: int) -> TaskListResult:
        """At most `limit` tasks in a fixed order, of one conversation or of all; `cursor` is where the last page ended.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     page = await store.list(None, None, 50)
            ...     print([task.id for task in page.tasks], page.next_cursor)
        """

    async def delete(self, task_id: str) -> bool:
        """Forget a task; whether there was one.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     print(await store.delete("t-1"))
        """

    async def save_push_config(self, task_id: str, config: PushConfig) -> None:
        """Keep the webhook of a task.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     await store.save_push_config("t-1", PushConfig(url="https://me.example.com/hook"))
        """

    async def get_push_config(self, task_id: str) -> PushConfig | None:
        """The webhook of a task; None if it has none.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     config = await store.get_push_config("t-1")
            ...     print(None if config is None else config.url)
        """

    async def delete_push_config(self, task_id: str) -> bool:
        """Forget the webhook of a task; whether it had one.

        Example:
            >>> async def main(store: TaskStore) -> None:
            ...     print(await store.delete_push_config("t-1"))
        """


# Spelled out, for errors that name what is missing: `isinstance` with a protocol says only yes or no.
METHODS: Final = ("delete", "delete_push_config", "get", "get_push_config", "list", "save", "save_push_config")


def missing_methods(store: object) -> list[str]:
    """The methods of `TaskStore` that an object lacks."""
    missing: list[str] = []
    for name in METHODS:
        method = getattr(store, name, None)
        if not callable(method):
            missing.append(name)
    return missing
