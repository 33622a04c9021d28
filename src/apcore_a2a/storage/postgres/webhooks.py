"""Webhooks in the database: cursors on the events of their tasks, each claimed by one replica at a time.

Invariant: an event that is stored while its task has a webhook is due for that webhook as soon as it is committed (by a
trigger, see `schema`). All times are measured by the server's clock. Every query names the owner, except those of the
delivery, which acts for all owners.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import asyncpg

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Document, encode
from apcore_a2a.storage.contract import ALL_EVENTS, MAX_WEBHOOKS, Backlog, Claim, DeliveryReport, Webhook
from apcore_a2a.storage.postgres import reads
from apcore_a2a.storage.postgres.connection import Connection
from apcore_a2a.storage.postgres.parts import OpenStore
from apcore_a2a.storage.postgres.statements import to_bytes, to_text
from apcore_a2a.storage.sql import STATES, decode_push_config

_COLUMNS: Final = "config, a2a_version, delivered, latest, attempts, failed, reason"
_WAITING: Final = "NOT failed AND delivered < latest"
_NOW: Final = "coalesce($1, extract(epoch FROM clock_timestamp()))"

# Locked, so that no event is stored between this read and the write that follows.
_FIND_TASK: Final = "SELECT number, state, version FROM task WHERE id = $1 AND owner = $2 FOR UPDATE"
_RENEW: Final = f"""
    UPDATE webhook SET config = $3, a2a_version = $4, due = 0, claim = claim + 1,
        attempts = 0, failed = FALSE, reason = ''
    WHERE task = $1 AND id = $2 RETURNING {_COLUMNS}
"""
_ADD: Final = f"""
    INSERT INTO webhook (task, id, config, a2a_version, delivered, latest, since)
    VALUES ($2, $3, $4, $5, $6, $7, {_NOW}) RETURNING {_COLUMNS}
"""
_REMOVE: Final = """
    WITH removed AS (
        DELETE FROM webhook USING task
        WHERE webhook.task = number AND task.id = $1 AND owner = $2 AND webhook.id = $3 RETURNING number
    )
    UPDATE task SET webhooks = webhooks - 1 FROM removed WHERE task.number = removed.number RETURNING TRUE
"""
_OF_TASK: Final = f"""
    SELECT {_COLUMNS} FROM task LEFT JOIN webhook ON webhook.task = number
    WHERE task.id = $1 AND owner = $2 ORDER BY webhook.id
"""
_FAILED: Final = f"""
    SELECT {_COLUMNS} FROM webhook JOIN task ON number = webhook.task
    WHERE failed AND owner = $1 ORDER BY number LIMIT $2
"""
_CLAIM: Final = f"""
    UPDATE webhook SET due = {_NOW} + $2, claim = claim + 1
    FROM (
        SELECT task, id, due FROM webhook WHERE {_WAITING} AND due <= {_NOW} ORDER BY due LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS next, task
    WHERE webhook.task = next.task AND webhook.id = next.id AND task.number = webhook.task
    RETURNING {_COLUMNS}, owner, claim, next.due AS was_due
"""
_SETTLE: Final = f"""
    UPDATE webhook SET delivered = $2, attempts = $3, failed = $4, reason = $5, due = {_NOW} + $6
    FROM task WHERE webhook.task = number AND task.id = $7 AND owner = $8 AND webhook.id = $9 AND claim = $10
    RETURNING TRUE
"""
_BACKLOG: Final = f"""
    SELECT count(*) FILTER (WHERE {_WAITING}) AS waiting,
        coalesce(sum(latest - delivered) FILTER (WHERE {_WAITING}), 0) AS events,
        count(*) FILTER (WHERE failed) AS failed,
        coalesce(greatest({_NOW} - min(since) FILTER (WHERE {_WAITING}), 0), 0)::double precision AS oldest
    FROM webhook WHERE failed OR ({_WAITING})
"""


class PostgresWebhooks:
    """The webhooks of the tasks in a database: a `WebhookStore`."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        return await self._store.parts.database.call(reads.events, task_id, owner, after, limit)

    async def save(self, webhook: Webhook, owner: str) -> Webhook | None:
        return await self._store.parts.database.call(_save, webhook, owner, self._now())

    async def of_task(self, task_id: str, owner: str) -> Sequence[Webhook] | None:
        rows = await self._fetch(_OF_TASK, to_bytes(task_id), to_bytes(owner))
        if not rows:
            return None
        return [_to_webhook(row) for row in rows if row["config"] is not None]  # NULL: the task has no webhook

    async def remove(self, task_id: str, owner: str, config_id: str) -> bool:
        return bool(await self._fetch(_REMOVE, to_bytes(task_id), to_bytes(owner), to_bytes(config_id)))

    async def failed(self, owner: str, limit: int) -> Sequence[Webhook]:
        return [_to_webhook(row) for row in await self._fetch(_FAILED, to_bytes(owner), limit)]

    async def claim(self, limit: int, lease: float) -> Sequence[Claim]:
        rows = await self._fetch(_CLAIM, self._now(), lease, limit)
        rows.sort(key=itemgetter("was_due"))
        return [Claim(_to_webhook(row), to_text(row["owner"]), row["claim"]) for row in rows]

    async def settle(self, claim: Claim, report: DeliveryReport) -> bool:
        config = claim.webhook.config
        values = (report.delivered, report.attempts, report.failed, report.reason, report.pause)
        key = (to_bytes(config.task_id), to_bytes(claim.owner), to_bytes(config.id), claim.number)
        return bool(await self._fetch(_SETTLE, self._now(), *values, *key))

    async def task_at(self, task_id: str, owner: str, version: int) -> Document | None:
        return await self._store.parts.database.call(reads.task_at, task_id, owner, version)

    async def backlog(self) -> Backlog:
        (row,) = await self._fetch(_BACKLOG, self._now())
        return Backlog(webhooks=row["waiting"], events=row["events"], failed=row["failed"], oldest=row["oldest"])

    def _now(self) -> float | None:
        """Return the time of the test's clock, or None for the server's."""
        return self._store.parts.retention.now()

    async def _fetch(self, statement: str, *values: object) -> list[asyncpg.Record]:
        return await self._store.parts.database.call(_fetch, statement, *values)


async def _fetch(connection: Connection, statement: str, *values: object) -> list[asyncpg.Record]:
    return await connection.fetch(statement, *values)


async def _save(connection: Connection, webhook: Webhook, owner: str, now: float | None) -> Webhook | None:
    config = webhook.config
    async with connection.transaction():
        task = await connection.fetchrow(_FIND_TASK, to_bytes(config.task_id), to_bytes(owner))
        if task is None:
            return None
        number = task["number"]
        values = (to_bytes(config.id), encode(config), webhook.a2a_version)
        row = await connection.fetchrow(_RENEW, number, *values)
        if row is None:
            others = await connection.fetchval("SELECT count(*) FROM webhook WHERE task = $1", number)
            if others >= MAX_WEBHOOKS:
                raise InvalidParamsError(f"A task has {MAX_WEBHOOKS} webhooks at most; delete one first")
            version = task["version"]
            delivered = version - 1 if STATES[task["state"]] in AT_REST else version
            row = await connection.fetchrow(_ADD, now, number, *values, delivered, version)
            # The row of the task changes, too, so that a write that waits for the row sees the webhook.
            await connection.execute("UPDATE task SET webhooks = webhooks + 1 WHERE number = $1", number)
        assert row is not None  # it has just been written
        return _to_webhook(row)


def _to_webhook(row: Any) -> Webhook:  # Any: a row of `_COLUMNS`
    return Webhook(
        config=decode_push_config(row["config"]),
        a2a_version=row["a2a_version"],
        delivered=row["delivered"],
        latest=row["latest"],
        attempts=row["attempts"],
        failed=row["failed"],
        reason=row["reason"],
    )
