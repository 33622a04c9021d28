"""The instructions that telemetry adds to a message/send, counted by valgrind: spans, and the metrics.

A message is sent through the server's protocol without a socket, with different numbers of repetitions. The difference
is the cost of one message. The garbage collector is off, because the moments at which it runs differ between variants.
Spans go to a batch processor whose exporter discards them. One row has no spans of ours: the SDK begins a span that it
does not sample, once per message. That is what any instrumentation costs with a provider.

python -m benchmarks.bench_telemetry
"""

import gc
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import uvloop

from apcore_a2a.agent import Call
from apcore_a2a.app import application
from apcore_a2a.app.serve import build_app
from apcore_a2a.engine.context import Observer, RunTimes
from apcore_a2a.http.metrics import Metrics
from apcore_a2a.http.server.connection import GuardedProtocol
from apcore_a2a.protocol.model import TaskState
from benchmarks.bench_parts import through_uvicorn
from benchmarks.measuring import ROOT, Table
from benchmarks.peers.ours import Obedient

FEW: Final = 200
MANY: Final = 1_400


def absent() -> dict[str, Any]:
    application.__dict__["find_spec"] = lambda name: None  # as if OpenTelemetry were not installed
    return {}


def without_provider() -> dict[str, Any]:
    import opentelemetry.trace  # noqa: F401  # a library of the program has loaded it

    return {}


def sampled(ratio: float) -> dict[str, Any]:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    class Discard(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Discard()))
    return {"tracer_provider": provider}


def decision_of_the_sdk() -> dict[str, Any]:
    """Let the SDK begin one span beside each message, which it does not sample."""
    from opentelemetry.context import Context

    tracer = sampled(0.0)["tracer_provider"].get_tracer(__name__)
    BESIDES.append(lambda: tracer.start_span("x", Context()))
    return absent()


def counters() -> dict[str, Any]:
    """Leave the histograms of requests and runs out of the metrics."""

    def run_ended(self: Metrics, task_id: str, call: Call, state: TaskState, times: RunTimes) -> None:
        counts = self._counts
        counts["active_tasks"] -= 1
        if state is not TaskState.CANCELED:
            counts["completed_tasks"] += 1
        self._seconds += times.seconds

    setattr(Metrics, "request_ended", Observer.request_ended)  # noqa: B010  # mypy rejects the assignment
    setattr(Metrics, "run_ended", run_ended)  # noqa: B010
    return metrics()


def metrics() -> dict[str, Any]:
    return absent() | {"metrics": True}


class Variant(NamedTuple):
    """How a message is sent, the variant to compare it with, and the limit of the difference."""

    options: Callable[[], dict[str, Any]]
    base: str = "without OpenTelemetry"
    limit: float | None = None


VARIANTS: Final[dict[str, Variant]] = {
    "without OpenTelemetry": Variant(absent, limit=0.0),
    "OpenTelemetry without a provider": Variant(without_provider, limit=0.01),
    "a provider, 1 % sampled": Variant(lambda: sampled(0.01), limit=0.05),
    "the same span begun by the SDK alone, unsampled": Variant(decision_of_the_sdk),
    "a provider, all sampled": Variant(lambda: sampled(1.0)),
    "metrics, counters only": Variant(counters),
    "metrics with histograms": Variant(metrics, base="metrics, counters only", limit=0.02),
}
BESIDES: Final[list[Callable[[], object]]] = []
"""What the process does beside each message."""


async def repeat(options: dict[str, Any], times: int) -> None:
    app = build_app(Obedient(), **options)
    await app.open()
    send = through_uvicorn(app, GuardedProtocol)
    gc.disable()
    for _ in range(times):
        for beside in BESIDES:
            beside()
        await send()


def count(variant: str) -> int:
    """Return the instructions of one message."""

    def collected(times: int) -> int:
        words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m", __spec__.name]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        run = subprocess.run(
            [*words, variant, str(times)], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        found = re.search(r"Collected : (\d+)", run.stderr)
        assert found is not None, run.stderr[-500:]
        return int(found[1])

    return (collected(MANY) - collected(FEW)) // (MANY - FEW)


def main() -> None:
    if len(sys.argv) == 3:
        # Under valgrind, each reading of the clock advances it by a millisecond.
        time.time_ns = lambda: 1_800_000_000_000_000_000
        uvloop.run(repeat(VARIANTS[sys.argv[1]].options(), int(sys.argv[2])))
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is needed to count instructions: apt-get install valgrind")
    counted = {variant: count(variant) for variant in VARIANTS}
    rows = [row_of(name, counted) for name in VARIANTS]
    columns = ("variant", "instructions", "added to", "by", "limit", "kept")
    print(Table("What telemetry adds to a message/send", columns, rows).to_markdown())


def row_of(name: str, counted: dict[str, int]) -> list[str]:
    variant = VARIANTS[name]
    added = counted[name] / counted[variant.base] - 1
    base = "" if variant.base == name else variant.base
    row = [name, f"{counted[name]:,}", base, f"{added:+.1%}"]
    if variant.limit is None:
        return [*row, "", ""]
    kept = "yes" if round(added, 3) <= variant.limit else "**no**"
    return [*row, f"≤ {variant.limit:.0%}", kept]


if __name__ == "__main__":
    main()
