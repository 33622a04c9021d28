"""A server that drains: it listens, reports the shutdown and rejects new messages, then exits."""

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from apcore_a2a import A2AClient
from apcore_a2a.client import OverloadedError, Retry
from tests.processes import running
from tests.requirements import requirement

SCRIPT = """
from apcore_a2a import serve

async def echo(text: str) -> str:
    return text

serve(echo, host="127.0.0.1", port=0, drain_delay={delay}, shutdown_timeout={timeout})
"""
MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
V1 = {"A2A-Version": "1.0"}


@requirement("FR-SRV-005", "FR-OPS-001")
async def test_while_draining_new_messages_receive_503() -> None:
    async with running("-c", SCRIPT.format(delay=600, timeout=30)) as process, AsyncExitStack() as stack:
        url = (await process.says(r"running on (http://[\d.:]+)"))[1]
        async with A2AClient(url) as client:
            task: Any = await client.send_message("before")
        grpc = await stack.enter_async_context(A2AClient(url, binding="GRPC", retry=Retry(attempts=1)))
        await grpc.send_message("before")
        process.signal(signal.SIGTERM)
        await process.says("Draining")
        with pytest.raises(OverloadedError):
            await grpc.send_message("late")
        assert (await grpc.get_task(task.id)).id == task.id
        async with httpx.AsyncClient(base_url=url) as late:
            health = await late.get("/health")
            assert (health.status_code, health.json()["reason"]) == (503, "shutting down")
            assert (await late.get("/health/ready")).status_code == 503
            assert (await late.get("/health/live")).status_code == 200
            refused = await late.post("/message:send", json=MESSAGE, headers=V1)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert (await late.get(f"/tasks/{task.id}", headers=V1)).status_code == 200  # reads still succeed
        process.signal(signal.SIGTERM)
        assert await process.ends() == 1  # immediately, and with an error


async def test_after_the_drain_delay_the_server_exits_with_0() -> None:
    async with running("-c", SCRIPT.format(delay=0.3, timeout=30)) as process:
        await process.says("running on")
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    assert process.said.index("Draining") < process.said.index("Shutting down")


HEAD = b"POST /message:send HTTP/1.1\r\nHost: localhost\r\nA2A-Version: 1.0\r\nContent-Type: application/json\r\n"
HALF = HEAD + b'Content-Length: 1000\r\n\r\n{"message":'


@requirement("FR-SRV-005")
async def test_half_a_request_does_not_delay_the_shutdown() -> None:
    async with running("-c", SCRIPT.format(delay=0, timeout=600)) as process:
        match = await process.says(r"running on http://([\d.]+):(\d+)")
        reader, writer = await asyncio.open_connection(match[1], int(match[2]))
        writer.write(HALF)
        async with A2AClient(f"http://{match[1]}:{match[2]}") as client:
            await client.discover()  # so the server has read the half
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0  # its patience is shorter than shutdown_timeout
        answer = await reader.read()
        writer.close()
    assert b"503 Service Unavailable" in answer
    assert b"The agent is shutting down" in answer
    assert "Cancel" not in process.said  # uvicorn's word for a request that outlived the shutdown
    assert "Traceback" not in process.said


WAITING = """
import asyncio, os, sys
from apcore_a2a import serve

async def wait(text: str) -> str:
    while not os.path.exists(sys.argv[1]):
        await asyncio.sleep(0.01)
    return text

serve(wait, host="127.0.0.1", port=0, shutdown_timeout=600)
"""


def post(text: str) -> bytes:
    body = json.dumps(MESSAGE).replace("hello", text).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


@requirement("FR-SRV-005")
async def test_half_a_request_behind_another_one_does_not_delay_the_shutdown(tmp_path: Path) -> None:
    async with running("-c", WAITING, str(tmp_path / "go")) as process:
        match = await process.says(r"running on http://([\d.]+):(\d+)")
        reader, writer = await asyncio.open_connection(match[1], int(match[2]))
        writer.write(post("first") + HALF)
        async with A2AClient(f"http://{match[1]}:{match[2]}") as client:
            await client.discover()  # so the server has read both
        process.signal(signal.SIGTERM)
        await process.says("Waiting for connections to close")
        (tmp_path / "go").touch()
        assert await process.ends() == 0
        answer = await reader.read()
        writer.close()
    assert answer.count(b"HTTP/1.1 200 OK") == 1  # the complete request
    assert answer.count(b"HTTP/1.1") == 1
    assert "Cancel" not in process.said


LARGE = """
from apcore_a2a import serve

async def repeat(text: str) -> str:
    return text * 40_000_000

serve(repeat, host="127.0.0.1", port=0, shutdown_timeout=600)
"""


@requirement("FR-SRV-005")
async def test_an_unread_response_does_not_delay_the_shutdown() -> None:
    async with running("-c", LARGE) as process:
        match = await process.says(r"running on http://([\d.]+):(\d+)")
        reader, writer = await asyncio.open_connection(match[1], int(match[2]), limit=2**16)
        writer.write(post("x"))
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
        writer.transport.abort()
    assert "Cancel" not in process.said
