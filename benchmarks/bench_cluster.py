"""Replicas on PostgreSQL: message/send beside a2a-sdk on PostgreSQL, how fast an event crosses, what idle replicas ask.

python -m benchmarks.bench_cluster [--sdk PYTHON] [--seconds 5] [--no-sync]

The server is that of the tests, with its own defaults: every commit is synced, unless --no-sync. PYTHON is one that has
`a2a-sdk[http-server,postgresql]`; without it, our own figures alone are made. No wrk is needed: the load is made here.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import asyncpg

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, StatusUpdate, TaskState, TaskStatus
from benchmarks import wire
from benchmarks.measuring import ROOT
from benchmarks.servers import OURS, SDK, free_port
from tests.postgres_server import PostgresServer

CONNECTIONS = (16, 128)
EVENTS = 300


class Clock:
    """Says what time it is, in nanoseconds: so often, with so many seconds in between."""

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


# ---- servers ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(*command: str) -> AsyncIterator[str]:
    """A server in a process of its own; its address."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    process = await asyncio.create_subprocess_exec(*command, "--port", str(port), cwd=ROOT, env=environment)
    try:
        address = f"http://127.0.0.1:{port}"
        await _until_up(address)
        yield address
    finally:
        process.terminate()
        await process.wait()


async def _until_up(address: str) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(60):
        while True:
            try:
                async with http.get(f"{address}/.well-known/agent-card.json") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


# ---- what is measured ---------------------------------------------------------------------------------------------


async def send_for(address: str, body: str, seconds: float, *, connections: int) -> tuple[float, float]:
    """Requests a second over kept-alive connections, and the median of their times in milliseconds."""
    port = int(address.rpartition(":")[2])
    head = (
        "POST / HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        "A2A-Version: 1.0",
        f"Content-Length: {len(body)}",
    )
    request = "\r\n".join((*head, "", body)).encode()
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            begun = time.perf_counter()
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            content = await reader.readexactly(length)
            assert b"TASK_STATE_COMPLETED" in content, content[:300]
            times.append(time.perf_counter() - begun)
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(ask())
    return len(times) / seconds, statistics.median(times) * 1000


async def crossing(here: str, there: str) -> list[float]:
    """Milliseconds from the moment an agent says something at one replica to its arrival at a client of another."""
    headers = {"A2A-Version": "1.0"}
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": f"clock {EVENTS} 0.01"}]}
    body = {"message": said, "configuration": {"returnImmediately": True}}
    times: list[float] = []
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.post(f"{here}/message:send", json=body) as answer:
            task_id = (await answer.json())["task"]["id"]
        async with http.get(f"{there}/tasks/{task_id}:subscribe") as stream:
            async for line in stream.content:
                now = time.time_ns()
                _, found, rest = line.partition(b'"artifactUpdate":')
                if found:
                    spoken = int(rest.partition(b'"text":"')[2].partition(b'"')[0])
                    times.append((now - spoken) / 1e6)
    return times


async def idle_queries(server: PostgresServer, seconds: float) -> float:
    """Transactions a second that the database counts while nobody asks for anything."""
    counted = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'"
    admin = await asyncpg.connect(server.dsn)
    await asyncio.sleep(2)  # statistics are told with a delay
    before = await admin.fetchval(counted)
    await asyncio.sleep(seconds)
    after = await admin.fetchval(counted)
    await admin.close()
    return float(after - before - 1) / seconds


# ---- the script ---------------------------------------------------------------------------------------------------


async def measure(options: argparse.Namespace, server: PostgresServer) -> None:
    python = sys.executable
    ours = serving(python, "-m", "benchmarks.peers.ours", "--postgres", server.url(schema="ours"))
    async with ours as address:
        await report_sends("apcore-a2a on PostgreSQL", address, wire.send(OURS), options.seconds)
    if options.sdk:
        url = f"postgresql+asyncpg://postgres@/postgres?host={server.folder}"
        async with serving(options.sdk, "-m", "benchmarks.peers.sdk", "--postgres", url) as address:
            await report_sends("a2a-sdk on PostgreSQL", address, wire.send(SDK), options.seconds)
    url = server.url(schema="replicas")
    clock = (python, "-m", "benchmarks.bench_cluster", "--serve", url)
    async with serving(*clock) as first, serving(*clock) as second, serving(*clock):
        print(f"three idle replicas: {await idle_queries(server, 20):.2f} transactions/s in all")
        times = sorted(await crossing(first, second))
        p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
        print(f"an event crosses replicas: p50 {p50:.1f} ms, p99 {p99:.1f} ms ({len(times)} events)")


async def report_sends(name: str, address: str, body: str, seconds: float) -> None:
    await send_for(address, body, 1, connections=1)  # what is made once is made: tables, plans
    for connections in CONNECTIONS:
        rate, median = await send_for(address, body, seconds, connections=connections)
        print(f"{name}, {connections} connections: {rate:,.0f} messages/s, p50 {median:.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_cluster", description=__doc__)
    parser.add_argument("--sdk", default="", help="a Python that has a2a-sdk[http-server,postgresql]")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--no-sync", action="store_true", help="a disk that takes no time: what the processor can do")
    parser.add_argument("--serve", default="", help="be a replica on this store (used by the script itself)")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.serve:
        from apcore_a2a import serve

        serve(Clock(), host="127.0.0.1", port=options.port, store=options.serve, log_level="warning")
        return
    settings = ("fsync=off",) if options.no_sync else ()
    server = PostgresServer(settings=settings)
    server.start()
    try:
        asyncio.run(measure(options, server))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
