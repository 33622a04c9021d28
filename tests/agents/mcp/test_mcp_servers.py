"""MCP servers behind real processes: FastMCP in its own environment, and `serve --mcp`, killed before each answer."""

import signal
import sys
from pathlib import Path

import pytest

from apcore_a2a import A2AClient, StatusUpdate
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.protocol.questions import questions_of
from tests.agents.mcp import fast_toolbox_path, toolbox
from tests.agents.mcp.test_mcp_agent import answer, call
from tests.processes import running
from tests.toolkits.test_frameworks import require

ADDRESS = r"http://127\.0\.0\.1:\d+"


@pytest.mark.parametrize("kind", ["fastmcp", "program"])
async def test_answers_survive_kill_9_of_the_server(kind: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects.txt"
    effects.touch()
    store = f"sqlite:///{tmp_path}/tasks.db"
    environment = {"EFFECTS": str(effects)}
    if kind == "fastmcp":
        python = str(require("fastmcp"))
        command = [str(fast_toolbox_path()), store]
    else:
        python = sys.executable
        mcp = f"{sys.executable} {toolbox.__file__}"
        command = ["-m", "apcore_a2a", "serve", "--mcp", mcp, "--mcp-env", "EFFECTS", "--port", "0", "--store", store]
        command += ["--host", "127.0.0.1"]
    task = None
    for given in (None, {"seats": 2, "window": True}, "yes"):
        async with running(*command, python=python, **environment) as process:
            address = await process.says(ADDRESS)
            async with A2AClient(address[0], timeout=60) as client:
                if task is None:
                    added = await call(client, "add", {"a": 2, "b": 3})
                    picture = await call(client, "draw", {})
                    failed = await call(client, "fail", {})
                    task = await call(client, "book", {"city": "Rome"})
                    assert questions_of(task.status.message)[0].text == "How many seats?"
                else:
                    task = await answer(client, task, given)
            process.signal(signal.SIGKILL)
            await process.ends()
    assert added.data == 5
    assert picture.files[0].media_type == "image/png"
    assert failed.status.state is TaskState.FAILED
    assert "no such thing" in failed.status.text
    assert task is not None
    assert task.text == "2 seats to Rome, window True"
    assert effects.read_text() == "booked\n"


async def test_a_cancelled_task_ends_a_tool_of_fastmcp(tmp_path: Path) -> None:
    effects = tmp_path / "effects.txt"
    effects.touch()
    python = str(require("fastmcp"))
    command = (str(fast_toolbox_path()), f"sqlite:///{tmp_path}/tasks.db")
    async with running(*command, python=python, EFFECTS=str(effects)) as process:
        address = await process.says(ADDRESS)
        async with A2AClient(address[0], timeout=60) as client:
            async for event in client.stream_message({}, skill="slow"):
                if isinstance(event, StatusUpdate) and event.status.message is not None:
                    break
            (task,) = (await client.list_tasks()).tasks
            assert (await client.cancel_task(task.id)).status.state is TaskState.CANCELED
    assert effects.read_text() == "cancelled\n"
