"""The tools that guard the build can say no."""

import re
from pathlib import Path

import pytest

from scripts.code_lines import count_code_lines
from scripts.coverage_gate import PACKAGE, ROOT, core_files, find_gaps
from tests.requirements import requirement

CORE_FILE = PACKAGE / "errors.py"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("# a comment\n\n\n", 0),
        ('"""A docstring\nof two lines."""\n', 0),
        ('class A:\n    """Doc."""\n\n    x = 1  # why\n    """Doc of x."""\n', 2),
        ('text = """two\nlines"""\n', 2),
        ("call(\n    1,\n\n    # why\n    2,\n)\n", 4),
        ("x = 1; y = 2\n", 1),
    ],
)
def test_a_code_line_holds_more_than_comment_and_docstring(source: str, lines: int) -> None:
    assert count_code_lines(source) == lines


def test_the_core_is_what_every_message_passes_through() -> None:
    names = {str(path.relative_to(PACKAGE)) for path in core_files()}
    assert {"errors.py", "protocol/model.py", "engine/run.py", "agents/apcore/module_agent.py"} <= names
    assert not {"__init__.py", "protocol/v03/rest.py", "http/rest.py"} & names


def report(percent: float, *, lines: tuple[int, ...] = (), branches: tuple[tuple[int, int], ...] = ()) -> object:
    name = str(CORE_FILE.relative_to(ROOT))
    return {
        "files": {name: {"missing_lines": lines, "missing_branches": branches}},
        "totals": {"percent_covered": percent},
    }


def test_full_coverage_leaves_no_gap() -> None:
    assert find_gaps(report(90.0), [CORE_FILE]) == []


@requirement("NFR-MNT-001")
@pytest.mark.parametrize(
    ("measured", "gap"),
    [
        (report(99.0, lines=(3, 4, 7), branches=((3, 5),)), "errors.py: 3-4, 7"),
        (report(99.0, branches=((3, 5), (4, -1))), "errors.py: 3→5, 4→exit"),
        (report(89.9), "overall 89.90 %, below 90 %"),
        ({"files": {}, "totals": {"percent_covered": 99.0}}, "errors.py: not measured"),
    ],
)
def test_a_core_line_a_core_branch_and_a_low_total_each_fail_the_build(measured: object, gap: str) -> None:
    assert find_gaps(measured, [CORE_FILE]) == [gap]


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda lock: str(lock.name))
def test_a_lock_holds_pins_and_hashes_and_no_address(lock: Path) -> None:
    pin = re.compile(r"[a-z0-9._\[\],-]+==[\w.]+( ; [\w .<>=!'\"]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?")
    lines = lock.read_text(encoding="utf-8").splitlines()
    assert lines
    assert [line for line in lines if not pin.fullmatch(line)] == []
