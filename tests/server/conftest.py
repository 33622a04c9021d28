"""Waiting times that tests cannot afford, made short."""

import pytest

from apcore_a2a.server import engine, execution, runs, streams


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries and graces that take no time worth speaking of."""
    monkeypatch.setattr(execution, "SAVE_RETRIES", (0.0, 0.0, 0.001))
    monkeypatch.setattr(execution, "CANCEL_GRACE", 0.05)
    for module in (engine, runs):  # they wait a second longer than this
        monkeypatch.setattr(module, "CANCEL_GRACE", -0.8)


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client who leaves is gone at once."""
    monkeypatch.setattr(streams, "DISCONNECT_GRACE", 0)
