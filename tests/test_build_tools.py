"""The tools that guard the build can say no."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import audit
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
    assert {"errors.py", "protocol/model.py", "engine/run.py", "agents/apcore/agent.py"} <= names
    assert not {"__init__.py", "protocol/v03/rest.py", "http/rest.py"} & names


def report(
    lines: float = 90, branches: float = 85, *, missing: tuple[int, ...] = (), arrows: tuple[tuple[int, int], ...] = ()
) -> object:
    """What coverage reports when so many of a hundred lines and of a hundred branches ran."""
    name = str(CORE_FILE.relative_to(ROOT))
    totals = {"num_statements": 100, "covered_lines": lines, "num_branches": 100, "covered_branches": branches}
    return {"files": {name: {"missing_lines": missing, "missing_branches": arrows}}, "totals": totals}


def test_enough_coverage_leaves_no_gap() -> None:
    assert find_gaps(report(), [CORE_FILE]) == []


@pytest.mark.parametrize(
    ("measured", "gap"),
    [
        (report(missing=(3, 4, 7), arrows=((3, 5),)), "errors.py: 3-4, 7"),
        (report(arrows=((3, 5), (4, -1))), "errors.py: 3→5, 4→exit"),
        (report(lines=89.9), "lines 89.90 %, below 90 %"),
        (report(branches=84.9), "branches 84.90 %, below 85 %"),
    ],
)
def test_a_core_line_a_core_branch_and_a_low_share_each_fail_the_build(measured: object, gap: str) -> None:
    assert find_gaps(measured, [CORE_FILE]) == [gap]


def test_a_core_file_that_was_not_measured_fails_the_build() -> None:
    assert find_gaps(report(), [PACKAGE / "agent.py"]) == ["agent.py: not measured"]


@requirement("NFR-MNT-001")
def test_the_gate_says_no_to_a_run_that_left_most_of_the_package_alone(tmp_path: Path) -> None:
    data = f"--data-file={tmp_path / 'little'}"
    ran = run("-m", "coverage", "run", data, "-m", "apcore_a2a", "--version")
    assert ran.returncode == 0, ran.stderr
    run("-m", "coverage", "combine", data, str(tmp_path))
    gate = run("-m", "scripts.coverage_gate", str(tmp_path / "little"))
    assert gate.returncode == 1
    assert "not covered: lines" in gate.stderr and "not covered: branches" in gate.stderr
    assert "not covered: engine/run.py" in gate.stderr


@requirement("NFR-MNT-001")
def test_every_build_passes_the_gate_after_all_tests_with_branches_measured() -> None:
    recipe = subprocess.run(
        ["make", "--dry-run", "--assume-old=setup", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    measured = next(number for number, line in enumerate(recipe) if "-m coverage run -m pytest --quiet" in line)
    assert any(line.endswith("-m scripts.coverage_gate") for line in recipe[measured:])
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    assert (settings["branch"], settings["source_pkgs"]) == (True, ["apcore_a2a"])
    assert re.search("make .*test", (ROOT / ".ci" / "run").read_text())


@requirement("NFR-MNT-001")
def test_there_are_at_least_four_hundred_tests() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert sum(len(re.findall(r"^(?:async )?def test_", source, re.MULTILINE)) for source in sources) >= 400


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with our sources, as the build calls it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


# ---- the Pythons -------------------------------------------------------------------------------------------------


def test_the_matrix_runs_nothing_when_a_python_is_missing_and_says_which_and_how_to_get_it() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    asked = ["scripts/test-matrix", here, "3.98", "3.99"]
    ended = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "missing: 3.98 3.99. No test was run." in ended.stderr
    assert "Python 3.98 is not installed: 'pyenv install 3.98', or put python3.98 on PATH" in ended.stderr


def test_the_matrix_has_every_python_that_the_package_promises() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    versions = re.search("^VERSIONS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert versions is not None
    assert versions[1].split() == promised


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda lock: str(lock.name))
def test_a_lock_holds_pins_and_hashes_and_no_address(lock: Path) -> None:
    pin = re.compile(r"[a-z0-9._\[\],-]+==[\w.]+( ; [\w .<>=!'\"]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?")
    lines = lock.read_text(encoding="utf-8").splitlines()
    assert lines
    assert [line for line in lines if not pin.fullmatch(line)] == []


def pins_of(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==([\w.]+)", lock.read_text(encoding="utf-8"), re.MULTILINE))


def needed_by(requirement: Requirement, found: set[str]) -> set[str]:
    """The names of a package and of all packages that it needs here, added to `found`."""
    name = canonicalize_name(requirement.name)
    for text in distribution(name).requires or []:
        needed = Requirement(text)
        wanted = {"", *requirement.extras}
        if any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in wanted):
            if canonicalize_name(needed.name) not in found:
                found.add(canonicalize_name(needed.name))
                needed_by(needed, found)
    return found


def test_make_run_installs_what_the_package_needs_and_nothing_else() -> None:
    pins = pins_of(ROOT / "requirements" / "run.txt")
    tested = pins_of(ROOT / "requirements" / "dev.txt")
    assert pins.items() <= tested.items()
    elsewhere = set() if sys.version_info < (3, 13) else {"typing-extensions"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed: set[str] = set()
    for text in project["dependencies"]:
        direct = Requirement(text)
        needed |= {canonicalize_name(direct.name)} | needed_by(direct, set())
    assert needed - elsewhere == set(pins) - elsewhere


def test_make_run_with_traces_adds_only_the_sdk_of_opentelemetry() -> None:
    pins = pins_of(ROOT / "requirements" / "trace.txt")
    assert pins.items() <= pins_of(ROOT / "requirements" / "dev.txt").items()
    added = set(pins) - set(pins_of(ROOT / "requirements" / "run.txt"))
    assert added == {"opentelemetry-api", "opentelemetry-sdk", "opentelemetry-semantic-conventions"}
    command = ["make", "--dry-run", "--always-make", "run", "TRACE=1"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "scripts/light-venv" in planned and ".venvs/trace/bin/python" in planned
    assert "requirements/dev.txt" not in planned


def light_venv(tmp_path: Path, **programs: str) -> tuple[list[str], str]:
    """The commands that scripts/light-venv gives, with these programs on PATH, and its error output."""
    log = tmp_path / "log"
    for name, body in programs.items():
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{body}\n')
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = [str(ROOT / "scripts" / "light-venv"), "python", str(tmp_path / "there"), "run.txt"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return log.read_text().splitlines(), ended.stderr


def test_the_light_environment_is_made_by_uv_if_there_is_one(tmp_path: Path) -> None:
    commands, _ = light_venv(tmp_path, python="exit 1", uv="")
    assert [command.split()[:2] for command in commands] == [["uv", "venv"], ["uv", "pip"]]
    assert "--require-hashes --requirement run.txt" in commands[1]


def test_the_light_environment_has_no_pip_if_python_has_one(tmp_path: Path) -> None:
    commands, _ = light_venv(tmp_path, python="")
    assert commands[1] == f"python -m venv --without-pip {tmp_path}/there"
    assert commands[2].startswith(f"python -m pip --python {tmp_path}/there/bin/python install")
    assert "--require-hashes --requirement run.txt" in commands[2]


def test_the_light_environment_brings_its_own_pip_if_python_has_none(tmp_path: Path) -> None:
    commands, errors = light_venv(tmp_path, python='[ "$2" != pip ]')
    assert commands[1:] == [f"python -m venv {tmp_path}/there"]
    assert "there/bin/python" in errors  # which a real Python would have created


# ---- the audit -----------------------------------------------------------------------------------------------------


def audited(*dependencies: dict[str, object]) -> str:
    return json.dumps({"dependencies": list(dependencies), "fixes": []})


CLEAN: dict[str, object] = {"name": "good", "version": "1.0", "vulns": []}
UNKNOWN: dict[str, object] = {"name": "odd", "skip_reason": "not found"}
BAD: dict[str, object] = {"name": "bad", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}


@pytest.mark.parametrize(
    ("said", "code", "line"),
    [
        (audited(CLEAN), 0, "no known vulnerability in 1 packages"),
        (audited(CLEAN, UNKNOWN), 0, "could not be looked up: odd"),
        (audited(UNKNOWN), 0, "audit skipped: none of 1 packages could be looked up in the database"),
        (audited(), 0, "audit skipped: none of 0 packages could be looked up in the database"),
        ("", 0, "audit skipped: pip-audit is not installed, or its database cannot be reached"),
        ("Traceback", 0, "audit skipped: pip-audit is not installed, or its database cannot be reached"),
        (audited(CLEAN, BAD), 1, "bad 1.0 has CVE-1, fixed in 1.1"),
        (audited(BAD, UNKNOWN), 1, "bad 1.0 has CVE-1, fixed in 1.1"),
    ],
)
def test_the_audit_fails_for_a_known_vulnerability_and_never_calls_silence_health(
    said: str, code: int, line: str
) -> None:
    found, lines = audit.judge(said)
    assert found == code
    assert line in lines
    assert ("no known vulnerability" in " ".join(lines)) == (code == 0 and "good" in said)


def test_an_audit_whose_database_does_not_answer_is_skipped_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(requirements: str) -> str:
        raise subprocess.TimeoutExpired("pip-audit", 1)

    monkeypatch.setattr(audit, "run_pip_audit", never)
    assert audit.main("requirements/dev.txt") == 0
    assert capsys.readouterr().out.startswith("audit skipped: the database did not answer")


def test_make_check_audits() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^check: .*\baudit\b", makefile, re.MULTILINE)
    assert "-m scripts.audit requirements/dev.txt" in makefile
