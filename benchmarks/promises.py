"""The promised figures: the limits of the requirements, and the project's own limits relative to the peers.

Invariant: missing and missed figures are reported as such. Wall time decides. The ratio by processor time is shown
beside it, for machines with other load.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from benchmarks.measuring import Findings, Table
from benchmarks.servers import BARE, FASTA2A, INDEX, JS, OURS, RAW, SDK

Figures = Mapping[str, float]


class Promise(NamedTuple):
    what: str
    figure: str | Callable[[Figures], float]
    limit: float
    at_least: bool = False
    unit: str = ""
    scale: float = 1.0
    """Divisor that converts the figure to the unit."""


def worst(word: str) -> Callable[[Figures], float]:
    """Return how far the cost of a chunk at 100 and 10,000 differs from 1,000: the larger difference."""
    return lambda figures: max(abs(figures[f"flat/{word}/{chunks}"] - 1) for chunks in (100, 10_000)) * 100


REQUIREMENTS = (
    Promise("NFR-PERF-001: agent card, p99, 16 connections", "card/p99", 10, unit="ms", scale=1e3),
    Promise("NFR-PERF-001: agent card, p99, 1,000 connections", f"card/p99/1000/{OURS.name}", 10, unit="ms", scale=1e3),
    Promise("(the same of constant bytes on raw ASGI)", f"card/p99/1000/{RAW.name}", 10, unit="ms", scale=1e3),
    Promise("NFR-PERF-002: message/send over a bare call, p50", "overhead/p50", 5, unit="ms", scale=1e3),
    Promise("NFR-PERF-003: first event, one stream, p99", "first/1/p99", 50, unit="ms", scale=1e3),
    Promise("NFR-PERF-004: tasks/get from memory, p99, one connection", "get/p99", 1, unit="ms", scale=1e3),
    Promise("NFR-PERF-005: 100 agents of 100 ms at a time, p99 over one alone", "waiting", 2, unit="x"),
    Promise("NFR-PERF-005: the same without the agents' own 100 ms", "waiting/net", 2, unit="x"),
    Promise("NFR-PERF-006: memory of a stored task", "stored", 10, unit="kB", scale=1e3),
    Promise("NFR-PERF-007: application and card of 100 modules", "card of 100", 100, unit="ms"),
    Promise("NFR-PERF-008: start to the first card, apcore module", "start/apcore-a2a, apcore module", 2, unit="s"),
    Promise("NFR-SCA-001: 100 connections, p99", "send/p99/100", 100, unit="ms", scale=1e3),
    Promise("NFR-SCA-002: tasks of an apcore module per second", "module/rate/16", 100, at_least=True),
    Promise("NFR-SCA-003: first event, 50 streams at a time, p99", "first/50/p99", 100, unit="ms", scale=1e3),
    Promise("NFR-SCA-003: buffered for a stream", "buffers", 1, unit="kB", scale=1e3),
)


def beside(what: str, figure: str, times: float) -> Promise:
    return Promise(what, figure, times, at_least=True, unit="x")


GOALS = (
    *(
        promise
        for n in (16, 100)
        for promise in (
            beside(f"message/send, {n} connections, beside a2a-sdk", f"send/{SDK.name}/{n}", 30),
            beside(f"… beside fasta2a, {n}", f"send/{FASTA2A.name}/{n}", 4),
            beside(f"… beside @a2a-js/sdk, {n}", f"send/{JS.name}/{n}", 4),
            beside(f"… beside the raw ASGI limit, {n}", f"send/{RAW.name}/{n}", 0.45),
            beside(f"… apcore module beside a bare call_async, {n}", f"module/{BARE.name}/{n}", 1.15),
            beside(f"… apcore module beside apcore-a2a 0.8.5, {n}", f"module/{INDEX.name}/{n}", 6),
        )
    ),
    Promise("… p99, 16 connections, 100,000 tasks kept", f"kept/p99/{OURS.name}", 5, unit="ms", scale=1e3),
    Promise("(the same of constant bytes on raw ASGI)", f"kept/p99/{RAW.name}", 5, unit="ms", scale=1e3),
    Promise("message/send over a bare call_async, p50", "overhead/p50", 1, unit="ms", scale=1e3),
    Promise("message/stream, a chunk of 1,000, agent yields", "chunk/yield/1000", 20, unit="µs"),
    Promise("… chunks ready together", "chunk/count/1000", 8, unit="µs"),
    Promise("… 100 and 10,000 chunks beside 1,000, agent yields", worst("yield"), 10, unit="%"),
    Promise("… 100 and 10,000 chunks beside 1,000, ready together", worst("count"), 10, unit="%"),
    Promise("… 100 subscribers, per subscriber and event, agent yields", "subscribers/yield/100", 5, unit="µs"),
    Promise("… 100 subscribers, ready together", "subscribers/count/100", 5, unit="µs"),
    beside("… first event of 50 streams, beside a2a-sdk", f"first/{SDK.name}/50", 20),
    beside("tasks/get beside the raw ASGI limit", f"get/{RAW.name}", 0.8),
    Promise("… memory beside the full SQLite store", f"get/{OURS.name} on SQLite", 2, unit="x"),
    beside("agent card beside the raw ASGI limit", f"card/{RAW.name}", 0.7),
    Promise("memory of a finished small task", "stored", 1.2, unit="kB", scale=1e3),
    Promise("memory of an idle stream", f"idle/{OURS.name}", 60, unit="KiB"),
    Promise("start to the first card", f"start/{OURS.name}", 1, unit="s"),
    beside("SQLite beside memory, message/send, 16 connections", f"sqlite/{OURS.name}/16", 0.3),
    beside("SQLite beside a2a-sdk on SQLite, 16 connections", "sqlite/a2a-sdk on SQLite/16", 60),
    beside("… an agent that is safe to repeat", "sqlite, repeatable/a2a-sdk on SQLite/16", 75),
    beside("PostgreSQL beside a2a-sdk on PostgreSQL, 16 connections", "postgres/a2a-sdk on PostgreSQL/16", 40),
    beside("… an agent that is safe to repeat", "postgres, repeatable/a2a-sdk on PostgreSQL/16", 60),
    beside("… 128 connections", "postgres/a2a-sdk on PostgreSQL/128", 60),
    Promise("an event of one replica at a client of another, p50", "cluster/crossing/p50", 10, unit="ms", scale=1e3),
    Promise("three idle replicas, transactions/s", "cluster/idle", 5),
    beside("client, 50 calls at a time, beside a2a-sdk's", "client/sends/a2a-sdk", 5),
    Promise("import of the client", "import/apcore_a2a.client/ms", 150, unit="ms"),
    Promise("… resident after it", "import/apcore_a2a.client/mb", 25, unit="MB"),
    Promise("reading a message of 416 bytes, envelope and all", "codec/decode SendMessage", 5, unit="µs"),
    Promise("writing a task of 3 kB", "codec/encode Task", 10, unit="µs"),
)


def judge(promise: Promise, figures: Figures) -> list[str]:
    limit = f"{'≥' if promise.at_least else '≤'} {promise.limit:g} {promise.unit}".strip()
    try:
        found = figures[promise.figure] if isinstance(promise.figure, str) else promise.figure(figures)
    except KeyError:
        return [promise.what, limit, "not measured in this run", "", ""]
    value = found / promise.scale
    kept = value >= promise.limit if promise.at_least else value <= promise.limit
    by_cpu = figures.get(f"{promise.figure}/cpu")
    beside_it = "" if by_cpu is None else show(by_cpu, promise.unit)
    return [promise.what, limit, show(value, promise.unit), beside_it, "yes" if kept else "**no**"]


def show(value: float, unit: str) -> str:
    return f"{f'{value:,.0f}' if abs(value) >= 100 else f'{value:.2f}'} {unit}".strip()


def add_promises(found: Findings) -> None:
    columns = ("figure", "limit", "measured", "by processor time", "kept")
    for title, promises in (("The requirements", REQUIREMENTS), ("What we ask of ourselves", GOALS)):
        table = Table(title, columns, [judge(promise, found.figures) for promise in promises])
        found.promises.append(table)
        print("\n" + table.to_markdown(), flush=True)
