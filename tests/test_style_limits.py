"""The limits of STYLE.md, as tests. An exception is a debt with a name: it may shrink and go, never grow.

Complexity and parameters are counted by ruff; here we see to it that ruff counts them and is not told to look away.
"""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from scripts.code_lines import docstring_lines
from tests.sources import ROOT, WRITTEN, python_files

# Both without docstrings, so that explanations cost nothing.
FILE_LINES: Final = 600
FUNCTION_LINES: Final = 40

# "path" or "path:function" → the size it has today.
EXCEPTIONS: Final[dict[str, int]] = {}

# "path: code" → how often ruff is told to look away. Only serve() and async_serve() may take more than six parameters.
LOOKING_AWAY: Final[dict[str, int]] = {}

COUNTED_BY_RUFF: Final = re.compile(r"#\s*(?:ruff:\s*)?noqa(?::[^\n]*?\b(C901|PLR0913)\b|(?!:)(.?))")
# STYLE.md, "Words": such a word hides which program acts, and no newcomer searches for it. The halves are joined here,
# so that this file does not contain the words.
INDEFINITE: Final = (
    "who" + "ever",
    "who" + "m",
    "no" + "body",
    "some" + "body",
    "every" + "body",
    "any" + "body",
    "a" + "new",
)
INDEFINITE_WORD: Final = re.compile(rf"(?<![a-z])(?:{'|'.join(INDEFINITE)})(?![a-z])", re.IGNORECASE)
PROSE: Final = (*WRITTEN, "docs", "explorer/src")
PROSE_SUFFIXES: Final = frozenset(
    {".css", ".html", ".md", ".mjs", ".py", ".sh", ".sql", ".toml", ".ts", ".tsx", ".yaml", ".yml"}
)
NOT_PROSE: Final = (
    "tests/frames/",  # messages of other implementations as they were sent, and the scripts that sent them
    "src/apcore_a2a/explorer/page.html",  # built from explorer/src and its libraries
)

SOURCES: Final = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in python_files(*WRITTEN)}


@cache  # two tests measure all files
def measure(name: str, source: str) -> dict[str, int]:
    """The size of the file, and of each function in it, where it is over the limit."""
    sizes: dict[str, int] = {}
    documentation = docstring_lines(source)
    file_lines = len(source.splitlines()) - len(documentation)
    if file_lines > FILE_LINES:
        sizes[name] = file_lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = len(set(range(node.lineno, (node.end_lineno or node.lineno) + 1)) - documentation)
            if lines > FUNCTION_LINES:
                sizes[f"{name}:{node.name}"] = lines
    return sizes


def written_files() -> list[Path]:
    """Return all files with text of ours."""
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md"]
    for folder in PROSE:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in PROSE_SUFFIXES]
    return [path for path in found if not str(path.relative_to(ROOT)).startswith(NOT_PROSE)]


def lines_with_indefinite_words(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if INDEFINITE_WORD.search(line)]


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_files_and_functions_keep_to_their_limits(name: str) -> None:
    sizes = measure(name, SOURCES[name])
    assert {what: size for what, size in sizes.items() if size > EXCEPTIONS.get(what, 0)} == {}


def test_every_exception_is_still_needed_and_as_small_as_stated() -> None:
    sizes = {what: size for name, source in SOURCES.items() for what, size in measure(name, source).items()}
    assert {what: sizes.get(what) for what in EXCEPTIONS} == EXCEPTIONS


def test_a_long_file_and_a_long_function_are_found() -> None:
    source = "def long():\n" + '    """One.\n\n    Two."""\n' + "    pass\n" * 40 + "\n" * 600
    assert measure("x.py", source) == {"x.py": 641, "x.py:long": 41}


def test_ruff_counts_complexity_and_parameters() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert {"C90", "PLR0913"} <= set(lint["select"])
    assert (lint["mccabe"]["max-complexity"], lint["pylint"]["max-args"]) == (10, 6)


def test_ruff_is_not_told_to_look_away() -> None:
    found: dict[str, int] = {}
    for name, source in SOURCES.items():
        for match in COUNTED_BY_RUFF.finditer(source) if name != "tests/test_style_limits.py" else ():
            what = f"{name}: {match[1] or 'everything'}"
            found[what] = found.get(what, 0) + 1
    assert found == LOOKING_AWAY


@pytest.mark.parametrize("line", ["x = 1  # noqa", "# ruff: noqa", "def f():  # noqa: E501, PLR0913", "#noqa: C901"])
def test_looking_away_is_noticed(line: str) -> None:
    assert COUNTED_BY_RUFF.search(line)


def test_no_code_is_hidden_from_coverage() -> None:
    hidden = [name for name, source in SOURCES.items() if name.startswith("src/") and "pragma: no" in source]
    assert hidden == []


def test_no_program_process_or_role_is_an_indefinite_person() -> None:
    found: dict[str, list[str]] = {}
    for path in written_files():
        lines = lines_with_indefinite_words(path.read_text(encoding="utf-8"))
        if lines:
            found[str(path.relative_to(ROOT))] = lines
    assert found == {}, "name the caller, the client, the replica, the store: see Words in STYLE.md"


@pytest.mark.parametrize("word", INDEFINITE)
def test_an_indefinite_person_is_found(word: str) -> None:
    lines = [f"# {word.title()} waits.", f"def test_{word}_waits() -> None:", f"x{word} = 1"]
    assert lines_with_indefinite_words("\n".join(lines)) == lines[:2]
