"""The writes of the SQLite store: their cost, their order, and the removal of expired tasks."""

import asyncio
import contextlib
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace

from apcore_a2a.errors import StaleWriteError
from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import Query
from apcore_a2a.storage.sqlite.database import SQLiteTuning
from apcore_a2a.storage.sqlite.store import READER_THREADS, SQLiteStore
from tests.storage.contract import ALICE, TTL, Author, Clock, append, assert_holds, hook, ids, timestamp, write_task
from tests.storage.sqlite_spy import Spy

# ---- the cost of writes ----------------------------------------------------------------------------------------------


async def test_a_chunk_costs_its_own_size_however_long_the_task(sqlite: SQLiteStore, writer: Spy) -> None:
    author = Author(str(uuid4()), owner=str(uuid4()), context_id=str(uuid4()))
    author.run = b"r" * 50_000
    author.memo = b"m" * 50_000
    await write_task(sqlite, author, TaskState.WORKING)
    costs = []
    for _ in range(10):
        before = writer.bytes
        for _ in range(100):
            await append(sqlite, author.chunk("x" * 1000))
        costs.append((writer.bytes - before) / 100_000)
    before = writer.bytes
    await append(sqlite, author.complete())
    costs.append((writer.bytes - before) / 1000)
    assert max(costs) <= 1.3
    await assert_holds(sqlite, author)


async def test_a_small_task_is_stored_as_a_document_when_it_comes_to_rest(
    sqlite: SQLiteStore, connections: list[Spy]
) -> None:
    author = await write_task(sqlite, Author("t"), TaskState.WORKING)
    await append(sqlite, author.chunk("x" * 1000))
    await append(sqlite, author.complete())
    rows = connections[1].execute("SELECT version, body FROM document").fetchall()
    assert rows == [(author.version, encode(author.task))]


async def test_the_task_is_stored_as_it_was_at_the_call_even_if_it_changes_later(sqlite: SQLiteStore) -> None:
    author = await write_task(sqlite, Author("t"), TaskState.WORKING)
    change = author.chunk("written")
    expected = encode(author.task)
    future = sqlite.append(change)
    author.status(TaskState.INPUT_REQUIRED)  # changes the same task, and is never written
    await future
    record = await sqlite.load("t", ALICE)
    assert record is not None
    assert (record.document.body, record.state) == (expected, TaskState.WORKING)


async def test_cancelling_the_wait_does_not_cancel_the_write(sqlite: SQLiteStore) -> None:
    author = Author("t")
    waiting = asyncio.ensure_future(sqlite.create(author.create()))
    await asyncio.sleep(0)  # the write is in the queue now
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await append(sqlite, author.work())
    await assert_holds(sqlite, author)


async def test_an_event_advances_the_webhooks_of_its_task_in_the_same_commit(
    sqlite: SQLiteStore, connections: list[Spy]
) -> None:
    author = await write_task(sqlite, Author("t"))
    await write_task(sqlite, Author("without"), TaskState.WORKING)
    for name in ("a", "b"):
        await sqlite.webhooks.save(hook(config_id=name), ALICE)
    await append(sqlite, author.work())
    await append(sqlite, author.chunk("x", "y"))
    with pytest.raises(StaleWriteError):
        await append(sqlite, Author("t").work())
    rows = connections[1].execute("SELECT task, id, delivered, latest FROM webhook").fetchall()
    assert rows == [(1, "a", 1, 4), (1, "b", 1, 4)]
    await sqlite.remove("t", ALICE)
    for table in ("webhook", "event", "document", "private"):
        key = "key >> 32" if table == "event" else "task"
        assert connections[1].execute(f"SELECT count(*) FROM {table} WHERE {key} = 1").fetchone() == (0,)


# ---- expiry ----------------------------------------------------------------------------------------------------------


async def test_expired_tasks_are_removed_gradually_without_further_writes(
    sqlite: SQLiteStore, clock: Clock, connections: list[Spy]
) -> None:
    for n in range(50):
        await write_task(sqlite, Author(f"t{n}"), TaskState.WORKING, TaskState.COMPLETED)
    clock.now += TTL
    await sqlite.check()
    async with asyncio.timeout(5):
        while (await sqlite.page(Query(owner=ALICE, limit=1))).total:
            pass
    for table in ("event", "tally"):
        assert connections[1].execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


async def ended_tasks(store: SQLiteStore, number: int) -> None:
    async with asyncio.TaskGroup() as group:
        for n in range(number):
            group.create_task(write_task(store, Author(f"t{n}"), TaskState.CANCELED))


async def test_setting_the_clock_past_the_ttl_removes_no_task_early(tmp_path: Path) -> None:
    wall, monotonic = Clock(), Clock()
    store = SQLiteStore(tmp_path / "tasks.db", ttl=TTL, clock=wall, monotonic=monotonic)
    await store.open()
    await ended_tasks(store, 20)
    wall.now += 10 * TTL
    for _ in range(20):
        await store.check()
    await write_task(store, Author("after the jump"), TaskState.CANCELED)
    assert (await store.page(Query(owner=ALICE, limit=1))).total == 21
    monotonic.now += TTL
    for _ in range(20):
        await store.check()
    assert await ids(store, Query(owner=ALICE, limit=100)) == ["after the jump"]
    wall.now -= 20 * TTL  # setting the clock back removes no further task
    await store.check()
    assert (await store.page(Query(owner=ALICE, limit=1))).total == 1
    await store.close()


@pytest.mark.parametrize("tuning", [SQLiteTuning(max_swept=32)])
async def test_one_interval_removes_a_limited_number_of_expired_tasks_and_logs_a_warning(
    sqlite: SQLiteStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await ended_tasks(sqlite, 100)
    clock.now += TTL
    await sqlite.check()
    async with asyncio.timeout(5):
        while not caplog.records:
            await sqlite.load("t0", ALICE)
            await asyncio.sleep(0)
    left = (await sqlite.page(Query(owner=ALICE, limit=1))).total
    assert 100 - 2 - 32 <= left < 100
    await sqlite.page(Query(owner=ALICE, limit=1))
    assert (await sqlite.page(Query(owner=ALICE, limit=1))).total == left
    assert [record.message for record in caplog.records] == ["many tasks have expired at once: check the system clock"]


# ---- the cost of reads -----------------------------------------------------------------------------------------------


async def test_a_read_visits_only_the_rows_that_it_returns(sqlite: SQLiteStore, connections: list[Spy]) -> None:
    async with asyncio.TaskGroup() as group:
        for n in range(1000):
            group.create_task(write_task(sqlite, Author(f"t{n}", context_id="crowd")))
        for n in range(3):
            group.create_task(write_task(sqlite, Author(f"r{n}", context_id="quiet")))
    work = count()
    for reader in connections[1:]:
        reader.set_progress_handler(lambda: next(work) < 0, 10)  # called every 10 steps of SQLite's virtual machine
    quiet = Query(owner=ALICE, limit=10, context_id="quiet")
    costs = []
    for query in (
        quiet,
        replace(quiet, by_creation=True),
        replace(quiet, state=TaskState.SUBMITTED),
        Query(owner=ALICE, limit=10),
        Query(owner=ALICE, limit=10, state=TaskState.SUBMITTED),
        Query(owner=ALICE, limit=10, changed_since=timestamp()),
    ):
        before = next(work)
        await sqlite.page(query)
        costs.append(next(work) - before)
    before = next(work)
    await sqlite.load("t500", ALICE)
    costs.append(next(work) - before)
    assert max(costs) < 150


async def test_opening_a_store_reads_no_ended_task(sqlite: SQLiteStore, connections: list[Spy]) -> None:
    async with asyncio.TaskGroup() as group:
        for n in range(1000):
            group.create_task(write_task(sqlite, Author(f"t{n}"), TaskState.CANCELED))
    await sqlite.close()
    await sqlite.open()
    work = count()
    for connection in connections[-READER_THREADS - 2 :]:  # the connections of the second opening
        connection.set_progress_handler(lambda: next(work) < 0, 10)
    assert await sqlite.orphans() == []
    await write_task(sqlite, Author("new"))
    assert next(work) < 150
