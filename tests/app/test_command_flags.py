"""The flags of `apcore-a2a serve`, each by what it does to a process."""

import asyncio
import socket
import sys
from pathlib import Path

import click
import httpx
import pytest

import apcore_a2a
from apcore_a2a import A2AClient, Task
from apcore_a2a.cli.serve.command import SECTIONS
from apcore_a2a.cli.serve.command import command as serve_command
from tests.app.test_app import send
from tests.app.test_serving import EXTENSIONS, address, command
from tests.auth.tokens import SECRET, bearer
from tests.processes import PATIENCE, running
from tests.requirements import requirement

SCRIPT = Path(sys.executable).with_name("apcore-a2a")  # made from [project.scripts]


async def output_of(*command_line: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(*command_line, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(PATIENCE):
        said, _ = await process.communicate()
    return process.returncode, said.decode()


@requirement("FR-CMD-001")
@pytest.mark.parametrize("entry", [(str(SCRIPT),), (sys.executable, "-m", "apcore_a2a")], ids=["script", "module"])
async def test_version_and_help_are_printed_by_the_script_and_by_the_module(entry: tuple[str, ...]) -> None:
    code, said = await output_of(*entry, "--version")
    assert (code, apcore_a2a.__version__ in said) == (0, True)
    code, said = await output_of(*entry, "--help")
    assert code == 0
    assert "Usage: apcore-a2a" in said and "serve" in said
    code, said = await output_of(*entry, "serve", "--help")
    assert code == 0
    told = " ".join(said.split())
    for option in (
        "env var: APCORE_A2A_HOST, HOST; default: 0.0.0.0",
        "env var: APCORE_A2A_PORT, PORT; default: 8000;",
        "env var: APCORE_A2A_LOG_LEVEL, LOG_LEVEL; default: info",
    ):
        assert f"[{option}" in told


@requirement("FR-CMD-001")
async def test_host_port_name_description_and_version_are_what_the_flags_say() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    named = ["--name", "demo", "--description", "Shows things", "--version", "7.8.9"]
    where = ["--host", "127.0.0.1", "--port", port]
    async with running("-m", "apcore_a2a", "serve", "--extensions-dir", str(EXTENSIONS), *where, *named) as process:
        assert await address(process) == f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            card = (await client.get("/.well-known/agent.json")).json()
    assert (card["name"], card["description"], card["version"]) == ("demo", "Shows things", "7.8.9")


@requirement("FR-CMD-001")
async def test_auth_type_and_issuer_let_in_the_tokens_of_that_issuer_only() -> None:
    flags = ["--auth-type", "bearer", "--auth-key", SECRET, "--auth-issuer", "https://idp.example"]
    async with command("--extensions-dir", str(EXTENSIONS), *flags) as process:
        async with httpx.AsyncClient(base_url=await address(process)) as client:
            asked = send({"text": "a b"}, skill="text.stats")
            assert (await client.post("/", json=asked)).status_code == 401
            other = bearer(iss="https://other.example")
            assert (await client.post("/", json=asked, headers=other)).status_code == 401
            answer = (await client.post("/", json=asked, headers=bearer())).json()
            assert answer["result"]["status"]["state"] == "completed"
            card = (await client.get("/.well-known/agent.json")).json()
            assert [scheme["scheme"] for scheme in card["securitySchemes"].values()] == ["bearer"]


@requirement("FR-CMD-001")
async def test_the_log_level_says_how_much_is_logged(tmp_path: Path) -> None:
    source = "import logging\n" + "".join(
        f"logging.getLogger('mine').{level}('this is for {level}')\n" for level in ("debug", "info", "warning", "error")
    )
    module = (EXTENSIONS / "text" / "stats.py").read_text()
    (tmp_path / "stats.py").write_text(source + module)
    for flags, seen in [
        (["--log-level", "debug"], ["debug", "info", "warning", "error"]),
        ([], ["info", "warning", "error"]),
        (["--log-level", "warning"], ["warning", "error"]),
        (["--log-level", "error"], ["error"]),
    ]:
        async with command("--extensions-dir", str(tmp_path), *flags) as process:
            await process.says(r"card +http")
        levels = ("debug", "info", "warning", "error")
        assert [level for level in levels if f"this is for {level}" in process.said] == seen
    async with command("--extensions-dir", str(tmp_path), "--log-level", "loud") as process:
        assert await process.ends() == 1
    assert "Invalid value for '--log-level'" in process.said


@pytest.mark.parametrize("by", ["flag", "variable"])
async def test_limits_of_what_is_stored_hold_by_flag_and_by_variable(by: str, tmp_path: Path) -> None:
    flags = ["--extensions-dir", str(EXTENSIONS), "--store", f"sqlite:///{tmp_path}/tasks.db"]
    variables = {}
    if by == "flag":
        flags += ["--max-stored-tasks-per-caller", "1"]
    else:
        variables["APCORE_A2A_MAX_STORED_BYTES"] = "100"
    async with command(*flags, **variables) as process:
        async with httpx.AsyncClient(base_url=await address(process)) as client:
            asked = send({"text": "a b"}, skill="text.stats")
            statuses = [(await client.post("/", json=asked)).status_code for _ in range(3)]
            assert statuses == [200, 503, 503]  # all who have no name share what one caller may store


async def test_limits_of_requests_hold_by_flag_and_by_variable_behind_a_proxy_too() -> None:
    flags = ["--max-requests-per-second", "0.001", "--trusted-proxies", "127.0.0.1, 10.0.0.1"]
    async with command("--extensions-dir", str(EXTENSIONS), *flags, APCORE_A2A_REQUEST_BURST="2") as process:
        async with httpx.AsyncClient(base_url=await address(process), headers={"A2A-Version": "1.0"}) as client:
            one = {"X-Forwarded-For": "203.0.113.1"}
            other = {"X-Forwarded-For": "203.0.113.2"}
            statuses = [(await client.get("/tasks", headers=who)).status_code for who in (one, one, one, other)]
            assert statuses == [200, 200, 429, 200]
    async with command("--extensions-dir", str(EXTENSIONS), "--max-active-tasks-per-caller", "0") as process:
        assert await process.ends() == 1
    assert "max_active_tasks_per_caller must be positive" in process.said


@pytest.mark.parametrize("by", ["flag", "variable"])
async def test_an_option_that_makes_no_sense_is_not_the_fault_of_what_is_served(by: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("async def echo(text: str) -> str:\n    return text\n")
    flags = ["--max-streams", "0"] if by == "flag" else []
    variables = {"APCORE_A2A_MAX_STREAMS": "0"} if by == "variable" else {}
    async with command(str(file), *flags, **variables) as process:
        assert await process.ends() == 1
    assert process.said == "Error: max_streams must be positive, not 0\n"


async def test_a_variable_under_its_former_name_is_rejected_with_the_new_one(tmp_path: Path) -> None:
    async with command("--extensions-dir", str(EXTENSIONS), A2A_STORE=f"sqlite:///{tmp_path}/tasks.db") as process:
        assert await process.ends() == 1
    assert process.said == "Error: the environment variable A2A_STORE is now APCORE_A2A_STORE\n"


async def test_the_port_that_kubernetes_sets_for_a_service_of_the_same_name_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("async def echo(text: str) -> str:\n    return text\n")
    variables = {"APCORE_A2A_PORT": "tcp://10.0.0.1:8000"}
    async with running("-m", "apcore_a2a", "serve", str(file), "--host", "256.1.1.1", **variables) as process:
        await process.ends()
    assert "8000" in process.said and "tcp" not in process.said


def test_the_help_lists_every_option_in_a_section() -> None:
    named = [name for names in SECTIONS.values() for name in names.split()]
    options = {param.name for param in serve_command.params if isinstance(param, click.Option) and not param.hidden}
    assert len(named) == len(set(named))
    assert set(named) == options


@pytest.mark.parametrize(
    ("options", "is_shown"),
    [
        (("dev",), True),
        (("dev", "--host", "0.0.0.0"), False),
        (("serve", "--host", "127.0.0.1"), False),
        (("serve", "--host", "127.0.0.1", "--show-exceptions"), True),
    ],
    ids=["dev", "dev for others", "serve", "serve on request"],
)
async def test_an_exception_is_shown_by_dev_on_a_loopback_address_only(
    options: tuple[str, ...], is_shown: bool, tmp_path: Path
) -> None:
    file = tmp_path / "agent.py"
    file.write_text("def fail() -> int:\n    secret = 0\n    return 1 // secret\n")
    verb, *flags = options
    async with running("-m", "apcore_a2a", verb, str(file), "--port", "0", *flags) as process:
        async with A2AClient(await address(process), timeout=PATIENCE) as client:
            task = await client.send_message("now")
    assert isinstance(task, Task) and task.status.message is not None
    metadata = task.status.message.metadata or {}
    assert ("exception" in metadata) is is_shown
    if is_shown:
        assert metadata["exception"].startswith("ZeroDivisionError: ")
        assert metadata["exception"].endswith("agent.py:3, in fail: return 1 // secret")


async def test_exceptions_cannot_be_shown_to_other_machines(tmp_path: Path) -> None:
    async with command("--extensions-dir", str(EXTENSIONS), "--host", "0.0.0.0", "--show-exceptions") as process:
        assert await process.ends() == 1
    assert process.said.startswith("Error: show_exceptions reports code to callers: it needs host='127.0.0.1'")
