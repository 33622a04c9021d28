"""Counts the code lines of the core, ring by ring, and holds each to its limit (docs/decisions/0002).

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


class Ring(NamedTuple):
    name: str
    limit: int
    files: list[Path]

    def lines(self) -> dict[Path, int]:
        return {path: count_code_lines(path.read_text(encoding="utf-8")) for path in self.files}


def read_rings() -> list[Ring]:
    """The core as pyproject.toml defines it: all that is included in a ring and not named an edge."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["apcore-a2a"]["core"]
    edges = {path for pattern in table["edges"] for path in PACKAGE.glob(pattern)}
    return [
        Ring(name, ring["limit"], sorted({path for glob in ring["include"] for path in PACKAGE.glob(glob)} - edges))
        for name, ring in table["rings"].items()
    ]


def core_files() -> list[Path]:
    return [path for ring in read_rings() for path in ring.files]


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
    over = 0
    total = 0
    for ring in read_rings():
        counted = ring.lines()
        lines = sum(counted.values())
        for path, count in counted.items():
            print(f"{count:6}  {path.relative_to(PACKAGE)}")
        print(f"{lines:6}  in the {ring.name} ring, of {ring.limit}\n")
        total += lines
        over += max(lines - ring.limit, 0)
    print(f"{total:6}  in the core")
    if over:
        print(f"The core is {over} lines over its limits.", file=sys.stderr)
    return min(over, 1)


if __name__ == "__main__":
    sys.exit(main())
