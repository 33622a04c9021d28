"""Eight clients at once, a slow disk that sometimes fails, an agent of moods: what they see keeps the rules."""

import pytest

from apcore_a2a.protocol.lifecycle import TERMINAL
from tests.engine.history import Trial
from tests.requirements import requirement


@requirement("FR-TSK-003", "NFR-REL-003")
@pytest.mark.parametrize("seed", range(12))
async def test_what_clients_see_keeps_the_rules(seed: int) -> None:
    trial = Trial(seed)
    await trial.run()
    assert len(trial.seen) > 50
    assert any(seen.error is not None for seen in trial.seen)
    assert any(seen.task is not None and seen.task.status.state in TERMINAL for seen in trial.seen)


@pytest.mark.parametrize("seed", range(100, 104))
async def test_the_rules_hold_when_one_write_in_five_fails(seed: int) -> None:
    await Trial(seed, faults=0.2).run()
