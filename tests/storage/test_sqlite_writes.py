"""How the SQLite store writes: what it hands to SQLite, and what becomes of a write that SQLite cannot take."""

import asyncio
import contextlib
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from apcore_a2a.errors import StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol.model import PushConfig, TaskState, encode
from apcore_a2a.storage import sqlite_writer
from apcore_a2a.storage.sqlite import SQLiteStore
from apcore_a2a.storage.task_store import Query
from tests.storage.contract import ALICE, TTL, Author, Clock, append, assert_holds, tell


class Spy(sqlite3.Connection):
    """Counts the bytes of every value handed to SQLite."""

    bytes = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self.bytes += _size(parameters)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        rows = list(rows)
        self.bytes += sum(map(_size, rows))
        return super().executemany(sql, rows)


def _size(parameters: Iterable[object]) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in parameters)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Spy]:
    """Every connection opened from now on: the lock, the writer, the readers."""
    opened: list[Spy] = []
    connect = sqlite3.connect

    def spy(*arguments: Any, **options: Any) -> Spy:
        opened.append(connect(*arguments, factory=Spy, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", spy)
    return opened


@pytest.fixture
async def store(tmp_path: Path, clock: Clock, connections: list[Spy]) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "tasks.db", ttl=TTL, clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def writer(store: SQLiteStore, connections: list[Spy]) -> Spy:
    return connections[1]


# ---- what a write costs ----------------------------------------------------------------------------------------------


async def test_a_chunk_costs_its_own_size_however_long_the_task(store: SQLiteStore, writer: Spy) -> None:
    author = Author(str(uuid4()), owner=str(uuid4()), context_id=str(uuid4()))
    author.run = b"r" * 50_000
    author.memo = b"m" * 50_000
    await tell(store, author, TaskState.WORKING)
    costs = []
    for _ in range(10):
        before = writer.bytes
        for _ in range(100):
            await append(store, author.chunk("x" * 1000))
        costs.append((writer.bytes - before) / 100_000)
    before = writer.bytes
    await append(store, author.complete())
    costs.append((writer.bytes - before) / 1000)
    assert max(costs) <= 1.3
    await assert_holds(store, author)


async def test_a_small_task_is_kept_whole_when_it_comes_to_rest(store: SQLiteStore, connections: list[Spy]) -> None:
    author = await tell(store, Author("t"), TaskState.WORKING)
    await append(store, author.chunk("x" * 1000))
    await append(store, author.complete())
    rows = connections[2].execute("SELECT version, body FROM document").fetchall()
    assert rows == [(author.version, encode(author.task))]


async def test_the_task_is_stored_as_it_was_at_the_call_though_it_moves_on(store: SQLiteStore) -> None:
    author = await tell(store, Author("t"), TaskState.WORKING)
    change = author.chunk("written")
    expected = encode(author.task)
    future = store.append(change)
    author.status(TaskState.INPUT_REQUIRED)  # folded into the same task, never written
    await future
    record = await store.load("t", ALICE)
    assert record is not None
    assert (record.document.body, record.state) == (expected, TaskState.WORKING)


async def test_a_cancelled_wait_takes_nothing_with_it(store: SQLiteStore) -> None:
    author = Author("t")
    waiting = asyncio.ensure_future(store.create(author.create()))
    await asyncio.sleep(0)  # the write is in the queue now
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await append(store, author.work())
    await assert_holds(store, author)


async def test_every_event_of_a_task_with_a_webhook_is_put_in_the_outbox_with_it(
    store: SQLiteStore, writer: Spy, connections: list[Spy]
) -> None:
    author = await tell(store, Author("t"))
    await tell(store, Author("without"), TaskState.WORKING)
    config = encode(PushConfig(url="https://example.com"))
    writer.executemany("INSERT INTO push_config VALUES (1, ?, ?)", [("a", config), ("b", config)])
    await append(store, author.work())
    await append(store, author.chunk("x", "y"))
    with pytest.raises(StaleWriteError):
        await append(store, Author("t").work())
    rows = connections[2].execute("SELECT task, config_id, sequence FROM push_outbox").fetchall()
    assert rows == [(1, name, sequence) for name in ("a", "b") for sequence in (2, 3, 4)]
    await store.remove("t", ALICE)
    for table in ("push_config", "push_outbox", "event", "document", "private"):
        key = "key >> 32" if table == "event" else "task"
        assert connections[2].execute(f"SELECT count(*) FROM {table} WHERE {key} = 1").fetchone() == (0,)


# ---- what SQLite cannot take -----------------------------------------------------------------------------------------


async def batch(store: SQLiteStore, authors: list[Author], text: str) -> list[BaseException | None]:
    """One write of each author, all at once; the error of each."""
    futures = [store.append(author.chunk(text)) for author in authors]
    await asyncio.wait(futures, timeout=5)
    return [future.exception() for future in futures]


async def test_a_value_that_sqlite_refuses_fails_its_own_write_alone(store: SQLiteStore) -> None:
    authors = [await tell(store, Author(f"t{n}"), TaskState.WORKING) for n in range(5)]
    broken = authors[2].rival()
    broken.memo = "not bytes \ud800"  # type: ignore[assignment]  # no UTF-8, so SQLite has no way to keep it
    others = authors[:2] + authors[3:]
    *errors, error = await batch(store, [*others, broken], "x")
    assert errors == [None] * 4
    assert isinstance(error, UnicodeEncodeError)
    for author in authors:
        await assert_holds(store, author)
    assert await batch(store, authors, "and on") == [None] * 5


async def test_a_full_disk_refuses_writes_and_leaves_reads_until_there_is_room(store: SQLiteStore, writer: Spy) -> None:
    author = await tell(store, Author("t"), TaskState.WORKING)
    rival = author.rival()
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreUnavailableError) as caught:
        await append(store, rival.chunk("x" * 100_000))
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert "disk" not in caught.value.message
    with pytest.raises(StoreUnavailableError):
        for n in range(1000):
            await store.create(Author(f"one too many {n}").create())
    await assert_holds(store, author)
    assert await store.events("t", ALICE, 0) == author.records
    assert (await store.page(Query(owner=ALICE, limit=1))).total > 0

    writer.execute("PRAGMA max_page_count=1000000")
    await append(store, author.chunk("x" * 100_000))
    await assert_holds(store, author)
    await store.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted here; max_page_count stands for the full disk")
    yield path
    subprocess.run(["umount", path], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)


async def test_a_disk_that_is_really_full_loses_nothing_that_was_answered(small_disk: Path) -> None:
    store = SQLiteStore(small_disk / "tasks.db")
    await store.open()
    author = await tell(store, Author("t"), TaskState.WORKING)
    kept = author.rival()
    with pytest.raises(StoreUnavailableError):
        for _ in range(100):
            change = author.chunk("x" * 20_000)
            await append(store, change)
            kept.chunk("x" * 20_000)
    kept.memo, kept.run = author.memo, author.run
    await assert_holds(store, kept)
    enlarge(small_disk)
    await append(store, kept.chunk("room again"))
    await assert_holds(store, kept)
    await store.close()


async def test_a_lock_held_by_another_program_is_a_store_that_is_not_available(
    store: SQLiteStore, writer: Spy, tmp_path: Path
) -> None:
    author = await tell(store, Author("t"), TaskState.WORKING)
    writer.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError):
        await store.check()
    with pytest.raises(StoreUnavailableError):
        await append(store, author.rival().chunk("x"))
    await assert_holds(store, author)
    other.execute("ROLLBACK")
    other.close()
    await append(store, author.chunk("x"))
    await assert_holds(store, author)


async def test_a_disk_that_does_not_keep_up_is_a_store_that_is_not_available(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "MAX_WAITING", 0)
    with pytest.raises(StoreUnavailableError):
        await store.create(Author("t").create())


# ---- what leaves -----------------------------------------------------------------------------------------------------


async def test_expired_tasks_leave_little_by_little_without_further_writes(
    store: SQLiteStore, clock: Clock, connections: list[Spy]
) -> None:
    for n in range(50):
        await tell(store, Author(f"t{n}"), TaskState.WORKING, TaskState.COMPLETED)
    clock.now += TTL
    await store.check()
    async with asyncio.timeout(5):
        while (await store.page(Query(owner=ALICE, limit=1))).total:
            pass
    assert connections[2].execute("SELECT count(*) FROM event").fetchone() == (0,)
