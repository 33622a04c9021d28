"""The store itself: hands each write to the writer thread, and each read to a connection of its own.

Rule: a write is answered when it is committed, and a read never waits for a write (WAL). The parts: `schema` the file,
`tables` what is written, `webhooks` what concerns them alone, `writer` the thread that writes, `reads` what is read,
`database_file` its lock, `condition` what is wrong with it; the package tells how they fit.
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
from apcore_a2a.storage.contract import ALL, Backlog, Change, Claim, DeliveryReport, Page, Query, Record, Usage, Webhook
from apcore_a2a.storage.cursor import PageTokens
from apcore_a2a.storage.sql import DEFAULT_TTL, ReadOption, read_options
from apcore_a2a.storage.sqlite import reads, webhooks
from apcore_a2a.storage.sqlite.database import DatabaseFile, FileCondition, SQLiteTuning
from apcore_a2a.storage.sqlite.schema import connect_reader, connect_writer, read_page_key
from apcore_a2a.storage.sqlite.writer import AgeClock, SQLiteWriter, Tables, take_snapshot

READER_THREADS: Final = 4

# How each option of a store URL is read from its text.
_OPTIONS: Final[dict[str, ReadOption]] = {"synchronous": str.upper, "ttl": float, "max_tasks": int}

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class MoreSQLiteOptions(TypedDict, total=False):
    """Rarely used options of `SQLiteStore`."""

    monotonic: Callable[[], float]
    """The clock that measures the time while the process runs."""
    tuning: SQLiteTuning


class SQLiteStore:
    """Keeps tasks and their events in one file; finished tasks for `ttl` seconds, at most `max_tasks` in all.

    `synchronous="NORMAL"` loses nothing when the process is killed, but may lose the last moments when the power fails;
    "FULL" waits for the disk at every commit, and loses nothing then either.

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
        """`sqlite:///tasks.db` is relative, `sqlite:////var/lib/tasks.db` absolute; options follow as `?ttl=86400`.

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
        # One slash ends the (empty) host, as in SQLAlchemy's URLs: what follows is the path, absolute with a fourth.
        return cls(unquote(parts.path[1:]), **options)

    async def open(self) -> None:
        """Open the file, or make it.

        Raises:
            StoreUnavailableError: another process has the file, or it is none we can use; the text says which.
        """
        # In a thread: bringing an older file up to date may take a while.
        connections = await asyncio.to_thread(_Connections, self.path, self._synchronous, self._tuning)
        tables = Tables(connections.writer, ttl=self._ttl, max_tasks=self._max_tasks, clock=self._clock)
        self._opened = _OpenDatabase(connections, tables, self._tuning)
        try:
            await self._opened.submit(webhooks.release_all)
        except BaseException:
            await self.close()  # or the file would stay locked, and could not be opened again
            raise

    async def close(self) -> None:
        """Write what is still to be written, and let go of the file."""
        if self._opened is not None:
            opened = self._opened
            await opened.writer.close()  # reads go on until the last write is made
            self._opened = None
            await asyncio.to_thread(opened.connections.close)

    @property
    def _database(self) -> "_OpenDatabase":
        if self._opened is None:
            raise StoreUnavailableError("The task store is not open")
        return self._opened

    async def check(self) -> None:
        # In the writer thread, which looks after the file and tries a failing disk again; nothing is written otherwise.
        await self._database.writer.check()

    def trouble(self) -> str:
        if self._opened is None:
            return "the task store is not open"
        return self._opened.condition.describe()

    async def create(self, change: Change, *, key: str = "") -> str | None:
        return await self._database.submit(Tables.create, take_snapshot(change), key)

    async def find_key(self, key: str, owner: str) -> str | None:
        return await self._database.submit(Tables.find_key, key, owner)  # behind the writes that are on their way

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
        # One row by its key is read on the spot: with a million tasks 15 µs, where a thread takes 80 µs to answer.
        row = self._database.read_now(reads.find, task_id, owner)
        if row is None:
            return None
        document = row.document
        if document is not None:
            return reads.to_record(row, document)
        return await self._database.read(reads.load, task_id, owner)

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL) -> Sequence[bytes] | None:
        return await self._database.read(reads.events, task_id, owner, after, limit)

    async def page(self, query: Query) -> Page:
        database = self._database
        return await database.read(reads.page, query, database.connections.tokens)

    async def usage(self, quota_key: str) -> Usage:
        return await self._database.read(reads.usage, quota_key)


class SQLiteWebhooks:
    """The webhooks of the tasks in a store's file: a `WebhookStore`."""

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
        # A look first: most of the time there is nothing to claim, and a transaction is not free.
        if not self._database.read_now(webhooks.is_due, self._clock.monotonic()):
            return []
        return await self._database.submit(webhooks.claim, limit, lease)

    async def settle(self, claim: Claim, report: DeliveryReport) -> bool:
        return await self._database.submit(webhooks.settle, claim, report)

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL) -> Sequence[bytes] | None:
        return await self._store.events(task_id, owner, after, limit)

    async def task_at(self, task_id: str, owner: str, version: int) -> Document | None:
        return await self._database.read(reads.task_at, task_id, owner, version)

    async def backlog(self) -> Backlog:
        return await self._database.read(webhooks.backlog, self._clock.wall())


class _Connections:
    """The lock, the connections and the threads that read; what is opened last is closed first, so the lock goes last.

    Should opening fail halfway, the stack closes what is open by then.
    """

    def __init__(self, path: Path, synchronous: str, tuning: SQLiteTuning) -> None:
        connection_class = tuning.connection_class
        with ExitStack() as stack:
            self.file = stack.enter_context(closing(DatabaseFile(path, tuning)))
            path = self.file.path
            self.writer = stack.enter_context(closing(connect_writer(path, synchronous, connection_class)))
            self.reader = stack.enter_context(
                closing(connect_reader(path, connection_class))
            )  # for reads in the event loop
            self.idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()
            for _ in range(READER_THREADS):
                self.idle.put(stack.enter_context(closing(connect_reader(path, connection_class))))
            self.tokens = PageTokens(read_page_key(self.reader))
            self.file.watch()
            self.threads = stack.enter_context(ThreadPoolExecutor(READER_THREADS, "apcore-a2a-sqlite-reader"))
            self.close = stack.pop_all().close


class _OpenDatabase:
    """A store's database while it is open: one thread writes, a few read, and short reads are made on the spot."""

    def __init__(self, connections: _Connections, tables: Tables, tuning: SQLiteTuning) -> None:
        self.connections = connections
        self.tables = tables
        self.condition = FileCondition(tuning)
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
            connection = self.connections.idle.get()  # does not wait: there are as many as threads
            try:
                return read(connection, *args)
            except sqlite3.Error as error:
                raise self.condition.read_failed(error) from error
            finally:
                self.connections.idle.put(connection)

        self._raise_if_gone()
        return await self._loop.run_in_executor(self.connections.threads, run)

    def _raise_if_gone(self) -> None:
        """What is in a file that nobody can find any more would be gone after a restart: it is not shown, either."""
        if self.condition.is_gone:
            raise StoreUnavailableError
