"""message/stream compared with the peers: first event, cost of a chunk in short and long tasks, many subscribers.

The tenth and the ten thousandth chunk must cost the same: in time, in memory and in bytes written.

python -m benchmarks.bench_stream [--quick]
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks import streams, wire
from benchmarks.load import interleave, warm_up
from benchmarks.measuring import (
    Findings,
    Plan,
    Sample,
    Table,
    bytes_written,
    medians,
    ms,
    percentile,
    ratio,
    resident,
    run_alone,
    spread,
    versus,
)
from benchmarks.servers import FASTA2A, JS, OURS, SDK, Running, all_running, running

WAYS = {"yield": "the agent yields to the loop after each chunk", "count": "chunks ready together"}
GROWING = 1_000  # a2a-js's cost of a chunk grows with the task, so its streams are no longer than this


def most_chunks(name: str, plan: Plan) -> int:
    if name == OURS.name:
        return max(plan.chunks)
    return min(plan.peer_chunks, GROWING) if name == JS.name else plan.peer_chunks


def repeats(name: str, chunks: int, plan: Plan) -> int:
    """Short streams are measured more often."""
    most = 20 if name == OURS.name else 3
    return max(1, min(most, plan.rounds * 10_000 // chunks))


def measure_costs(word: str, plan: Plan, targets: Mapping[str, Running]) -> dict[int, dict[str, list[Sample]]]:
    """Return the microseconds per chunk by length of the stream and by server. Lengths are interleaved too."""
    taken: dict[int, dict[str, list[Sample]]] = {chunks: {} for chunks in plan.chunks}
    for number in range(plan.rounds):
        for chunks in plan.chunks:
            for name, target in targets.items():
                once = name != OURS.name and chunks > GROWING  # the others take seconds for each
                if chunks <= most_chunks(name, plan) and not (once and number):
                    times = repeats(name, chunks, plan)
                    cost = streams.run(streams.measure_chunks(target, word, chunks, times))
                    taken[chunks].setdefault(name, []).append({"µs": cost})
    return taken


def bench_chunks(found: Findings, plan: Plan, targets: Mapping[str, Running]) -> None:
    shared = min(1_000, plan.peer_chunks)
    for word, way in WAYS.items():
        costs = measure_costs(word, plan, targets)
        ours, rows = costs[shared][OURS.name], []
        times = {name: versus(taken, ours, "µs") for name, taken in costs[shared].items()}
        for name in targets:
            each = [f"{medians(one[name])['µs']:,.1f}" if name in one else "-" for one in costs.values()]
            rows.append([name, ratio(times[name]), *each, f"{spread(costs[shared][name], 'µs'):.0%}"])
        for chunks, one in costs.items():
            found.figures[f"chunk/{word}/{chunks}"] = medians(one[OURS.name])["µs"]
            found.figures[f"flat/{word}/{chunks}"] = versus(one[OURS.name], costs[1_000][OURS.name], "µs")
        columns = ("server", "ours is … times as fast", *(f"µs each of {chunks:,}" for chunks in costs), "spread")
        note = f"One stream at a time; what a stream of one chunk costs is taken off. Ratio and spread at {shared:,}."
        found.add(Table(f"message/stream, the cost of a chunk: {way}", columns, rows, note))
        found.bars[f"A chunk of a stream, {way}: times as fast as"] = {
            name: value for name, value in times.items() if name != OURS.name
        }


def bench_first_event(found: Findings, plan: Plan, targets: Mapping[str, Running]) -> None:
    rows = {name: [name] for name in targets}
    for concurrent in (1, 50):

        def measure(target: Running, concurrent: int = concurrent) -> Sample:
            times = [streams.run(streams.measure_first_event(target, concurrent)) for _ in range(5 + 25 // concurrent)]
            together = [one for taken in times for one in taken]
            return {"p50": percentile(together, 0.5), "p99": percentile(together, 0.99)}

        samples = interleave(targets, measure, plan.rounds)
        ours = samples[OURS.name]
        found.figures |= {f"first/{concurrent}/{key}": value for key, value in medians(ours).items()}
        for name, taken in samples.items():
            one = medians(taken)
            found.figures[f"first/{name}/{concurrent}"] = times = versus(taken, ours, "p50")
            rows[name] += [ratio(times), ms(one["p50"]), ms(one["p99"])]
    columns = ["server"]
    for concurrent in (1, 50):
        columns += [f"ours is … times as fast ({concurrent})", f"p50 ms ({concurrent})", f"p99 ms ({concurrent})"]
    note = "From the request to the first event, for 1 and for 50 streams begun at the same moment."
    found.add(Table("message/stream, the first event", columns, list(rows.values()), note))


def bench_subscribers(found: Findings, plan: Plan, targets: Mapping[str, Running]) -> None:
    rows = []
    for word in WAYS:
        gate = "gate-yield" if word == "yield" else "gate"

        def measure(target: Running, gate: str = gate) -> Sample:
            chunks = 1_000 if target.name == OURS.name else 50
            return {str(n): streams.run(streams.measure_subscribers(target, gate, chunks, n)) for n in (1, 10, 100)}

        for name, taken in interleave(targets, measure, plan.rounds).items():
            costs = medians(taken)
            shown = [*(f"{cost:,.1f}" for cost in costs.values()), f"{1e6 / costs['100']:,.0f}"]
            rows.append([f"{name}, {WAYS[word]}", *shown, f"{spread(taken, '100'):.0%}"])
            if name == OURS.name:
                found.figures[f"subscribers/{word}/100"] = costs["100"]
    each = (f"{n} subscribers: µs per subscriber and event" for n in (1, 10, 100))
    columns = ("server", *each, "events/s to 100", "spread")
    note = "All of them watch one task. fasta2a cannot: it runs one task at a time."
    found.add(Table("Many subscribers of one task", columns, rows, note))


def bench_flatness(found: Findings, plan: Plan) -> None:
    """The bytes of a chunk in memory, on the wire, and in SQLite's files."""
    rows = []
    for server in (OURS, SDK):
        for chunks in [n for n in plan.chunks if n <= (plan.writes if server is OURS else plan.peer_writes)]:
            with tempfile.TemporaryDirectory() as folder:
                with running(server) as target:
                    warm_up(target, wire.send(server), plan)
                    before = resident(target.pid)
                    reader = streams.run(streams.read(target, f"yield {chunks}", chunks))
                    memory = resident(target.pid) - before
                with running(server, "--sqlite", str(Path(folder) / "tasks.db")) as durable:
                    warm_up(durable, wire.send(server), plan)
                    before = bytes_written(durable.pid)
                    streams.run(streams.read(durable, f"yield {chunks}", chunks))
                    written = bytes_written(durable.pid) - before - reader.size
            each = [f"{amount / chunks:,.0f}" for amount in (memory, reader.size, written)]
            rows.append([server.name, f"{chunks:,}", *each])
            if server is OURS:
                found.figures[f"written/{chunks}"] = written / chunks
    columns = ("server", "chunks", "bytes of memory each", "bytes on the wire each", "bytes to SQLite's files each")
    note = "One task, chunks of 50 characters; memory is what the process has grown by when the stream has ended."
    found.add(Table("What a chunk leaves behind", columns, rows, note))


def bench(found: Findings, plan: Plan) -> None:
    with all_running(OURS, *((FASTA2A, JS) if plan.everyone else ()), SDK) as targets:
        for target in targets.values():
            warm_up(target, wire.send(target.server), plan)
            streams.run(streams.read(target, "yield 50", 50))
        bench_first_event(found, plan, targets)
        bench_chunks(found, plan, targets)
        bench_subscribers(found, plan, {name: targets[name] for name in (OURS.name, SDK.name)})
    bench_flatness(found, plan)


if __name__ == "__main__":
    run_alone(bench, __doc__)
