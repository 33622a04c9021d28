"""The short form of `make chaos`: kill -9 during running tasks loses no data that a reader received."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.chaos.rounds import run_round
from tests.chaos.webhook_rounds import bad_receiver, check, live, stored_events
from tests.chaos.webhook_rounds import run_round as run_webhook_round
from tests.requirements import requirement


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_process_loses_no_received_event(tmp_path: Path, seed: int) -> None:
    outcome = run_round(tmp_path / "tasks.db", random.Random(seed), tasks=24)
    assert outcome.received > 24
    assert outcome.lost > 0


@requirement("FR-PSH-003", "NFR-REL-004")
def test_a_killed_process_loses_no_event_of_a_webhook(tmp_path: Path) -> None:
    outcome = run_webhook_round(tmp_path / "tasks.db", random.Random(3), tasks=100, kills=2)
    assert outcome.events > 4 * outcome.tasks - 100
    assert outcome.tasks >= 100


@requirement("FR-PSH-002", "FR-PSH-003")
def test_a_bad_receiver_accepts_every_event_of_a_thousand_tasks_once_in_order(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with bad_receiver(20261118) as receiver:
        begun = live(path, receiver, tasks=1_000, kill_after=None)
    stored = asyncio.run(stored_events(path, begun))
    assert len(begun) == 1_000
    assert sum(check(receiver.accepted[task], digests) for task, digests in stored.items()) == 0
