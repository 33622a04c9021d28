"""message/send compared with every peer and every limit: throughput, latencies, processor time.

python -m benchmarks.bench_send [--quick]
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import wire
from benchmarks.load import ask, interleave, warm_up, wrk
from benchmarks.measuring import Findings, Plan, Sample, Table, medians, ms, ratio, run_alone, spread, versus
from benchmarks.servers import (
    BARE,
    FASTA2A,
    INDEX,
    JS,
    OURS,
    OURS_03,
    OURS_APCORE,
    RAW,
    SDK,
    SDK_03,
    STARLETTE,
    Running,
    Server,
    all_running,
    running,
)

COLUMNS = ("server", "ours is … times as fast", "by CPU", "req/s", "p50 ms", "p99 ms", "CPU µs", "spread")
AS_THEY_COME = "Ours commits in groups, a2a-sdk saves the whole task at each event; both as they come"
NOTE = "Closed loop over kept-alive connections. Several figures: over {}; CPU and spread over 16."


def measure_sends(targets: Mapping[str, Running], plan: Plan) -> dict[int, dict[str, list[Sample]]]:
    for target in targets.values():
        warm_up(target, wire.send(target.server), plan)

    def measure_at(connections: int) -> dict[str, list[Sample]]:
        def measure(target: Running) -> Sample:
            seconds = plan.seconds * (2 if connections >= 100 else 1)
            return wrk(target, wire.send(target.server), connections=connections, seconds=seconds)

        return interleave(targets, measure, plan.rounds)

    return {connections: measure_at(connections) for connections in plan.concurrency}


def tabulate(title: str, note: str, samples: Mapping[int, Mapping[str, Sequence[Sample]]], base: str) -> Table:
    """Return one row for each server. The base is our server."""
    rows = []
    for name in samples[16]:
        middle = [medians(one[name]) for one in samples.values()]
        at_16, cpu = samples[16][name], medians(samples[16][name])["cpu"]
        rows.append(
            [
                name,
                " / ".join(ratio(versus(one[base], one[name])) for one in samples.values()),
                ratio(versus(at_16, samples[16][base], "cpu")),
                " / ".join(f"{one['rate']:,.0f}" for one in middle),
                " / ".join(ms(one["p50"]) for one in middle),
                " / ".join(ms(one["p99"]) for one in middle),
                f"{cpu:,.0f}",
                f"{spread(at_16, 'rate'):.0%}",
            ]
        )
    return Table(title, COLUMNS, rows, f"{NOTE.format(' / '.join(map(str, samples)))} {note}".strip())


def compare(found: Findings, samples: Mapping[int, Mapping[str, Sequence[Sample]]], base: str, prefix: str) -> None:
    """Record ratios by name, such as `send/a2a-sdk/16`: ours compared with that server."""
    for connections, taken_by in samples.items():
        ours = medians(taken_by[base])
        for measure in ("rate", "p50", "p99"):
            found.figures[f"{prefix}/{measure}/{connections}"] = ours[measure]
        for name, taken in taken_by.items():
            figure = f"{prefix}/{name}/{connections}"
            found.figures[figure] = versus(taken_by[base], taken)
            found.figures[f"{figure}/cpu"] = versus(taken, taken_by[base], "cpu")


def bench_trivial(found: Findings, plan: Plan) -> None:
    with running(OURS) as probe:
        size = len(ask(probe, wire.send(OURS)).text)
    extra = {RAW.name: ("--answer", str(size)), STARLETTE.name: ("--answer", str(size))}
    with all_running(OURS, RAW, FASTA2A, JS, SDK, extra=extra) as targets:
        samples = measure_sends(targets, plan)
    note = f"The constant answers are as long as ours ({size} bytes). fasta2a answers before the work is done."
    found.add(tabulate("message/send, an agent that answers at once, tasks in memory", note, samples, OURS.name))
    compare(found, samples, OURS.name, "send")
    shown = {name: found.figures[f"send/{name}/16"] for name in samples[16] if name != OURS.name}
    found.bars["message/send, 16 connections: times as fast as"] = shown
    if plan.everyone:
        with all_running(OURS, STARLETTE, OURS_03, SDK_03, extra=extra) as targets:
            samples = measure_sends(targets, plan._replace(concurrency=(16,)))
        found.add(tabulate("message/send, A2A 0.3 and Starlette", "", samples, OURS.name))


def bench_module(found: Findings, plan: Plan) -> None:
    with all_running(OURS_APCORE, BARE, INDEX) as targets:  # bench_apcore measures one connection
        samples = measure_sends(targets, plan._replace(concurrency=plan.concurrency[-2:]))
    title = "message/send, an apcore module that adds two numbers, every check of its pipeline run"
    found.add(tabulate(title, "", samples, OURS_APCORE.name))
    compare(found, samples, OURS_APCORE.name, "module")
    shown = {name: found.figures[f"module/{name}/16"] for name in samples[16] if name != OURS_APCORE.name}
    found.bars["message/send to an apcore module, 16 connections: times as fast as"] = shown


def repeatable_of(server: Server) -> Server:
    """Return this server of ours with an agent that is safe to repeat: its tasks are stored with their first events."""
    return server._replace(name=f"{server.name}, safe to repeat", kind="repeatable")


def bench_sqlite(found: Findings, plan: Plan) -> None:
    durable = OURS._replace(name="apcore-a2a on SQLite")
    repeatable = repeatable_of(durable)
    sdk = SDK._replace(name="a2a-sdk on SQLite")
    with tempfile.TemporaryDirectory() as folder:
        stored = (durable, repeatable, sdk)
        extra = {server.name: ("--sqlite", str(Path(folder) / f"{number}.db")) for number, server in enumerate(stored)}
        with all_running(durable, repeatable, OURS, sdk, extra=extra) as targets:
            samples = measure_sends(targets, plan._replace(concurrency=(16,)))
    found.add(tabulate("message/send, tasks in SQLite", f"{AS_THEY_COME}.", samples, durable.name))
    compare(found, samples, durable.name, "sqlite")
    compare(found, samples, repeatable.name, "sqlite, repeatable")
    found.bars["message/send on SQLite, 16 connections: times as fast as"] = {
        sdk.name: found.figures[f"sqlite/{sdk.name}/16"]
    }


def bench_full_store(found: Findings, plan: Plan) -> None:
    """Many stored tasks must not burden the garbage collector, because all answers would wait for its collections."""
    extra = {OURS.name: ("--fill", str(plan.kept))}
    with all_running(OURS, RAW, extra=extra) as targets:
        samples = measure_sends(targets, plan._replace(concurrency=(16,)))[16]
    rows = []
    for name, taken in samples.items():
        one = medians(taken)
        found.figures[f"kept/p99/{name}"] = one["p99"]
        rows.append([name, f"{one['rate']:,.0f}", ms(one["p50"]), ms(one["p99"]), ms(one["max"])])
    columns = ("server", "req/s, 16 connections", "p50 ms", "p99 ms", "longest ms")
    title = f"message/send while {plan.kept:,} finished tasks are kept in memory"
    found.add(Table(title, columns, rows, "Constant bytes keep no tasks: what they wait for is the machine."))


def bench(found: Findings, plan: Plan) -> None:
    bench_trivial(found, plan)
    bench_module(found, plan)
    bench_sqlite(found, plan)
    bench_full_store(found, plan)


if __name__ == "__main__":
    run_alone(bench, __doc__)
