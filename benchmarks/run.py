"""Runs all benchmarks in sequence, and writes a page of the results.

python -m benchmarks.run [--quick] [--only send stream …] [--write docs/performance.md]
"""

import argparse
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks import (
    bench_apcore,
    bench_client,
    bench_cluster,
    bench_codec,
    bench_footprint,
    bench_grpc,
    bench_reads,
    bench_send,
    bench_store,
    bench_stream,
    bench_webhooks,
)
from benchmarks.chart import draw
from benchmarks.load import require_wrk
from benchmarks.measuring import FULL, QUICK, Findings, Plan, describe_machine, write_byte_code
from benchmarks.promises import add_promises

BENCHES: dict[str, Callable[[Findings, Plan], None]] = {
    "send": bench_send.bench,
    "apcore": bench_apcore.bench,
    "stream": bench_stream.bench,
    "grpc": bench_grpc.bench,
    "webhooks": bench_webhooks.bench,
    "reads": bench_reads.bench,
    "footprint": bench_footprint.bench,
    "store": bench_store.bench,
    "cluster": bench_cluster.bench,
    "codec": bench_codec.bench,
    "client": bench_client.bench,
}
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write(page: Path, found: Findings, about: str) -> None:
    """Insert the tables between the page's marks, and write the chart beside it."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} lacks the marks {BEGIN} and {END}")
    chart = page.with_suffix(".svg")
    chart.write_text(draw(found.bars), encoding="utf-8")
    image = f"![How many times as fast as other servers]({chart.name})"
    tables = [table.to_markdown().rstrip() for table in (*found.promises, *found.tables)]
    body = "\n\n".join([about, image, *tables])
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short and imprecise: to check that it works")
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES))
    parser.add_argument("--write", type=Path, help="the page to write the results into, between its marks")
    options = parser.parse_args()
    require_wrk()
    write_byte_code()
    started, found = time.monotonic(), Findings()
    about = describe_run(options.quick)
    print(about, flush=True)
    for name in options.only:
        BENCHES[name](found, QUICK if options.quick else FULL)
        print(f"[{name}: {time.monotonic() - started:.0f} s so far]", file=sys.stderr, flush=True)
    add_promises(found)
    if options.write:
        write(options.write, found, about)


def describe_run(quick: bool) -> str:
    day = datetime.now(UTC).date().isoformat()
    packages = ", ".join(f"{name} {version(name)}" for name in ("apcore-a2a", "apcore", "uvicorn", "uvloop", "msgspec"))
    command = "make bench-quick" if quick else "make bench"
    return f"Measured {day} by `{command}` on {describe_machine()}. Ours: {packages}."


if __name__ == "__main__":
    main()
