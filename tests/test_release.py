"""What the release and the checks of a change consist of: workflows, templates, the archive, the bill of materials."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it comes with apcore, without types
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from apcore_a2a import __version__
from scripts.sbom import bill_of
from tests.sources import ROOT
from tests.test_docs import shell_error

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCK = (ROOT / "requirements" / "run.txt").read_text(encoding="utf-8")


def read(path: Path) -> Any:  # Any: YAML
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps_of(workflow: Path) -> list[dict[str, Any]]:  # Any: YAML
    return [step for job in read(workflow)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_pins_actions_by_commit_and_has_few_rights(workflow: Path) -> None:
    used = [step["uses"] for step in steps_of(workflow) if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action)] == []
    assert read(workflow)["permissions"] in ({}, {"contents": "read"})
    assert [job for job in read(workflow)["jobs"].values() if "timeout-minutes" not in job] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_the_commands_of_a_workflow_parse_and_their_targets_exist(workflow: Path) -> None:
    commands = [step["run"] for step in steps_of(workflow) if "run" in step]
    assert [error for command in commands if (error := shell_error(command))] == []
    targets = [name for command in commands for name in re.findall(r"^make ([a-z -]+)$", command, re.MULTILINE)]
    assert targets
    ran = subprocess.run(
        ["make", "--dry-run", *" ".join(targets).split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("job", ["linux", "macos"])
def test_every_supported_python_is_tested(job: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    workflow = read(ROOT / ".github" / "workflows" / "ci.yml")
    assert workflow["jobs"][job]["strategy"]["matrix"]["python"] == promised


def test_publishing_is_off_until_the_repository_switches_it_on() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["publish"]["if"] == "vars.PUBLISH == 'true'"
    assert jobs["image"]["if"] == "vars.IMAGE != ''"


def test_updates_are_looked_for_where_there_is_something_to_update() -> None:
    kinds = {"github-actions": ".github/workflows", "docker": "Dockerfile", "npm": "explorer/package-lock.json"}
    updates = read(ROOT / ".github" / "dependabot.yml")["updates"]
    assert {update["package-ecosystem"] for update in updates} == set(kinds)
    assert [name for name in kinds.values() if not (ROOT / name).exists()] == []


def test_a_form_for_issues_has_a_name_and_fields() -> None:
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(forms) == 2
    for form in map(read, forms):
        assert form["name"] and form["description"]
        assert any(field["type"] != "markdown" for field in form["body"])


def test_the_citation_names_this_version() -> None:
    assert read(ROOT / "CITATION.cff")["version"] == __version__


def test_the_bill_of_materials_is_valid_and_names_each_pin() -> None:
    bill = bill_of(LOCK)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    components = json.loads(bill)["components"]
    pins = re.findall(r"^([a-z0-9._-]+)==([\w.]+)", LOCK, re.MULTILINE)
    assert [(each["name"], each["version"]) for each in components] == pins
    assert sum(len(each["hashes"]) for each in components) == LOCK.count("--hash=")
    assert bill_of(LOCK) == bill


def test_the_source_archive_builds_the_same_wheel(tmp_path: Path) -> None:
    """With README, licence and all data files in it, and none of our private directories."""
    build = [sys.executable, "-m", "hatchling", "build", "-d"]
    subprocess.run([*build, str(tmp_path / "first")], cwd=ROOT, check=True, capture_output=True)
    (archive,) = (tmp_path / "first").glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(tmp_path)], check=True)
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    assert not [path for path in unpacked.rglob("*") if path.name in (".venv", ".venvs", "node_modules")]
    subprocess.run([*build, str(tmp_path / "second"), "-t", "wheel"], cwd=unpacked, check=True, capture_output=True)
    (first,) = (tmp_path / "first").glob("*.whl")
    (second,) = (tmp_path / "second").glob("*.whl")
    assert first.read_bytes() == second.read_bytes()


def test_the_changelog_says_what_a_user_of_the_first_release_needs() -> None:
    unreleased = (
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("## [Unreleased]")[2].partition("\n## [")[0]
    )
    assert len(unreleased.splitlines()) <= 110
    assert re.findall(r"^### (.+)$", unreleased, re.MULTILINE) == ["Added"]  # nothing was released that could change


def test_the_package_and_its_citation_are_described_alike() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = read(ROOT / "CITATION.cff")
    assert project["description"] == citation["abstract"]
    assert citation["version"] == __version__
