"""The manifest is true: what is called tested has a test, what has a test is called so, figures are measured ones."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.requirements import load_manifest

TESTS = Path(__file__).parent
PERFORMANCE = TESTS.parent / "docs" / "performance.md"


class Figure(NamedTuple):
    """A row of the requirements' table on the performance page."""

    what: str
    limit: str
    measured: str
    by_processor_time: str
    kept: str


def figures_of(identifier: str, page: str) -> list[Figure]:
    rows = [line for line in page.splitlines() if line.startswith(f"| {identifier}:")]
    return [Figure(*(cell.strip() for cell in row.strip("|").split("|"))) for row in rows]


def marked_requirements(source: str) -> Iterator[str]:
    """The ids in `@requirement(...)` decorators of test functions, and of nothing else."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(func=ast.Name(id="requirement"), args=identifiers):
                    yield from (ast.literal_eval(identifier) for identifier in identifiers)


@cache  # two tests read all files
def all_marks() -> dict[str, set[str]]:
    """Each marked id with the files that mark it."""
    marks: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        for identifier in marked_requirements(path.read_text(encoding="utf-8")):
            marks.setdefault(identifier, set()).add(str(path.relative_to(TESTS)))
    return marks


def test_the_manifest_lists_every_requirement_of_the_specification() -> None:
    kinds = [identifier.split("-")[0] for identifier in load_manifest()]
    assert (kinds.count("FR"), kinds.count("NFR")) == (63, 30)


def test_every_status_is_tested_measured_or_a_deferral_with_a_reason() -> None:
    unclear = {
        identifier: entry.status
        for identifier, entry in load_manifest().items()
        if not entry.tested and not entry.measured and not re.fullmatch("deferred: .+", entry.status)
    }
    assert unclear == {}


def test_every_limit_in_figures_is_measured() -> None:
    measured = {identifier for identifier, entry in load_manifest().items() if entry.measured}
    assert measured == {name for name in load_manifest() if name.startswith(("NFR-PERF-", "NFR-SCA-"))}


@pytest.mark.parametrize("identifier", [name for name, entry in load_manifest().items() if entry.measured])
def test_what_is_measured_is_what_the_performance_page_says(identifier: str) -> None:
    entry = load_manifest()[identifier].measured
    assert entry is not None
    rows = figures_of(identifier, PERFORMANCE.read_text(encoding="utf-8"))
    assert rows, f"{identifier} is not on {PERFORMANCE.name}"
    missed = [row for row in rows if row.kept != "yes"]
    assert entry["verdict"] == ("not met" if missed else "met")
    assert [row.measured for row in rows if row.measured not in entry["figures"]] == []
    programs = re.findall(r"benchmarks/\w+", entry["by"])
    assert programs
    assert [program for program in programs if not (TESTS.parent / f"{program}.py").is_file()] == []


def test_a_figure_that_misses_its_limit_is_seen() -> None:
    page = "| NFR-X-001: a | ≤ 1 ms | 2 ms |  | **no** |\n| NFR-X-0010: b | ≤ 1 ms | 1 ms |  | yes |\n"
    assert figures_of("NFR-X-001", page) == [Figure("NFR-X-001: a", "≤ 1 ms", "2 ms", "", "**no**")]


def test_every_requirement_called_tested_has_a_marked_test() -> None:
    tested = {identifier for identifier, entry in load_manifest().items() if entry.tested}
    assert tested - all_marks().keys() == set()


def test_every_mark_names_a_requirement_that_exists_and_is_called_tested() -> None:
    manifest = load_manifest()
    wrong = {
        identifier: files
        for identifier, files in all_marks().items()
        if identifier not in manifest or not manifest[identifier].tested
    }
    assert wrong == {}


def test_a_mark_on_anything_but_a_test_function_proves_nothing() -> None:
    source = '@requirement("A")\ndef test_a(): ...\n@requirement("B")\ndef helper(): ...\nrequirement("C")\n'
    assert list(marked_requirements(source)) == ["A"]
