"""The instructions that telemetry adds to a message/send, counted by valgrind: spans, and the metrics.

A message is sent through the server's protocol without a socket, with different numbers of repetitions. The difference
is the cost of one message. The garbage collector is off, because the moments at which it runs differ between variants.
Spans go to a batch processor whose exporter discards them.

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
from typing import Any, Final

import uvloop

from apcore_a2a.app import application
from apcore_a2a.app.serve import build_app
from apcore_a2a.http.server.connection import GuardedProtocol
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


VARIANTS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "without OpenTelemetry": absent,
    "OpenTelemetry without a provider": without_provider,
    "a provider, 1 % sampled": lambda: sampled(0.01),
    "a provider, all sampled": lambda: sampled(1.0),
    "metrics": lambda: absent() | {"metrics": True},
}


async def repeat(options: dict[str, Any], times: int) -> None:
    app = build_app(Obedient(), **options)
    await app.open()
    send = through_uvicorn(app, GuardedProtocol)
    gc.disable()
    for _ in range(times):
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
        uvloop.run(repeat(VARIANTS[sys.argv[1]](), int(sys.argv[2])))
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is needed to count instructions: apt-get install valgrind")
    counted = {variant: count(variant) for variant in VARIANTS}
    base = counted["without OpenTelemetry"]
    rows = [[name, f"{number:,}", f"{number / base - 1:+.1%}"] for name, number in counted.items()]
    print(Table("What telemetry adds to a message/send", ("variant", "instructions", "added"), rows).to_markdown())


if __name__ == "__main__":
    main()
