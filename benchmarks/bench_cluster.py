"""Tasks on PostgreSQL: message/send compared with a2a-sdk, several workers, event latency between replicas, idle load.

python -m benchmarks.bench_cluster [--quick]

The database is that of the tests, with PostgreSQL's default settings: every commit is synced.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import aiohttp
import asyncpg

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, StatusUpdate, TaskState, TaskStatus
from benchmarks import wire
from benchmarks.bench_send import AS_THEY_COME, compare, measure_sends, repeatable_of, tabulate
from benchmarks.load import warm_up, wrk
from benchmarks.measuring import ROOT, Findings, Plan, Sample, Table, cpu_seconds, medians, percentile, run_alone
from benchmarks.servers import OURS, SDK, Running, all_running, await_card, end, free_port
from tests.postgres_server import PostgresServer

DURABLE = OURS._replace(name="apcore-a2a on PostgreSQL")
REPEATABLE = repeatable_of(DURABLE)
SDK_DURABLE = SDK._replace(name="a2a-sdk on PostgreSQL")
MANY = 128  # connections at which many writes share a commit
EVENTS = 300
IDLE_SECONDS = 20


class Clock:
    """An agent that yields the time in nanoseconds, this many times, at this interval in seconds."""

    may_reply = False

    async def admit(self, call: Call) -> Admission:
        return Admission()

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        _, count, pause = str(call.message.parts[0].text).split()
        for number in range(int(count)):
            await asyncio.sleep(float(pause))
            artifact = Artifact(artifact_id="a", parts=[Part(text=str(time.time_ns()))])
            yield ArtifactUpdate(artifact=artifact, append=number > 0)
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


clock = Clock()


@contextmanager
def database() -> Iterator[PostgresServer]:
    server = PostgresServer(settings=())
    server.start()
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def serving(target: str, store: str, *options: str) -> Iterator[Running]:
    """Run `apcore-a2a serve` without pinning it to a core."""
    port = free_port()
    words = ["serve", target, "--port", str(port), "--store", store, "--log-level", "warning", *options]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "apcore_a2a", *words],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await_card(OURS, port, process)
        yield Running(OURS, port, process.pid, 0.0)
    finally:
        end(process)


# ---- message/send -------------------------------------------------------------------------------------------------


def bench_postgres(found: Findings, plan: Plan) -> None:
    with database() as server:
        sdk_url = f"postgresql+asyncpg://postgres@/postgres?host={server.folder}"
        extra = {
            DURABLE.name: ("--postgres", server.url(schema="ours")),
            REPEATABLE.name: ("--postgres", server.url(schema="repeatable")),
            SDK_DURABLE.name: ("--postgres", sdk_url),
        }
        with all_running(DURABLE, REPEATABLE, OURS, SDK_DURABLE, extra=extra) as targets:
            samples = measure_sends(targets, plan._replace(concurrency=(16, MANY)))
    note = f"{AS_THEY_COME}, each commit synced."
    found.add(tabulate("message/send, tasks in PostgreSQL", note, samples, DURABLE.name))
    compare(found, samples, DURABLE.name, "postgres")
    compare(found, samples, REPEATABLE.name, "postgres, repeatable")


def bench_workers(found: Findings, plan: Plan) -> None:
    """Two workers and the database need more than two cores. The cost per message shows the benefit of a third core."""
    samples: dict[int, list[Sample]] = {1: [], 2: []}
    with database() as server:
        for _ in range(plan.rounds):
            for workers, taken in samples.items():
                url = server.url(schema="workers")
                with serving("benchmarks.peers.ours:agent", url, "--workers", str(workers)) as target:
                    taken.append(measure_tree(target, plan))
    rows = []
    for workers, taken in samples.items():
        one = medians(taken)
        found.figures[f"workers/{workers}/rate"] = one["rate"]
        found.figures[f"workers/{workers}/cpu"] = one["cpu"]
        rows.append([str(workers), f"{one['rate']:,.0f}", f"{one['cpu']:,.0f}"])
    columns = ("workers", f"req/s, {MANY} connections", "CPU µs per message, all workers")
    note = f"Workers, database and load share {os.cpu_count()} cores here."
    found.add(Table("message/send, `--workers`, tasks in PostgreSQL", columns, rows, note))


def measure_tree(target: Running, plan: Plan) -> Sample:
    """Measure as `wrk` does, but include the processor time of the workers."""
    warm_up(target, wire.send(OURS), plan)
    workers = children(target.pid) or [target.pid]
    before = sum(map(cpu_seconds, workers))
    seen = wrk(target, wire.send(OURS), connections=MANY, seconds=2 * plan.seconds)
    used = sum(map(cpu_seconds, workers)) - before
    return {**seen, "cpu": used / seen["requests"] * 1e6}


def children(pid: int) -> list[int]:
    path = f"/proc/{pid}/task/{pid}/children"
    if not os.path.exists(path):
        return []
    with open(path, encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


# ---- several replicas ---------------------------------------------------------------------------------------------


def bench_replicas(found: Findings, plan: Plan) -> None:
    with database() as server:
        url = server.url(schema="replicas")
        here, there, third = (serving("benchmarks.bench_cluster:clock", url) for _ in range(3))
        with here as first, there as second, third:
            idle = asyncio.run(idle_transactions(server, IDLE_SECONDS if plan.everyone else 5))
            times = asyncio.run(crossing(first, second))
    found.figures["cluster/idle"] = idle
    found.figures["cluster/crossing/p50"] = statistics.median(times) * 1e3
    found.figures["cluster/crossing/p99"] = percentile(times, 0.99) * 1e3
    rows = [
        ["transactions/s of three idle replicas, together", f"{idle:.2f}"],
        ["an event of one replica at a client of another, p50", f"{statistics.median(times):.1f} ms"],
        ["… p99", f"{percentile(times, 0.99):.1f} ms"],
    ]
    note = f"The agent says the time each 10 ms, {EVENTS} times; an event is committed and synced before it is told."
    found.add(Table("Replicas on one PostgreSQL", ("what", "measured"), rows, note))


async def crossing(here: Running, there: Running) -> list[float]:
    """Return the milliseconds from an event at one replica to its arrival at a client of another replica."""
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": f"clock {EVENTS} 0.01"}]}
    body = {"message": said, "configuration": {"returnImmediately": True}}
    times: list[float] = []
    async with aiohttp.ClientSession(headers={"A2A-Version": "1.0"}) as http:
        async with http.post(f"http://127.0.0.1:{here.port}/message:send", json=body) as answer:
            task_id = (await answer.json())["task"]["id"]
        async with http.get(f"http://127.0.0.1:{there.port}/tasks/{task_id}:subscribe") as stream:
            async for line in stream.content:
                now = time.time_ns()
                if b'"artifactUpdate":' in line:
                    event = json.loads(line.removeprefix(b"data: "))["artifactUpdate"]
                    times.append((now - int(event["artifact"]["parts"][0]["text"])) / 1e6)
    return times


async def idle_transactions(server: PostgresServer, seconds: float) -> float:
    """Return the transactions per second of the database without requests."""
    counted = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'"
    admin = await asyncpg.connect(server.dsn)
    await asyncio.sleep(2)  # statistics are updated with a delay
    before = await admin.fetchval(counted)
    await asyncio.sleep(seconds)
    after = await admin.fetchval(counted)
    await admin.close()
    return float(after - before - 1) / seconds


def bench(found: Findings, plan: Plan) -> None:
    bench_postgres(found, plan)
    bench_workers(found, plan)
    bench_replicas(found, plan)


if __name__ == "__main__":
    run_alone(bench, __doc__)
