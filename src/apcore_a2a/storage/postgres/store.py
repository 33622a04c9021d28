"""The PostgreSQL store: passes each write to the writer, and each read to a connection of a small pool.

The docstring of the package explains the design: `schema` has the tables, `statements` and `writer` the writes, `reads`
the reads, `replicas` and `notifications` the cooperation of replicas, `connection` the connections and their errors.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Literal
from urllib.parse import parse_qsl, urlsplit

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.storage.contract import ALL_EVENTS, ALL_OWNERS, Change, Page, Query, Record, Usage
from apcore_a2a.storage.postgres import reads
from apcore_a2a.storage.postgres.connection import FAILURES, Connection, Database, opening_error, parse_address
from apcore_a2a.storage.postgres.parts import PostgresParts, open_parts
from apcore_a2a.storage.postgres.replicas import PostgresReplicas
from apcore_a2a.storage.postgres.schema import check_name
from apcore_a2a.storage.postgres.statements import make_write, to_bytes
from apcore_a2a.storage.postgres.webhooks import PostgresWebhooks
from apcore_a2a.storage.postgres.writer import RetentionRule
from apcore_a2a.storage.sql import DEFAULT_TTL, ReadOption, read_options

logger = logging.getLogger(__name__)

ORPHANS_AT_ONCE: Final = 100  # the others are left to other replicas, or to the next claim
MAX_OUTAGE: Final = 1.0  # seconds without an answer of the database, after which new tasks are rejected at once

# The options of a store URL, with the functions that parse them.
_OPTIONS: Final[dict[str, ReadOption]] = {"ttl": float, "max_tasks": int, "lease": float}


class PostgresStore:
    """Stores tasks and their events in a PostgreSQL database, for any number of processes at once.

    Ended tasks are stored for `ttl` seconds. The database holds at most `max_tasks` tasks. A process that does not
    renew its lease within `lease` seconds is declared dead, and the others take over its tasks.

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
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not ttl > 0 or (max_tasks is not None and max_tasks < 1):
            raise ValueError("ttl and max_tasks must be positive")
        if not lease >= 1:
            raise ValueError("lease must be one second or more")
        self.address = parse_address(url, _OPTIONS)
        check_name(self.address.schema)
        self.lease = lease
        self.retention = RetentionRule(ttl=ttl, max_tasks=max_tasks, clock=clock)
        self._opened: PostgresParts | None = None
        self.webhooks = PostgresWebhooks(self)
        self.replicas = PostgresReplicas(self, lease=lease)

    @classmethod
    def from_url(cls, url: str) -> "PostgresStore":
        """Return the store of a URL: `postgresql://user:password@host/database`.

        Options follow as `?name=value`: those of the constructor, `schema`, and those of asyncpg.

        Example:
            >>> PostgresStore.from_url("postgresql://agent@db.internal/agents?ttl=86400&sslmode=require").durable
            True
        """
        given = parse_qsl(urlsplit(url).query, keep_blank_values=True)
        return cls(url, **read_options(given, _OPTIONS))

    async def open(self) -> None:
        """Connect, and create or migrate the tables.

        Raises:
            StoreUnavailableError: the database cannot be used. The text says why, and what to do.
        """
        try:
            self._opened = await open_parts(self.address, self.retention)
            await self.replicas.lease.join()
            await self._opened.writer.open()
        except (*FAILURES, ValueError, StoreUnavailableError) as error:
            await self.close()
            raise opening_error(error, self.address) from error

    async def close(self) -> None:
        """Finish queued writes, leave the other replicas, and close the connections."""
        opened = self._opened
        if opened is None:
            return
        await opened.writer.close()
        await opened.notifications.close()
        try:
            await self.replicas.lease.leave()
        except StoreUnavailableError:
            logger.warning("lease not released: other replicas take over the tasks when it expires")
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

    async def check(self) -> None:
        await self.database.call(_ping)

    def trouble(self) -> str:
        if self._opened is None:
            return "the task store is not open"
        return self._opened.condition.trouble

    async def create(self, change: Change, *, key: str = "") -> str | None:
        parts = self.parts
        # Running tasks wait until the database is back. New ones are rejected, because their senders can retry.
        if parts.condition.outage_seconds > MAX_OUTAGE:
            raise StoreUnavailableError
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        parts.writer.submit(make_write(change, future, is_new=True, key=key))
        return await future

    async def find_key(self, key: str, owner: str) -> str | None:
        return await self.database.call(reads.find_key, key, owner)

    def append(self, change: Change) -> "asyncio.Future[None]":
        parts = self.parts
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parts.writer.submit(make_write(change, future, is_new=False))
        return future

    async def remove(self, task_id: str, owner: str) -> bool:
        parts = self.parts
        is_removed = await parts.database.call(_remove, task_id, owner)
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

    async def page(self, query: Query) -> Page:
        parts = self.parts
        return await parts.database.call(reads.page, query, parts.tokens)

    async def usage(self, quota_key: str) -> Usage:
        if quota_key == ALL_OWNERS:
            return await self.database.call(reads.total_usage)
        return await self.database.call(reads.usage_of_quota_key, quota_key)


async def _ping(connection: Connection) -> None:
    await connection.fetchval("SELECT 1")


async def _remove(connection: Connection, task_id: str, owner: str) -> bool:
    status = await connection.execute(
        "DELETE FROM task WHERE id = $1 AND owner = $2", to_bytes(task_id), to_bytes(owner)
    )
    return status == "DELETE 1"
