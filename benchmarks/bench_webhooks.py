"""Streams of tasks with a webhook that takes five seconds per event, compared with tasks without a webhook.

No stream waits for a webhook, so the figures must be equal. The receiver runs in its own process.

python -m benchmarks.bench_webhooks [--quick]
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

from benchmarks import streams, wire
from benchmarks.load import warm_up
from benchmarks.measuring import ROOT, Findings, Plan, Table, ms, percentile, run_alone
from benchmarks.servers import OURS, Running, end, running

SERVER = OURS._replace(name="apcore-a2a, webhooks", kind="webhooks")
CHUNKS = 20
SECONDS = 5.0  # the receiver's time for each event
RECEIVER = "receive"


async def receive() -> None:
    """Answer every request after a delay."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                await asyncio.sleep(SECONDS)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def receiving() -> Iterator[str]:
    """Run a slow receiver, and yield its URL."""
    command = [sys.executable, "-m", "benchmarks.bench_webhooks", RECEIVER]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/hook"
    finally:
        end(process)


async def measure(target: Running, url: str) -> float:
    """Return the microseconds from the request of a stream to its last event. With a URL, the task has a webhook."""
    params = {"message": wire.message(target.server, f"yield {CHUNKS}")}
    if url:
        params["configuration"] = {"taskPushNotificationConfig": {"url": url}}
    reader = await streams.connect(target)
    reader.request(target, wire.body(target.server, "stream", params))
    async with asyncio.timeout(streams.DEADLINE):
        await reader.ended
    streams.check(target, reader, CHUNKS)
    return reader.seconds * 1e6


async def measure_all(target: Running, url: str, times: int) -> dict[str, list[float]]:
    """Measure both in turn, so that other load on the machine affects both."""
    taken: dict[str, list[float]] = {"": [], url: []}
    for _ in range(times):
        for webhook in taken:
            taken[webhook].append(await measure(target, webhook))
    return taken


def bench(found: Findings, plan: Plan) -> None:
    times = max(200 * plan.rounds, 300)
    with receiving() as url, running(SERVER) as target:
        warm_up(target, wire.send(target.server), plan)
        taken = streams.run(measure_all(target, url, times))
    rows = []
    for webhook, microseconds in taken.items():
        name = "with a webhook that takes 5 s for each event" if webhook else "without a webhook"
        shares = [percentile(microseconds, share) for share in (0.5, 0.95, 0.99)]
        rows.append([name, *map(ms, shares)])
        found.figures[f"webhook stream p99/{'with' if webhook else 'without'}"] = shares[-1]
    columns = ("stream", "p50", "p95", "p99")
    note = f"{times} streams each, in turn, of {CHUNKS} chunks: milliseconds from the request to the last event."
    found.add(Table("A stream beside a slow webhook", columns, rows, note))


if __name__ == "__main__":
    if sys.argv[1:] == [RECEIVER]:
        asyncio.run(receive())
    else:
        run_alone(bench, __doc__)
