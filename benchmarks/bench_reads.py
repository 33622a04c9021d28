"""tasks/get, tasks/list and the agent card with many stored tasks, compared with the peers and the limit.

python -m benchmarks.bench_reads [--quick]
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import wire
from benchmarks.load import ask, interleave, warm_up, wrk
from benchmarks.measuring import Findings, Plan, Sample, Table, medians, ms, ratio, run_alone, spread, versus
from benchmarks.servers import FASTA2A, JS, OURS, RAW, SDK, STARLETTE, Running, Server, all_running, running

COLUMNS = (
    "server",
    "ours is … times as fast",
    "by CPU",
    "req/s, 16 connections",
    "p50 ms",
    "p99 ms",
    "CPU µs",
    "spread",
)
ON_SQLITE = OURS._replace(name="apcore-a2a on SQLite")


def measure_reads(
    targets: Mapping[str, Running], body: Callable[[Server], str], plan: Plan, stored: Mapping[str, int]
) -> dict[str, list[Sample]]:
    for target in targets.values():
        warm_up(target, body(target.server), plan)

    def measure(target: Running) -> Sample:
        count = stored.get(target.name, 0)
        return wrk(target, body(target.server), connections=16, seconds=plan.seconds, stored=count)

    return interleave(targets, measure, plan.rounds)


def measure_one(target: Running, plan: Plan) -> Sample:
    """One connection: the time of a request that does not wait for others."""
    return wrk(target, wire.get(target.server), connections=1, seconds=plan.seconds, stored=plan.stored)


def tabulate(title: str, samples: Mapping[str, Sequence[Sample]], note: str) -> Table:
    ours, rows = samples[OURS.name], []
    for name, taken in samples.items():
        one = medians(taken)
        latencies = [ms(one["p50"]), ms(one["p99"]), f"{one['cpu']:,.0f}", f"{spread(taken, 'rate'):.0%}"]
        ratios = [ratio(versus(ours, taken)), ratio(versus(taken, ours, "cpu"))]
        rows.append([name, *ratios, f"{one['rate']:,.0f}", *latencies])
    return Table(title, COLUMNS, rows, note)


def compare(found: Findings, samples: Mapping[str, Sequence[Sample]], prefix: str) -> None:
    for name, taken in samples.items():
        found.figures[f"{prefix}/{name}"] = versus(samples[OURS.name], taken)
        found.figures[f"{prefix}/{name}/cpu"] = versus(taken, samples[OURS.name], "cpu")


def bench_get(found: Findings, plan: Plan) -> None:
    """GetTask and ListTasks on the same servers, because filling them takes longer than the requests."""
    with running(OURS, "--fill", "1") as probe:
        size = len(ask(probe, wire.get(OURS)).text)
    fill = ("--fill", str(plan.stored))
    with tempfile.TemporaryDirectory() as folder:
        many = ("--sqlite", str(Path(folder) / "many.db"), "--fill", str(plan.many))
        extra = {RAW.name: ("--answer", str(size)), ON_SQLITE.name: many}
        servers = (OURS, ON_SQLITE, RAW, *((FASTA2A, JS, SDK) if plan.everyone else ()))
        with all_running(*servers, extra=extra, default=fill) as targets:
            stored = dict.fromkeys(targets, plan.stored) | {ON_SQLITE.name: plan.many}
            samples = measure_reads(targets, wire.get, plan, stored)
            single = [measure_one(targets[OURS.name], plan) for _ in range(plan.rounds)]
            names = (OURS.name, ON_SQLITE.name, SDK.name, JS.name)
            listed = measure_reads(
                {name: targets[name] for name in names if name in targets}, wire.list_tasks, plan, {}
            )
    note = f"A random one of {plan.stored:,} stored tasks ({plan.many:,} on SQLite), another one each time."
    found.add(tabulate("tasks/get", samples, note))
    found.add(tabulate("tasks/list, the newest 50", listed, f"Of {plan.stored:,} tasks ({plan.many:,} on SQLite)."))
    compare(found, samples, "get")
    found.figures |= {"get/p50": medians(single)["p50"], "get/p99": medians(single)["p99"]}
    found.bars[f"tasks/get of {plan.stored:,} tasks: times as fast as"] = {
        name: found.figures[f"get/{name}"] for name in samples if name not in (OURS.name, ON_SQLITE.name)
    }


def bench_card(found: Findings, plan: Plan) -> None:
    with running(OURS) as probe:
        size = len(ask(probe, "").text)
    extra = {RAW.name: ("--answer", str(size)), STARLETTE.name: ("--answer", str(size))}
    servers = (OURS, RAW, *((STARLETTE, FASTA2A, JS, SDK) if plan.everyone else ()))
    with all_running(*servers, extra=extra) as targets:
        samples = measure_reads(targets, lambda server: "", plan, {})
        crowd = {name: wrk(targets[name], "", connections=1000, seconds=plan.seconds) for name in (OURS.name, RAW.name)}
    found.add(tabulate("Agent card", samples, f"The constant answers are as long as our card ({size} bytes)."))
    compare(found, samples, "card")
    found.figures |= {f"card/p99/1000/{name}": taken["p99"] for name, taken in crowd.items()}
    found.figures["card/p99"] = medians(samples[OURS.name])["p99"]


def bench(found: Findings, plan: Plan) -> None:
    bench_get(found, plan)
    bench_card(found, plan)


if __name__ == "__main__":
    run_alone(bench, __doc__)
