"""Checks every run of every test against the table of phases."""

import pytest

from apcore_a2a.engine.run import MOVES, Phase, Run


@pytest.fixture(autouse=True)
def only_moves_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run of every test goes from phase to phase as the table says."""

    def check(self: Run, name: str, value: object) -> None:
        old = getattr(self, "phase", None)
        if name == "phase" and isinstance(old, Phase) and isinstance(value, Phase) and old is not value:
            assert value in MOVES[old], f"{old.name} -> {value.name}"
        object.__setattr__(self, name, value)

    monkeypatch.setattr(Run, "__setattr__", check, raising=False)
