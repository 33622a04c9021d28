"""The table of docs/frameworks.md says what this server and the frameworks' own servers do with the same agent."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from apcore_a2a.protocol.questions import questions_of, to_answers
from tests.frameworks.behaviours import OURS, OWN, ROWS, Own, observers
from tests.frameworks.conftest import Framework, serve_agent
from tests.frameworks.report import TABLES, heading_of, read_run, rows_of, to_table
from tests.frameworks.table import ENVIRONMENTS, Environment
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


@pytest.mark.parametrize(("file", "environments"), TABLES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_page_says_yes_to_every_behaviour_that_is_tested(file: str, environments: tuple[Environment, ...]) -> None:
    """`make test-frameworks` has written it, with the versions of the lock files."""
    if os.environ.get("FRAMEWORKS") == "required":
        pytest.skip("this run writes the table")
    page = (ROOT / "docs" / "frameworks.md").read_text()
    table = page.partition(f"<!-- {file} -->\n")[2].partition("<!-- end -->")[0].splitlines()
    titles = {environment.title for environment in environments}
    assert table[0] == heading_of(environments)
    assert table[2:] == [f"| {row} {'| yes ' * len(titles)}|" for row in rows_of(file)]


def test_a_failed_test_is_a_no_in_the_table(tmp_path: Path) -> None:
    cases = (
        '<testcase name="test_typed_output_is_data[strands]"/>'
        '<testcase name="test_typed_output_is_data[strands-floor]"><failure/></testcase>'
        '<testcase name="test_typed_output_is_data[adk]"><skipped/></testcase>'
        '<testcase name="test_typed_output_is_data[microsoft]"/>'
    )
    (tmp_path / "run.xml").write_text(f"<testsuite>{cases}</testsuite>")
    table = to_table("test_sentences", ENVIRONMENTS, read_run(tmp_path / "run.xml"))
    assert "| typed output is data | n/a | n/a | n/a | no | n/a | yes |" in table


def test_the_page_has_the_table_with_the_versions() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text().splitlines()
    assert f"| | this server | {' | '.join(own.heading for own in OWN)} |" in page
    for number, row in enumerate(ROWS):
        assert f"| {row} | {OURS[number]} | {' | '.join(own.cells[number] for own in OWN)} |" in page
