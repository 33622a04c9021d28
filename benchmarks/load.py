"""Load from wrk on a core of its own, so that the client is not the limit.

Invariant: wrong answers do not count. One answer is read and checked before each measurement. All other answers must
have the same size, and none may fail.
"""

import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from benchmarks.measuring import ROOT, Plan, Sample, cpu_seconds
from benchmarks.servers import Running, pinned

WRONG = (b'"error"', b"failed", b"rejected")
PATIENCE = 10.0  # seconds
TOLERANCE = 0.05  # timestamps, and answers cut off at the end
CROWD = 50  # connections that are opened before the first request: uvloop accepts one per loop iteration
RAMP = 1.0  # seconds for opening them


def require_wrk() -> str:
    path = shutil.which("wrk")
    if path is None:
        raise SystemExit("wrk is needed to make load: apt-get install wrk (or brew install wrk)")
    return path


class Answer(NamedTuple):
    text: bytes
    size: int
    """Including headers, as sent."""


def ask(target: Running, body: str) -> Answer:
    """Return one checked answer. Without a body, GET the card."""
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=30)
    headers = {"Content-Type": "application/json", "A2A-Version": target.server.version}
    try:
        if body:
            connection.request("POST", target.server.path, body.replace("@", f"{0:012d}"), headers)
        else:
            connection.request("GET", target.server.card, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != 200 or any(word in text.lower() for word in WRONG):
        raise RuntimeError(f"{target.name} answered {answer.status}: {text[:500]!r}")
    head = len("HTTP/1.1 200 OK\r\n\r\n") + sum(len(name) + len(value) + 4 for name, value in answer.getheaders())
    return Answer(text, head + len(text))


def wrk(target: Running, body: str, *, connections: int, seconds: float, stored: int = 0) -> dict[str, float]:
    """Return requests per second, latencies in microseconds, and the server's processor time per request."""
    size = ask(target, body).size
    path = target.server.path if body else target.server.card
    script = str(ROOT / "benchmarks/request.lua")
    ramp = RAMP if connections >= CROWD else 0.0
    words = ["POST" if body else "GET", target.server.version, body, str(stored), str(connections if ramp else 0)]
    options = ["-t1", f"-c{connections}", f"-d{max(1, round(seconds + ramp))}s", "--timeout", "30s", "-s", script]
    url = f"http://127.0.0.1:{target.port}{path}"
    before = cpu_seconds(target.pid)
    run = subprocess.run(
        [*pinned(-1), require_wrk(), *options, url, "--", *words], capture_output=True, text=True, check=True
    )
    used = cpu_seconds(target.pid) - before
    seen: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    if not seen["requests"] and seconds < PATIENCE:  # a slow server with many requests in progress
        return wrk(target, body, connections=connections, seconds=PATIENCE, stored=stored)
    if seen["failed"] or not seen["requests"]:
        raise RuntimeError(f"{target.name}: {seen['failed']:.0f} of {seen['requests']:.0f} requests failed")
    if target.server.steady and abs(seen["bytes"] / seen["requests"] / size - 1) > TOLERANCE:
        raise RuntimeError(f"{target.name}: {seen['bytes'] / seen['requests']:.0f} bytes per answer, expected {size}")
    return {**seen, "rate": seen["requests"] / (seen["seconds"] - ramp), "cpu": used / seen["requests"] * 1e6}


def warm_up(target: Running, body: str, plan: Plan) -> None:
    """Fill caches, with at least ten checked answers."""
    deadline, asked = time.monotonic() + plan.warm_up, 0
    while asked < 10 or time.monotonic() < deadline:
        ask(target, body)
        asked += 1


def interleave(
    targets: Mapping[str, Running], measure: Callable[[Running], Sample], rounds: int
) -> dict[str, list[Sample]]:
    """Measure each target in turn, and repeat, so that a slow phase of the machine affects all targets."""
    samples: dict[str, list[Sample]] = {name: [] for name in targets}
    for _ in range(rounds):
        for name, target in targets.items():
            samples[name].append(measure(target))
    return samples
