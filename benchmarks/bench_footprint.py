"""Memory of streams and stored tasks, time to the first answer, imports, a card of 100 modules, and waiting agents.

python -m benchmarks.bench_footprint [--quick]
"""

import asyncio
import resource
import statistics
import time

from benchmarks import streams, wire
from benchmarks.buffers import CHUNKS, measure_kept
from benchmarks.load import ask, warm_up, wrk
from benchmarks.measuring import (
    Findings,
    Plan,
    Sample,
    Table,
    measure_import,
    medians,
    percentile,
    ratio,
    resident,
    run_alone,
)
from benchmarks.servers import (
    FASTA2A,
    INDEX,
    JS,
    OURS,
    OURS_APCORE,
    RAW,
    SDK,
    Running,
    Server,
    is_available,
    python_of,
    running,
)

FILES_BESIDES = 500  # files that this process has open besides the streams
AGENT_TIME = 100  # milliseconds


async def measure_idle(target: Running, count: int) -> float:
    before = resident(target.pid)
    readers = await streams.open_idle(target, count)
    await asyncio.sleep(0.5)  # the buffers of the handshakes are freed
    grown = resident(target.pid) - before
    for reader in readers:
        reader.transport.abort()
    return grown / count


def bench_idle(found: Findings, plan: Plan) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = []
    for server in (OURS, JS, SDK) if plan.everyone else (OURS,):
        if not is_available(server):
            continue
        count = min(plan.idle if server is OURS else plan.peer_idle, hard - FILES_BESIDES)
        with running(server) as target:
            warm_up(target, wire.send(server), plan)
            each = streams.run(measure_idle(target, count)) / 1024
        found.figures[f"idle/{server.name}"] = each
        rows.append([server.name, ratio(each / found.figures[f"idle/{OURS.name}"]), f"{count:,}", f"{each:,.1f}"])
    columns = ("server", "times ours", "streams", "KiB each")
    note = "Of the whole process, connection and all. fasta2a cannot: it runs one task at a time."
    found.add(Table("Idle streams: what each keeps in memory", columns, rows, note))


def bench_buffers(found: Findings, plan: Plan) -> None:
    """Measure the memory of a stream for past events. One stream includes the task's log."""
    few, many = 1, 100
    kept = {number: asyncio.run(measure_kept(number)) for number in (few, many)}
    found.figures["buffers"] = each = (kept[many] - kept[few]) / (many - few)
    row = [OURS.name, f"{CHUNKS:,}", *(f"{size / 1e3:,.1f}" for size in kept.values()), f"{each:,.0f}"]
    columns = ("server", "events", "kB kept, 1 stream", f"kB kept, {many} streams", "bytes a stream")
    note = (
        "Counted by tracemalloc in the process of the application, when all streams have all events and wait for more."
    )
    found.add(Table("Streams: what is buffered for each", columns, [row], note))


def bench_stored(found: Findings, plan: Plan) -> None:
    """Our tasks are created by real requests. The peers' stores are filled by their own `save`, to save time."""
    rows = []
    with running(OURS) as target:
        warm_up(target, wire.send(OURS), plan)
        before = resident(target.pid)
        sent = [wrk(target, wire.send(OURS), connections=16, seconds=plan.seconds) for _ in range(plan.rounds + 1)]
        made = sum(one["requests"] for one in sent)
        ours = (resident(target.pid) - before) / made
    found.figures["stored"] = ours
    rows.append([f"{OURS.name}, by message/send", ratio(1), f"{made:,.0f}", f"{ours:,.0f}"])
    for server in (OURS, FASTA2A, JS, SDK) if plan.everyone else ():
        if not is_available(server):
            continue
        sizes = []
        for count in (plan.stored // 10, plan.stored):
            with running(server, "--fill", str(count)) as target:
                ask(target, wire.get(server))
                sizes.append(resident(target.pid))
        each = (sizes[1] - sizes[0]) / (plan.stored - plan.stored // 10)
        rows.append([f"{server.name}, by its store", ratio(each / ours), f"{plan.stored:,}", f"{each:,.0f}"])
    columns = ("server", "times ours", "tasks", "bytes each")
    found.add(Table("Finished small tasks: what each keeps in memory", columns, rows))


def bench_start(found: Findings, plan: Plan) -> None:
    rows = []
    asked = (OURS, OURS_APCORE, SDK, *((RAW, FASTA2A, JS, INDEX) if plan.everyone else ()))
    servers = [server for server in asked if is_available(server)]
    times: dict[str, list[float]] = {server.name: [] for server in servers}
    sizes: dict[str, float] = {}
    for _ in range(plan.rounds):
        for server in servers:
            with running(server) as target:
                times[server.name].append(target.started_in)
                sizes[server.name] = resident(target.pid) / 1e6
    ours = statistics.median(times[OURS.name])
    for name, taken in times.items():
        found.figures[f"start/{name}"] = seconds = statistics.median(taken)
        rows.append(
            [name, ratio(seconds / ours), f"{seconds:.2f}", f"{max(taken) - min(taken):.2f}", f"{sizes[name]:.0f}"]
        )
    columns = ("server", "times ours", "s from the start of the process to the first card", "spread s", "MB resident")
    found.add(Table("Start", columns, rows))


IMPORTS: tuple[tuple[str, Server], ...] = (
    ("apcore_a2a", OURS),
    ("apcore_a2a.client", OURS),
    ("apcore_a2a.app.serve", OURS),
    ("fasta2a", FASTA2A),
    ("a2a.client", SDK),
    ("a2a.server.routes", SDK),
    ("apcore_a2a", INDEX),
)


def bench_import(found: Findings, plan: Plan) -> None:
    rows = []
    for module, server in IMPORTS if plan.everyone else IMPORTS[:3]:
        python = python_of(server.environment)
        taken: list[Sample] = [measure_import(module, python) for _ in range(plan.rounds)]
        one = medians(taken)
        where = "" if server is OURS else f" of {server.name}"
        rows.append([f"import {module}{where}", f"{one['ms']:,.0f}", f"{one['mb']:,.1f}"])
        found.figures |= {f"import/{module}{where}/{key}": value for key, value in one.items()}
    found.add(Table("Imports in a fresh process", ("import", "ms", "MB resident"), rows))


def bench_card_of_100(found: Findings, plan: Plan) -> None:
    from apcore_a2a.app.serve import build
    from benchmarks.peers.modules import registry

    modules = registry(100)
    times = []
    for _ in range(max(plan.rounds, 3)):
        started = time.perf_counter()
        build(modules, {})
        times.append((time.perf_counter() - started) * 1e3)
    found.figures["card of 100"] = statistics.median(times)
    row = ["apcore-a2a", f"{statistics.median(times):.0f}", f"{min(times):.0f} to {max(times):.0f}"]
    found.add(Table("An application with a card of 100 modules", ("server", "ms to build", "spread ms"), [row]))


async def measure_waits(target: Running, text: str, at_a_time: int, times: int) -> list[float]:
    """Return the milliseconds of messages to waiting agents, started one after the other within the agent's time."""
    body, taken = wire.send(target.server, text), list[float]()
    size = ask(target, body).size
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nA2A-Version: {target.server.version}\r\n"
    request = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    async def work(start: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        await asyncio.sleep(start)
        for _ in range(times):
            began = time.perf_counter()
            writer.write(request)
            await reader.readexactly(size)
            taken.append((time.perf_counter() - began) * 1e3)
        writer.close()

    async with asyncio.TaskGroup() as group:
        for number in range(at_a_time):
            group.create_task(work(number * AGENT_TIME / at_a_time / 1e3))
    return taken


def bench_waiting(found: Findings, plan: Plan) -> None:
    """Waiting agents, like real ones: with 100 at a time, each should take no longer than alone."""
    rows, p99 = [], {}
    with running(OURS) as target:
        warm_up(target, wire.send(OURS), plan)
        for at_a_time, times in ((1, 4 * plan.rounds), (100, 2 * plan.rounds)):
            taken = streams.run(measure_waits(target, f"sleep {AGENT_TIME / 1e3}", at_a_time, times))
            p99[at_a_time] = percentile(taken, 0.99)
            rows.append([f"{at_a_time}", f"{percentile(taken, 0.5):.2f}", f"{p99[at_a_time]:.2f}"])
    found.figures["waiting"] = p99[100] / p99[1]
    found.figures["waiting/net"] = (p99[100] - AGENT_TIME) / (p99[1] - AGENT_TIME)
    columns = ("messages at a time", "p50 ms", "p99 ms")
    note = "Begun evenly over the agent's time, from a Python client."
    found.add(Table(f"message/send to an agent that waits {AGENT_TIME} ms", columns, rows, note))


def bench(found: Findings, plan: Plan) -> None:
    bench_start(found, plan)
    bench_import(found, plan)
    bench_idle(found, plan)
    bench_buffers(found, plan)
    bench_stored(found, plan)
    bench_card_of_100(found, plan)
    bench_waiting(found, plan)


if __name__ == "__main__":
    run_alone(bench, __doc__)
