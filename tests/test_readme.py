"""The README shows what the programs do: the recording of the terminal, and the figures beside other projects."""

import re
from html import unescape

import pytest

from scripts.recording import PICTURE, Row, commands_of, draw, to_row
from tests.app.test_newcomer import is_like
from tests.sources import ROOT
from tests.test_docs import blocks_of

PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
COMPARISON = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
LINE = re.compile(r"<text [^>]*>(.*)</text>")


def test_the_recording_shows_the_commands_and_the_output_of_the_readme() -> None:
    seen = [unescape(line) for line in LINE.findall(PICTURE.read_text(encoding="utf-8"))]
    _, commands = commands_of(PAGE)
    assert [line.removeprefix("$ ") for line in seen if line.startswith("$ ")] == commands
    shown = [line for block in blocks_of(PAGE, "text") for line in block.code.splitlines() if line != "…"]
    banner = seen[1 : seen.index(f"$ {commands[1]}")]
    output = [line for line in seen if not line.startswith("$ ") and line not in banner]
    assert len(output) > 6
    assert [line for line in output if not any(is_like(expected, line) for expected in shown)] == []


def test_a_line_on_the_screen_is_drawn_without_what_was_erased() -> None:
    assert to_row("\x1b[2mCOMPLETED\x1b[0m", 1) == Row("COMPLETED", "dim", 1)
    assert to_row("50 %\r\x1b[2K5", 1) == Row("5", "", 1)
    assert "a &lt; b" in draw([Row("a < b", "", 0.5)])
    assert "animation-delay:0.50s" in draw([Row("a < b", "", 0.5)])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("message/send, 16 connections, beside a2a-sdk", r"(\d+) times fewer; \d+ with SQLite"),
        ("SQLite beside a2a-sdk on SQLite, 16 connections", r"times fewer; (\d+) with SQLite"),
        ("… beside fasta2a, 16", r"(\d+) times fewer; no SQLite"),
    ],
)
def test_the_ratios_of_the_readme_are_measured(row: str, said: str) -> None:
    measured = re.search(rf"^\| {re.escape(row)} \|[^|]*\| ([\d.]+) x", PERFORMANCE, re.MULTILINE)
    claimed = re.search(said, PAGE)
    assert measured is not None and claimed is not None
    assert float(claimed[1]) <= float(measured[1]) * 1.1  # a claim may be too low, not too high


def test_the_comparison_and_the_readme_claim_the_same() -> None:
    table = COMPARISON.partition("## Figures")[2]
    assert re.search(r"16 connections, times as fast as \| 1 \| 25 \| 2\.9 \|", table)
    assert re.search(r"SQLite \| 1 \| 64 \|", table)


def test_the_sizes_of_installations_are_those_that_the_script_measured() -> None:
    table = COMPARISON.partition("<!-- first steps: begin -->")[2].partition("<!-- first steps: end -->")[0]
    measured = {row[0]: row[1] for row in re.findall(r"^\| ([^|]+) \|[^|]+\|[^|]+\| (\d+) \|", table, re.MULTILINE)}
    ours = measured["apcore-a2a"]
    peers = measured["a2a-sdk"], measured["pydantic-ai, fasta2a"]
    assert re.search(rf"\({peers[0]} MB, fasta2a\s+{peers[1]} MB, this one {ours} MB\)", PAGE)
    assert f"Both are smaller: {peers[0]} MB and {peers[1]} MB installed, {ours} MB here" in COMPARISON
