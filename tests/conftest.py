"""Settings of every test.

Hypothesis has no wall-clock deadlines, and the same examples on each CI run. The cache directory is empty. The coverage
data are saved after the last test.
"""

import os
from collections.abc import Iterator

import coverage
import pytest
from hypothesis import settings

settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The command line remembers the skills of agents there; those of tests are not to be offered to a person."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["XDG_CACHE_HOME"]
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


def pytest_sessionfinish() -> None:
    """Save what this process has covered now: pytest-xdist kills its processes when their exit takes ten seconds."""
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.stop()
        measured.save()
