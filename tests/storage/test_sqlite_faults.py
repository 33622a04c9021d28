"""Writes that SQLite rejects, and their effect on other writes."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Query
from apcore_a2a.storage.sqlite.database import SQLiteTuning
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.storage.contract import ALICE, Author, append, assert_holds, write_task
from tests.storage.failing_disks import enlarge, mount_disk
from tests.storage.sqlite_spy import Brake, Spy, in_one_batch


@pytest.fixture
async def braked(tmp_path: Path) -> AsyncIterator[tuple[SQLiteStore, Brake]]:
    brake = Brake()
    store = SQLiteStore(tmp_path / "two.db", max_tasks=2, clock=brake)
    await store.open()
    yield store, brake
    await store.close()


async def test_a_value_that_sqlite_rejects_fails_only_its_own_write(braked: tuple[SQLiteStore, Brake]) -> None:
    store, _ = braked
    first, second = await write_task(store, Author("first")), Author("second")
    creation = second.create()
    broken = second.rival()
    broken.memo = "\ud800"  # type: ignore[assignment]  # not UTF-8, so SQLite cannot store it
    created, appended, refused = await in_one_batch(
        braked, store.create(creation), append(store, first.work()), append(store, broken.chunk("x"))
    )
    assert (created, appended) == (None, None)
    assert isinstance(refused, UnicodeEncodeError)
    await assert_holds(store, first)
    await assert_holds(store, second)
    assert (await store.page(Query(owner=ALICE, limit=1))).total == 2
    assert (await store.page(Query(owner=ALICE, limit=1, state=TaskState.WORKING))).total == 1
    # The failed batch left no wrong count in the cache: a third task fits when the first has ended.
    await append(store, first.status(TaskState.CANCELED))
    await write_task(store, Author("third"))


async def test_close_completes_the_waiting_writes(braked: tuple[SQLiteStore, Brake]) -> None:
    store, brake = braked
    author = await write_task(store, Author("t"), TaskState.WORKING)
    brake.released.clear()
    futures = [store.append(author.chunk(str(n))) for n in range(100)]
    assert brake.reached.wait(5)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.append(author.rival().chunk("too late"))
    brake.released.set()
    await asyncio.wait_for(closing, 5)
    assert [future.result() for future in futures] == [None] * 100
    await store.open()
    await assert_holds(store, author)


@pytest.mark.parametrize("tuning", [SQLiteTuning(probe_interval=0.0)])
async def test_a_full_disk_rejects_writes_and_serves_reads_until_there_is_room(
    sqlite: SQLiteStore, writer: Spy
) -> None:
    author = await write_task(sqlite, Author("t"), TaskState.WORKING)
    rival = author.rival()
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreUnavailableError) as caught:
        await append(sqlite, rival.chunk("x" * 100_000))
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert "disk" not in caught.value.message
    with pytest.raises(StoreUnavailableError):
        for n in range(1000):
            await sqlite.create(Author(f"one too many {n}").create())
    await assert_holds(sqlite, author)
    assert await sqlite.events("t", ALICE, 0) == author.records
    assert (await sqlite.page(Query(owner=ALICE, limit=1))).total > 0

    writer.execute("PRAGMA max_page_count=1000000")
    await append(sqlite, author.chunk("x" * 100_000))
    await assert_holds(sqlite, author)
    await sqlite.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mount_disk(tmp_path, 1)


async def test_a_full_disk_loses_no_acknowledged_write(small_disk: Path) -> None:
    store = SQLiteStore(small_disk / "tasks.db")
    await store.open()
    author = await write_task(store, Author("t"), TaskState.WORKING)
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


async def test_while_another_program_holds_a_lock_the_store_is_unavailable(
    sqlite: SQLiteStore, writer: Spy, tmp_path: Path
) -> None:
    author = await write_task(sqlite, Author("t"), TaskState.WORKING)
    writer.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError):
        await sqlite.check()
    with pytest.raises(StoreUnavailableError):
        await append(sqlite, author.rival().chunk("x"))
    await assert_holds(sqlite, author)
    other.execute("ROLLBACK")
    other.close()
    await append(sqlite, author.chunk("x"))
    await assert_holds(sqlite, author)


async def test_with_an_unreadable_file_the_store_is_unavailable(sqlite: SQLiteStore, connections: list[Spy]) -> None:
    for reader in connections[1:]:
        reader.close()
    for read in (sqlite.load("t", ALICE), sqlite.events("t", ALICE, 0), sqlite.page(Query(owner=ALICE, limit=1))):
        with pytest.raises(StoreUnavailableError):
            await read


async def test_a_failing_removal_of_expired_tasks_fails_no_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    swept = threading.Semaphore(0)

    def broken() -> float:
        swept.release()
        raise OSError("no clock")

    store = SQLiteStore(tmp_path / "tasks.db", clock=broken, tuning=SQLiteTuning(sweep_interval=0.001))
    await store.open()
    assert all(swept.acquire(timeout=5) for _ in range(3))
    author = await write_task(store, Author("t"), TaskState.WORKING)
    await assert_holds(store, author)
    await store.close()
    assert {record.message for record in caplog.records} == {"expired tasks not removed"}


async def test_with_a_full_write_queue_the_store_is_unavailable(tmp_path: Path) -> None:
    brake = Brake()
    store = SQLiteStore(tmp_path / "tasks.db", clock=brake, tuning=SQLiteTuning(max_waiting=1))
    await store.open()
    brake.released.clear()
    held = asyncio.ensure_future(store.check())
    await asyncio.sleep(0)
    assert brake.reached.wait(5)
    waiting = asyncio.ensure_future(store.check())
    await asyncio.sleep(0)  # the check is in the queue now
    with pytest.raises(StoreUnavailableError):
        await store.create(Author("t").create())
    brake.released.set()
    await asyncio.wait_for(asyncio.gather(held, waiting), 5)
    await store.close()
