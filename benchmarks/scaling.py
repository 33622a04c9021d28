"""The capacity of one PostgreSQL: the cost of a task, measured here, and a model of many replicas.

python -m benchmarks.scaling [--seconds 3] [--cores 8]

A task is one message answered at once, in two writes: created and working, then an artifact and its end. The processor
time is that of the database's process for the writing connection. Everything after "model" is calculated, except the
heartbeats, each of which reads the leases of all replicas.
"""

import argparse
import asyncio
import os
from hashlib import blake2b
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import asyncpg

from apcore_a2a.engine.context import ReplicaTiming
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, StatusUpdate, TaskState, TaskStatus
from apcore_a2a.storage.postgres.replicas import RENEW
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.postgres_server import PostgresServer
from tests.storage.contract import Author, append, timestamp

WRITERS = 64  # concurrent clients: a batch has about as many writes
IDLE = 3.25 / 3  # transactions per second of an idle replica (benchmarks.bench_cluster: 3.25 for three)
REPLICAS = (10, 100, 1_000)
HEARTBEATS = 1_000  # number of heartbeats per measurement
CONNECTIONS = 6  # per replica
LEASE = 15.0  # seconds, the default of the store's URL
USABLE = 0.7  # share of a core: the rest is for reads, vacuum and bursts
OWNERS = 10_000
WHO_WRITES = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%WITH given AS%' AND pid <> pg_backend_pid()"
STORED = """
    SELECT sum(pg_total_relation_size(pg_class.oid)) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = 'scaling' AND relkind = 'r'
"""


class Cost(NamedTuple):
    """The cost of one task on the server."""

    processor: float
    """Microseconds."""
    wal: float
    """Bytes of write-ahead log."""
    stored: float
    """Bytes of tables and indexes."""


# ---- measured -----------------------------------------------------------------------------------------------------


async def measure(server: PostgresServer, seconds: float) -> Cost:
    store = PostgresStore(server.url(schema="scaling"))
    await store.open()
    admin = await asyncpg.connect(server.dsn)
    numbers = count()
    done = 0
    end = asyncio.get_running_loop().time() + seconds

    async def work() -> None:
        nonlocal done
        while asyncio.get_running_loop().time() < end:
            await one_task(store, next(numbers))
            done += 1

    await one_task(store, next(numbers))
    backend = await admin.fetchval(WHO_WRITES)
    before = processor_time(backend), await admin.fetchval("SELECT pg_current_wal_lsn()")
    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(work())
    wal = await admin.fetchval("SELECT pg_current_wal_lsn() - $1::pg_lsn", before[1])
    size = await admin.fetchval(STORED)
    processor = (processor_time(backend) - before[0]) / done * 1e6
    await admin.close()
    await store.close()
    return Cost(processor, float(wal) / done, float(size) / done)


async def measure_heartbeat(server: PostgresServer, replicas: int) -> float:
    """Return the microseconds of processor time for a heartbeat, which reads the leases of this many replicas."""
    schema = f"replicas{replicas}"
    store = PostgresStore(server.url(schema=schema))
    await store.open()
    connection = await asyncpg.connect(server.dsn, server_settings={"search_path": schema})
    live = "SELECT 'r' || n, clock_timestamp() + interval '1 hour', '' FROM generate_series(1, $1::int) AS n"
    await connection.execute(f"INSERT INTO replica (name, until, place) {live}", replicas)
    await connection.execute("ANALYZE replica")
    heartbeat = await connection.prepare(RENEW)
    backend = connection.get_server_pid()
    before = processor_time(backend)
    for number in range(HEARTBEATS):
        await heartbeat.fetchval(f"r{number % replicas + 1}", 3600.0)
    spent = processor_time(backend) - before
    await connection.close()
    await store.close()
    return spent / HEARTBEATS * 1e6


async def one_task(store: PostgresStore, number: int) -> None:
    author = Author(f"{number:032x}", owner=f"owner{number % OWNERS}")
    working = StatusUpdate(status=TaskStatus(state=TaskState.WORKING, timestamp=timestamp()))
    await store.create(author.change([author.task, working]))
    artifact = Artifact(artifact_id="answer", parts=[Part(text="x" * 50)])
    completed = StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED, timestamp=timestamp()))
    await append(store, author.change([ArtifactUpdate(artifact=artifact), completed]))


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- model --------------------------------------------------------------------------------------------------------


def tell_capacity(cost: Cost, heartbeats: dict[int, float], cores: int) -> None:
    tasks = cores * USABLE * 1e6 / cost.processor
    print(f"model: {cores} cores of database carry {tasks:,.0f} tasks/s, {tasks * cost.wal / 1e6:,.0f} MB/s of log,")
    print(f"       {tasks * cost.stored * 86_400 / 1e9:,.0f} GB a day if nothing expired")
    for replicas, heartbeat in heartbeats.items():
        share = replicas * ReplicaTiming().renewals / LEASE * heartbeat / 1e6
        idle = f"{replicas * IDLE:7,.0f} idle transactions/s, heartbeats of {heartbeat:,.0f} µs ({share:.1%} of a core)"
        each = f"{tasks / replicas:7,.0f} tasks/s each"
        print(f"       {replicas:5,} replicas: {replicas * CONNECTIONS:6,} connections, {idle}, {each}")


def tell_shards(seed: int = 1) -> None:
    """Simulate owners hashed over databases, of which a few have most tasks, and print the load of the fullest."""
    dice = Random(seed)
    load = [dice.paretovariate(1.2) for _ in range(OWNERS)]
    total = sum(load)
    for databases in (2, 4, 8, 16):
        parts = [0.0] * databases
        for owner, share in enumerate(load):
            digest = blake2b(f"owner{owner}".encode(), digest_size=8).digest()
            parts[int.from_bytes(digest, "big") % databases] += share
        worst = max(parts) / (total / databases)
        gain = databases / worst
        print(f"       {databases:2} databases: the fullest has {worst:.2f} of its share, so {gain:.1f} times one")


async def run(options: argparse.Namespace, server: PostgresServer) -> None:
    cost = await measure(server, options.seconds)
    print(f"measured: a task costs {cost.processor:.0f} µs of processor, {cost.wal:,.0f} bytes of log,", end=" ")
    print(f"{cost.stored:,.0f} bytes stored")
    heartbeats: dict[int, float] = {}
    for replicas in REPLICAS:
        heartbeats[replicas] = await measure_heartbeat(server, replicas)
    tell_capacity(cost, heartbeats, options.cores)
    tell_shards()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--cores", type=int, default=8, help="of the database, in the model")
    options = parser.parse_args()
    server = PostgresServer(settings=())
    server.start()
    try:
        asyncio.run(run(options, server))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
