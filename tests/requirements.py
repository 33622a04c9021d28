"""The requirements and the mark that ties a test to them.

A test that proves a requirement says so: `@requirement("FR-TSK-001")`; several ids in one mark are fine.
`requirements.toml` holds every id with its status; `test_requirements.py` compares the two.
"""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

MANIFEST = Path(__file__).with_name("requirements.toml")
MEASURED = re.compile(r"measured: (?P<verdict>met|not met): (?P<figures>.+), by (?P<by>.+)")

Test = TypeVar("Test", bound=Callable[..., Any])  # Any: a test may take whatever fixtures it likes


class Requirement(NamedTuple):
    title: str
    status: str

    @property
    def tested(self) -> bool:
        return self.status == "tested"

    @property
    def measured(self) -> re.Match[str] | None:
        """Verdict, figures and benchmarks of a requirement that is a figure."""
        return MEASURED.fullmatch(self.status)


def load_manifest() -> dict[str, Requirement]:
    entries = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))
    return {identifier: Requirement(**fields) for identifier, fields in entries.items()}


def requirement(*identifiers: str) -> Callable[[Test], Test]:
    """Mark a test as proof of the requirements named."""
    mark = pytest.mark.requirement(*identifiers)

    def decorate(test: Test) -> Test:
        marked: Test = mark(test)
        return marked

    return decorate
