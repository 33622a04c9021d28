"""Shared by the benchmarks: samples and medians, tables with the ratio first, and the machine.

Invariant: a figure is the median of interleaved rounds, shown with its spread. A ratio is the median of the ratios of
the rounds. Both halves of a round are measured in sequence, so that a slow phase of the machine affects both.
"""

import argparse
import compileall
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = os.sysconf("SC_PAGE_SIZE")

Sample = Mapping[str, float]


class Plan(NamedTuple):
    """The thoroughness of a run."""

    rounds: int = 5
    seconds: float = 1.0
    """Rounds of a throughput measurement. Twice that with 100 connections, for the sake of slow servers."""
    concurrency: tuple[int, ...] = (1, 16, 100)
    chunks: tuple[int, ...] = (100, 1_000, 10_000)
    peer_chunks: int = 10_000
    """The maximum number of chunks in one stream of a peer."""
    writes: int = 10_000
    peer_writes: int = 1_000
    """The numbers for a database, ours and theirs."""
    stored: int = 10_000
    many: int = 1_000_000
    kept: int = 100_000
    idle: int = 10_000
    peer_idle: int = 1_000
    warm_up: float = 0.5
    """Seconds per server."""
    everyone: bool = True
    """Whether to also measure what is only there for completeness."""


FULL = Plan()
QUICK = Plan(
    rounds=1,
    concurrency=(16,),
    peer_chunks=100,
    writes=1_000,
    peer_writes=0,
    stored=2_000,
    many=10_000,
    kept=10_000,
    idle=1_000,
    warm_up=0.2,
    everyone=False,
)


class Table(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def to_markdown(self) -> str:
        head = [" | ".join(self.columns), " | ".join(["---"] + ["---:"] * (len(self.columns) - 1))]
        lines = [f"| {line} |" for line in [*head, *(" | ".join(row) for row in self.rows)]]
        return "\n".join([f"### {self.title}", "", *([self.note, ""] if self.note else []), *lines, ""])


class Findings:
    """The results of a run: tables, and single figures by name for comparison with their limits."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.promises: list[Table] = []
        """The figures with their limits: computed last, shown first."""
        self.figures: dict[str, float] = {}
        self.bars: dict[str, dict[str, float]] = {}
        """The bars of the chart: the ratios to the other servers by title."""

    def add(self, table: Table) -> None:
        self.tables.append(table)
        print("\n" + table.to_markdown(), flush=True)


def run_alone(bench: Callable[[Findings, Plan], None], about: str | None) -> None:
    """Run one benchmark as the main program."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short and imprecise: to check that it works")
    options = parser.parse_args()
    write_byte_code()
    print(describe_machine())
    bench(Findings(), QUICK if options.quick else FULL)


def medians(samples: Sequence[Sample]) -> dict[str, float]:
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def versus(ours: Sequence[Sample], theirs: Sequence[Sample], key: str = "rate") -> float:
    """Return ours divided by theirs: the median over the rounds."""
    return statistics.median(one[key] / other[key] for one, other in zip(ours, theirs, strict=True))


def spread(samples: Sequence[Sample], key: str) -> float:
    """Return the range of the rounds relative to their median."""
    values = [sample[key] for sample in samples]
    return (max(values) - min(values)) / (statistics.median(values) or 1)


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def ratio(value: float) -> str:
    return f"**{value:,.0f}**" if value >= 10 else f"**{value:.1f}**" if value >= 3 else f"**{value:.2f}**"


def ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:,.2f}" if microseconds < 1e5 else f"{microseconds / 1e3:,.0f}"


# ---- processes ---------------------------------------------------------------------------------------------------


def write_byte_code() -> None:
    """Compile our sources, as pip does when it installs a peer or the wheel.

    The package is installed editable here. Under PYTHONDONTWRITEBYTECODE each measured process would compile it again,
    and would keep about 1.4 MB that the compiler has allocated.
    """
    for folder in ("src", "benchmarks"):
        if not compileall.compile_dir(ROOT / folder, quiet=1):
            raise SystemExit(f"cannot write the byte code of {ROOT / folder}")


def resident(pid: int | str = "self") -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process. It is steadier than wall time on a busy machine."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def bytes_written(pid: int | str = "self") -> int:
    """Return the bytes that a process has written to files and sockets, or 0 where the system does not tell."""
    counters = Path(f"/proc/{pid}/io")
    return int(counters.read_text().split("wchar: ")[1].split()[0]) if counters.exists() else 0


_IMPORT = """
import json, time
start = time.perf_counter()
import {module}
print(json.dumps({{"ms": (time.perf_counter() - start) * 1e3, "mb": {rss} / 1e6}}))
"""
_RSS = f"int(open('/proc/self/statm').read().split()[1]) * {PAGE}"


def measure_import(module: str, python: str = sys.executable) -> dict[str, float]:
    """Measure an import in a fresh process: milliseconds, and resident megabytes after it."""
    program = _IMPORT.format(module=module, rss=_RSS)
    run = subprocess.run([python, "-c", program], capture_output=True, check=True, cwd="/")
    measured: dict[str, float] = json.loads(run.stdout)
    return measured


def describe_machine() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(": ")[2] for line in cpuinfo.splitlines() if line.startswith("model name")), "")
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE / 2**30
    system = f"{platform.system()} {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    cores = f"{model or platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB"
    return f"{cores}, {system}; load average at the start {os.getloadavg()[0]:.1f}"
