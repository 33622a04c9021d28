"""The condition of its file that the SQLite store reports: the reason, its duration, and the log."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Query, trouble_of
from apcore_a2a.storage.sqlite.database import SQLiteTuning, Trouble
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.storage.contract import ALICE, Author, append, assert_holds, write_task
from tests.storage.failing_disks import damage
from tests.storage.sqlite_spy import Spy

LARGE = "x" * 100_000


def fill_disk(writer: Spy) -> None:
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count={pages}")


def make_room(writer: Spy) -> None:
    writer.execute("PRAGMA max_page_count=1000000")


@pytest.mark.parametrize("tuning", [SQLiteTuning(probe_interval=0.0)])
async def test_a_full_disk_is_reported_until_there_is_room_even_if_small_writes_succeed(
    sqlite: SQLiteStore, writer: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    author = await write_task(sqlite, Author("t"), TaskState.WORKING)
    assert trouble_of(sqlite) == ""
    fill_disk(writer)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            await append(sqlite, author.rival().chunk(LARGE))
    await append(sqlite, author.chunk("small"))
    for _ in range(3):
        assert trouble_of(sqlite) == Trouble.FULL.value
        with pytest.raises(StoreUnavailableError):
            await sqlite.check()
    assert [record.message for record in caplog.records] == [f"task store unhealthy: {Trouble.FULL.value}"]
    make_room(writer)
    await sqlite.check()
    assert trouble_of(sqlite) == ""
    await append(sqlite, author.chunk(LARGE))
    await assert_holds(sqlite, author)


@pytest.mark.parametrize("tuning", [SQLiteTuning(probe_interval=1e9)])
async def test_a_failing_disk_is_probed_once_per_interval(sqlite: SQLiteStore, writer: Spy) -> None:
    author = await write_task(sqlite, Author("t"), TaskState.WORKING)
    fill_disk(writer)
    with pytest.raises(StoreUnavailableError):
        await append(sqlite, author.rival().chunk(LARGE))
    with pytest.raises(StoreUnavailableError):
        await sqlite.check()  # the only probe
    make_room(writer)
    with pytest.raises(StoreUnavailableError):
        await sqlite.check()


@pytest.mark.parametrize("tuning", [SQLiteTuning(log_interval=0.0)])
async def test_one_kind_of_trouble_is_logged_again_after_the_log_interval(
    sqlite: SQLiteStore, writer: Spy, caplog: pytest.LogCaptureFixture
) -> None:
    author = await write_task(sqlite, Author("t"), TaskState.WORKING)
    fill_disk(writer)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await append(sqlite, author.rival().chunk(LARGE))
    assert len(caplog.records) >= 2


@pytest.mark.parametrize("tuning", [SQLiteTuning(probe_interval=0.0)])
async def test_a_probe_leaves_no_row_behind(sqlite: SQLiteStore, writer: Spy, connections: list[Spy]) -> None:
    author = await write_task(sqlite, Author("t"), TaskState.WORKING)
    fill_disk(writer)
    with pytest.raises(StoreUnavailableError):
        await append(sqlite, author.rival().chunk(LARGE))
    make_room(writer)
    await sqlite.check()
    assert connections[1].execute("SELECT count(*) FROM document").fetchone() == (0,)


async def test_a_check_writes_nothing(sqlite: SQLiteStore, writer: Spy) -> None:
    await write_task(sqlite, Author("t"), TaskState.WORKING)
    log = sqlite.path.with_name("tasks.db-wal")
    before = (log.stat().st_mtime_ns, log.read_bytes(), writer.total_changes)
    for _ in range(10):
        await sqlite.check()
    assert (log.stat().st_mtime_ns, log.read_bytes(), writer.total_changes) == before


async def test_a_lock_of_another_program_is_reported_while_it_is_held(
    sqlite: SQLiteStore, writer: Spy, connections: list[Spy]
) -> None:
    writer.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(sqlite.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError):
        await sqlite.check()
    assert trouble_of(sqlite) == Trouble.LOCKED.value
    other.execute("ROLLBACK")
    other.close()
    await sqlite.check()
    assert trouble_of(sqlite) == ""


async def test_damage_is_reported_permanently_and_other_writes_succeed(
    sqlite: SQLiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    await write_task(sqlite, Author("before"), TaskState.WORKING)
    await sqlite.close()
    damage(sqlite.path, "task_context")
    await sqlite.open()
    assert trouble_of(sqlite) == Trouble.DAMAGED.value
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            await sqlite.page(Query(owner=ALICE, limit=1, context_id="talk"))
    assert trouble_of(sqlite) == Trouble.DAMAGED.value
    await sqlite.check()
    assert trouble_of(sqlite) == Trouble.DAMAGED.value
    assert [record.message for record in caplog.records] == [f"task store unhealthy: {Trouble.DAMAGED.value}"]


async def test_a_closed_store_reports_that_it_is_not_open(tmp_path: Path) -> None:
    assert trouble_of(SQLiteStore(tmp_path / "tasks.db")) == "the task store is not open"


async def test_reasons_contain_no_path_and_no_text_of_sqlite(sqlite: SQLiteStore) -> None:
    await write_task(sqlite, Author("t"))
    sqlite.path.rename(sqlite.path.with_name("moved.db"))
    with pytest.raises(StoreUnavailableError) as caught:
        await sqlite.check()
    assert trouble_of(sqlite) == Trouble.GONE.value
    assert "tasks.db" not in caught.value.message + trouble_of(sqlite)
    for read in (sqlite.load("t", ALICE), sqlite.events("t", ALICE, 0), sqlite.page(Query(owner=ALICE, limit=1))):
        with pytest.raises(StoreUnavailableError):
            await read
    with pytest.raises(StoreUnavailableError):
        await sqlite.create(Author("u").create())


# ---- the lock --------------------------------------------------------------------------------------------------------

SWITCH = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('PRAGMA journal_mode=DELETE')"


def switch_journal(path: Path) -> str:
    """Return SQLite's error for another program that needs an exclusive lock on the file."""
    other = subprocess.run([sys.executable, "-c", SWITCH, path], capture_output=True, text=True, check=False)
    return other.stderr


async def test_rejecting_a_second_store_releases_no_lock_of_sqlite(sqlite: SQLiteStore) -> None:
    """If it closed a descriptor, SQLite's locks would be lost, and another program could change the file."""
    await write_task(sqlite, Author("t"))
    with pytest.raises(StoreUnavailableError, match="in use"):
        await SQLiteStore(sqlite.path).open()
    assert "database is locked" in switch_journal(sqlite.path)


SIDE_LOCK = SQLiteTuning(locks_file_itself=False)  # as on systems where a lock on the file itself would exclude SQLite


async def test_with_a_lock_file_a_second_store_is_rejected_and_removing_the_lock_file_is_noticed(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "tasks.db", tuning=SIDE_LOCK)
    await store.open()
    await store.check()
    (tmp_path / "link.db").symlink_to(store.path)
    for path in (store.path, tmp_path / "link.db"):
        with pytest.raises(StoreUnavailableError, match="in use"):
            await SQLiteStore(path, tuning=SIDE_LOCK).open()
    (tmp_path / "tasks.db.lock").unlink()
    with pytest.raises(StoreUnavailableError):
        await store.check()
    await store.close()
    await store.open()
    await store.check()
    await store.close()


async def test_a_directory_in_place_of_the_lock_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tasks.db.lock").mkdir()
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        await SQLiteStore(tmp_path / "tasks.db", tuning=SIDE_LOCK).open()
