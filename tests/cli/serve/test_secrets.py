"""Secrets of `serve` and `dev`: from files and variables, and not in the command line of a child process."""

from pathlib import Path

import pytest

from apcore_a2a.cli.serve.reload import hide_secrets
from tests.processes import running

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
AGENT = """
async def echo(text: str) -> str:
    return text
"""


@pytest.mark.parametrize("given", [["--auth-key", "s3cret"], ["--auth-key=s3cret"]])
def test_a_secret_argument_becomes_a_variable(given: list[str]) -> None:
    shown, environment = hide_secrets(["dev", "agent.py", *given, "--port", "0"])
    assert shown == ["dev", "agent.py", "--port", "0"]
    assert environment["APCORE_A2A_AUTH_KEY"] == "s3cret"


def test_other_arguments_stay() -> None:
    shown, _ = hide_secrets(["dev", "agent.py", "--port=0", "--auth-key-file", "keys", "--webhook-secret"])
    assert shown == ["dev", "agent.py", "--port=0", "--auth-key-file", "keys", "--webhook-secret"]


def command_lines_of_children(pid: int) -> list[bytes]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]


async def test_a_child_of_dev_has_no_secret_in_its_command_line_and_uses_it(tmp_path: Path) -> None:
    target = tmp_path / "agent.py"
    target.write_text(AGENT)
    arguments = ("dev", str(target), "--port", "0", "--push-notifications", "--webhook-secret", SECRET)
    async with running("-m", "apcore_a2a", *arguments, "--store", f"sqlite:///{tmp_path}/tasks.db") as process:
        await process.says(r"running on http")
        lines = command_lines_of_children(process.pid)
        assert any(b"--supervised" in line for line in lines)
        assert not any(SECRET.encode() in line or b"tasks.db" in line for line in lines)
        assert (tmp_path / "tasks.db").exists()  # the child has the values


async def served(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of `serve` with wrong arguments."""
    target = tmp_path / "agent.py"
    target.write_text(AGENT)
    async with running("-m", "apcore_a2a", "serve", str(target), "--port", "0", *arguments) as process:
        return await process.ends(), process.said


async def test_the_secret_of_webhooks_can_be_in_a_file(tmp_path: Path) -> None:
    target = tmp_path / "agent.py"
    target.write_text(AGENT)
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    arguments = ("--push-notifications", "--webhook-secret-file", str(path))
    async with running("-m", "apcore_a2a", "serve", str(target), "--port", "0", *arguments) as process:
        await process.says(r"running on http")


@pytest.mark.parametrize(
    ("content", "more", "said"),
    [
        ("not a secret", (), "webhook_secret is not valid"),
        ("", (), "is empty"),
        (None, (), "is not readable"),
        (SECRET, ("--webhook-secret", SECRET), "Give either --webhook-secret or --webhook-secret-file"),
    ],
)
async def test_an_unusable_file_of_the_secret_is_an_error(
    tmp_path: Path, content: str | None, more: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
    code, output = await served(tmp_path, "--push-notifications", "--webhook-secret-file", str(path), *more)
    assert code == 1
    assert said in output
    assert SECRET not in output
