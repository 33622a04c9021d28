"""Durable tasks beside two durable engines on the same PostgreSQL: results per second of callers that wait for each.

python -m benchmarks.bench_engines [--seconds 5] [--callers 16]

Ours is one replica behind HTTP, with the event log of each task. DBOS stores a workflow of one step, procrastinate a
job that one worker executes, both in the process of the callers. Every commit is synced. Engines and callers share the
cores.
"""

import argparse
import asyncio
import itertools
import json
import subprocess
import time

import aiohttp

from benchmarks import wire
from benchmarks.bench_cluster import serving
from benchmarks.measuring import ROOT
from benchmarks.servers import OURS, python_of
from tests.pgbouncer import free_port
from tests.postgres_server import PostgresServer

ENGINES = ("dbos", "procrastinate")  # of benchmarks/peers/durable.py


async def measure_ours(address: str, seconds: float, callers: int) -> float:
    """Return the completed tasks per second, after a second that is not counted."""
    numbers = itertools.count()
    ended = 0
    counted_from = time.monotonic() + 1
    until = counted_from + seconds

    async def call(http: aiohttp.ClientSession) -> None:
        nonlocal ended
        while time.monotonic() < until:
            request = json.loads(wire.send(OURS))
            request["params"]["message"]["messageId"] = f"m{next(numbers)}"
            async with http.post(address, json=request) as answer:
                found = await answer.json()
                assert found["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED", found
            if counted_from <= time.monotonic() < until:
                ended += 1

    async with aiohttp.ClientSession(headers={"A2A-Version": "1.0"}) as http, asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call(http))
    return ended / seconds


def measure_engine(name: str, url: str, seconds: float, callers: int) -> float:
    command = [python_of("engines"), "-m", "benchmarks.peers.durable", name, url, str(seconds), str(callers)]
    limit = 60 + 2 * seconds
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=limit, check=True, text=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_engines", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--callers", type=int, default=16)
    options = parser.parse_args()
    server = PostgresServer(settings=())
    port = free_port()
    server.start(port=port)
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        with serving("benchmarks.peers.ours:agent", url) as target:
            rate = asyncio.run(measure_ours(f"http://127.0.0.1:{target.port}", options.seconds, options.callers))
        print(f"{'apcore-a2a, over HTTP':24} {rate:8,.0f} tasks/s")
        for name in ENGINES:
            rate = measure_engine(name, url, options.seconds, options.callers)
            print(f"{name:24} {rate:8,.0f} jobs/s", flush=True)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
