"""All commands: their help, their imports, and docs/cli.md."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from apcore_a2a.cli.main import COMMANDS, cli
from tests.cli.conftest import Terminal
from tests.sources import ROOT
from tests.test_docs import blocks_of

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
HEAVY = {"starlette", "uvicorn", "apcore", "pydantic", "a2a"}


def leaves(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that is not a group, with its path."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from leaves(command, (*path, name))
            else:
                yield (*path, name), command


LEAVES = dict(leaves())
EXAMPLES = [
    line
    for block in blocks_of(PAGE, "sh")
    for line in block.code.splitlines()
    # these run until they are stopped: test_tasks.py, tests/app/test_targets.py, tests/toolkits/test_mcp.py test them
    if not re.search(" (subscribe|serve|dev|explore|mcp) ", line)
]


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_a_help_text(terminal: Terminal, words: tuple[str, ...]) -> None:
    asked = terminal(*words, "--help")
    helped = terminal("help", *words)

    assert (asked.code, helped.code) == (0, 0)
    assert asked.out.startswith(f"Usage: apcore-a2a {' '.join(words)}")
    if words != ("help",):
        assert re.search(r"\n  Examples?:\n +apcore-a2a ", asked.out)
    assert set(re.findall(r" (--[a-z0-9-]+)", asked.out)) == set(re.findall(r" (--[a-z0-9-]+)", helped.out))


@pytest.mark.parametrize("words", [words for words in LEAVES if words not in {("serve",), ("dev",)}], ids=" ".join)
def test_every_option_is_on_the_cli_page(words: tuple[str, ...]) -> None:
    options = [name for param in LEAVES[words].params for name in param.opts if name.startswith("--")]

    assert [name for name in options if f"`{name}`" not in PAGE and f"`{name} " not in PAGE] == []


def test_every_command_is_on_the_cli_page_and_in_the_help(terminal: Terminal) -> None:
    ran = terminal("--help")

    assert [name for name in COMMANDS if f"\n  {name} " not in ran.out] == []
    assert [name for name in COMMANDS if f"`{name}`" not in PAGE] == []


def text_for(line: str) -> str:
    """Return the message for an example: webhooks and `cancel` need a task that is still running."""
    if "push" in line:
        return "ask"
    if "cancel" in line:
        return "hang"
    return "hello"


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_of_the_cli_page_works(
    terminal: Terminal,
    peer: Callable[[str], str],
    functions: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("# Notes")
    url = peer("sdk1")
    if re.search("--skill (add|chart) ", line):  # inputs with types, which only an agent of ours publishes
        url = functions
    task = terminal("send", url, text_for(line), "--async", "--json").json["task"]["id"]
    if "CONFIG" in line and "create" not in line:
        terminal("push", "create", url, task, "https://example.com/hook", "--id", "CONFIG")

    piped, _, command = line.rpartition("| ")
    words = shlex.split(command.partition(" > ")[0])
    real = {"http://localhost:8000": url, "TASK": task}
    said = [real.get(word, word) for word in words[1:]]
    stdin = b""
    if piped:
        stdin = f"{shlex.split(piped)[1]}\n".encode()  # the output of its echo
    ran = terminal(*said, stdin=stdin)

    assert words[0] == "apcore-a2a"
    assert ran.code == 0 or (ran.code, said[0]) == (1, "validate")  # this agent may break a rule
    assert "Error" not in ran.err
    assert ran.out


@pytest.mark.parametrize("module", ["card", "send", "task", "push", "validate.command", "completion"])
def test_commands_that_call_agents_import_no_server(module: str) -> None:
    program = f"import sys, apcore_a2a.cli.{module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)

    assert {name.partition(".")[0] for name in run.stdout.split()} & HEAVY == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(terminal: Terminal, shell: str) -> None:
    ran = terminal("completion", shell)

    assert ran.code == 0
    assert f"_APCORE_A2A_COMPLETE={shell}_complete" in ran.out


def test_a_shell_completes_commands_and_options() -> None:
    def complete(*words: str) -> list[str]:
        env = {
            "_APCORE_A2A_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        command = [sys.executable, "-c", "from apcore_a2a.cli import main; main()"]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20, env=env)
        return [line.partition(",")[2] for line in run.stdout.splitlines()]

    assert complete("apcore-a2a", "st") == ["stream"]
    assert complete("apcore-a2a", "task", "c") == ["cancel"]
    assert "--skill" in complete("apcore-a2a", "send", "--sk")


def test_a_mistyped_command_gets_a_suggestion(terminal: Terminal) -> None:
    ran = terminal("snd", "http://localhost:8000", "hello")
    assert (ran.code, ran.out) == (2, "")
    assert "No such command 'snd'. Did you mean 'send'?" in ran.err
    assert "Did you mean" not in terminal("xyzzy").err


def test_the_version_is_printed(terminal: Terminal) -> None:
    assert terminal("-v").out.startswith("apcore-a2a, version ")


def test_the_command_without_arguments_prints_its_help_and_exits_with_0(terminal: Terminal) -> None:
    ran = terminal()
    assert ran.code == 0
    assert ran.out == terminal("--help").out
