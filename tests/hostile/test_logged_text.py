"""Text from clients in logs and errors: truncated, without control characters, and never on a separate line."""

import json
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.test_serving import address, command
from tests.processes import Process
from tests.requirements import requirement

HOSTILE = "begin\r\n12:00:00 info forged\x1b[31m red\x00\x07\x85\u2028\u202e {0} %s {record} end"
LONG = HOSTILE + "x" * 3000
# Removed: ASCII control characters except tab and line feed, and characters that change lines and directions.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]")
FAILS = """
from typing import Any
from pydantic import BaseModel

class Text(BaseModel):
    text: str

class Fails:
    description = "Fails with its input"
    input_schema = Text
    output_schema = Text

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        raise ValueError(inputs["text"])
"""


@asynccontextmanager
async def failing(tmp_path: Path, *options: str) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    (tmp_path / "fails.py").write_text(FAILS)
    async with command("--extensions-dir", str(tmp_path), "--log-level", "debug", *options) as process:
        async with httpx.AsyncClient(base_url=await address(process)) as client:
            yield process, client
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0


def call(method: str, params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def send(text: str, **metadata: str) -> dict[str, Any]:
    message: dict[str, Any] = {"kind": "message", "messageId": HOSTILE, "contextId": HOSTILE, "role": "user"}
    message["parts"] = [{"kind": "data", "data": {"text": text}}]
    return call("message/send", {"message": message, "metadata": metadata})


@requirement("NFR-SEC-002")
@pytest.mark.parametrize("style", ["text", "json"])
async def test_text_from_clients_is_truncated_and_sanitized_in_the_log(tmp_path: Path, style: str) -> None:
    async with failing(tmp_path, "--log-format", style) as (process, client):
        answer = (await client.post("/", json=send(LONG))).json()
        assert answer["result"]["status"]["state"] == "failed"
    assert "begin" in process.said  # the module's exception is in the log, and contains the client's text
    assert not [line for line in process.said.split("\n") if CONTROL.search(line)]
    assert "x" * 1001 not in process.said
    if style == "text":
        assert not re.search("^12:00:00 info forged", process.said, re.MULTILINE)
    else:
        lines = [line for line in process.said.splitlines() if "module failed" in line]
        (entry,) = [json.loads(line) for line in lines]
        assert "begin\n12:00:00 info forged red" in entry["exception"]


@requirement("NFR-SEC-002")
async def test_text_from_clients_is_truncated_and_sanitized_in_errors(tmp_path: Path) -> None:
    async with failing(tmp_path) as (_, client):
        for body in (
            call(LONG, {}),
            send("hi", skillId=LONG),
            call("tasks/get", {"id": HOSTILE}),
            call("tasks/get", {LONG: 1}),
        ):
            error = (await client.post("/", json=body)).json()["error"]
            said = json.dumps(error, ensure_ascii=False)
            assert not CONTROL.search(error["message"]), error["message"]
            assert not re.search(r"\\u00(?!0[9a])[01]|[\x7f-\x9f\u2028\u202e]", said), said
            assert "x" * 1001 not in said
        rest = await client.get("/tasks/%1b%5B31mred%0d", headers={"A2A-Version": "1.0"})
        assert rest.json()["error"]["message"] == "Task not found: red"
