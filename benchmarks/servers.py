"""The measured servers, each in its own environment, started on a core of its own, and ended by process id."""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import NamedTuple

from benchmarks.measuring import ROOT

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
START_DEADLINE = 300.0  # a million tasks are stored before the first answer


class Server(NamedTuple):
    name: str
    program: str
    """A module of `benchmarks.peers`, or a script for Node."""
    environment: str = ""
    """One of benchmarks/peers/*.txt. Empty for our own environment."""
    kind: str = ""
    version: str = "1.0"
    path: str = "/"
    card: str = "/.well-known/agent-card.json"
    steady: bool = True
    """Whether equal requests get answers of equal size."""


OURS = Server("apcore-a2a", "ours")
OURS_03 = OURS._replace(name="apcore-a2a, A2A 0.3", version="0.3")
RAW = Server("raw ASGI, constant bytes", "limits", kind="raw")
STARLETTE = Server("Starlette, constant bytes", "limits", kind="starlette")
SDK = Server("a2a-sdk", "sdk", "sdk")
# In our own environment, which has grpcio. It serves gRPC at the next port.
SDK_GRPC = Server("a2a-sdk, grpc.aio", "sdk", kind="grpc")
SDK_03 = SDK._replace(name="a2a-sdk, A2A 0.3", version="0.3")
FASTA2A = Server("fasta2a", "fasta", "fasta2a", steady=False)  # it answers before the work is done
JS = Server("@a2a-js/sdk", "js_sdk.cjs", "js", path="/rpc")
OURS_APCORE = Server("apcore-a2a, apcore module", "ours", kind="apcore")
BARE = Server("bare call_async in raw ASGI", "limits", kind="call_async")
INDEX = Server("apcore-a2a 0.8.5", "apcore_a2a_index", "apcore-a2a", kind="apcore", version="0.3")


class Running(NamedTuple):
    server: Server
    port: int
    pid: int
    started_in: float
    """Seconds from the start of the process to its first answer."""

    @property
    def name(self) -> str:
        return self.server.name


@cache
def python_of(environment: str) -> str:
    """Return the interpreter of an environment, which is created if it is missing."""
    if not environment:
        return sys.executable
    subprocess.run(["make", "--silent", f".venvs/bench-{environment}/.stamp"], cwd=ROOT, check=True)
    return str(ROOT / f".venvs/bench-{environment}/bin/python")


def is_available(server: Server) -> bool:
    """Return whether the server can run here. Only Node is not installed by an environment."""
    return server.environment != "js" or (shutil.which("node") is not None and shutil.which("npm") is not None)


def command(server: Server, port: int) -> tuple[list[str], str]:
    """Return the command and the address."""
    python = python_of(server.environment)
    if server.environment == "js":
        script = str(ROOT / "benchmarks/peers" / server.program)
        return ["node", script, "--port", str(port)], str(ROOT / ".venvs/bench-js")
    kind = ["--kind", server.kind] if server.kind else []
    return [python, "-m", f"benchmarks.peers.{server.program}", "--port", str(port), *kind], str(ROOT)


def pinned(core: int) -> list[str]:
    """Servers run on the first core and load on the last, if the machine has two and supports pinning."""
    return ["taskset", "-c", str(CORES[core])] if len(CORES) > 1 and shutil.which("taskset") else []


def pin_to_load() -> None:
    """Pin this process to the core for load."""
    if pinned(-1):
        os.sched_setaffinity(0, {CORES[-1]})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port


@contextmanager
def running(server: Server, *extra: str) -> Iterator[Running]:
    """Run a server during the block, once it answers."""
    port = free_port()
    words, cwd = command(server, port)
    with tempfile.TemporaryFile() as log:
        started = time.perf_counter()
        process = subprocess.Popen([*pinned(0), *words, *extra], cwd=cwd, stdout=subprocess.DEVNULL, stderr=log)
        try:
            await_card(server, port, process)
            yield Running(server, port, process.pid, time.perf_counter() - started)
        except RuntimeError:
            log.seek(0)
            print(log.read()[-2000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def all_running(
    *servers: Server, extra: Mapping[str, tuple[str, ...]] | None = None, default: tuple[str, ...] = ()
) -> Iterator[dict[str, Running]]:
    """Run several servers, if available, with `extra` arguments by name. Only one is loaded at a time."""
    with ExitStack() as stack:
        arguments = extra or {}
        up = [
            stack.enter_context(running(server, *arguments.get(server.name, default)))
            for server in servers
            if is_available(server)
        ]
        yield {one.name: one for one in up}


def await_card(server: Server, port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_DEADLINE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{server.name} ended with status {process.returncode} before it answered")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", server.card)
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.005)
        finally:
            connection.close()
    raise RuntimeError(f"{server.name} did not answer in {START_DEADLINE:.0f} s")
