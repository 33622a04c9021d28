"""Looks up the dependencies in a database of vulnerabilities: `python -m scripts.audit requirements/dev.txt`.

Fails if a vulnerability is known. If the database is not reachable, the audit reports that and succeeds, so that work
without a network is possible. Packages that could not be looked up are reported, and never counted as safe.
"""

import subprocess
import sys
from typing import Final

import msgspec
from msgspec import Struct

SECONDS: Final = 120
FLAGS: Final = ("--disable-pip", "--no-deps", "--format", "json", "--progress-spinner", "off", "--timeout", "10")


class Vulnerability(Struct):
    id: str
    fix_versions: list[str] = []


class Dependency(Struct):
    name: str
    version: str = ""
    vulns: list[Vulnerability] = []
    skip_reason: str | None = None


class Report(Struct):
    dependencies: list[Dependency]


def run_pip_audit(requirements: str) -> str:
    """Return the JSON report of pip-audit. Empty if there is none.

    Raises:
        subprocess.TimeoutExpired: The database does not answer.
    """
    line = [sys.executable, "-m", "pip_audit", "--requirement", requirements, *FLAGS]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=SECONDS).stdout


def judge(output: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines to print."""
    try:
        report = msgspec.json.decode(output, type=Report)
    except msgspec.DecodeError:
        return 0, ["audit skipped: pip-audit is not installed, or its database cannot be reached"]
    unknown = [found for found in report.dependencies if found.skip_reason is not None]
    looked_up = len(report.dependencies) - len(unknown)
    if not looked_up:
        return 0, [f"audit skipped: none of {len(unknown)} packages could be looked up in the database"]
    lines: list[str] = []
    for found in report.dependencies:
        for known in found.vulns:
            fixed = ", ".join(known.fix_versions) or "no version yet"
            lines.append(f"{found.name} {found.version} has {known.id}, fixed in {fixed}")
    if unknown:
        lines.append(f"could not be looked up: {', '.join(found.name for found in unknown)}")
    vulnerable = any(found.vulns for found in report.dependencies)
    if not vulnerable:
        lines.append(f"no known vulnerability in {looked_up} packages")
    return int(vulnerable), lines


def main(requirements: str) -> int:
    try:
        code, lines = judge(run_pip_audit(requirements))
    except subprocess.TimeoutExpired:
        code, lines = 0, [f"audit skipped: the database did not answer within {SECONDS} s"]
    for line in lines:
        print(line)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
