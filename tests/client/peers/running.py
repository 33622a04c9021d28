"""Starts each peer once, and lists what it supports."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from apcore_a2a.client.options import BindingName, Version
from tests.sources import ROOT

HERE = Path(__file__).parent
VENVS = ROOT / ".venvs"


class Peer(NamedTuple):
    command: tuple[str, ...]
    needs: Path
    """The environment that `make setup` creates for it."""
    cwd: Path = ROOT


PEERS = {
    "sdk1": Peer((sys.executable, str(HERE / "sdk1.py")), Path(sys.executable)),
    "sdk03": Peer((str(VENVS / "sdk03/bin/python"), str(HERE / "sdk03.py")), VENVS / "sdk03/bin/python"),
    "fasta2a": Peer((str(VENVS / "fasta2a/bin/python"), str(HERE / "fasta.py")), VENVS / "fasta2a/bin/python"),
    "js": Peer(("node", str(HERE / "js_sdk.cjs")), VENVS / "js/node_modules/@a2a-js/sdk", VENVS / "js"),
}


class Way(NamedTuple):
    """A peer, and the binding and version to call it with."""

    peer: str
    binding: BindingName
    version: Version
    lacks: frozenset[str] = frozenset()
    """The operations that it does not support correctly."""

    def __str__(self) -> str:
        return f"{self.peer}-{self.binding}-{self.version}"


def way(peer: str, binding: BindingName, version: Version, lacks: str = "") -> Way:
    return Way(peer, binding, version, frozenset(lacks.split()))


WAYS = [
    way("sdk1", "JSONRPC", "1.0"),
    way("sdk1", "HTTP+JSON", "1.0"),
    way("sdk1", "GRPC", "1.0"),
    way("sdk03", "JSONRPC", "0.3", "list"),
    # Its REST binding cannot list tasks or webhooks, nor delete a webhook.
    way("sdk03", "HTTP+JSON", "0.3", "list push"),
    way("sdk03", "GRPC", "0.3", "list push"),  # its gRPC service neither lists nor deletes webhooks
    way("js", "JSONRPC", "1.0", "twice"),  # a second cancel is not an error there
    way("js", "HTTP+JSON", "1.0", "twice"),
    way("js", "GRPC", "1.0", "twice"),
    way("js", "JSONRPC", "0.3", "list twice"),
    way("js", "HTTP+JSON", "0.3", "list twice push"),  # its webhook requests have their own form
    way("js", "GRPC", "0.3", "list twice"),
    way("fasta2a", "JSONRPC", "1.0", "list push message continue cancel extended skills"),
]


class Started(NamedTuple):
    """The addresses of a peer that runs."""

    url: str
    grpc_url: str
    """Another origin, because only servers of this package serve gRPC at the port of the other bindings."""


@contextmanager
def running(name: str) -> Iterator[Started]:
    """Run a peer during the block, and yield its addresses."""
    peer = PEERS[name]
    if not peer.needs.exists():
        pytest.skip(f"{peer.needs.relative_to(ROOT)} is missing: make setup")
    with subprocess.Popen(peer.command, cwd=peer.cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            port, *further = process.stdout.readline().split()
            grpc_port = further[0] if further else port
            yield Started(f"http://127.0.0.1:{int(port)}", f"http://127.0.0.1:{int(grpc_port)}")
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()  # a hanging task delays its exit
