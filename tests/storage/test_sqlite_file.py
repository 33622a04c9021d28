"""The tasks in the SQLite file after the process has ended, by itself or by kill -9."""

import subprocess
import sys
from pathlib import Path

import pytest

from apcore_a2a.errors import InvalidParamsError, OverloadedError, StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Query
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.requirements import requirement
from tests.sources import ROOT
from tests.storage.contract import ALICE, Author, append, assert_holds, ids, write_task

STATES = [TaskState.SUBMITTED, TaskState.WORKING, TaskState.AUTH_REQUIRED, TaskState.INPUT_REQUIRED, TaskState.FAILED]


async def reopened(store: SQLiteStore) -> SQLiteStore:
    await store.close()
    again = SQLiteStore(store.path)
    await again.open()
    return again


@requirement("FR-CTX-004")
async def test_tasks_events_and_keys_survive_the_process(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open()
    author = Author("t")
    author.memo = b"memo"
    await store.create(author.create(), key="k")
    await append(store, author.work())
    await append(store, author.chunk("a", "b"))
    store = await reopened(store)
    await assert_holds(store, author)
    assert await store.events("t", ALICE, 0) == author.records
    assert await store.create(Author("t2").create(), key="k") == "t"
    assert await ids(store, Query(owner=ALICE, limit=10, context_id="talk")) == ["t"]
    await append(store, author.complete())
    store = await reopened(store)
    await assert_holds(store, author)
    await store.close()


async def test_a_page_token_survives_the_process(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open()
    for n in range(3):
        await write_task(store, Author(f"t{n}"))
    token = (await store.page(Query(owner=ALICE, limit=1))).next_cursor
    store = await reopened(store)
    assert await ids(store, Query(owner=ALICE, limit=1, cursor=token)) == ["t1", "t0"]
    await store.close()
    elsewhere = SQLiteStore(tmp_path / "other.db")
    await elsewhere.open()
    with pytest.raises(InvalidParamsError):
        await elsewhere.page(Query(owner=ALICE, limit=1, cursor=token))
    await elsewhere.close()


async def test_a_closed_store_raises_an_error(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    with pytest.raises(StoreUnavailableError, match="not open"):
        await store.check()
    await store.open()
    author = await write_task(store, Author("t"))
    await store.close()
    await store.close()
    for attempt in (lambda: store.load("t", ALICE), lambda: store.create(author.create()), store.check):
        with pytest.raises(StoreUnavailableError, match="not open"):
            await attempt()
    with pytest.raises(StoreUnavailableError, match="not open"):
        store.append(author.work())


async def test_a_lower_limit_is_reached_task_by_task(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open()
    for n in range(6):
        await write_task(store, Author(f"t{n}"), TaskState.WORKING, TaskState.COMPLETED)
    await store.close()
    store = SQLiteStore(store.path, max_tasks=3)
    await store.open()
    totals = []
    for name in ("a", "b", "c"):
        await write_task(store, Author(name))
        totals.append((await store.page(Query(owner=ALICE, limit=1))).total)
    assert totals == [5, 4, 3]
    with pytest.raises(OverloadedError):
        await write_task(store, Author("d"))
    await store.close()


# ---- orphans of a dead process ---------------------------------------------------------------------------------------


async def test_orphans_are_the_running_tasks_each_with_a_new_claim(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open()
    authors = {}
    for state in STATES:
        authors[state] = await write_task(
            store, Author(state.name), *([TaskState.WORKING] if state in STATES[1:] else [])
        )
        if state in STATES[2:]:
            await append(store, authors[state].status(state))
    alone = await write_task(store, Author("asks for credentials, and goes on by itself"), TaskState.WORKING)
    change = alone.status(TaskState.AUTH_REQUIRED)
    change.run = alone.run
    await append(store, change)

    store = await reopened(store)
    orphans = {record.document.task().id: record for record in await store.orphans()}
    assert orphans.keys() == {"SUBMITTED", "WORKING", alone.task.id}
    for task_id, record in orphans.items():
        assert (record.epoch, record.run) == (2, alone.run)
        assert await store.load(task_id, ALICE) == record
    dead = authors[TaskState.WORKING]
    with pytest.raises(StaleWriteError):
        await append(store, dead.rival().chunk("from beyond"))
    dead.epoch = 2
    await append(store, dead.status(TaskState.FAILED))
    await assert_holds(store, dead)
    await append(store, authors[TaskState.INPUT_REQUIRED].work())
    assert len(await store.orphans()) == 3
    await store.close()


WRITER = """
import asyncio, sys
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.storage.contract import Author, append, write_task
from apcore_a2a.protocol.model import TaskState

async def write(store, name):
    author = await write_task(store, Author(name), TaskState.WORKING)
    while True:
        await append(store, author.chunk("x" * 100))
        print(name, author.version, flush=True)

async def main():
    store = SQLiteStore(sys.argv[1], synchronous=sys.argv[2])
    await store.open()
    async with asyncio.TaskGroup() as group:
        for n in range(20):
            group.create_task(write(store, f"t{n}"))

asyncio.run(main())
"""


def run_until_killed(path: Path, synchronous: str) -> dict[str, int]:
    """Return the last acknowledged version of each task of a process that was killed while it wrote."""
    command = [sys.executable, "-c", WRITER, str(path), synchronous]
    answered = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for heard, line in enumerate(child.stdout):
            if line.endswith("\n"):  # the last line may be truncated
                name, version = line.split()
                answered[name] = int(version)
            if heard == 500:
                child.kill()
    return answered


@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
async def test_acknowledged_writes_survive_kill_9(tmp_path: Path, synchronous: str) -> None:
    path = tmp_path / "tasks.db"
    answered = run_until_killed(path, synchronous)
    store = SQLiteStore(path)
    await store.open()
    assert len(answered) == 20
    for name, version in answered.items():
        record = await store.load(name, ALICE)
        events = await store.events(name, ALICE, 0)
        assert record is not None
        assert events is not None
        assert record.version >= version
        assert len(events) == record.version
        assert len(record.document.task().artifacts[0].text) == 100 * (record.version - 2)
    assert len(await store.orphans()) == 20
    await store.close()


def test_a_process_that_never_closes_its_store_can_exit(tmp_path: Path) -> None:
    source = "import asyncio, sys; from apcore_a2a.storage.sqlite.store import SQLiteStore"
    source += "; asyncio.run(SQLiteStore(sys.argv[1]).open())"
    subprocess.run([sys.executable, "-c", source, tmp_path / "tasks.db"], check=True, timeout=5)
