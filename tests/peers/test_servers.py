"""Our client and servers of other projects: LangGraph's server, and ADK's `to_a2a`."""

import json
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from apcore_a2a import A2AClient, ArtifactUpdate, StatusUpdate, Task
from tests.deploy.balancers import free_port
from tests.fakes import PATIENCE
from tests.peers.conftest import require
from tests.sources import ROOT

SERVERS: Final = Path(__file__).parent / "servers"
START: Final = 120.0  # seconds: frameworks load for long


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def adk() -> Iterator[str]:
    python = ROOT / ".venvs" / "peer-adk" / "bin" / "python"
    require(python)
    with subprocess.Popen(
        [str(python), str(SERVERS / "adk.py")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        with ended(process):
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@pytest.fixture(scope="module")
def langgraph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the card: LangGraph's server has one card for each assistant, chosen by a query."""
    bin = ROOT / ".venvs" / "peer-langgraph" / "bin"
    require(bin / "python")
    folder = tmp_path_factory.mktemp("langgraph")
    shutil.copy(SERVERS / "graph.py", folder)
    config = {"dependencies": ["."], "graphs": {"agent": "./graph.py:graph"}}
    (folder / "langgraph.json").write_text(json.dumps(config))
    port = free_port()
    command = [str(bin / "langgraph"), "dev", "--host", "127.0.0.1", "--port", str(port), "--no-browser", "--no-reload"]
    environment = os.environ | {"PATH": f"{bin}:{os.environ['PATH']}", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    ) as process:
        with ended(process):
            base = f"http://127.0.0.1:{port}"
            yield f"{base}/.well-known/agent-card.json?assistant_id={_assistant(base)}"


def _assistant(base: str) -> str:
    """Return the id of the only assistant, once the server answers."""
    deadline = time.monotonic() + START
    while True:
        try:
            return str(httpx.post(f"{base}/assistants/search", json={}).json()[0]["assistant_id"])
        except httpx.TransportError:
            assert time.monotonic() < deadline, "LangGraph's server does not start"
            time.sleep(0.1)


async def answer_of(url: str, text: str, reply: str = "") -> Task:
    """Send a message without a stream, then perhaps one more to its task, and return the task."""
    async with A2AClient(url, timeout=PATIENCE) as client:
        task = await client.send_message(text)
        assert isinstance(task, Task)
        if reply:
            task = await client.send_message(reply, task_id=task.id, context_id=task.context_id)
            assert isinstance(task, Task)
        return task


async def stream_of(url: str, text: str) -> tuple[str, str]:
    """Return the texts of the artifacts of a stream, and its last state."""
    texts: dict[str, str] = {}
    state = ""
    async with A2AClient(url, timeout=PATIENCE) as client:
        async for event in client.stream_message(text):
            if isinstance(event, ArtifactUpdate):
                before = texts.get(event.artifact.artifact_id, "") if event.append else ""
                texts[event.artifact.artifact_id] = before + event.text
            elif isinstance(event, StatusUpdate):
                state = str(event.status.state)
    return "".join(texts.values()), state


async def test_langgraph_answers_in_one_piece(langgraph: str) -> None:
    task = await answer_of(langgraph, "whole")
    assert (task.status.state, task.text) == ("completed", "hello world")


async def test_langgraph_streams_in_two_forms_at_once(langgraph: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert await stream_of(langgraph, "streamed") == ("hello world", "completed")
    assert [record.message for record in caplog.records if "do not have the form" in record.message] != []


async def test_langgraph_asks_and_gets_its_answer(langgraph: str) -> None:
    task = await answer_of(langgraph, "question")
    assert task.status.state == "input-required"
    assert task.data["value"] == "Which city?"
    task = await answer_of(langgraph, "question", "Rome")
    assert (task.status.state, task.text) == ("completed", "2 seats in Rome")


async def test_langgraph_sends_a_file(langgraph: str) -> None:
    (file,) = (await answer_of(langgraph, "file")).files
    assert (file.raw, file.media_type) == (b"hello file", "text/plain")


async def test_langgraph_fails(langgraph: str) -> None:
    task = await answer_of(langgraph, "failing")
    assert (task.status.state, task.status.text) == ("failed", "Error executing assistant: ValueError")


async def test_langgraph_cancels(langgraph: str) -> None:
    assert await canceled(langgraph) == "canceled"


async def canceled(url: str) -> str:
    """Cancel a task that never ends, and return its state."""
    async with A2AClient(url, timeout=PATIENCE) as client:
        async for event in client.stream_message("endless"):
            assert isinstance(event, Task)
            return str((await client.cancel_task(event.id)).status.state)
    raise AssertionError("the task has ended by itself")


async def test_adk_answers_in_one_piece(adk: str) -> None:
    task = await answer_of(adk, "whole")
    assert (task.status.state, task.text) == ("completed", "hello world")


async def test_adk_streams(adk: str) -> None:
    assert await stream_of(adk, "streamed") == ("hello world", "completed")


async def test_adk_asks_and_gets_its_answer(adk: str) -> None:
    task = await answer_of(adk, "question")
    assert task.status.state == "input-required"
    task = await answer_of(adk, "question", "Rome")
    assert (task.status.state, task.text) == ("completed", "2 seats in Rome")


async def test_adk_sends_data_and_a_file(adk: str) -> None:
    assert (await answer_of(adk, "data")).data == {"city": "Rome", "seats": 2}
    (file,) = (await answer_of(adk, "file")).files
    assert (file.raw, file.media_type) == (b"hello file", "text/plain")


async def test_adk_fails(adk: str) -> None:
    task = await answer_of(adk, "failing")
    assert (task.status.state, task.status.text) == ("failed", "No such city")


async def test_adk_cancels(adk: str) -> None:
    assert await canceled(adk) == "canceled"
