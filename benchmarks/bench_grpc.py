"""gRPC compared with a2a-sdk's server and with JSON-RPC: the processor time of the server for calls and streams.

The load is our own client for all of them. Its time is not counted, because it runs in this process.

python -m benchmarks.bench_grpc [--quick]
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import BindingName
from benchmarks.measuring import Findings, Plan, Sample, Table, cpu_seconds, medians, ratio, run_alone, spread, versus
from benchmarks.servers import OURS, SDK_GRPC, Running, all_running

CALLS = 500
AT_ONCE = 16
STREAMS = 5
CHUNKS = 1_000


class Way(NamedTuple):
    """A server and the binding to call it with."""

    server: str
    binding: BindingName


WAYS = (
    Way(OURS.name, "GRPC"),
    Way(OURS.name, "JSONRPC"),
    Way(SDK_GRPC.name, "GRPC"),
    Way(SDK_GRPC.name, "JSONRPC"),
)


async def _send_many(client: A2AClient, calls: int) -> None:
    left = iter(range(calls))

    async def send() -> None:
        for _ in left:
            await client.send_message("echo", wait=False)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(send())


async def _read_streams(client: A2AClient, streams: int) -> None:
    for _ in range(streams):
        events = 0
        async for _ in client.stream_message(f"count {CHUNKS}"):
            events += 1
        assert events > CHUNKS, events


async def measure(target: Running, binding: BindingName) -> Sample:
    """Return the microseconds of processor time for a call, and for an event of a stream."""
    origins = [f"http://127.0.0.1:{target.port + 1}"]  # where a2a-sdk serves gRPC
    url = f"http://127.0.0.1:{target.port}"
    async with A2AClient(url, binding=binding, version="1.0", timeout=60.0, allow_origins=origins) as client:
        await _send_many(client, AT_ONCE)
        begun = cpu_seconds(target.pid)
        await _send_many(client, CALLS)
        sent = cpu_seconds(target.pid)
        await _read_streams(client, STREAMS)
        read = cpu_seconds(target.pid)
    return {"call": (sent - begun) / CALLS * 1e6, "event": (read - sent) / STREAMS / CHUNKS * 1e6}


def measure_all(plan: Plan, targets: Mapping[str, Running]) -> dict[Way, list[Sample]]:
    taken: dict[Way, list[Sample]] = {}
    for _ in range(plan.rounds):
        for way in WAYS:
            taken.setdefault(way, []).append(asyncio.run(measure(targets[way.server], way.binding)))
    return taken


def bench(found: Findings, plan: Plan) -> None:
    with all_running(OURS, SDK_GRPC) as targets:
        taken = measure_all(plan, targets)
    first = taken[WAYS[0]]
    rows: list[list[str]] = []
    for way, samples in taken.items():
        shown: dict[str, Any] = medians(samples)
        widest = max(spread(samples, key) for key in shown)
        rows.append(
            [
                f"{way.server}, {way.binding}",
                f"{shown['call']:,.0f}",
                ratio(versus(samples, first, "call")),
                f"{shown['event']:,.1f}",
                ratio(versus(samples, first, "event")),
                f"{widest:.0%}",
            ]
        )
        found.figures[f"grpc: {way.server}, {way.binding}, µs per call"] = shown["call"]
    about = f"Processor time of the server in µs, with {AT_ONCE} calls at once, and streams of {CHUNKS:,} chunks"
    columns = ("server and binding", "a call", "ratio", "an event", "ratio", "spread")
    found.add(Table("gRPC beside JSON-RPC", columns, rows, f"{about}. The ratios are those to the first row."))


if __name__ == "__main__":
    run_alone(bench, __doc__)
