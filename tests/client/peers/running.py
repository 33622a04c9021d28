"""Starts the peers, each once, and says what each can do."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sources import ROOT

HERE = Path(__file__).parent
VENVS = ROOT / ".venvs"


class Peer(NamedTuple):
    command: tuple[str, ...]
    needs: Path
    """What `make setup` makes for it."""
    cwd: Path = ROOT


PEERS = {
    "sdk1": Peer((sys.executable, str(HERE / "sdk1.py")), Path(sys.executable)),
    "sdk03": Peer((str(VENVS / "sdk03/bin/python"), str(HERE / "sdk03.py")), VENVS / "sdk03/bin/python"),
    "fasta2a": Peer((str(VENVS / "fasta2a/bin/python"), str(HERE / "fasta.py")), VENVS / "fasta2a/bin/python"),
    "js": Peer(("node", str(HERE / "js_sdk.cjs")), VENVS / "js/node_modules/@a2a-js/sdk", VENVS / "js"),
}


class Way(NamedTuple):
    """A peer, and how to talk to it."""

    peer: str
    binding: str
    version: str
    lacks: frozenset[str] = frozenset()
    """The operations that it does not have, or has wrongly."""

    def __str__(self) -> str:
        return f"{self.peer}-{self.binding}-{self.version}"


def way(peer: str, binding: str, version: str, lacks: str = "") -> Way:
    return Way(peer, binding, version, frozenset(lacks.split()))


WAYS = [
    way("sdk1", "JSONRPC", "1.0"),
    way("sdk1", "HTTP+JSON", "1.0"),
    way("sdk03", "JSONRPC", "0.3", "list"),
    way("sdk03", "HTTP+JSON", "0.3", "list push"),  # its REST cannot list tasks or webhooks, nor delete one
    way("js", "JSONRPC", "1.0", "twice"),  # to cancel twice is no error there
    way("js", "HTTP+JSON", "1.0", "twice"),
    way("js", "JSONRPC", "0.3", "list twice"),
    way("js", "HTTP+JSON", "0.3", "list twice push"),  # takes a webhook in a form of its own
    way("fasta2a", "JSONRPC", "1.0", "list push message continue cancel extended skills"),
]


@contextmanager
def running(name: str) -> Iterator[str]:
    """The address of a peer that runs as long as the block."""
    peer = PEERS[name]
    if not peer.needs.exists():
        pytest.skip(f"{peer.needs.relative_to(ROOT)} is missing: make setup")
    with subprocess.Popen(peer.command, cwd=peer.cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()  # it waits for a task that hangs
