"""Counts the code lines of the core and holds them to the budget of docs/decisions/0002.

A code line carries at least one token that is neither comment nor docstring; blank lines do not count.
"""

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "apcore_a2a"
SILENT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


class Core(NamedTuple):
    budget: int
    files: list[Path]


def read_core() -> Core:
    """The core as pyproject.toml defines it: all that is included and not named an edge."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["apcore-a2a"]["core"]
    included = {path for pattern in table["include"] for path in PACKAGE.glob(pattern)}
    edges = {path for pattern in table["edges"] for path in PACKAGE.glob(pattern)}
    return Core(table["budget"], sorted(included - edges))


def docstring_lines(source: str) -> set[int]:
    """Lines of strings that stand alone as a statement: docstrings of modules, classes, functions, attributes."""
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def count_code_lines(source: str) -> int:
    """The number of lines of `source` that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(source))


def main() -> int:
    core = read_core()
    total = 0
    for path in core.files:
        lines = count_code_lines(path.read_text(encoding="utf-8"))
        total += lines
        print(f"{lines:6}  {path.relative_to(PACKAGE)}")
    print(f"{total:6}  in the core, of {core.budget}")
    if total > core.budget:
        print(f"The core is {total - core.budget} lines over its budget.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
