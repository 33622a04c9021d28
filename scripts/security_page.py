"""The generated parts of docs/security.md: the tables of guards, and the figures above them.

`python -m scripts.security_page` writes them from `scripts/mutants.json`, which `scripts.mutants` and
`scripts.http_mutants` update when they run. It also counts the hostile cases again, by collecting them.
"""

import sys
from collections.abc import Sequence
from typing import Final

from scripts import http_mutants, mutants
from scripts.mutants import COUNTS, ROOT, Mutant, cases_of, read_counts, write_counts

PAGE: Final = ROOT / "docs" / "security.md"
TABLES: Final = {"tokens": mutants.MUTANTS, "http": http_mutants.MUTANTS}
CASES: Final = {
    "forged tokens": (mutants.HOSTILE, mutants.FORGED),
    "ambiguous requests": (http_mutants.SMUGGLING, http_mutants.AMBIGUOUS),
    "tests of the hostile suite": ("tests/hostile", ""),
}
REGENERATE: Final = "python -m scripts.security_page"


def count_cases() -> dict[str, int]:
    """Collect the hostile cases with pytest, and count them."""
    return {name: len(list(cases_of(tests, test))) for name, (tests, test) in CASES.items()}


def guard_table(listed: Sequence[Mutant], failed: dict[str, int]) -> list[str]:
    rows = [f"| {mutant.guard} | `{mutant.path}` | {failed[mutant.key]} |" for mutant in listed]
    return ["| without this guard | in | tests that fail |", "|---|---|---|", *rows]


def figure_table(counts: dict[str, dict[str, int]]) -> list[str]:
    guards = sum(len(listed) for listed in TABLES.values())
    rows = [f"| {name} | {counts['cases'][name]} |" for name in CASES]
    return ["| what | how many |", "|---|---|", f"| guards | {guards} |", *rows]


def render(page: str, counts: dict[str, dict[str, int]]) -> str:
    """Return the page with its generated parts replaced.

    Raises:
        ValueError: the page has no place for one of the parts.
    """
    parts = {"figures": figure_table(counts)}
    for name, listed in TABLES.items():
        parts[name] = guard_table(listed, counts["failed"])
    for name, lines in parts.items():
        begin = f"<!-- {name}: written by {REGENERATE} -->\n"
        end = f"<!-- end of {name} -->"
        if begin not in page or end not in page:
            raise ValueError(f"docs/security.md has no lines {begin.strip()!r} and {end!r}")
        old = page[page.index(begin) : page.index(end)]
        page = page.replace(old, begin + "\n".join(lines) + "\n")
    return page


def main() -> int:
    counts = read_counts()
    known = {mutant.key for listed in TABLES.values() for mutant in listed}
    missing = sorted(known - counts["failed"].keys())
    if missing:
        print(f"{COUNTS.name} has no count for these. Run scripts.mutants or scripts.http_mutants with their names.")
        print(*missing, sep="\n")
        return 1
    failed = {key: number for key, number in counts["failed"].items() if key in known}
    counts = {"cases": count_cases(), "failed": failed}
    write_counts(counts)
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), counts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
