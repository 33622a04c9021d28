"""The files that the SQLite store opens, and the errors for others."""

import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Query
from apcore_a2a.storage.sql import CODES
from apcore_a2a.storage.sqlite.database import SQLiteTuning
from apcore_a2a.storage.sqlite.schema import APPLICATION_ID, MIGRATIONS, connect_writer, migrate
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.storage.contract import ALICE, BOB, Author, write_task


@pytest.fixture
def holder(tmp_path: Path) -> "subprocess.Popen[str]":
    """Start another process that has tmp_path/tasks.db open."""
    source = "import asyncio, sys\nfrom apcore_a2a.storage.sqlite.store import SQLiteStore\n"
    source += "asyncio.run(SQLiteStore(sys.argv[1]).open())\nprint('open', flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-c", source, str(tmp_path / "tasks.db")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    return child


async def test_a_second_process_is_rejected_until_the_first_ends_even_by_kill(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    with holder:
        with pytest.raises(StoreUnavailableError, match=f"^The task store {re.escape(str(store.path))} is in use by"):
            await store.open()
        holder.kill()
    await store.open()
    await store.check()
    await store.close()


async def test_a_second_store_in_the_same_process_is_rejected(tmp_path: Path) -> None:
    first, second = SQLiteStore(tmp_path / "tasks.db"), SQLiteStore(tmp_path / "tasks.db")
    await first.open()
    with pytest.raises(StoreUnavailableError, match="in use"):
        await second.open()
    await first.check()
    await first.close()
    await second.open()
    await second.close()


async def test_a_store_that_failed_to_open_can_be_opened_again(tmp_path: Path) -> None:
    locked = threading.Event()
    locked.set()

    class Locked(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if sql.startswith("UPDATE webhook") and locked.is_set():
                raise sqlite3.OperationalError("database is locked")
            return super().execute(sql, parameters)

    store = SQLiteStore(tmp_path / "tasks.db", tuning=SQLiteTuning(connection_class=Locked))
    with pytest.raises(StoreUnavailableError):
        await store.open()
    locked.clear()
    await store.open()
    await store.close()


async def test_a_missing_directory_is_named_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=f"there is no directory {re.escape(str(tmp_path / 'no'))}$"):
        await SQLiteStore(tmp_path / "no" / "tasks.db").open()
    assert not (tmp_path / "no").exists()


def modes(*paths: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in paths}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
async def test_a_new_file_is_private_and_an_existing_one_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "old.db").touch(mode=0o640)
    for name, mode in (("new.db", 0o600), ("old.db", 0o640)):
        store = SQLiteStore(tmp_path / name)
        await store.open()
        await store.check()
        assert modes(store.path, store.path.with_suffix(".db-wal"), store.path.with_suffix(".db-shm")) == {mode}
        await store.close()


async def test_a_directory_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "tasks.db").mkdir()
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        await SQLiteStore(tmp_path / "tasks.db").open()


async def test_a_file_that_is_not_a_database_is_rejected_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Not a database, but long enough to look like one might. " * 100)
    before = path.read_bytes()
    with pytest.raises(StoreUnavailableError, match="cannot be opened: file is not a database"):
        await SQLiteStore(path).open()
    assert path.read_bytes() == before


async def test_a_database_of_another_application_is_rejected_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE task (id)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreUnavailableError, match="not a task store of apcore-a2a"):
        await SQLiteStore(path).open()
    assert path.read_bytes() == before


async def test_a_newer_schema_is_rejected(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open()
    await store.close()
    database = sqlite3.connect(store.path)
    database.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    database.close()
    with pytest.raises(StoreUnavailableError, match=f"has schema {len(MIGRATIONS) + 1}, written by a newer apcore-a2a"):
        await store.open()


def test_an_older_schema_is_migrated_atomically(tmp_path: Path) -> None:
    database = connect_writer(tmp_path / "tasks.db", "NORMAL")
    known = len(MIGRATIONS)
    bad = (*MIGRATIONS, "CREATE TABLE one (x);", "CREATE TABLE two (x); CREATE TABLE task (x);")
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(database, bad)
    assert _header(database) == (known, APPLICATION_ID, [])
    migrate(database, bad[:-1])
    assert _header(database) == (known + 1, APPLICATION_ID, ["one"])
    migrate(database, bad[:-1])
    assert _header(database) == (known + 1, APPLICATION_ID, ["one"])
    database.close()


async def test_migrating_a_file_without_a_tally_counts_its_tasks(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    database = sqlite3.connect(store.path, isolation_level=None)
    migrate(database, MIGRATIONS[:1])
    body = b'{"id":"a","status":{"state":"TASK_STATE_WORKING"}}'
    for number, owner in enumerate((ALICE, ALICE, BOB)):
        working = (number, str(number), owner, CODES[TaskState.WORKING])
        database.execute("INSERT INTO task VALUES (?, ?, ?, '', '', ?, '', 2, 1, NULL)", working)
        database.execute("INSERT INTO document VALUES (?, 2, ?)", (number, body))
    database.close()
    await store.open()
    await write_task(store, Author("d"))
    totals = [
        (await store.page(Query(owner=owner, limit=1, state=state))).total
        for owner, state in ((ALICE, None), (ALICE, TaskState.WORKING), (BOB, None), (BOB, TaskState.SUBMITTED))
    ]
    assert totals == [3, 2, 1, 0]
    await store.close()


def _header(database: sqlite3.Connection) -> tuple[int, int, list[str]]:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    application = database.execute("PRAGMA application_id").fetchone()[0]
    new = database.execute("SELECT name FROM sqlite_master WHERE name IN ('one', 'two')").fetchall()
    return version, application, [name for (name,) in new]


# ---- store URLs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///tasks.db", "tasks.db"),
        ("sqlite:///data/my%20tasks.db", "data/my tasks.db"),
        ("sqlite:////var/lib/tasks.db?synchronous=full&ttl=60&max_tasks=5", "/var/lib/tasks.db"),
        ("sqlite:///tasks.db?ttl=inf", "tasks.db"),
    ],
)
def test_a_url_names_a_file(url: str, path: str) -> None:
    assert SQLiteStore.from_url(url).path == Path(path)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgres:///x", "has the form sqlite:///path"),
        ("sqlite://host/x.db", "has the form sqlite:///path"),
        ("sqlite:x.db", "has the form sqlite:///path"),
        ("sqlite:///x.db#part", "has the form sqlite:///path"),
        ("sqlite:///", "needs the path of a file"),
        ("sqlite:///:memory:", "needs the path of a file"),
        ("sqlite:///x.db?sync=1&ttl=5", "unknown option in a store URL: sync "),
        ("sqlite:///x.db?synchronous=OFF", "synchronous is NORMAL or FULL, not 'OFF'"),
        ("sqlite:///x.db?ttl=nan", "must be positive"),
        ("sqlite:///x.db?ttl=0", "must be positive"),
        ("sqlite:///x.db?max_tasks=0", "must be positive"),
        ("sqlite:///x.db?max_tasks=many", "max_tasks in a store URL must be a number, not 'many'"),
    ],
)
def test_an_invalid_url_is_a_value_error(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        SQLiteStore.from_url(url)
