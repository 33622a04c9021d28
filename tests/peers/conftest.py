"""The processes of the clients, one for all tests of a client."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interaction.peers.js import installed
from tests.interaction.peers.process import Process
from tests.peers.table import Client

MISSING = "an environment is missing: make test-peers"


def require(interpreter: Path) -> None:
    """Skip the test if an environment is missing. In `make test-peers`, fail instead."""
    if interpreter.exists():
        return
    if os.environ.get("PEERS") == "required":
        pytest.fail(f"{interpreter} is missing")
    pytest.skip(MISSING)


@pytest.fixture(scope="session")
def process_of() -> Iterator[Callable[[Client], Process]]:
    started: dict[str, Process] = {}

    def start(client: Client) -> Process:
        interpreter = client.command[0]
        cwd = installed() if interpreter == "node" else None
        if interpreter != "node":
            require(Path(interpreter))
        if client.title not in started:
            started[client.title] = Process(client.command, cwd=cwd)
        return started[client.title]

    yield start
    for process in started.values():
        process.end()
