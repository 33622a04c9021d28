"""Times of the engine of an application, which no public option sets."""

import pytest
from msgspec.structs import replace

from apcore_a2a.engine.context import EngineOptions, Timing
from apcore_a2a.settings import Settings


def use_timing(monkeypatch: pytest.MonkeyPatch, timing: Timing) -> None:
    """Give these times to every engine that an application makes until the test ends."""
    engine_options = Settings.engine_options

    def with_timing(settings: Settings) -> EngineOptions:
        return replace(engine_options(settings), timing=timing)

    monkeypatch.setattr(Settings, "engine_options", with_timing)
