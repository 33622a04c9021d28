"""`SQLiteStore`, which passes each write to the writer thread, and each read to a connection for reading.

Invariant: a write is acknowledged after its commit, and a read never waits for a write (WAL). The docstring of the
package describes the modules.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypedDict, TypeVar, TypeVarTuple, Unpack
from urllib.parse import parse_qsl, unquote, urlsplit

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import Document
from apcore_a2a.storage.contract import (
    ALL_EVENTS,
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
from apcore_a2a.storage.cursor import PageTokens
from apcore_a2a.storage.sql import DEFAULT_TTL, ReadOption, read_options
from apcore_a2a.storage.sqlite import reads, webhooks
from apcore_a2a.storage.sqlite.database import DatabaseFile, FileCondition, SQLiteTuning, find_damage
from apcore_a2a.storage.sqlite.schema import connect_reader, connect_writer, read_page_key
from apcore_a2a.storage.sqlite.writer import AgeClock, SQLiteWriter, Tables, take_snapshot

READER_THREADS: Final = 4

# The options of a store URL, with the functions that parse them.
_OPTIONS: Final[dict[str, ReadOption]] = {"synchronous": str.upper, "ttl": float, "max_tasks": int}

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class MoreSQLiteOptions(TypedDict, total=False):
    """Rarely used options of `SQLiteStore`."""

    monotonic: Callable[[], float]
    """The clock that measures the time while the process runs."""
    tuning: SQLiteTuning


class SQLiteStore:
    """Stores at most `max_tasks` tasks and their events in one file, finished tasks for `ttl` seconds.

    With `synchronous="NORMAL"`, nothing is lost when the process is killed, but a power failure may lose the last
    commits. With "FULL", every commit waits for the disk, and a power failure loses nothing either.

    Example:
        >>> from apcore_a2a.storage.sqlite.store import SQLiteStore
        >>> SQLiteStore("tasks.db", ttl=3600).durable
        True
    """

    durable = True

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: str = "NORMAL",
        ttl: float = DEFAULT_TTL,
        max_tasks: int = 1_000_000,
        clock: Callable[[], float] = time.time,
        **more: Unpack[MoreSQLiteOptions],
    ) -> None:
        unknown = sorted(more.keys() - MoreSQLiteOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"SQLiteStore has no parameter {', '.join(unknown)}")
        if synchronous not in ("NORMAL", "FULL"):
            raise ValueError(f"synchronous is NORMAL or FULL, not {synchronous!r}")
        if not (ttl > 0 and max_tasks > 0):
            raise ValueError("ttl and max_tasks must be positive")
        if str(path) in ("", ".", ":memory:"):
            raise ValueError("an SQLite store needs the path of a file")
        self.path = Path(path)
        self._synchronous = synchronous
        self._ttl = ttl
        self._max_tasks = max_tasks
        self._clock = AgeClock(clock, more.get("monotonic", time.monotonic))
        self._tuning = more.get("tuning", SQLiteTuning())
        self._opened: _OpenDatabase | None = None
        self.webhooks = SQLiteWebhooks(self, self._clock)

    @classmethod
    def from_url(cls, url: str) -> "SQLiteStore":
        """Return a store for a URL.

        `sqlite:///tasks.db` is a relative path, `sqlite:////var/lib/tasks.db` an absolute one. Options follow as in
        `?ttl=86400`.

        Example:
            >>> SQLiteStore.from_url("sqlite:////var/lib/tasks.db?synchronous=FULL").path.as_posix()
            '/var/lib/tasks.db'
        """
        parts = urlsplit(url)
        if parts.scheme != "sqlite" or parts.netloc or not parts.path.startswith("/") or parts.fragment:
            raise ValueError(f"a store URL has the form sqlite:///path, not {url!r}")
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(given.keys() - _OPTIONS.keys())
        if unknown:
            raise ValueError(f"unknown option in a store URL: {', '.join(unknown)} (known: {', '.join(_OPTIONS)})")
        options = read_options(given.items(), _OPTIONS)
        # The third slash ends the (empty) host, as in SQLAlchemy's URLs. The path follows: absolute with a fourth
        # slash.
        return cls(unquote(parts.path[1:]), **options)

    async def open(self) -> None:
        """Open the file, or create it.

        Raises:
            StoreUnavailableError: another process uses the file, or it is not usable. The text gives the reason.
        """
        # In a thread, because migrating an older file may take a while.
        connections = await asyncio.to_thread(_Connections, self.path, self._synchronous, self._tuning)
        tables = Tables(connections.writer, ttl=self._ttl, max_tasks=self._max_tasks, clock=self._clock)
        self._opened = _OpenDatabase(connections, tables, self._tuning)
        try:
            await self._opened.submit(webhooks.release_all)
        except BaseException:
            await self.close()  # otherwise the file would stay locked, and could not be opened again
            raise

    async def close(self) -> None:
        """Complete the waiting writes, and release the file."""
        if self._opened is not None:
            opened = self._opened
            await opened.writer.close()  # reads are still served until the last write is done
            self._opened = None
            await asyncio.to_thread(opened.connections.close)

    @property
    def _database(self) -> "_OpenDatabase":
        if self._opened is None:
            raise StoreUnavailableError("The task store is not open")
        return self._opened

    async def check(self) -> None:
        # In the writer thread, which checks the file, and probes the disk only if it has failed before.
        await self._database.writer.check()

    def trouble(self) -> str:
        if self._opened is None:
            return "the task store is not open"
        return self._opened.condition.describe()

    async def create(self, change: Change, *, key: str = "") -> str | None:
        return await self._database.submit(Tables.create, take_snapshot(change), key)

    def check_room(self, owner: str, size: int) -> None:
        """Do nothing: the write finds out whether there is room."""

    def begin_create(self, change: Change) -> "asyncio.Future[None]":
        return self._database.submit(Tables.create_without_key, take_snapshot(change))

    async def find_key(self, key: str, owner: str) -> str | None:
        return await self._database.submit(Tables.find_key, key, owner)  # after the writes in the queue

    def append(self, change: Change) -> "asyncio.Future[None]":
        return self._database.submit(Tables.append, take_snapshot(change))

    async def remove(self, task_id: str, owner: str) -> bool:
        return await self._database.submit(Tables.remove, task_id, owner)

    async def orphans(self) -> list[Record]:
        claimed = await self._database.submit(Tables.claim_orphans)
        orphans: list[Record] = []
        for task_id, owner in claimed:
            record = await self._database.read(reads.load, task_id, owner)
            if record is not None:
                orphans.append(record)
        return orphans

    async def load(self, task_id: str, owner: str) -> Record | None:
        # One row by its key is read in the event loop: it takes 15 µs with a million tasks, and a thread takes 80 µs.
        row = self._database.read_now(reads.find, task_id, owner)
        if row is None:
            return None
        document = row.document
        if document is not None:
            return reads.to_record(row, document)
        return await self._database.read(reads.load, task_id, owner)

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        return await self._database.read(reads.events, task_id, owner, after, limit)

    async def conversation(self, owner: str, context_id: str) -> ConversationMemory:
        return await self._database.read(reads.conversation, owner, context_id)

    async def page(self, query: Query) -> Page:
        database = self._database
        return await database.read(reads.page, query, database.connections.tokens)

    async def usage(self, quota_key: str) -> Usage:
        return await self._database.read(reads.usage, quota_key)


class SQLiteWebhooks:
    """The `WebhookStore` of the tasks in a store's file."""

    def __init__(self, store: SQLiteStore, clock: AgeClock) -> None:
        self._store = store
        self._clock = clock

    @property
    def _database(self) -> "_OpenDatabase":
        return self._store._database

    async def save(self, webhook: Webhook, owner: str) -> Webhook | None:
        return await self._database.submit(webhooks.save, webhook, owner)

    async def of_task(self, task_id: str, owner: str) -> Sequence[Webhook] | None:
        return self._database.read_now(webhooks.of_task, task_id, owner)

    async def remove(self, task_id: str, owner: str, config_id: str) -> bool:
        return await self._database.submit(webhooks.remove, task_id, owner, config_id)

    async def failed(self, owner: str, limit: int) -> Sequence[Webhook]:
        return await self._database.read(webhooks.failed, owner, limit)

    async def claim(self, limit: int, lease: float) -> Sequence[Claim]:
        # A read first: usually there is nothing to claim, and a write transaction is expensive.
        if not self._database.read_now(webhooks.is_due, self._clock.monotonic()):
            return []
        return await self._database.submit(webhooks.claim, limit, lease)

    async def settle(self, claim: Claim, report: DeliveryReport) -> bool:
        return await self._database.submit(webhooks.settle, claim, report)

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL_EVENTS) -> Sequence[bytes] | None:
        return await self._store.events(task_id, owner, after, limit)

    async def task_at(self, task_id: str, owner: str, version: int) -> Document | None:
        return await self._database.read(reads.task_at, task_id, owner, version)

    async def backlog(self) -> Backlog:
        return await self._database.read(webhooks.backlog, self._clock.wall())


class _Connections:
    """The lock, the connections and the reader threads, closed in reverse order, so that the lock is released last.

    If opening fails halfway, the stack closes what has been opened.
    """

    def __init__(self, path: Path, synchronous: str, tuning: SQLiteTuning) -> None:
        connection_class = tuning.connection_class
        with ExitStack() as stack:
            self.file = stack.enter_context(closing(DatabaseFile(path, tuning)))
            path = self.file.path
            self.writer = stack.enter_context(closing(connect_writer(path, synchronous, connection_class)))
            # For reads in the event loop.
            self.reader = stack.enter_context(closing(connect_reader(path, connection_class)))
            self.idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()
            for _ in range(READER_THREADS):
                self.idle.put(stack.enter_context(closing(connect_reader(path, connection_class))))
            self.tokens = PageTokens(read_page_key(self.reader))
            self.damage = find_damage(self.reader, path)
            self.file.watch()
            self.threads = stack.enter_context(ThreadPoolExecutor(READER_THREADS, "apcore-a2a-sqlite-reader"))
            self.close = stack.pop_all().close


class _OpenDatabase:
    """A store's open database: one thread writes, a few threads read, and short reads run in the event loop."""

    def __init__(self, connections: _Connections, tables: Tables, tuning: SQLiteTuning) -> None:
        self.connections = connections
        self.tables = tables
        self.condition = FileCondition(tuning)
        if connections.damage:
            self.condition.damage_found(connections.damage)
        self.writer = SQLiteWriter(tables, connections.file, self.condition, tuning)
        self._loop = asyncio.get_running_loop()

    def submit(self, apply: Callable[[Tables, *Arguments], T], *args: *Arguments) -> "asyncio.Future[T]":
        return self.writer.submit(apply, self.tables, *args)

    def read_now(self, read: Callable[[sqlite3.Connection, *Arguments], T], *args: *Arguments) -> T:
        self._raise_if_gone()
        try:
            return read(self.connections.reader, *args)
        except sqlite3.Error as error:
            raise self.condition.read_failed(error) from error

    async def read(self, read: Callable[[sqlite3.Connection, *Arguments], T], *args: *Arguments) -> T:
        def run() -> T:
            connection = self.connections.idle.get()  # never blocks: there are as many connections as threads
            try:
                return read(connection, *args)
            except sqlite3.Error as error:
                raise self.condition.read_failed(error) from error
            finally:
                self.connections.idle.put(connection)

        self._raise_if_gone()
        return await self._loop.run_in_executor(self.connections.threads, run)

    def _raise_if_gone(self) -> None:
        """Reject reads from a file that is gone, because its tasks would be missing after a restart."""
        if self.condition.is_gone:
            raise StoreUnavailableError
