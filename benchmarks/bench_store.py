"""The speed of the stores, memory compared with SQLite: writes, reads by id, and the disk space of a chunk.

python -m benchmarks.bench_store [--quick]
"""

import asyncio
import tempfile
import time
import tracemalloc
from pathlib import Path
from uuid import uuid4

from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Query, Store
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.storage.sqlite.store import SQLiteStore
from benchmarks.measuring import FULL, Findings, Plan, Table, bytes_written, percentile, ratio, run_alone
from tests.storage.contract import ALICE, Author, append

MANY = 10_000_000
CONCURRENCY = (1, 16, 100)
CHUNK = "x" * 1000


def make_stores(folder: Path) -> dict[str, Store]:
    stores: dict[str, Store] = {"memory": InMemoryTaskStore(max_capacity=MANY, max_bytes=1000 * MANY)}
    for synchronous in ("NORMAL", "FULL"):
        path = folder / f"{uuid4()}.db"
        stores[f"sqlite {synchronous}"] = SQLiteStore(path, synchronous=synchronous, max_tasks=MANY)
    return stores


async def live(store: Store, chunks: int = 1) -> Author:
    """Write one task from its creation to its end."""
    author = Author(str(uuid4()), context_id=str(uuid4()))
    await store.create(author.create())
    await append(store, author.work())
    for _ in range(chunks):
        await append(store, author.chunk(CHUNK))
    await append(store, author.complete())
    return author


async def run_many(store: Store, tasks: int, concurrency: int) -> list[Author]:
    authors: list[Author] = []

    async def work() -> None:
        for _ in range(tasks // concurrency):
            author = await live(store)
            authors.append(author)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    return authors


async def bench_writes(found: Findings, folder: Path, writes: int) -> None:
    rates: dict[str, list[float]] = {}
    for name, store in make_stores(folder).items():
        await store.open()
        rates[name] = []
        for concurrency in CONCURRENCY:
            tasks = max(writes // 4 // (4 if concurrency == 1 else 1), concurrency)
            started = time.perf_counter()
            done = len(await run_many(store, tasks, concurrency))
            rates[name].append(4 * done / (time.perf_counter() - started))
        await store.close()
    rows = [
        [name, ratio(rates["memory"][1] / taken[1]), *(f"{rate:,.0f}" for rate in taken)]
        for name, taken in rates.items()
    ]
    columns = ("store", "memory is … times as fast (16)", *(f"{n} at a time: writes/s" for n in CONCURRENCY))
    note = "Without a server. A task is 4 writes: create, working, a chunk of 1 kB, completed."
    found.add(Table("Stores alone: writes", columns, rows, note))


async def bench_reads(found: Findings, folder: Path, stored: int) -> None:
    rows = []
    for name, store in list(make_stores(folder).items())[:2]:
        await store.open()
        authors = await run_many(store, stored, 1000)
        ids = [author.task.id for author in authors[:: max(len(authors) // 5000, 1)]]
        loads = [await timed(store, task_id) for task_id in ids]
        started = time.perf_counter()
        for _ in range(5):
            await store.page(Query(owner=ALICE, limit=50))
        page = (time.perf_counter() - started) / 5
        await store.close()
        times = (percentile(loads, 0.5), percentile(loads, 0.99), page)
        rows.append([name, *(f"{1e6 * seconds:,.1f}" for seconds in times)])
    columns = ("store", "load p50 µs", "load p99 µs", "page of 50 µs")
    found.add(Table("Stores alone: reads", columns, rows, f"Of {stored:,} tasks, one read after the other."))


async def timed(store: Store, task_id: str) -> float:
    started = time.perf_counter()
    assert await store.load(task_id, ALICE) is not None
    return time.perf_counter() - started


async def bench_chunks(found: Findings, folder: Path) -> None:
    rows = []
    for count in FULL.chunks:
        store = SQLiteStore(folder / f"{uuid4()}.db")
        await store.open()
        author = Author(str(uuid4()), context_id=str(uuid4()))
        await store.create(author.create())
        await append(store, author.work())
        started, before = time.perf_counter(), bytes_written()
        for first in range(0, count, 64):
            futures = [store.append(author.chunk(CHUNK)) for _ in range(first, min(first + 64, count))]
            await asyncio.wait(futures)
        each = (time.perf_counter() - started) / count
        await append(store, author.complete())
        await store.close()
        written = (bytes_written() - before) / count
        rows.append([f"{count:,}", f"{1e6 * each:.0f}", f"{store.path.stat().st_size / count:,.0f}", f"{written:,.0f}"])
    columns = ("chunks in one task", "µs each", "bytes in the file each", "bytes written each")
    found.add(Table("SQLite alone: chunks of 1 kB", columns, rows, "64 under way at a time."))


async def bench_memory(found: Findings, tasks: int = 10_000) -> None:
    store = InMemoryTaskStore(max_capacity=MANY, max_bytes=1000 * MANY)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(tasks):
        author = Author(str(uuid4()), context_id=str(uuid4()))
        await store.create(author.create())
        await append(store, author.status(TaskState.CANCELED))
    each = (tracemalloc.get_traced_memory()[0] - before) / tasks
    tracemalloc.stop()
    rows = [["tasks without artifacts", f"{tasks:,}", f"{each:,.0f}"]]
    found.add(Table("Memory store alone", ("what", "stored", "bytes each"), rows))


def bench(found: Findings, plan: Plan) -> None:
    writes = 8_000 if plan == FULL else 2_000

    async def bench_all() -> None:
        with tempfile.TemporaryDirectory() as folder:
            await bench_writes(found, Path(folder), writes)
            await bench_reads(found, Path(folder), plan.stored)
            await bench_chunks(found, Path(folder))
            await bench_memory(found, writes)

    asyncio.run(bench_all())


if __name__ == "__main__":
    run_alone(bench, __doc__)
