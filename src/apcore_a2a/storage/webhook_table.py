"""The webhooks of stores that do not store events: their cursors, and the events that are due for delivery.

Invariant: a task has an entry here only while it has a webhook. Its events are stored from the first one that a webhook
waits for. They are dropped when the task has ended and all of its webhooks have received all of them.

A heap orders the webhooks by the time at which they are due. An entry of the heap is never changed: when the time of a
webhook changes, a new entry is pushed, and entries that no longer match their webhook are skipped.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL, join_texts
from apcore_a2a.protocol.model import Document, Task, TaskState, decode_task, encode
from apcore_a2a.storage.contract import ALL_EVENTS, MAX_WEBHOOKS, Backlog, Claim, DeliveryReport, Webhook
from apcore_a2a.storage.owner_index import StoredTask

STALE_ENTRIES: Final = 64  # maximum number of stale heap entries per task
TOO_MANY: Final = f"A task has {MAX_WEBHOOKS} webhooks at most; delete one first"


class _Row(Struct):
    """One webhook. It can be claimed from `due` on. `claim` is the number of the last claim on it."""

    webhook: Webhook
    due: float
    since: float
    """The time since which it has had undelivered events."""
    claim: int = 0


class TaskWebhooks(Struct, kw_only=True):
    """The webhooks of one task, and the events that they still need."""

    owner: str
    latest: int = 0
    base: bytes = b""
    """The task as it was before the first event in `events`. Empty if that event is the task itself."""
    first: int = 1
    """The sequence number of the first event in `events`."""
    events: list[bytes] = []
    rows: dict[str, _Row] = {}
    size: int = 0
    """The bytes stored for its webhooks, counted incrementally because a task may have many events."""
    ended: bool = False

    @property
    def is_waiting(self) -> bool:
        return any(row.webhook.is_waiting for row in self.rows.values())

    def drop_delivered(self) -> None:
        """Drop all events if the task has ended and every webhook has received every event."""
        if self.ended and all(row.webhook.delivered >= self.latest for row in self.rows.values()):
            self.size -= len(self.base) + sum(map(len, self.events))
            self.base = b""
            self.events = []
            self.first = self.latest + 1

    def add_outcome(self, document: bytes) -> None:
        """Add the task at rest as a substitute for its last event, which was not stored."""
        self.events.insert(0, b'{"task":' + document + b"}")
        self.size += len(self.events[0]) - len(self.base)
        self.base = b""
        self.first = self.latest

    def task_at(self, version: int) -> Document | None:
        if not self.first <= version <= self.latest:
            return None
        records = self.events[: version + 1 - self.first]
        if self.base:
            task = decode_task(self.base)
        else:
            first, _ = v1.decode_record(records.pop(0))
            assert isinstance(first, Task)  # because `base` is empty
            task = first
        v1.replay(task, records)
        return Document(encode(join_texts(task)), task)

    def read(self, after: int, limit: int) -> Sequence[bytes] | None:
        if after < self.first - 1:
            return None
        start = after + 1 - self.first
        return self.events[start : start + limit]


class WebhookTable:
    """All webhooks of a store. `tasks` is public for lookups. Only the methods change it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.tasks: dict[str, TaskWebhooks] = {}
        self._clock = clock
        self._due: list[tuple[float, int, str, str]] = []  # a heap: time, order of entry, task, webhook
        self._entries = count()

    def begin(self, task_id: str, owner: str, webhook: Webhook) -> None:
        """Add the webhook of a task that is being created, before its events."""
        now = self._clock()
        config = webhook.config
        task_webhooks = TaskWebhooks(owner=owner, size=len(encode(config)))
        task_webhooks.rows[config.id] = _Row(Webhook(config=config, a2a_version=webhook.a2a_version), now, now)
        self.tasks[task_id] = task_webhooks

    def save(self, webhook: Webhook, owner: str, *, document: bytes, state: TaskState, version: int) -> Webhook:
        """Add or replace a webhook of an existing task, whose present state is `document`."""
        config = webhook.config
        now = self._clock()
        task_webhooks = self.tasks.get(config.task_id)
        if task_webhooks is None:
            task_webhooks = TaskWebhooks(
                owner=owner, latest=version, base=document, first=version + 1, size=len(document)
            )
        row = task_webhooks.rows.get(config.id)
        if row is not None:
            task_webhooks.size -= len(encode(row.webhook.config))
        elif len(task_webhooks.rows) >= MAX_WEBHOOKS:
            raise InvalidParamsError(TOO_MANY)
        else:
            delivered = version
            if state in AT_REST:
                delivered = version - 1
                if task_webhooks.first > version:
                    task_webhooks.add_outcome(document)
            row = _Row(replace(webhook, delivered=delivered), now, now)
        fresh = Webhook(
            config=config, a2a_version=webhook.a2a_version, delivered=row.webhook.delivered, latest=task_webhooks.latest
        )
        task_webhooks.rows[config.id] = _Row(fresh, now, row.since, row.claim + 1)
        task_webhooks.size += len(encode(config))
        task_webhooks.ended = state in TERMINAL
        self.tasks[config.task_id] = task_webhooks
        self._schedule(config.task_id, task_webhooks.rows[config.id])
        return fresh

    def remove(self, task_id: str, config_id: str) -> bool:
        task_webhooks = self.tasks.get(task_id)
        row = task_webhooks.rows.pop(config_id, None) if task_webhooks is not None else None
        if task_webhooks is None or row is None:
            return False
        task_webhooks.size -= len(encode(row.webhook.config))
        task_webhooks.drop_delivered()
        if not task_webhooks.rows:
            del self.tasks[task_id]
        return True

    def drop_settled(self) -> None:
        """Drop the webhooks of all ended tasks, except those that wait or have failed."""
        for task_id, task_webhooks in list(self.tasks.items()):
            if task_webhooks.ended and not task_webhooks.events:
                del self.tasks[task_id]

    def add_events(self, task_id: str, events: Sequence[bytes], state: TaskState) -> None:
        """Add the events that were just written to a task with webhooks. `state` is its new state."""
        task_webhooks = self.tasks[task_id]
        task_webhooks.ended = state in TERMINAL
        now = self._clock()
        task_webhooks.events += events
        task_webhooks.size += sum(map(len, events))
        task_webhooks.latest += len(events)
        for row in task_webhooks.rows.values():
            was_waiting = row.webhook.is_waiting
            row.webhook = replace(row.webhook, latest=task_webhooks.latest)
            if not was_waiting:
                row.since = now
                self._schedule(task_id, row)

    def _schedule(self, task_id: str, row: _Row) -> None:
        if len(self._due) > STALE_ENTRIES * (len(self.tasks) + 1):
            self._sweep()
        self._push(task_id, row)

    def _push(self, task_id: str, row: _Row) -> None:
        if row.webhook.is_waiting:
            heapq.heappush(self._due, (row.due, next(self._entries), task_id, row.webhook.config.id))

    def _sweep(self) -> None:
        """Build the heap again without stale entries."""
        self._due = []
        for task_id, task_webhooks in self.tasks.items():
            for row in task_webhooks.rows.values():
                self._push(task_id, row)

    def claim(self, limit: int, lease: float) -> list[Claim]:
        claimed: list[Claim] = []
        now = self._clock()
        while self._due and self._due[0][0] <= now and len(claimed) < limit:
            due, _, task_id, config_id = heapq.heappop(self._due)
            task_webhooks = self.tasks.get(task_id)
            row = task_webhooks.rows.get(config_id) if task_webhooks is not None else None
            if task_webhooks is None or row is None or row.due != due or not row.webhook.is_waiting:
                continue  # a stale entry
            row.due = now + lease
            row.claim += 1
            self._schedule(task_id, row)  # for the end of the lease
            claimed.append(Claim(row.webhook, task_webhooks.owner, row.claim))
        return claimed

    def settle(self, claim: Claim, report: DeliveryReport) -> bool:
        config = claim.webhook.config
        task_webhooks = self.tasks.get(config.task_id)
        row = task_webhooks.rows.get(config.id) if task_webhooks is not None else None
        if task_webhooks is None or row is None or row.claim != claim.number:
            return False
        row.webhook = replace(
            row.webhook,
            delivered=report.delivered,
            attempts=report.attempts,
            failed=report.failed,
            reason=report.reason,
        )
        row.due = self._clock() + report.pause
        self._schedule(config.task_id, row)
        task_webhooks.drop_delivered()
        return True

    def failed(self, owner: str, limit: int) -> list[Webhook]:
        found: list[Webhook] = []
        for task_webhooks in self.tasks.values():
            if task_webhooks.owner != owner:
                continue
            found += [row.webhook for row in task_webhooks.rows.values() if row.webhook.failed]
        return found[:limit]

    def listed(self, task_id: str) -> list[Webhook]:
        task_webhooks = self.tasks.get(task_id)
        if task_webhooks is None:
            return []
        return [task_webhooks.rows[config_id].webhook for config_id in sorted(task_webhooks.rows)]

    def read(self, task_id: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        task_webhooks = self.tasks.get(task_id)
        if task_webhooks is None:
            return None
        return task_webhooks.read(after, limit)

    def task_at(self, task_id: str, version: int) -> Document | None:
        task_webhooks = self.tasks.get(task_id)
        if task_webhooks is None:
            return None
        return task_webhooks.task_at(version)

    def backlog(self) -> Backlog:
        webhooks = events = failed = 0
        oldest = now = self._clock()
        for task_webhooks in self.tasks.values():
            for row in task_webhooks.rows.values():
                if row.webhook.failed:
                    failed += 1
                elif row.webhook.is_waiting:
                    webhooks += 1
                    events += row.webhook.latest - row.webhook.delivered
                    oldest = min(oldest, row.since)
        return Backlog(webhooks=webhooks, events=events, failed=failed, oldest=now - oldest)


# ---- webhooks of the memory store -----------------------------------------------------------------------------------
# Invariant: whenever the bytes stored for a task's webhooks change, the store counts them again.


class MemoryWebhooks:
    """The `WebhookStore` of tasks in memory.

    `find` returns a task of an owner. `recount` is called with a task when the bytes for its webhooks have changed.
    """

    def __init__(
        self,
        table: WebhookTable,
        *,
        find: Callable[[str, str], StoredTask | None],
        recount: Callable[[StoredTask], None],
    ) -> None:
        self._table = table
        self._find = find
        self._recount = recount

    async def save(self, webhook: Webhook, owner: str) -> Webhook | None:
        stored = self._find(webhook.config.task_id, owner)
        if stored is None:
            return None
        document = stored.document().body
        saved = self._table.save(webhook, owner, document=document, state=stored.state, version=stored.version)
        self._recount(stored)
        return saved

    async def of_task(self, task_id: str, owner: str) -> Sequence[Webhook] | None:
        if self._find(task_id, owner) is None:
            return None
        return self._table.listed(task_id)

    async def remove(self, task_id: str, owner: str, config_id: str) -> bool:
        stored = self._find(task_id, owner)
        if stored is None or not self._table.remove(task_id, config_id):
            return False
        self._recount(stored)
        return True

    async def failed(self, owner: str, limit: int) -> Sequence[Webhook]:
        return self._table.failed(owner, limit)

    async def claim(self, limit: int, lease: float) -> Sequence[Claim]:
        return self._table.claim(limit, lease)

    async def settle(self, claim: Claim, report: DeliveryReport) -> bool:
        stored = self._find(claim.webhook.config.task_id, claim.owner)
        if stored is None or not self._table.settle(claim, report):
            return False
        self._recount(stored)
        return True

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        if self._find(task_id, owner) is None:
            return None
        return self._table.read(task_id, after, limit)

    async def task_at(self, task_id: str, owner: str, version: int) -> Document | None:
        stored = self._find(task_id, owner)
        if stored is None:
            return None
        if version == stored.version:
            return stored.document()
        return self._table.task_at(task_id, version)

    async def backlog(self) -> Backlog:
        return self._table.backlog()
