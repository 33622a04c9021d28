"""The short form of `make chaos`: kill -9 in the middle of running tasks loses nothing that anybody was told."""

import random
from pathlib import Path

import pytest

from tests.chaos.rounds import run_round


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_process_loses_nothing_that_was_told(tmp_path: Path, seed: int) -> None:
    outcome = run_round(tmp_path / "tasks.db", random.Random(seed), tasks=24)
    assert outcome.told > 24
    assert outcome.lost > 0
