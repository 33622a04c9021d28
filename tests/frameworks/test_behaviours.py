"""The table of docs/frameworks.md says what this server and the frameworks' own servers do with the same agent."""

import os
from collections.abc import Iterator

import pytest

from apcore_a2a.protocol.questions import questions_of, to_answers
from tests.frameworks.behaviours import OURS, OWN, ROWS, Own, observers
from tests.frameworks.conftest import Framework, serve_agent
from tests.frameworks.table import Environment
from tests.sources import ROOT


@pytest.fixture(scope="module", params=OWN, ids=lambda own: own.script)
def own(request: pytest.FixtureRequest) -> Own:
    found: Own = request.param
    return found


@pytest.fixture(scope="module")
def server(own: Own, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framework]:
    if os.environ.get("FRAMEWORKS") != "required":
        pytest.skip("own servers of frameworks run in make test-frameworks")
    environment = Environment(own.title, own.package, own.lock, own.script, prefix=own.prefix)
    yield from serve_agent(environment, tmp_path_factory.mktemp("own"))


@pytest.mark.parametrize("row", range(len(ROWS)), ids=ROWS)
async def test_the_own_server_of_a_framework_does_what_the_table_says(own: Own, server: Framework, row: int) -> None:
    assert await observers(own.answer)[row](server) == own.cells[row]


@pytest.mark.parametrize("row", range(len(ROWS)), ids=ROWS)
async def test_this_server_does_what_the_table_says(framework: Framework, row: int) -> None:
    observe = observers(lambda message: to_answers({questions_of(message)[0].id: True}))[row]
    assert await observe(framework) == OURS[row]


def test_the_page_has_the_table_with_the_versions() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text().splitlines()
    assert f"| | this server | {' | '.join(own.heading for own in OWN)} |" in page
    for number, row in enumerate(ROWS):
        assert f"| {row} | {OURS[number]} | {' | '.join(own.cells[number] for own in OWN)} |" in page
