"""Executors written for a2a-sdk 0.3.x, served unchanged in an environment with that version."""

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.interaction.peers.sdk03 import PYTHON
from tests.processes import SOURCES

SCRIPT = Path(__file__).with_name("serve_sdk03.py")
V1 = {"A2A-Version": "1.0"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the URL of the one process for all tests."""
    process = subprocess.Popen(
        [PYTHON, SCRIPT, sysconfig.get_path("purelib")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said += line
            found = re.search(r"running on (http://[\d.]+:\d+)", line)
            if found is not None:
                yield found[1]
                break
        else:
            raise AssertionError(f"it ended before it served:\n{said}")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


async def ask(url: str, *parts: Any, method: str = "SendMessage", **more: Any) -> Any:
    """Send a message in the form of 1.0, and return the response."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": list(parts), **more.pop("message", {})}
    params = {"message": message, **more}
    async with httpx.AsyncClient(base_url=url, timeout=10) as client:
        headers = {**V1, "X-Tenant": "acme", "A2A-Extensions": "urn:x"}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return (await client.post("/", json=body, headers=headers)).json()


async def test_an_executor_of_0_3_runs_and_receives_the_data_of_its_own_server(url: str) -> None:
    data = {"count": 42, "ratio": 0.5, "big": 2**60}
    answer = await ask(url, {"text": "hello"}, {"data": data}, metadata={"n": 1})
    task = answer["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    text, told, file = task["artifacts"][0]["parts"]
    assert text["text"] == "hello"
    assert (file["raw"], file["filename"], file["mediaType"]) == ("aGVsbG8xMjM=", "a.bin", "application/octet-stream")
    assert told["data"]["data"] == [data]
    assert isinstance(told["data"]["data"][0]["count"], int)
    assert (told["data"]["user"], told["data"]["metadata"], told["data"]["extensions"]) == ("", {"n": 1}, ["urn:x"])
    assert told["data"]["headers"]["x-tenant"] == "acme"


async def test_an_executor_of_0_3_asks_and_continues_and_is_cancelled(url: str) -> None:
    for text, state in (("go on", "TASK_STATE_COMPLETED"), ("", "TASK_STATE_CANCELED")):
        asked = (await ask(url, {"text": "ask"}))["result"]["task"]
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert asked["status"]["message"]["parts"] == [{"text": "Go on?"}]
        if text:
            went_on = await ask(url, {"text": text}, message={"taskId": asked["id"], "messageId": "m2"})
            ended = went_on["result"]["task"]
        else:
            ended = (await ask(url, method="CancelTask", id=asked["id"]))["result"]
        assert ended["status"]["state"] == state


@pytest.mark.parametrize(
    ("text", "state", "said"),
    [
        ("refuse", "TASK_STATE_FAILED", "Only echoes, please"),
        ("break", "TASK_STATE_FAILED", "Internal error"),
        ("odd", "TASK_STATE_FAILED", "The agent published a Waits, which is not an event"),
        ("empty", "TASK_STATE_FAILED", "The agent published an invalid Message: Expected `array`"),
        ("whole", "TASK_STATE_COMPLETED", ""),
    ],
)
async def test_an_executor_of_0_3_ends_its_task(url: str, text: str, state: str, said: str) -> None:
    status = (await ask(url, {"text": text}))["result"]["task"]["status"]
    assert status["state"] == state
    if said:
        assert status["message"]["parts"][0]["text"].startswith(said)


async def test_an_executor_of_0_3_can_reply_with_a_message(url: str) -> None:
    answer = await ask(url, {"text": "message"})
    assert answer["result"]["message"]["parts"] == [{"text": "just words"}]
