"""Fails the build if the coverage of a test run is too low.

Reads the .coverage file of the last run, or the one in the argument. Requires every statement and branch of the core,
and 90 % of the lines and 85 % of the branches of the whole package.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import coverage

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "apcore_a2a"
# The core: code that runs for every message, in all bindings and versions.
CORE = (
    "errors.py",
    "agent.py",
    "ids_and_time.py",
    "protocol/*.py",
    "engine/**/*.py",
    "storage/contract.py",
    "agents/apcore/*.py",
)

LINES = 90.0
BRANCHES = 85.0


def core_files() -> list[Path]:
    """Return every file of the core by pattern, so that code moved to a new file is still measured."""
    return sorted({path for pattern in CORE for path in PACKAGE.glob(pattern)})


def measure(data_file: Path) -> Any:  # Any: the JSON report of coverage, read only in this file
    data = coverage.Coverage(data_file=str(data_file), config_file=str(ROOT / "pyproject.toml"))
    data.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        data.json_report(outfile=str(report))
        return json.loads(report.read_bytes())


def spans(lines: Sequence[int]) -> list[str]:
    """Return ranges of adjacent lines: 3-5 and 9 for [3, 4, 5, 9]."""
    found: list[list[int]] = []
    for line in lines:
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return [f"{first}-{last}" if first < last else f"{first}" for first, last in found]


def arrows(entry: Any) -> list[str]:
    """Return the missed branches of lines that ran. A branch to a negative line leaves the function."""
    taken = (branch for branch in entry["missing_branches"] if branch[0] not in entry["missing_lines"])
    return [f"{start}→{'exit' if end < 0 else end}" for start, end in taken]


def find_gaps(report: Any, core: list[Path]) -> list[str]:
    """Return one line per core file without full coverage, and one per total below its limit."""
    covered = {(ROOT / name).resolve(): entry for name, entry in report["files"].items()}
    gaps: list[str] = []
    for path in core:
        name = path.relative_to(PACKAGE)
        entry = covered.get(path.resolve())
        if entry is None:
            gaps.append(f"{name}: not measured")
        elif missing := spans(entry["missing_lines"]) + arrows(entry):
            gaps.append(f"{name}: {', '.join(missing)}")
    for what, share, limit in shares(report["totals"]):
        if share < limit:
            gaps.append(f"{what} {share:.2f} %, below {limit:.0f} %")
    return gaps


def shares(totals: Any) -> list[tuple[str, float, float]]:
    """Return the covered percentages of lines and branches, with their limits."""
    lines = 100 * totals["covered_lines"] / totals["num_statements"]
    branches = 100 * totals["covered_branches"] / totals["num_branches"]
    return [("lines", lines, LINES), ("branches", branches, BRANCHES)]


def main(data_file: Path) -> int:
    report = measure(data_file)
    gaps = find_gaps(report, core_files())
    for what, share, _ in shares(report["totals"]):
        print(f"coverage {share:.2f} % of {what}")
    for gap in gaps:
        print(f"not covered: {gap}", file=sys.stderr)
    return 1 if gaps else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".coverage"))
