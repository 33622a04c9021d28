"""A body over the limit, from clients that send all of it before they read: each gets a 413, none is cut off."""

import asyncio
import io
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest

from apcore_a2a.http import asgi
from tests.fakes import PATIENCE, ScriptedAgent
from tests.interaction.conftest import Serve
from tests.requirements import requirement

SIZE = 48 * 2**20
PIECE = b" " * 2**20
V1 = {"A2A-Version": "1.0"}
ENDPOINTS = [("/", {}), ("/", V1), ("/message:send", V1), ("/v1/message:send", {})]
BINDINGS = pytest.mark.parametrize(("path", "headers"), ENDPOINTS, ids=["rpc 0.3", "rpc 1.0", "REST 1.0", "REST 0.3"])
CHUNKED = pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "in chunks"])


@pytest.fixture
async def url(serve: Serve) -> str:
    return await serve(ScriptedAgent())


def pieces() -> Iterator[bytes]:
    for _ in range(SIZE // len(PIECE)):
        yield PIECE


async def pieces_one_by_one() -> AsyncIterator[bytes]:
    for piece in pieces():
        yield piece


def tell_then_listen(url: str, path: str, headers: dict[str, str], *, chunked: bool) -> bytes:
    """A client without support for early responses: it sends everything, and then reads until the end."""
    where = urlsplit(url)
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {SIZE}"
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", length]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        for piece in pieces():
            if chunked:
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            connection.sendall(piece)
        if chunked:
            connection.sendall(b"0\r\n\r\n")
        answer = b""
        while received := connection.recv(65536):
            answer += received
    return answer


@requirement("FR-SRV-004")
@CHUNKED
@BINDINGS
async def test_a_client_on_a_bare_socket_reads_413(url: str, path: str, headers: dict[str, str], chunked: bool) -> None:
    answer = await asyncio.to_thread(tell_then_listen, url, path, headers, chunked=chunked)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head.lower()
    assert b"Request body larger than 10485760 bytes" in body


@CHUNKED
@BINDINGS
async def test_httpx_reads_413(url: str, path: str, headers: dict[str, str], chunked: bool) -> None:
    content = pieces_one_by_one() if chunked else b" " * SIZE
    async with httpx.AsyncClient(timeout=PATIENCE, headers=headers | {"Content-Type": "application/json"}) as client:
        response = await client.post(url + path, content=content)
    assert response.status_code == 413
    assert "larger than" in response.text


@CHUNKED
@BINDINGS
async def test_aiohttp_reads_413(url: str, path: str, headers: dict[str, str], chunked: bool) -> None:
    data: Any = pieces_one_by_one() if chunked else io.BytesIO(b" " * SIZE)
    async with aiohttp.ClientSession(headers=headers | {"Content-Type": "application/json"}) as session:
        async with session.post(url + path, data=data) as response:
            assert response.status == 413
            assert "larger than" in await response.text()


async def test_draining_a_rejected_body_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "DRAIN_BYTES", 10 * len(PIECE))
    read = 0
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        nonlocal read
        assert sent[-1] == {
            "type": "http.response.body",
            "body": b"no",
            "more_body": True,
        }  # the response precedes the body
        read += 1
        return {"type": "http.request", "body": PIECE, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    await asgi.refuse(asgi.too_large(1), b"no", receive, send)
    assert read == 10
    assert sent[-1] == {"type": "http.response.body", "body": b""}


@pytest.mark.parametrize("limit", ["DRAIN_PAUSE", "DRAIN_SECONDS"])
async def test_a_client_that_stops_sending_times_out(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(asgi, limit, 0.0)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(PATIENCE):
        await asgi.refuse(asgi.too_large(1), b"no", receive, send)
    assert sent[-1] == {"type": "http.response.body", "body": b""}


async def test_a_client_that_expects_100_continue_is_rejected_before_it_sends(url: str) -> None:
    where = urlsplit(url)
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {SIZE}\r\n"
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    async with asyncio.timeout(PATIENCE):
        writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
        assert b"100 Continue" not in await reader.read()
