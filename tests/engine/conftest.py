"""Waiting times that tests cannot afford, made short."""

import pytest

from apcore_a2a.engine import engine, run, runs, streams
from apcore_a2a.engine.run import MOVES, Phase, Run


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries and graces that take no time worth speaking of."""
    monkeypatch.setattr(run, "SAVE_RETRIES", (0.0, 0.0, 0.001))
    monkeypatch.setattr(run, "CANCEL_GRACE", 0.05)
    for module in (engine, runs):  # they wait a second longer than this
        monkeypatch.setattr(module, "CANCEL_GRACE", -0.8)


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client who leaves is gone at once."""
    monkeypatch.setattr(streams, "DISCONNECT_GRACE", 0)


@pytest.fixture(autouse=True)
def only_moves_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run of every test goes from phase to phase as the table says."""

    def check(self: Run, name: str, value: object) -> None:
        old = self.__dict__.get("phase")
        if name == "phase" and isinstance(old, Phase) and isinstance(value, Phase) and old is not value:
            assert value in MOVES[old], f"{old.name} -> {value.name}"
        object.__setattr__(self, name, value)

    monkeypatch.setattr(Run, "__setattr__", check, raising=False)
