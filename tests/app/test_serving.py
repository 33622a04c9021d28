"""`serve` and `apcore-a2a serve` as processes: how they start, what they say, how they end."""

import json
import re
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from apcore_a2a import A2AClient
from apcore_a2a.client.options import BindingName
from apcore_a2a.protocol.model import SendConfiguration, StatusUpdate, TaskState
from tests.auth.tokens import SECRET, bearer
from tests.processes import Process, running
from tests.requirements import requirement

AT_ONCE = SendConfiguration(return_immediately=True)
EXTENSIONS = Path(__file__).parents[2] / "examples" / "extensions"
WAIT = """
import asyncio
from typing import Any
from pydantic import BaseModel

class Nothing(BaseModel):
    pass

class Wait:
    description = "Wait for ever"
    input_schema = Nothing
    output_schema = Nothing

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}
"""


@asynccontextmanager
async def command(*options: str, **environment: str) -> AsyncIterator[Process]:
    async with running(
        "-m", "apcore_a2a", "serve", "--host", "127.0.0.1", "--port", "0", *options, **environment
    ) as it:
        yield it


async def address(process: Process) -> str:
    return (await process.says(r"running on (http://[\d.]+:\d+)"))[1].replace("0.0.0.0", "127.0.0.1")


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    (tmp_path / "wait.py").write_text(WAIT)
    return tmp_path


async def test_what_the_environment_says_of_tokens_streams_and_tasks_holds(waiting: Path, tmp_path: Path) -> None:
    environment = {
        "JWT_KEY": SECRET,
        "JWT_LEEWAY": "0",
        "APCORE_A2A_KEEP_ALIVE_INTERVAL": "0.01",
        "TASK_STORE_MAX": "1",
        "TASK_STORE_TTL": "60",
    }
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    message = {"messageId": "m", "role": "user", "parts": [{"kind": "data", "data": {}}]}
    async with (
        command("--extensions-dir", str(waiting), "--store", store, **environment) as process,
        httpx.AsyncClient(base_url=await address(process)) as http,
    ):
        late = bearer(exp=int(time.time()) - 10)
        assert (await http.post("/", json={}, headers=late)).status_code == 401
        streamed = {"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": {"message": message}}
        async with http.stream("POST", "/", json=streamed, headers=bearer()) as response:
            async for line in response.aiter_lines():
                if line == ": keep-alive":
                    break
        sent = {**streamed, "method": "message/send"}
        refused = (await http.post("/", json=sent, headers=bearer())).json()
        assert refused["error"]["message"].startswith("The agent is at its limit of unfinished tasks")


@requirement("FR-CMD-001", "FR-SRV-001")
async def test_a_directory_of_modules_becomes_an_agent() -> None:
    async with command("--extensions-dir", str(EXTENSIONS), "--name", "demo", "--metrics") as process:
        url = await address(process)
        async with A2AClient(url) as client:
            card = await client.agent_card
            assert card.name == "demo"
            assert {"text.stats", "files.chart", "payments.transfer"} <= {skill.id for skill in card.skills}
            task: Any = await client.send_message("many hands", skill="text.stats")
            assert task.artifacts[0].parts[0].data["words"] == 2
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    assert "Traceback" not in process.said


@requirement("FR-CMD-001")
async def test_the_banner_shows_what_is_served_and_what_is_unsafe() -> None:
    arguments = ["-m", "apcore_a2a", "serve", "--port", "0", "--extensions-dir", str(EXTENSIONS), "--cors-origins", "*"]
    async with running(*arguments) as process:
        await address(process)
        for fact in ("text.stats", "auth    none", "store   memory", "no authentication is set", "CORS is open"):
            assert fact in process.said


OWN_VERSION = """
from apcore_a2a import skill
@skill(annotations={"requires_approval": True})
def restart(host: str) -> str:
    return host
@skill
def look(host: str) -> str:
    return host
"""


@requirement("FR-CMD-001")
async def test_the_banner_shows_the_version_of_the_project_and_skills_that_the_public_card_hides(
    tmp_path: Path,
) -> None:
    (tmp_path / "ops.py").write_text(OWN_VERSION)
    target = str(tmp_path / "ops.py")
    async with command(f"{target}:restart", JWT_KEY=SECRET) as process:
        await address(process)
        assert re.search(r"^restart  apcore-a2a ", process.said, re.MULTILINE)  # it has no version of its own
        assert "skills  1: restart (0 on the public card)" in process.said
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "ops"\nversion = "4.5.6"\n')
    async with command(target, JWT_KEY=SECRET) as process:
        url = await address(process)
        assert re.search(r"^ops 4\.5\.6  apcore-a2a ", process.said, re.MULTILINE)
        assert "skills  2: restart, look (1 on the public card)" in process.said
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{url}/.well-known/agent.json")).json()["version"] == "4.5.6"
    async with command(target) as process:
        await address(process)
        assert re.search("skills  2: restart, look *$", process.said, re.MULTILINE)
    (tmp_path / "pyproject.toml").write_text("this is not TOML")
    async with command(target) as process:
        await address(process)
        assert re.search(r"^ops  apcore-a2a ", process.said, re.MULTILINE)


@requirement("FR-CMD-001")
async def test_hidden_modules_are_in_the_banner_too() -> None:
    async with command("--extensions-dir", str(EXTENSIONS), JWT_KEY=SECRET) as process:
        await address(process)
        assert "skills  8: " in process.said and "(7 on the public card)" in process.said


@requirement("FR-CMD-001")
async def test_the_environment_sets_what_the_command_line_does_not() -> None:
    environment = {"AGENT_NAME": "from-environment", "AGENT_VERSION": "7.7.7", "JWT_KEY": SECRET}
    options = ["--extensions-dir", str(EXTENSIONS), "--version-str", "8.8.8"]
    async with command(*options, **environment) as process:
        url = await address(process)
        async with httpx.AsyncClient(base_url=url) as client:
            card = (await client.get("/.well-known/agent.json")).json()
            assert (card["name"], card["version"]) == ("from-environment", "8.8.8")
            assert (await client.get("/v1/tasks")).status_code == 401
            assert (await client.get("/v1/tasks", headers=bearer())).status_code == 200


@requirement("FR-CMD-002")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--extensions-dir", "not/there"], "Extensions directory not found: not/there"),
        (["--nonsense"], "No such option"),
        (["--port", "x"], "Invalid value for '--port'"),
        (["--auth-type", "bearer"], "--auth-key is required when --auth-type is bearer"),
        (["--auth-key", "@not/there"], "JWT key file not readable: not/there"),
        (["--auth-key", "-----BEGIN nothing"], "JWT key not usable"),
        (["--store", "paper://"], "store must be a URL that begins with"),
        (["--execution-timeout", "0"], "execution_timeout must be positive"),
    ],
    ids=str,
)
async def test_a_wrong_call_ends_with_one_and_says_what_is_wrong(options: list[str], said: str) -> None:
    known = [] if "--extensions-dir" in options else ["--extensions-dir", str(EXTENSIONS)]
    async with command(*known, *options) as process:
        assert await process.ends() == 1
        assert said in process.said
        assert "Traceback" not in process.said


@requirement("FR-CMD-002")
async def test_a_directory_without_modules_is_refused(tmp_path: Path) -> None:
    async with command("--extensions-dir", str(tmp_path)) as process:
        assert await process.ends() == 1
        assert f"No modules discovered in {tmp_path}" in process.said


@requirement("FR-CMD-002")
async def test_a_port_that_is_taken_ends_with_two() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with command("--extensions-dir", str(EXTENSIONS), "--port", port) as process:
            assert await process.ends() == 2
            assert "address already in use" in process.said


@requirement("FR-SRV-005", "NFR-REL-001")
@pytest.mark.parametrize(
    ("number", "binding"), [(signal.SIGTERM, "JSONRPC"), (signal.SIGINT, "JSONRPC"), (signal.SIGTERM, "GRPC")]
)
async def test_an_open_stream_ends_with_the_shutdown_and_does_not_hold_the_server(
    waiting: Path, number: signal.Signals, binding: BindingName
) -> None:
    async with command("--extensions-dir", str(waiting), "--shutdown-timeout", "0.2") as process:
        url = await address(process)
        async with A2AClient(url, binding=binding) as client:
            states = []
            async for event in client.stream_message({}, skill="wait"):
                if isinstance(event, StatusUpdate):
                    states.append((event.status.state, event.status.message))
                    if event.status.state is TaskState.WORKING:
                        process.signal(number)
            state, message = states[-1]
            assert state is TaskState.FAILED
            assert message is not None
            assert message.parts[0].text == "Server shutdown"
        assert await process.ends() == 0


HANGING = """
import asyncio, signal
from apcore_a2a import serve

async def wait(text: str) -> str:
    await asyncio.Event().wait()

signal.signal(signal.SIGHUP, signal.{before})
serve(wait, host="127.0.0.1", port=0, shutdown_timeout={grace})
"""


@requirement("FR-SRV-005", "NFR-REL-001")
async def test_a_terminal_that_is_closed_ends_the_server_in_peace() -> None:
    async with running("-c", HANGING.format(before="SIG_DFL", grace=0.2)) as process:
        async with A2AClient(await address(process)) as client:
            states = []
            async for event in client.stream_message("hello"):
                if isinstance(event, StatusUpdate):
                    states.append(event.status.state)
                    if event.status.state is TaskState.WORKING:
                        process.signal(signal.SIGHUP)
            assert states[-1] is TaskState.FAILED
        assert await process.ends() == 0
    assert "Application shutdown complete" in process.said


async def test_what_the_terminal_says_twice_is_no_second_signal() -> None:
    async with running("-c", HANGING.format(before="SIG_DFL", grace=0.5)) as process:
        async with A2AClient(await address(process)) as client:
            await client.send_message("hello", configuration=AT_ONCE)
        process.signal(signal.SIGTERM)
        await process.says("Shutting down")
        process.signal(signal.SIGHUP)
        assert await process.ends() == 0
    assert "Application shutdown complete" in process.said


async def test_a_server_that_is_to_survive_its_terminal_does() -> None:
    async with running("-c", HANGING.format(before="SIG_IGN", grace=0.2)) as process:
        url = await address(process)
        process.signal(signal.SIGHUP)
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/health")).status_code == 200


@requirement("FR-SRV-005")
async def test_a_second_signal_ends_the_server_at_once(waiting: Path) -> None:
    async with command("--extensions-dir", str(waiting), "--shutdown-timeout", "600") as process:
        url = await address(process)
        async with A2AClient(url) as client:
            await client.send_message({}, skill="wait", configuration=AT_ONCE)
            process.signal(signal.SIGTERM)
            await process.says("Shutting down")
            process.signal(signal.SIGTERM)
            await process.ends()  # long before the ten minutes are over


STUBBORN = WAIT.replace(
    "        await asyncio.Event().wait()",
    """
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
    """,
)


@requirement("FR-SRV-005", "NFR-REL-001")
async def test_a_module_that_ignores_its_cancellation_does_not_keep_the_process(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(STUBBORN)
    async with command("--extensions-dir", str(tmp_path), "--shutdown-timeout", "0.1") as process:
        url = await address(process)
        async with A2AClient(url) as client:
            await client.send_message({}, skill="wait", configuration=AT_ONCE)
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0


@requirement("FR-OPS-003")
async def test_a_changed_file_is_taken_in_and_a_broken_one_is_not(waiting: Path) -> None:
    async with command("--extensions-dir", str(waiting), "--reload") as process:
        url = await address(process)
        async with A2AClient(url) as client:
            (waiting / "wait.py").write_text(WAIT.replace("Wait for ever", "Wait, but why"))
            await process.says("module reloaded module_id=wait")
            assert [skill.description for skill in (await client.refresh_card()).skills] == ["Wait, but why"]
            (waiting / "wait.py").write_text("this is not Python")
            await process.says("module not reloaded.*module_id=wait")
            (waiting / "more.py").write_text(WAIT)
            await process.says("module reloaded module_id=more")
            assert {skill.id for skill in (await client.refresh_card()).skills} == {"wait", "more"}
            (waiting / "more.py").unlink()
            await process.says("module removed module_id=more")
            assert {skill.id for skill in (await client.refresh_card()).skills} == {"wait"}


async def test_logs_can_be_json_and_no_client_can_break_a_line() -> None:
    async with command("--extensions-dir", str(EXTENSIONS), "--log-format", "json") as process:
        await process.says('"message": "Uvicorn running')
    records = [json.loads(line) for line in process.said.splitlines()]
    for record in records:
        assert {"time", "level", "logger", "message"} <= record.keys()
    (started,) = [record for record in records if record["message"] == "agent started"]
    assert started["agent"].startswith("http://127.0.0.1:")
    assert (started["auth"], started["store"][:6]) == ("none", "memory")


async def records_of(*arguments: str) -> list[dict[str, Any]]:
    async with running("-m", "apcore_a2a", "serve", *arguments, "--port", "0", "--log-format", "json") as process:
        await process.says('"message": "Uvicorn running')
    return [json.loads(line) for line in process.said.splitlines()]


async def test_a_json_log_has_the_warnings_of_the_banner_as_records() -> None:
    records = await records_of(str(EXTENSIONS))
    (warning,) = [record for record in records if record["level"] == "warning"]
    assert warning["reason"].startswith("every client that reaches 0.0.0.0")


async def test_a_json_log_tells_of_other_applications_in_a_record() -> None:
    records = await records_of("fastapi:FastAPI", "--factory", "--host", "127.0.0.1")
    (started,) = [record for record in records if record["message"] == "application started"]
    assert started["target"] == "fastapi:FastAPI"
    assert started["application"].startswith("http://127.0.0.1:")


async def test_the_function_serves_as_the_command_does_with_the_same_banner_and_warning() -> None:
    script = "from apcore_a2a import serve\nasync def echo(text: str) -> str: return text\n"
    async with running("-c", f"{script}serve(echo, port=0, log_level='debug')") as process:
        async with A2AClient(await address(process)) as client:
            task: Any = await client.send_message("hello")
            assert task.artifacts[0].parts[0].text == "hello"
        process.signal(signal.SIGINT)
        assert await process.ends() == 0
    for fact in ("skills  1: echo", "auth    none", "store   memory", "warning every client that reaches 0.0.0.0"):
        assert fact in process.said
    assert "debug request dispatched operation=" in process.said
    assert re.search(r"info task ended task_id=\S+ state=completed caller=anonymous skill=echo seconds=", process.said)


async def test_what_is_wrong_with_a_module_is_logged_by_its_name_when_it_is_served() -> None:
    script = (
        "import apcore\nfrom apcore_a2a import serve\nfrom tests.modules import Add\n"
        "odd = Add()\nodd.description = ''\nregistry = apcore.Registry()\n"
        "registry.register('math.odd', odd)\nregistry.register('math.add', Add())\nserve(registry, port=0)"
    )
    async with running("-c", script) as process:
        await address(process)
    warning = r"\d warning module has no description, so the card does not list it module_id=math.odd"
    assert re.search(warning, process.said)


@requirement("FR-CMD-002")
async def test_nothing_is_announced_by_a_server_that_does_not_start(tmp_path: Path) -> None:
    script = "from apcore_a2a import serve\nserve(lambda text: text, port={port}, store='{store}')"
    missing = f"sqlite:///{tmp_path / 'missing' / 'tasks.db'}"
    (tmp_path / "text.db").write_text("this is no database, but a text " * 100)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port, store, said in [
            (taken.getsockname()[1], "memory://", "address already in use"),
            (0, missing, "missing"),
            (0, f"sqlite:///{tmp_path / 'text.db'}", "not a database"),
        ]:
            async with running("-c", script.format(port=port, store=store)) as process:
                assert await process.ends() == 2
            errors = [line for line in process.said.splitlines() if line.startswith("Error: ")]
            assert len(errors) == 1 and said in errors[0]
            assert "skills" not in process.said and "Traceback" not in process.said


async def test_a_program_that_has_set_up_its_log_keeps_it() -> None:
    script = (
        "import logging\nlogging.basicConfig(format='MINE %(message)s')\nfrom apcore_a2a import serve\n"
        "serve(lambda text: text, port=0, host='127.0.0.1', log_level='debug', cors_origins='*')"
    )
    async with running("-c", script) as process:
        await address(process)
    assert "MINE CORS is open to every origin" in process.said
