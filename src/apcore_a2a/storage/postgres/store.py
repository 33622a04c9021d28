"""The PostgreSQL store: passes each write to the writer, and each read to a connection of a small pool.

The docstring of the package explains the design: `schema` has the tables, `statements` and `writer` the writes, `reads`
the reads, `replicas` and `notifications` the cooperation of replicas, `connection` the connections, `failures` their
errors.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from apcore_a2a.errors import InvalidParamsError, StoreUnavailableError
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Document, encode
from apcore_a2a.storage.contract import (
    ALL_EVENTS,
    ALL_OWNERS,
    MAX_WEBHOOKS,
    Backlog,
    Change,
    Claim,
    ConversationMemory,
    DeliveryReport,
    Page,
    Query,
    Record,
    Usage,
    Webhook,
)
from apcore_a2a.storage.postgres import reads
from apcore_a2a.storage.postgres.connection import (
    MAX_OUTAGE,
    Address,
    Connection,
    Database,
    execute,
    fetch,
    fetch_value,
    opening_error,
    parse_address,
)
from apcore_a2a.storage.postgres.parts import OpenStore, PostgresParts, open_parts
from apcore_a2a.storage.postgres.replicas import PostgresReplicas, declare_dead
from apcore_a2a.storage.postgres.schema import check_name
from apcore_a2a.storage.postgres.statements import make_write, to_bytes, to_text
from apcore_a2a.storage.postgres.writer import RetentionRule
from apcore_a2a.storage.sql import DEFAULT_TTL, STATES, ReadOption, decode_push_config, read_options, read_switch

logger = logging.getLogger(__name__)

ORPHANS_AT_ONCE: Final = 100  # the others are left to other replicas, or to the next claim

# The options of a store URL, with the functions that parse them.
_OPTIONS: Final[dict[str, ReadOption]] = {
    "ttl": float,
    "max_tasks": int,
    "lease": float,
    "pool_mode": str,
    "prepared_statements": read_switch,
    "listen_url": str,
}
_OF_POOLER: Final = ("pool_mode", "prepared_statements", "listen_url")
_DELETE: Final = "DELETE FROM task WHERE id = $1 AND owner = $2"
NO_LISTEN: Final = "off"  # as `listen_url`
CLOSE_TIME: Final = 4.0  # seconds for the last writes and the release of the lease


class Pooler(NamedTuple):
    """What a connection pooler between this process and the server can do."""

    pool_mode: str = "session"
    """When it lends a connection of the server to another client: after a "session", or after each "transaction"."""
    prepared_statements: bool | None = None
    """Whether statements may be prepared under a name. None: in session mode."""
    listen_url: str | None = None
    """The address for the connection that receives notifications, or "off": then replicas poll once a second. None: the
    address of the store in session mode, "off" in transaction mode."""

    def adapt(self, address: Address) -> Address:
        """Return an address as it is used through this pooler.

        Raises:
            ValueError: the mode is unknown, or the URL for listening is not one of PostgreSQL.
        """
        if self.pool_mode not in ("session", "transaction"):
            raise ValueError(f"pool_mode must be session or transaction, not {self.pool_mode!r}")
        is_shared = self.pool_mode == "transaction"
        prepares = self.prepared_statements
        if prepares is None:
            prepares = not is_shared
        listen_dsn = self.listen_url
        if listen_dsn == NO_LISTEN:
            listen_dsn = ""
        elif listen_dsn is not None:
            try:
                listen_dsn = parse_address(listen_dsn, _OPTIONS).dsn
            except ValueError as error:
                raise ValueError(f"store_listen_url: {error}") from error
        return address._replace(shares_sessions=is_shared, prepares=prepares, listen_dsn=listen_dsn)


class PostgresStore:
    """Stores tasks and their events in a PostgreSQL database, for any number of processes at once.

    Ended tasks are stored for `ttl` seconds. The database holds at most `max_tasks` tasks. A process that does not
    renew its lease within `lease` seconds is declared dead, and the others take over its tasks.

    `pooler` describes a connection pooler, if one is between this process and the server.

    Example:
        >>> from apcore_a2a.storage.postgres.store import PostgresStore
        >>> PostgresStore("postgresql://agent@db.internal/agents", ttl=3600).durable
        True
    """

    durable = True
    shared: Literal[True] = True

    def __init__(
        self,
        url: str,
        *,
        ttl: float = DEFAULT_TTL,
        max_tasks: int | None = None,
        lease: float = 15.0,
        pooler: Pooler | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not ttl > 0 or (max_tasks is not None and max_tasks < 1):
            raise ValueError("ttl and max_tasks must be positive")
        if not lease >= 1:
            raise ValueError("lease must be one second or more")
        self.address = (pooler or Pooler()).adapt(parse_address(url, _OPTIONS))
        check_name(self.address.schema)
        self.lease = lease
        self.retention = RetentionRule(ttl=ttl, max_tasks=max_tasks, clock=clock)
        self._opened: PostgresParts | None = None
        self.webhooks = PostgresWebhooks(self)
        self.replicas = PostgresReplicas(self, lease=lease)

    @classmethod
    def from_url(cls, url: str) -> "PostgresStore":
        """Return the store of a URL: `postgresql://user:password@host/database`.

        Options follow as `?name=value`: those of the constructor and of `Pooler`, `schema`, and those of asyncpg.

        Example:
            >>> PostgresStore.from_url("postgresql://agent@db.internal/agents?ttl=86400&sslmode=require").durable
            True
        """
        given = parse_qsl(urlsplit(url).query, keep_blank_values=True)
        options = read_options(given, _OPTIONS)
        pooler = Pooler(**{name: options.pop(name) for name in _OF_POOLER if name in options})
        return cls(url, pooler=pooler, **options)

    async def open(self) -> None:
        """Connect, and create or migrate the tables.

        Raises:
            StoreUnavailableError: the database cannot be used. The text says why, and what to do.
        """
        try:
            self._opened = await open_parts(self.address, self.retention)
            await self.replicas.lease.join()
            await self._opened.writer.open()
        except Exception as error:  # no list of the exceptions of a driver is complete
            await self.close()
            raise opening_error(error, self.address) from error

    async def close(self) -> None:
        """Finish queued writes, leave the other replicas, and close the connections, in bounded time."""
        opened = self._opened
        if opened is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIME):
                await opened.writer.close()
                await self.replicas.lease.leave()
        except (StoreUnavailableError, TimeoutError):
            logger.warning("lease not released: other replicas take over the tasks when it expires")
        await opened.notifications.close()
        await opened.close()
        self._opened = None

    @property
    def database(self) -> Database:
        """The pool for reads, while the store is open."""
        return self.parts.database

    @property
    def parts(self) -> PostgresParts:
        """The parts of the store while it is open.

        Raises:
            StoreUnavailableError: it is not open.
        """
        if self._opened is None:
            raise StoreUnavailableError("The task store is not open")
        return self._opened

    async def report_dead_process(self, pid: int) -> None:
        try:
            await declare_dead(self.address, self.replicas.lease.place_of(pid))
        except Exception as error:  # no list of the exceptions of a driver is complete
            raise StoreUnavailableError from error

    async def check(self) -> None:
        await self.database.call(fetch_value, "SELECT 1")

    def trouble(self) -> str:
        if self._opened is None:
            return "the task store is not open"
        return self._opened.condition.trouble

    async def create(self, change: Change, *, key: str = "") -> str | None:
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._submit_new(change, future, key)
        return await future

    def check_room(self, owner: str, size: int) -> None:
        """Do nothing: the write finds out whether there is room."""

    def begin_create(self, change: Change) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._submit_new(change, future, "")
        return future

    def _submit_new(self, change: Change, future: "asyncio.Future[Any]", key: str) -> None:
        parts = self.parts
        # Running tasks wait until the database is back. New ones are rejected, because their senders can retry.
        if parts.condition.outage_seconds > MAX_OUTAGE:
            raise StoreUnavailableError
        parts.writer.submit(make_write(change, future, is_new=True, key=key))

    async def find_key(self, key: str, owner: str) -> str | None:
        return await self.database.call(reads.find_key, key, owner)

    def append(self, change: Change) -> "asyncio.Future[None]":
        parts = self.parts
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parts.writer.submit(make_write(change, future, is_new=False))
        return future

    async def remove(self, task_id: str, owner: str) -> bool:
        parts = self.parts
        is_removed = bool(await parts.database.call(execute, _DELETE, to_bytes(task_id), to_bytes(owner)))
        parts.writer.forget(to_bytes(task_id))
        if is_removed:
            parts.writer.note_removal()
        return is_removed

    async def orphans(self) -> list[Record]:
        return await self.replicas.claims.claim_orphans(ORPHANS_AT_ONCE)

    async def load(self, task_id: str, owner: str) -> Record | None:
        return await self.database.call(reads.load, task_id, owner)

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        return await self.database.call(reads.events, task_id, owner, after, limit)

    async def conversation(self, owner: str, context_id: str) -> ConversationMemory:
        return await self.database.call(reads.conversation, owner, context_id)

    async def page(self, query: Query) -> Page:
        parts = self.parts
        return await parts.database.call(reads.page, query, parts.tokens)

    async def usage(self, quota_key: str) -> Usage:
        if quota_key == ALL_OWNERS:
            return await self.database.call(reads.total_usage)
        return await self.database.call(reads.usage_of_quota_key, quota_key)


# ---- webhooks -------------------------------------------------------------------------------------------------------
# Webhooks in the database: cursors on the events of their tasks, each claimed by one replica at a time.
#
# Invariant: an event that is stored while its task has a webhook is due for that webhook as soon as it is committed (by
# a trigger, see `schema`). All times are measured by the server's clock. Every query names the owner, except those of
# the delivery, which acts for all owners.

_COLUMNS: Final = "config, a2a_version, delivered, latest, attempts, failed, reason"
_WAITING: Final = "NOT failed AND delivered < latest"
_NOW: Final = "coalesce($1, extract(epoch FROM clock_timestamp()))"

# Locked, so that no event is stored between this read and the write that follows.
_FIND_TASK: Final = "SELECT number, state, version FROM task WHERE id = $1 AND owner = $2 FOR UPDATE"
_RENEW: Final = f"""
    UPDATE webhook SET config = $3, a2a_version = $4, due = 0, claim = claim + 1, holder = '',
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
    UPDATE webhook SET due = {_NOW} + $2, claim = claim + 1, holder = $4
    FROM (
        SELECT task, id, due FROM webhook WHERE {_WAITING} AND due <= {_NOW} ORDER BY due LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS next, task
    WHERE webhook.task = next.task AND webhook.id = next.id AND task.number = webhook.task
    RETURNING {_COLUMNS}, owner, claim, next.due AS was_due
"""
_SETTLE: Final = f"""
    UPDATE webhook SET delivered = $2, attempts = $3, failed = $4, reason = $5, due = {_NOW} + $6,
        holder = CASE WHEN $4 OR $2 >= latest THEN '' ELSE holder END
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
        rows = await self._fetch(_CLAIM, self._now(), lease, limit, self._store.parts.writer.replica)
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
        return await self._store.parts.database.call(fetch, statement, *values)


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
