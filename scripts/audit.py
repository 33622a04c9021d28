"""Looks up what we depend on in a database of vulnerabilities: `python -m scripts.audit requirements/dev.txt`.

Fails when one is known. Where the database cannot be reached, that is said, and nothing fails: whoever has no network
can still work. Silence is never taken for health: what could not be looked up is counted.
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
    """What pip-audit says, as JSON; nothing if it could not say anything.

    Raises:
        subprocess.TimeoutExpired: the database does not answer.
    """
    line = [sys.executable, "-m", "pip_audit", "--requirement", requirements, *FLAGS]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=SECONDS).stdout


def judge(said: str) -> tuple[int, list[str]]:
    """The exit code, and what to print."""
    try:
        report = msgspec.json.decode(said, type=Report)
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
