"""`apcore-a2a new`: each project passes its own test, serves, and is as clean as our own code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apcore_a2a import A2AClient
from apcore_a2a.cli.new.command import KINDS
from tests.cli.conftest import Terminal
from tests.processes import running
from tests.sources import ROOT

SKILLS = {
    "functions": {"add", "tell", "book", "cancel"},
    "chat": {"chat"},
    "modules": {"text.count"},
    "orchestrator": {"plan"},
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def project(kind: str, terminal: Terminal, tmp_path: Path) -> Path:
    ran = terminal("new", kind, str(tmp_path / "my agent"))
    assert ran.code == 0, ran.err
    return tmp_path / "my agent"


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of mypy: only the first project checks the standard library."""
    return tmp_path_factory.mktemp("types")


def run(project: Path, *command: str) -> str:
    """Run a module of Python in the project, and return its output. It must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        [sys.executable, "-m", *command], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_project_passes_its_own_test(project: Path) -> None:
    assert " passed" in run(project, "pytest", "-p", "no:cacheprovider")


def test_a_project_is_clean(project: Path, types: Path) -> None:
    run(project, "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--ignore", "D,I", ".")
    run(project, "ruff", "format", "--check", "--config", str(ROOT / "pyproject.toml"), ".")
    checks = ("--strict", "--follow-imports=silent", "--ignore-missing-imports", "--cache-dir", str(types))
    run(project, "mypy", *checks, ".")


async def test_a_project_serves_its_skills(project: Path, kind: str) -> None:
    target = "extensions" if kind == "modules" else "agent.py"
    dockerfile = (project / "Dockerfile").read_text()
    assert f'CMD ["apcore-a2a", "serve", "{target}"]' in dockerfile
    copied = [line.split()[1] for line in dockerfile.splitlines() if line.startswith("COPY")]
    assert [name for name in copied if not (project / name).exists()] == []
    arguments = ("-m", "apcore_a2a", "serve", str(project / target), "--host", "127.0.0.1", "--port", "0")
    async with running(*arguments) as process:
        url = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        async with A2AClient(url) as client:
            card = await client.agent_card
    assert {skill.id for skill in card.skills} == SKILLS[kind]


def test_no_placeholder_is_left_and_the_name_is_safe(project: Path) -> None:
    contents = {path: path.read_text() for path in project.rglob("*") if path.is_file()}
    assert len(contents) >= 7
    assert [path for path, content in contents.items() if re.search("@[A-Z]+@", content)] == []
    assert "# my-agent" in contents[project / "README.md"]


def test_nothing_is_overwritten(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("mine")
    ran = terminal("new", "functions", str(tmp_path))
    assert (ran.code, (tmp_path / "agent.py").read_text()) == (2, "mine")
    assert f"{tmp_path} exists and is not empty. Choose another directory." in ran.err
    assert list(tmp_path.iterdir()) == [tmp_path / "agent.py"]


def test_what_stands_in_the_way_is_named(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = terminal("new", "functions", str(tmp_path / "file" / "project"))
    assert (ran.code, "cannot write" in ran.err) == (2, True)


def test_an_unknown_kind_is_rejected_with_the_kinds(terminal: Terminal, tmp_path: Path) -> None:
    ran = terminal("new", "functons", str(tmp_path / "x"))
    assert ran.code == 2
    assert all(kind in ran.err for kind in KINDS)


def test_the_next_steps_are_printed(terminal: Terminal, tmp_path: Path) -> None:
    ran = terminal("new", "modules", str(tmp_path / "my agent"))
    assert [line.strip() for line in ran.out.splitlines()] == [
        f"cd '{tmp_path / 'my agent'}'",
        "python -m pip install pytest",
        "python -m pytest",
        "apcore-a2a dev extensions",
    ]


def test_the_help_has_one_line_for_each_kind(terminal: Terminal) -> None:
    lines = [line.strip() for line in terminal("new", "--help").out.splitlines()]
    assert [kind for kind, what in KINDS.items() if f"{kind:13} {what}" not in lines] == []


def test_a_project_is_written_in_the_current_directory_if_it_is_empty(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert terminal("new", "chat", ".").code == 0
    assert f"AGENT_NAME={tmp_path.name}"[:20] in (tmp_path / "Dockerfile").read_text()
