"""Waiting times that tests cannot afford, made short."""

import pytest

from apcore_a2a.engine import engine, run, runs, streams


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
    def check(self: run.Execution, name: str, value: object) -> None:
        if name == "phase":
            old = self.__dict__.get("phase")
            if isinstance(old, run.Phase) and isinstance(value, run.Phase) and old is not value:
                assert value in run.MOVES[old], f"{old.name} -> {value.name}"
        object.__setattr__(self, name, value)

    monkeypatch.setattr(run.Execution, "__setattr__", check, raising=False)
