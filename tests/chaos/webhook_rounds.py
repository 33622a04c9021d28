"""One round: a bad receiver, and workers that are killed while they deliver to it, then a check of all events.

Invariant: every stored event of every acknowledged task was accepted, unchanged and in order. It was accepted twice
only if the worker was killed between the response and its own record of it.
"""

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from apcore_a2a.engine.webhooks.delivery import DEFAULT_LIMITS
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.engine.driving import ALICE
from tests.sources import ROOT

PATIENCE = 120.0  # seconds for one life of a worker
LATE = 0.3


class Accepted(NamedTuple):
    number: int
    digest: str


class Outcome(NamedTuple):
    tasks: int
    events: int
    kills: int
    repeated: int


class BadReceiver:
    """The receiver process, and the events that it has accepted, by task."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        self._lines = process.stdout
        self.url = f"http://127.0.0.1:{int(self._lines.readline())}/hook"
        self.accepted: dict[str, list[Accepted]] = defaultdict(list)
        self.count = 0
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._lines:
            task, number, digest = line.decode().split()
            with self._more:
                self.accepted[task].append(Accepted(int(number), digest))
                self.count += 1
                self._more.notify_all()

    def wait(self, count: int) -> bool:
        """Wait until so many events are accepted. Return False after a timeout."""
        with self._more:
            return self._more.wait_for(lambda: self.count >= count, PATIENCE)

    def join(self) -> None:
        self._thread.join(PATIENCE)


@contextmanager
def bad_receiver(seed: int) -> Iterator[BadReceiver]:
    command = [sys.executable, "-m", "tests.chaos.receiver", str(seed), str(LATE)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            receiver = BadReceiver(process)
            yield receiver
        finally:
            process.kill()
    receiver.join()


def live(path: Path, receiver: BadReceiver, *, tasks: int, kill_after: int | None) -> list[str]:
    """Run one worker until `kill_after` more events are accepted, or until it exits. Return its acknowledged tasks."""
    log = path.with_suffix(".log")
    with log.open("wb") as said:
        command = [sys.executable, "-m", "tests.chaos.webhook_worker", str(path), receiver.url, str(tasks)]
        with subprocess.Popen(command, cwd=ROOT, stdout=said) as worker:
            if kill_after is None:
                assert worker.wait(PATIENCE) == 0
            else:
                receiver.wait(receiver.count + kill_after)
                worker.kill()
    lines = log.read_bytes().decode().splitlines(keepends=True)
    os.unlink(log)
    return [line.strip() for line in lines if line.endswith("\n")]


async def stored_events(path: Path, tasks: list[str]) -> dict[str, list[str]]:
    """Return, by task, the digest of each event as a webhook must have received it."""
    store = SQLiteStore(path)
    await store.open()
    found: dict[str, list[str]] = {}
    try:
        for task in tasks:
            record = await store.load(task, ALICE.owner)
            assert record is not None and record.state in TERMINAL
            digests = []
            for kept in await store.events(task, ALICE.owner, 0) or ():
                event, _ = v1.decode_record(kept)
                digests.append(hashlib.sha256(v1.encode_event(event)).hexdigest()[:16])
            found[task] = digests
        backlog = await store.webhooks.backlog()
        assert (backlog.events, backlog.failed) == (0, 0)
    finally:
        await store.close()
    return found


def check(accepted: list[Accepted], digests: list[str]) -> int:
    """Assert that all events were accepted in order. Return the number of duplicates."""
    repeated = 0
    last = 0
    for number, digest in accepted:
        assert digest == digests[number - 1]
        if number == last:
            repeated += 1
        else:
            assert number == last + 1, f"{number} after {last}"
            last = number
    assert last == len(digests)
    return repeated


def run_round(path: Path, dice: random.Random, *, tasks: int, kills: int) -> Outcome:
    begun: list[str] = []
    with bad_receiver(dice.randrange(1_000_000)) as receiver:
        for _ in range(kills):
            begun += live(path, receiver, tasks=tasks, kill_after=dice.randrange(tasks, 4 * tasks))
        begun += live(path, receiver, tasks=0, kill_after=None)
    stored = asyncio.run(stored_events(path, begun))
    repeated = sum(check(receiver.accepted[task], digests) for task, digests in stored.items())
    assert repeated <= kills * DEFAULT_LIMITS.max_workers_per_target
    return Outcome(len(begun), sum(map(len, stored.values())), kills, repeated)
