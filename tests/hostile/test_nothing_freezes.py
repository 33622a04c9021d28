"""The attacks of this folder, one at a time: the server responds, its memory stays small, its event loop responsive.

The server itself measures the longest block of its event loop, in CPU time, so that the load of other processes does
not count (`loop_lag_cpu_seconds_max` of /metrics).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import httpx
import pytest

from apcore_a2a import A2AClient
from tests.hostile.test_readers import LIMIT, MEGABYTE, SERVER, large_task, peak_memory, subscribe
from tests.processes import PATIENCE, Process, running

Attack = Callable[[str], Awaitable[None]]
BLOCKED: Final = 0.25  # seconds for which one request may delay others
EMPTY_OBJECTS = b"[" + b",".join([b"{}"] * 3_000_000) + b"]"


@asynccontextmanager
async def server() -> AsyncIterator[tuple[Process, str]]:
    async with running("-c", SERVER) as process:
        yield process, (await process.says(r"running on (http://[\d.]+:\d+)"))[1]


def message(metadata: bytes = b"{}", text: str = "count 1") -> bytes:
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said, "metadata": "@"}}
    return json.dumps(body).encode().replace(b'"@"', metadata)


async def post(url: str, body: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.post(url, content=body, headers=headers)


async def many_values(url: str) -> None:
    """Send ten megabytes that would be a quarter of a gigabyte of objects when decoded."""
    for _ in range(5):
        answer = await post(url, message(b'{"x":' + EMPTY_OBJECTS + b"}"))
        assert "error" in answer.json()


async def deep_nesting(url: str) -> None:
    answer = await post(url, message(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
    assert "error" in answer.json()


async def large_messages(url: str) -> None:
    """Send permitted messages: nine megabytes of text, ten times, and a listing of all of it."""
    text = "count 1 " + "x" * (9 * MEGABYTE)
    for _ in range(10):
        assert (await post(url, message(text=text))).status_code == 200
    async with A2AClient(url) as client:
        page = await client.list_tasks()
        assert page.tasks


async def dead_readers(url: str) -> None:
    port = int(url.rpartition(":")[2])
    async with A2AClient(url) as client:
        task = await large_task(client, "hold 20", 20 * MEGABYTE)
    for version in ("1.0", "0.3"):
        crowd = [await subscribe(port, task.id, version) for _ in range(40)]
        for writer in crowd:
            writer.transport.abort()


async def unfinished_bodies(url: str) -> None:
    """Send bodies without their last byte."""
    port = int(url.rpartition(":")[2])
    writers: list[asyncio.StreamWriter] = []
    for _ in range(40):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {9 * MEGABYTE}\r\n\r\n".encode() + b" " * (9 * MEGABYTE - 1))
        writers.append(writer)
    async with asyncio.timeout(PATIENCE):
        while await figure(url, "body_bytes_in_flight") < 100 * MEGABYTE:
            pass
    for writer in writers:
        writer.transport.abort()


async def figure(url: str, name: str) -> float:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return float((await client.get(f"{url}/metrics")).json()[name])


@pytest.mark.timeout(150)
@pytest.mark.parametrize("attack", [many_values, deep_nesting, large_messages, dead_readers, unfinished_bodies])
async def test_the_event_loop_and_memory_stay_within_limits(attack: Attack) -> None:
    async with server() as (process, url):
        done = asyncio.Event()

        async def probe() -> int:
            """Request /health all the time, and return the number of responses."""
            answers = 0
            async with httpx.AsyncClient(timeout=PATIENCE) as client:
                while not done.is_set():
                    assert (await client.get(f"{url}/health")).status_code == 200
                    answers += 1
                    await asyncio.sleep(0.01)
            return answers

        probing = asyncio.create_task(probe())
        try:
            await attack(url)
        finally:
            done.set()
        assert await probing > 0
        assert await figure(url, "loop_lag_cpu_seconds_max") < BLOCKED
        assert peak_memory(process) < LIMIT
