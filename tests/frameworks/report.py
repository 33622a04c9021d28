"""Writes the tables of behaviours in docs/frameworks.md from a run of the tests, as JUnit XML of pytest.

    python -m tests.frameworks.report build/frameworks.xml

A row is a test, in its own words, and a column is a framework with the versions of its environments. "yes" means that
the test passed in all of them, "no" that it failed in one, and "n/a" that the framework has no such test.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.frameworks.table import ENVIRONMENTS, FASTMCP, Environment
from tests.sources import ROOT

PAGE: Final = ROOT / "docs" / "frameworks.md"
TABLES: Final = (("test_sentences", ENVIRONMENTS), ("test_fastmcp", FASTMCP))
"""The file whose tests are the rows of each table, and the environments of its columns."""
NAME: Final = re.compile(r"test_(\w+)\[([\w-]+)\]")
Seen = dict[tuple[str, str], set[str]]
"""The outcomes of each behaviour and framework."""


def rows_of(file: str) -> list[str]:
    """Return the behaviours that the tests of a file show, in their order."""
    source = (ROOT / "tests" / "frameworks" / f"{file}.py").read_text()
    return [to_words(name) for name in re.findall(r"^async def test_(\w+)\(", source, re.MULTILINE)]


def to_words(name: str) -> str:
    return name.replace("_", " ").replace("kill 9", "`kill -9`").replace("context id", "`contextId`")


def heading_of(environments: Sequence[Environment]) -> str:
    """Return the row with the frameworks and their versions, the oldest first."""
    cells: list[str] = []
    for title in dict.fromkeys(environment.title for environment in environments):
        newest, oldest = (environment.version for environment in environments if environment.title == title)
        cells.append(f"{title} {oldest} and {newest}")
    return f"| | {' | '.join(cells)} |"


def read_run(report: Path) -> Seen:
    titles = {each.id: each.title for _, environments in TABLES for each in environments}
    seen: Seen = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = NAME.fullmatch(case.get("name", ""))
        if name is None or name[2] not in titles or case.find("skipped") is not None:
            continue
        failed = case.find("failure") is not None or case.find("error") is not None
        seen.setdefault((to_words(name[1]), titles[name[2]]), set()).add("no" if failed else "yes")
    return seen


def to_table(file: str, environments: Sequence[Environment], seen: Seen) -> list[str]:
    titles = list(dict.fromkeys(environment.title for environment in environments))
    lines = [heading_of(environments), "|---" * (len(titles) + 1) + "|"]
    for row in rows_of(file):
        cells: list[str] = []
        for title in titles:
            outcomes = seen.get((row, title), {"n/a"})
            cells.append(min(outcomes))  # "no" is before "yes"
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def write_tables(seen: Seen) -> None:
    page = PAGE.read_text()
    for file, environments in TABLES:
        begin = f"<!-- {file} -->\n"
        before, _, rest = page.partition(begin)
        _, end, after = rest.partition("<!-- end -->\n")
        table = "\n".join(to_table(file, environments, seen))
        page = f"{before}{begin}{table}\n{end}{after}"
    PAGE.write_text(page)


if __name__ == "__main__":
    write_tables(read_run(Path(sys.argv[1])))
