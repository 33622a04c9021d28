"""Clients that make the server hold memory: incomplete bodies, unread answers, countless connections.

The server runs with its default settings in its own process, and reports its peak memory.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from apcore_a2a.errors import OverloadedError
from apcore_a2a.protocol import v1
from apcore_a2a.settings import Limits
from tests.fakes import PATIENCE
from tests.processes import running

AGENT = """
import re
from pathlib import Path
from apcore_a2a import Limits, serve

async def answer(text: str) -> str:
    if text == "memory":
        status = Path("/proc/self/status").read_text()  # getrusage() would include the memory of the parent process
        return str(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024)
    return "x" * int(text)

serve(answer, host="127.0.0.1", port=0, metrics=True, **{options})
"""
MOST_MEMORY = 600  # MiB
NEEDS_PROC = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
BODY = 10 * 2**20 - 1000  # bytes of a large request
NEEDS_LOOPBACK = pytest.mark.skipif(sys.platform != "linux", reason="has one address of this machine only")
LARGE = 30_000_000  # bytes of a large answer
V1 = {"A2A-Version": "1.0"}
MIB = 2**20

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with running("-c", AGENT.format(options=options)) as process:
        url = (await process.says(r"running on (http://[\d.:]+)"))[1]
        async with httpx.AsyncClient(base_url=url, headers=V1, timeout=PATIENCE * 4) as client:
            yield client


@asynccontextmanager
async def wire(client: httpx.AsyncClient) -> AsyncIterator[Wire]:
    """Open a connection to the client's server. It is aborted at the end, even with unread data."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(client: httpx.AsyncClient, text: str) -> dict[str, Any]:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    answer = await client.post("/message:send", json={"message": message})
    assert answer.status_code == 200, answer.text
    task: dict[str, Any] = answer.json()["task"]
    return task


async def peak_memory(client: httpx.AsyncClient) -> int:
    task = await ask(client, "memory")
    return int(task["artifacts"][0]["parts"][0]["text"])


def post(path: str, body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def until(client: httpx.AsyncClient, name: str, is_right: Callable[[float], bool]) -> float:
    """Wait until a metric satisfies the condition, and return its value."""
    async with asyncio.timeout(PATIENCE * 4):
        while True:
            figures: dict[str, float] = (await client.get("/metrics")).json()
            if is_right(figures[name]):
                return figures[name]
            await asyncio.sleep(0.05)


async def send_all_but_the_end(client: httpx.AsyncClient, refused: list[bytes]) -> None:
    async with wire(client) as (reader, writer):
        writer.write(post("/", b" " * BODY)[:-1])
        try:
            refused.append(await reader.readuntil(b"\r\n\r\n"))
        except (ConnectionError, asyncio.IncompleteReadError):
            refused.append(b"")  # closed during the write, so the answer may not have arrived


@NEEDS_PROC
async def test_incomplete_bodies_hold_at_most_their_limit() -> None:
    count = 60
    refused: list[bytes] = []
    async with serving() as client, asyncio.TaskGroup() as group:
        senders = [group.create_task(send_all_but_the_end(client, refused)) for _ in range(count)]
        # Until each sender is either rejected or has sent all but the last byte.
        held = await until(client, "body_bytes_in_flight", lambda held: held == (BODY - 1) * (count - len(refused)))
        assert 0 < held <= 128 * MIB  # one caller's share is half of the limit
        told = [answer for answer in refused if answer]
        assert told
        for answer in told:
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b"\r\nretry-after: 1\r\n" in answer
        async with calling_from("127.0.0.2", client) as other:
            large = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": " " * (BODY // 2) + "1"}]}
            assert (await other.post("/message:send", json={"message": large})).status_code == 200
        assert await peak_memory(client) < MOST_MEMORY  # a small message was answered meanwhile
        for sender in senders:
            sender.cancel()
        await until(client, "body_bytes_in_flight", lambda held: held == 0)


@NEEDS_PROC
async def test_bodies_of_several_callers_hold_at_most_the_common_limit() -> None:
    refused: list[bytes] = []
    async with serving(limits=Limits(max_body_bytes_in_flight=12 * MIB)) as client, asyncio.TaskGroup() as group:
        senders = [group.create_task(send_all_but_the_end(client, refused))]
        await until(client, "body_bytes_in_flight", lambda held: held == BODY - 1)
        async with calling_from("127.0.0.2", client) as other:
            large = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": " " * (BODY // 2)}]}
            answer = await other.post("/message:send", json={"message": large})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "receiving too many large requests" in answer.text
        for sender in senders:
            sender.cancel()
        await until(client, "body_bytes_in_flight", lambda held: held == 0)


@NEEDS_PROC
async def test_unread_answers_hold_at_most_their_limit() -> None:
    count = 40
    async with serving() as client:
        task = await ask(client, str(LARGE))
        # Over JSON-RPC, each answer has its own id, so it is a copy.
        call = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task["id"]}}
        request = post("/?A2A-Version=1.0", json.dumps(call).encode())
        async with AsyncExitStack() as stack:
            readers: list[asyncio.StreamReader] = []
            for _ in range(count):
                reader, writer = await stack.enter_async_context(wire(client))
                writer.write(request)
                readers.append(reader)
            for reader in readers:  # every answer has begun, and some connections are already closed
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    await reader.readexactly(1)
            left = await until(client, "open_connections", lambda connections: connections < count / 2)
            assert left > 1
            await until(client, "answer_bytes_in_flight", lambda held: 0 < held <= 256 * MIB)
            # A client that reads receives everything, next to clients that do not read.
            whole = await client.get(f"/tasks/{task['id']}")
            assert len(whole.json()["artifacts"][0]["parts"][0]["text"]) == LARGE
            assert await peak_memory(client) < MOST_MEMORY
        await until(client, "answer_bytes_in_flight", lambda held: held == 0)


async def test_a_connection_too_many_receives_503_and_is_closed() -> None:
    async with serving(limits=Limits(max_connections=3, max_connections_per_address=3)) as client:
        assert (await client.get("/health")).status_code == 200  # this connection stays open
        async with wire(client), wire(client), wire(client) as (reader, _):
            async with asyncio.timeout(PATIENCE):
                answer = await reader.read()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in head
            full = OverloadedError("The agent is at its limit of connections; try again later")
            assert json.loads(body) == json.loads(v1.encode_rest_error(full, 503))
        await until(client, "open_connections", lambda connections: connections == 1)
        async with wire(client) as (reader, writer), asyncio.timeout(PATIENCE):  # a connection is free again
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


def calling_from(host: str, client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Return a client of the same server with another address of this machine."""
    network = httpx.AsyncHTTPTransport(local_address=host)
    return httpx.AsyncClient(base_url=client.base_url, headers=V1, timeout=PATIENCE * 4, transport=network)


@NEEDS_LOOPBACK
async def test_one_address_cannot_take_all_connections() -> None:
    async with serving(limits=Limits(max_connections=4)) as client, calling_from("127.0.0.2", client) as other:
        assert (await client.get("/health")).status_code == 200  # this connection stays open
        async with wire(client), wire(client) as (reader, _):
            async with asyncio.timeout(PATIENCE):
                answer = await reader.read()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in head
            full = OverloadedError("Your address is at its limit of connections; try again later")
            assert json.loads(body) == json.loads(v1.encode_rest_error(full, 503))
            assert (await other.get("/health")).status_code == 200
        await until(client, "open_connections", lambda connections: connections == 2)
        async with wire(client) as (reader, writer), asyncio.timeout(PATIENCE):  # a connection is free again
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_a_trusted_proxy_may_take_all_connections() -> None:
    async with serving(limits=Limits(max_connections=4), trusted_proxies=("127.0.0.1",)) as client:
        async with AsyncExitStack() as stack:
            for _ in range(4):
                reader, writer = await stack.enter_async_context(wire(client))
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                async with asyncio.timeout(PATIENCE):
                    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


BLOCKING = """
import time
from apcore_a2a import serve

async def answer(text: str) -> str:
    time.sleep(0.5)
    return text

serve(answer, host="127.0.0.1", port=0, metrics=True)
"""


async def test_the_longest_block_of_the_event_loop_is_a_metric() -> None:
    async with running("-c", BLOCKING) as process:
        url = (await process.says(r"running on (http://[\d.:]+)"))[1]
        async with httpx.AsyncClient(base_url=url, headers=V1) as client:
            await ask(client, "hello")
            await until(client, "loop_lag_seconds_max", lambda lag: lag > 0.3)  # of 0.5 s, some passed before the timer
            await until(client, "loop_lag_seconds_max_last_minute", lambda lag: lag > 0.3)
            text = (await client.get("/metrics", headers={"Accept": "text/plain"})).text
            for name in ("loop_lag_seconds_max", "open_connections", "body_bytes_in_flight", "answer_bytes_in_flight"):
                assert f"# TYPE apcore_a2a_{name} gauge\n" in text
