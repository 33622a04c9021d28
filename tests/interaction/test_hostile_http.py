"""Hostile HTTP clients: too large, too slow, ambiguous. Each gets a clear response or none, and holds no resources."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from apcore_a2a.http.server.connection import ConnectionTimeouts, GuardedProtocol
from tests.fakes import COMPLETED, PATIENCE, Gate, ScriptedAgent, chunk
from tests.interaction.conftest import Serve
from tests.requirements import requirement

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "unknown"}}
BODY = json.dumps(CALL).encode()
V1 = {"A2A-Version": "1.0"}
ENDPOINTS = [("/", {}), ("/", V1), ("/message:send", V1), ("/v1/message:send", {})]
BINDINGS = pytest.mark.parametrize(("path", "headers"), ENDPOINTS, ids=["rpc 0.3", "rpc 1.0", "REST 1.0", "REST 0.3"])


@pytest.fixture
async def url(serve: Serve) -> str:
    return await serve(ScriptedAgent())


def error_of(response: httpx.Response) -> tuple[int, str]:
    """Return the status, and the error in the form of its binding and version."""
    body = response.json()
    error = body["error"] if isinstance(body["error"], dict) else body
    if "details" in error:
        return response.status_code, error["details"][0]["reason"]
    return response.status_code, str(error["code"])


@asynccontextmanager
async def wire(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def said(url: str, request: bytes) -> bytes:
    """Send these bytes, and return what the server sends until it closes the connection."""
    async with wire(url) as (reader, writer), asyncio.timeout(PATIENCE):
        writer.write(request)
        return await reader.read()


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


# ---- too large ---------------------------------------------------------------------------------------------------


@requirement("FR-SRV-004")
@BINDINGS
async def test_a_body_with_a_content_length_over_the_limit_is_rejected_unread(
    url: str, path: str, headers: dict[str, str]
) -> None:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {10 * 2**20 + 1}"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""])
    async with wire(url) as (reader, writer), asyncio.timeout(PATIENCE):
        writer.write(head.encode())  # no byte of the body
        answer = await reader.readuntil(b"\r\n\r\n")
    assert statuses(answer) == [413]
    assert b"connection: close" in answer.lower()


@requirement("FR-SRV-004")
@BINDINGS
async def test_a_chunked_body_is_rejected_when_it_exceeds_the_limit(
    url: str, http: httpx.AsyncClient, path: str, headers: dict[str, str]
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * 2**20

    headers = headers | {"Content-Type": "application/json"}
    response = await http.post(url + path, content=chunks(), headers=headers)
    assert error_of(response) in [(413, "-32600"), (413, "INVALID_REQUEST")]


async def test_a_body_of_the_maximum_size_is_accepted(url: str, http: httpx.AsyncClient) -> None:
    body = BODY.ljust(10 * 2**20)
    response = await http.post(url, content=body, headers={"Content-Type": "application/json"})
    assert error_of(response) == (200, "-32001")


async def test_endless_headers_are_cut_off(url: str) -> None:
    assert await said(url, b"GET / HTTP/1.1\r\n" + b"X: %b\r\n" % (b"y" * 1000) * 100) == b""


# ---- wrong type --------------------------------------------------------------------------------------------------


@BINDINGS
@pytest.mark.parametrize("given", ["text/plain", "", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_a_body_of_another_media_type_is_rejected(
    url: str, http: httpx.AsyncClient, path: str, headers: dict[str, str], given: str
) -> None:
    response = await http.post(url + path, content=b"{", headers=headers | {"Content-Type": given})
    assert error_of(response) in [(415, "-32005"), (415, "CONTENT_TYPE_NOT_SUPPORTED")]


@BINDINGS
async def test_a_compressed_body_is_rejected(
    url: str, http: httpx.AsyncClient, path: str, headers: dict[str, str]
) -> None:
    headers = headers | {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = await http.post(url + path, content=b"{}", headers=headers)
    assert error_of(response) in [(415, "-32005"), (415, "CONTENT_TYPE_NOT_SUPPORTED")]


async def test_a_json_media_type_may_have_parameters(url: str, http: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert error_of(await http.post(url, content=BODY, headers=headers)) == (200, "-32001")


# ---- too slow ----------------------------------------------------------------------------------------------------


@BINDINGS
async def test_a_body_that_does_not_arrive_times_out(
    url: str, path: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apcore_a2a.http.asgi.BODY_DEADLINE", 0.05)
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", "Content-Length: 100"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""])
    answer = await said(url, head.encode() + b'{"jsonrpc"')
    assert statuses(answer) == [408]
    assert b"The request body did not arrive in time" in answer


async def test_headers_that_do_not_arrive_time_out(serve: Serve) -> None:
    class ShortHeaders(GuardedProtocol):
        timeouts = ConnectionTimeouts(headers=0.05)

    url = await serve(ScriptedAgent(), protocol=ShortHeaders)
    assert await said(url, b"") == b""
    assert await said(url, b"POST / HTTP/1.1\r\nHost: x\r\n") == b""


async def test_a_client_that_disconnects_during_its_body_creates_no_task(url: str, http: httpx.AsyncClient) -> None:
    async with wire(url) as (_, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
    assert (await http.get(url + "/health")).status_code == 200


async def test_a_client_that_reads_nothing_is_disconnected_and_delays_no_other(
    serve: Serve, http: httpx.AsyncClient
) -> None:
    lost = asyncio.Event()

    class Impatient(GuardedProtocol):
        timeouts = ConnectionTimeouts(unread=0.5)

        def connection_lost(self, error: Exception | None) -> None:
            lost.set()
            super().connection_lost(error)

    gate, large = Gate(), [chunk("x" * 2**20, append=n > 0) for n in range(24)]
    url = await serve(ScriptedAgent({"hi": (gate, *large, COMPLETED)}), protocol=Impatient)
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
    body = json.dumps(call).encode()
    head = b"POST /?A2A-Version=1.0 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    async with wire(url) as (reader, writer), asyncio.timeout(PATIENCE):
        writer.write(head % len(body) + body)
        await reader.readuntil(b"TASK_STATE_WORKING")
        await gate.reached()
        task = (await http.get(f"{url}/tasks?A2A-Version=1.0")).json()["tasks"][0]
        async with http.stream("GET", f"{url}/tasks/{task['id']}:subscribe?A2A-Version=1.0") as quick:
            gate.open()
            size = len(await quick.aread())
        assert size > 24 * 2**20
        await lost.wait()


# ---- ambiguous ---------------------------------------------------------------------------------------------------

SMUGGLED = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
AMBIGUOUS = {
    "two lengths": b"Content-Length: %d\r\nContent-Length: 0\r\n\r\n%b" % (len(BODY), BODY),
    "length and chunks": b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks that are not the last coding": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a coding in disguise": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Content-Length : 0\r\n\r\n",
    "a length that is no number": b"Content-Length: +0\r\n\r\n",
    "a chunk size that is no number": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
}


@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_an_ambiguous_body_length_is_rejected_and_the_connection_closed(url: str, headers: bytes) -> None:
    start = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    assert statuses(await said(url, start + headers + SMUGGLED)) == [400]


async def test_two_pipelined_requests_are_answered_in_order(url: str) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await said(url, head + BODY + last)
    assert statuses(answer) == [200, 200]
    assert answer.index(b"-32001") < answer.index(b"healthy")
