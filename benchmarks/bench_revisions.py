"""Compares two revisions of this package: the cost or gain of a change in processor time.

`python -m benchmarks.bench_revisions REVISION` checks the revision out into a temporary directory, starts its server
and that of this working tree, and loads them in turn, round after round. It compares processor time per request, which
other processes hardly disturb.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks import streams, wire
from benchmarks.load import interleave, wrk
from benchmarks.measuring import ROOT, Sample, cpu_seconds
from benchmarks.servers import OURS, Running, await_card, end, free_port, pinned

CONNECTIONS: Final = (1, 16, 64)
CHUNKS: Final = 2_000


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check out a revision into a directory of its own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", folder, revision], cwd=ROOT, check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


@contextmanager
def serving(name: str, folder: Path) -> Iterator[Running]:
    """Run our server from the sources in that directory."""
    server = OURS._replace(name=name)
    port = free_port()
    words = [sys.executable, "-m", "benchmarks.peers.ours", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    process = subprocess.Popen([*pinned(0), *words], cwd=folder, env=environment)
    try:
        await_card(server, port, process)
        yield Running(server, port, process.pid, 0.0)
    finally:
        end(process)


def measure_stream(target: Running, word: str) -> Sample:
    """Return the processor time of an event, depending on whether the agent yields to the loop after each."""
    before = cpu_seconds(target.pid)
    began = time.perf_counter()
    for _ in range(5):
        streams.run(streams.read(target, f"{word} {CHUNKS}", CHUNKS))
    used = cpu_seconds(target.pid) - before
    return {"cpu": used / CHUNKS / 5 * 1e6, "seconds": time.perf_counter() - began}


def report(title: str, samples: dict[str, list[Sample]]) -> None:
    before, after = samples.values()
    ratios = [new["cpu"] / old["cpu"] for old, new in zip(before, after, strict=True)]
    medians = [statistics.median(sample["cpu"] for sample in side) for side in (before, after)]
    ratio = statistics.median(ratios)
    print(f"{title:<34}{medians[0]:>10.1f}{medians[1]:>10.1f}{ratio:>8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", help="the revision to compare the working tree with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    with checked_out(given.revision) as folder, serving("before", folder) as before, serving("after", ROOT) as after:
        targets = {"before": before, "after": after}
        body = wire.send(OURS)
        print(f"{'µs of processor time per':<34}{'before':>10}{'after':>10}{'ratio':>8}")
        for connections in CONNECTIONS:
            samples = interleave(
                targets,
                lambda target, c=connections: wrk(target, body, connections=c, seconds=given.seconds),  # type: ignore[misc]
                given.rounds,
            )
            report(f"message/send, {connections} connections", samples)
        for word, title in (("yield", "event, one by one"), ("count", "event, ready together")):
            report(title, interleave(targets, lambda target, w=word: measure_stream(target, w), given.rounds))  # type: ignore[misc]


if __name__ == "__main__":
    main()
