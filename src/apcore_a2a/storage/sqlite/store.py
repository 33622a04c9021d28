"""Tasks in an SQLite file: they survive the process; one process at a time.

Rule: a write is answered when it is committed, and a read never waits for a write (WAL). The parts: `sqlite_schema` the
file, `sqlite_tables` what is written, `sqlite_writer` the thread that does it, `sqlite_reads` what is read.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar, TypeVarTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.storage.sqlite import reads
from apcore_a2a.storage.sqlite.schema import connect_reader, connect_writer, lock_file
from apcore_a2a.storage.sqlite.tables import Tables, freeze
from apcore_a2a.storage.sqlite.writer import Writer
from apcore_a2a.storage.task_store import Change, Page, Query, Record

WEEK: Final = 7 * 24 * 3600
READER_THREADS: Final = 4

_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {"synchronous": str.upper, "ttl": float, "max_tasks": int}

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


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
        ttl: float = WEEK,
        max_tasks: int = 1_000_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if synchronous not in ("NORMAL", "FULL"):
            raise ValueError(f"synchronous is NORMAL or FULL, not {synchronous!r}")
        if not (ttl > 0 and max_tasks > 0):
            raise ValueError("ttl and max_tasks must be positive")
        if str(path) in ("", ".", ":memory:"):
            raise ValueError("an SQLite store needs the path of a file")
        self.path = Path(path)
        self._synchronous = synchronous
        self._ttl, self._max_tasks, self._clock = ttl, max_tasks, clock
        self._opened: _Opened | None = None

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
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := ", ".join(sorted(options.keys() - _OPTIONS.keys())):
            raise ValueError(f"unknown option in a store URL: {unknown} (known: {', '.join(_OPTIONS)})")
        return cls(unquote(parts.path[1:]), **{name: _OPTIONS[name](value) for name, value in options.items()})

    async def open(self) -> None:
        """Open the file, or make it.

        Raises:
            StoreUnavailableError: another process has the file, or it is none we can use; the text says which.
        """
        files = await asyncio.to_thread(_Files, self.path, self._synchronous)
        tables = Tables(files.writer, ttl=self._ttl, max_tasks=self._max_tasks, clock=self._clock)
        self._opened = _Opened(files, tables)

    async def close(self) -> None:
        """Write what is still to be written, and let go of the file."""
        if self._opened is not None:
            opened = self._opened
            await opened.writer.close()
            self._opened = None
            await asyncio.to_thread(opened.files.close)

    @property
    def _database(self) -> "_Opened":
        if self._opened is None:
            raise StoreUnavailableError("The task store is not open")
        return self._opened

    async def check(self) -> None:
        await self._database.submit(Tables.check)

    async def create(self, change: Change, *, key: str = "") -> str | None:
        return await self._database.submit(Tables.create, freeze(change), key)

    def append(self, change: Change) -> "asyncio.Future[None]":
        return self._database.submit(Tables.append, freeze(change))

    async def remove(self, task_id: str, owner: str) -> bool:
        return await self._database.submit(Tables.remove, task_id, owner)

    async def orphans(self) -> list[Record]:
        claimed = await self._database.submit(Tables.claim_orphans)
        found = [await self._database.read(reads.load, *each) for each in claimed]
        return [record for record in found if record is not None]

    async def load(self, task_id: str, owner: str) -> Record | None:
        # One row by its key is read on the spot: with a million tasks 15 µs, where a thread takes 80 µs to answer.
        row = self._database.read_now(reads.find, task_id, owner)
        if row is None or reads.is_whole(row):
            return None if row is None else reads.to_record(row)
        return await self._database.read(reads.load, task_id, owner)

    async def events(self, task_id: str, owner: str, after: int) -> Sequence[bytes] | None:
        return await self._database.read(reads.events, task_id, owner, after)

    async def page(self, query: Query) -> Page:
        return await self._database.read(reads.page, query)


class _Files:
    """The file and the connections to it; what is opened last is closed first, so the lock goes when all is done."""

    def __init__(self, path: Path, synchronous: str) -> None:
        with ExitStack() as stack:
            stack.enter_context(closing(lock_file(path)))
            self.writer = stack.enter_context(closing(connect_writer(path, synchronous)))
            self.reader = stack.enter_context(closing(connect_reader(path)))
            self.idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()
            for _ in range(READER_THREADS):
                self.idle.put(stack.enter_context(closing(connect_reader(path))))
            self.threads = stack.enter_context(ThreadPoolExecutor(READER_THREADS, "apcore-a2a-sqlite-reader"))
            self.close = stack.pop_all().close


class _Opened:
    """A store's database while it is open: one thread writes, a few read, and short reads are made on the spot."""

    def __init__(self, files: _Files, tables: Tables) -> None:
        self.files, self.tables = files, tables
        self.writer = Writer(tables)
        self._loop = asyncio.get_running_loop()

    def submit(self, apply: Callable[[Tables, *Arguments], T], *args: *Arguments) -> "asyncio.Future[T]":
        return self.writer.submit(apply, self.tables, *args)

    def read_now(self, read: Callable[[sqlite3.Connection, *Arguments], T], *args: *Arguments) -> T:
        try:
            return read(self.files.reader, *args)
        except sqlite3.Error as error:
            raise StoreUnavailableError from error

    async def read(self, read: Callable[[sqlite3.Connection, *Arguments], T], *args: *Arguments) -> T:
        def run() -> T:
            connection = self.files.idle.get()  # there are as many as threads
            try:
                return read(connection, *args)
            except sqlite3.Error as error:
                raise StoreUnavailableError from error
            finally:
                self.files.idle.put(connection)

        return await self._loop.run_in_executor(self.files.threads, run)
