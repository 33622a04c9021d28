"""How fast the stores are, memory beside SQLite: writes, reads by id, and what a chunk costs on disk.

python -m benchmarks.bench_store [--rows 100000] [--writes 8000]
"""

import argparse
import asyncio
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.storage.sqlite import SQLiteStore
from apcore_a2a.storage.task_store import Query, Store
from tests.storage.contract import ALICE, Author, append

MANY = 10_000_000
CONCURRENCY = (1, 16, 100)
CHUNK = "x" * 1000


def make_stores(folder: Path) -> dict[str, Store]:
    stores: dict[str, Store] = {"memory": InMemoryTaskStore(max_capacity=MANY)}
    for synchronous in ("NORMAL", "FULL"):
        path = folder / f"{uuid4()}.db"
        stores[f"sqlite {synchronous}"] = SQLiteStore(path, synchronous=synchronous, max_tasks=MANY)
    return stores


async def live(store: Store, chunks: int = 1) -> Author:
    """One task from its creation to its end."""
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


async def bench_writes(folder: Path, writes: int) -> None:
    print("writes per second (a task is 4 writes: create, working, a chunk of 1 kB, completed)")
    print(f"  {'concurrent writers':<20}" + "".join(f"{n:>10}" for n in CONCURRENCY))
    for name, store in make_stores(folder).items():
        await store.open()
        rates = []
        for concurrency in CONCURRENCY:
            tasks = max(writes // 4 // (4 if concurrency == 1 else 1), concurrency)
            started = time.perf_counter()
            done = len(await run_many(store, tasks, concurrency))
            rates.append(4 * done / (time.perf_counter() - started))
        await store.close()
        print(f"  {name:<20}" + "".join(f"{rate:>10,.0f}" for rate in rates))


async def bench_reads(folder: Path, rows: int) -> None:
    print(f"reads with {rows:,} tasks stored, microseconds")
    print(f"  {'':<20}{'load p50':>10}{'load p99':>10}{'page of 50':>12}")
    for name, store in list(make_stores(folder).items())[:2]:
        await store.open()
        authors = await run_many(store, rows, 1000)
        ids = [author.task.id for author in authors[:: max(len(authors) // 5000, 1)]]
        loads = sorted([await timed(store, task_id) for task_id in ids])
        started = time.perf_counter()
        for _ in range(5):
            await store.page(Query(owner=ALICE, limit=50))
        page = (time.perf_counter() - started) / 5
        await store.close()
        p50, p99 = (1e6 * loads[len(loads) * share // 100] for share in (50, 99))
        print(f"  {name:<20}{p50:>10.1f}{p99:>10.1f}{1e6 * page:>12,.0f}")


async def timed(store: Store, task_id: str) -> float:
    started = time.perf_counter()
    assert await store.load(task_id, ALICE) is not None
    return time.perf_counter() - started


async def bench_chunks(folder: Path, counts: Sequence[int] = (100, 1000, 10_000)) -> None:
    print("one task of chunks of 1 kB on SQLite, 64 under way at a time; for each chunk:")
    print(f"  {'chunks':<20}{'µs':>10}{'bytes in file':>16}{'bytes written':>16}")
    for count in counts:
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
        print(f"  {count:<20,}{1e6 * each:>10.0f}{store.path.stat().st_size / count:>16,.0f}{written:>16,.0f}")


def bytes_written() -> int:
    """What this process has written so far: with the log, its checkpoints and all. 0 where the system does not say."""
    counters = Path("/proc/self/io")
    return int(counters.read_text().split("wchar: ")[1].split()[0]) if counters.exists() else 0


async def bench_memory(tasks: int = 10_000) -> None:
    store = InMemoryTaskStore(max_capacity=MANY)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(tasks):
        author = Author(str(uuid4()), context_id=str(uuid4()))
        await store.create(author.create())
        await append(store, author.status(TaskState.CANCELED))
    each = (tracemalloc.get_traced_memory()[0] - before) / tasks
    tracemalloc.stop()
    print(f"memory store, {tasks:,} tasks without artifacts: {each:,.0f} bytes each")


async def main() -> None:
    parser = argparse.ArgumentParser(description="How fast the stores are.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--writes", type=int, default=8_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        await bench_writes(Path(folder), options.writes)
        await bench_reads(Path(folder), options.rows)
        await bench_chunks(Path(folder))
        await bench_memory()


if __name__ == "__main__":
    asyncio.run(main())
