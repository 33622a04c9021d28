"""What every benchmark here shares: samples and their medians, tables with the ratio first, the machine.

Rule: a figure is the median of interleaved rounds, and its spread stands beside it. A ratio is the median of the ratios
of each round, whose halves were measured one after the other: what slows the machine for a while slows both.
"""

import argparse
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
    """How thoroughly to measure."""

    rounds: int = 5
    seconds: float = 1.0
    """Of each measurement of a throughput; twice that with 100 connections, for the sake of slow servers."""
    concurrency: tuple[int, ...] = (1, 16, 100)
    chunks: tuple[int, ...] = (100, 1_000, 10_000)
    peer_chunks: int = 10_000
    """No more than these in one stream of a peer."""
    writes: int = 10_000
    peer_writes: int = 1_000
    """On a database, ours and theirs."""
    stored: int = 10_000
    many: int = 1_000_000
    kept: int = 100_000
    idle: int = 10_000
    peer_idle: int = 1_000
    warm_up: float = 0.5
    """Seconds of each server."""
    everyone: bool = True
    """Whether to measure also what is there only for completeness."""


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
    """What a run has found: tables to read, and single figures by name for the limits they must keep."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.promises: list[Table] = []
        """The figures beside their limits: made last, shown first."""
        self.figures: dict[str, float] = {}
        self.bars: dict[str, dict[str, float]] = {}
        """What the chart shows: by its title, the ratio to each other server."""

    def add(self, table: Table) -> None:
        self.tables.append(table)
        print("\n" + table.to_markdown(), flush=True)


def run_alone(bench: Callable[[Findings, Plan], None], about: str | None) -> None:
    """The main program of one benchmark."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short and rough: to see that it works")
    print(describe_machine())
    bench(Findings(), QUICK if parser.parse_args().quick else FULL)


def medians(samples: Sequence[Sample]) -> dict[str, float]:
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def versus(ours: Sequence[Sample], theirs: Sequence[Sample], key: str = "rate") -> float:
    """How many times theirs ours is: of each round, and the median of them."""
    return statistics.median(one[key] / other[key] for one, other in zip(ours, theirs, strict=True))


def spread(samples: Sequence[Sample], key: str) -> float:
    """How far the rounds are apart, as a share of their median."""
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


def resident(pid: int | str = "self") -> int:
    """Bytes of memory that a process has in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process: steadier than the clock on a busy machine."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def bytes_written(pid: int | str = "self") -> int:
    """What a process has written so far, to files and sockets. 0 where the system does not say."""
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
    """What an import costs in a fresh process: milliseconds, and megabytes resident after it."""
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
