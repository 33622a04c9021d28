"""The table of the first steps: how it is measured, and that the page says what the programs are."""

import os
import re
from pathlib import Path

import pytest

from scripts.code_lines import count_code_lines
from scripts.first_steps import (
    BEGIN,
    END,
    PAGE,
    SUBJECTS,
    Figures,
    Subject,
    processor_time,
    replace_table,
    size_of,
    table,
)
from tests.sources import ROOT

TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.program)
def test_the_page_counts_the_lines_of_each_program(subject: Subject) -> None:
    source = (ROOT / "benchmarks" / "first_steps" / subject.program).read_text(encoding="utf-8")
    row = re.search(rf"^\| {re.escape(subject.name)} \| (\d+) \|", TEXT.partition(BEGIN)[2], re.MULTILINE)
    assert row is not None
    assert int(row[1]) == count_code_lines(re.sub(r"^# mypy.*\n", "", source))


def test_a_measured_table_replaces_the_old_one() -> None:
    row = "| apcore-a2a | 5 | 38 | 69 | 0.30 | completed: HELLO |"
    measured = table({"apcore-a2a": Figures(5, 38, 69.4, 0.3, "completed: HELLO")})
    page = replace_table(f"before\n{BEGIN}old\n{END}after\n", measured)
    assert page.startswith(f"before\n{BEGIN}\n| | lines |") and page.endswith(f"{END}after\n")
    assert row in page and "old" not in page


def test_an_environment_is_counted_without_compiled_files(tmp_path: Path) -> None:
    (tmp_path / "a-1.0.dist-info").mkdir()
    (tmp_path / "a.py").write_bytes(b"x" * 2_000_000)
    (tmp_path / "a.pyc").write_bytes(b"x" * 9_000_000)
    assert size_of(tmp_path) == (1, 2.0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor times are read from /proc, which is Linux")
def test_the_time_on_the_processor_is_that_of_the_process() -> None:
    assert 0 < processor_time(os.getpid()) < 10_000
