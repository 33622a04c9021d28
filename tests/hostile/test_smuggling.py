"""Ambiguous requests on a raw socket: rejected, and no byte after them is read as another request.

Each case contains a second request. If it were answered, a proxy or filter in front of the server and the server would
have seen two different requests, which is request smuggling.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from apcore_a2a.app.serve import build_app
from tests.fakes import COMPLETED, PATIENCE, ScriptedAgent
from tests.http2_peer import GOAWAY, PREFACE, split_frames
from tests.interaction.serving import serving

HIDDEN = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CALL = b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"x"}}'
SIZE = b"%d" % len(CALL)
CHUNKED = b"Transfer-Encoding: chunked"
END = b"0\r\n\r\n"


def post(*lines: bytes, body: bytes = CALL, line_end: bytes = b"\r\n", version: bytes = b"1.1") -> bytes:
    first = b"POST / HTTP/" + version
    head = [first, b"Host: localhost", b"Content-Type: application/json", *lines, b"", b""]
    return line_end.join(head) + body + HIDDEN


REFUSED = {
    "TE and CL": post(CHUNKED, b"Content-Length: 5", body=END),
    "CL and TE": post(b"Content-Length: 5", CHUNKED, body=END),
    "CL of 0 and TE": post(b"Content-Length: 0", CHUNKED, body=END),
    "two CL that differ": post(b"Content-Length: 5", b"Content-Length: " + SIZE),
    "two CL that agree": post(b"Content-Length: " + SIZE, b"Content-Length: " + SIZE),
    "CL as a list": post(b"Content-Length: " + SIZE + b", " + SIZE),
    "CL with a sign": post(b"Content-Length: +" + SIZE),
    "CL below zero": post(b"Content-Length: -1"),
    "CL in hexadecimal": post(b"Content-Length: 0x41"),
    "CL without a value": post(b"Content-Length: "),
    "CL with a space in it": post(b"Content-Length: 6 5"),
    "CL with an underscore": post(b"Content-Length: 6_5"),
    "CL beyond 64 bits": post(b"Content-Length: 99999999999999999999999"),
    "lines that end in LF": post(b"Content-Length: " + SIZE, line_end=b"\n"),
    "one line that ends in LF": post(b"X: y\nContent-Length: " + SIZE),
    "lines that end in CR": post(b"Content-Length: " + SIZE, line_end=b"\r"),
    "a header on two lines": post(b"X: a\r\n b", b"Content-Length: " + SIZE),
    "TE on two lines": post(b"Transfer-Encoding:\r\n chunked", body=END),
    "a space before the colon of CL": post(b"Content-Length : " + SIZE),
    "a space before the colon of TE": post(b"Transfer-Encoding : chunked", body=END),
    "a tab before the colon of TE": post(b"Transfer-Encoding\t: chunked", body=END),
    "a coding that only sounds like chunked": post(b"Transfer-Encoding: xchunked", body=END),
    "chunked is not the last coding": post(b"Transfer-Encoding: chunked, identity", body=END),
    "a coding that is none": post(b"Transfer-Encoding: identity", body=END),
    "chunked twice in one line": post(b"Transfer-Encoding: chunked, chunked", body=END),
    "two TE": post(CHUNKED, b"Transfer-Encoding: identity", body=END),
    "TE behind a vertical tab": post(b"Transfer-Encoding: \x0bchunked", body=END),
    "TE in quotes": post(b'Transfer-Encoding: "chunked"', body=END),
    "a chunk size below zero": post(CHUNKED, body=b"-1\r\n\r\n" + END),
    "a chunk size with 0x": post(CHUNKED, body=b"0x2\r\n{}\r\n" + END),
    "a chunk size beyond 64 bits": post(CHUNKED, body=b"fffffffffffffffff\r\n{}\r\n" + END),
    "a chunk size with a space behind it": post(CHUNKED, body=b"2 \r\n{}\r\n" + END),
    "chunks that end in LF": post(CHUNKED, body=b"2\n{}\n0\n\n"),
    "a chunk extension with LF": post(CHUNKED, body=b"2;\nxx\r\n{}\r\n" + END),
    "a chunk size that ends in CR": post(CHUNKED, body=b"%x\r%b\r\n%b" % (len(CALL), CALL, END)),
    "a chunk longer than it says": post(CHUNKED, body=b"2\r\n{}XX" + END),
    "a chunk without its line end": post(CHUNKED, body=b"%x\r\n%b%b" % (len(CALL), CALL, END)),
    "CL among the trailers": post(CHUNKED, body=b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n"),
    "NUL in a value": post(b"X: a\0b", b"Content-Length: " + SIZE),
    "NUL in a name": post(b"X\0: a", b"Content-Length: " + SIZE),
    "CR in a value": post(b"X: a\rContent-Length: 0", b"Content-Length: " + SIZE),
    "a header behind CR": post(b"X: a\rY: b", b"Content-Length: " + SIZE),
    "an empty name": post(b": x", b"Content-Length: " + SIZE),
    "a name with a space": post(b"X Y: z", b"Content-Length: " + SIZE),
    "HTTP 1.9": post(b"Content-Length: " + SIZE, version=b"1.9"),
    "a version that is none": post(b"Content-Length: " + SIZE, version=b"x"),
    "a first line that ends in CR": post(b"Content-Length: " + SIZE).replace(b"\r\n", b"\r", 1),
    "an empty line that is CR": post(b"Content-Length: " + SIZE).replace(b"\r\n\r\n", b"\r\n\r", 1),
    "a space before the method": b" " + HIDDEN,
    "a method with a space": b"GE T /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + HIDDEN,
    "a tab in the target": b"GET /hea\tlth HTTP/1.1\r\nHost: localhost\r\n\r\n" + HIDDEN,
    "a target that is not ASCII": "GET /hé HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() + HIDDEN,
    "CONNECT": b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + HIDDEN,
    "the hello of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n" + HIDDEN,
    "the same host twice": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n" + HIDDEN,
}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with serving(ScriptedAgent(default=(COMPLETED,))) as url:
        yield url


async def said(url: str, request: bytes) -> bytes:
    """Return the response to these bytes, until the server closes the connection."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(request)
            return await reader.read()
    finally:
        writer.transport.abort()


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


@pytest.mark.parametrize("name", REFUSED)
async def test_an_ambiguous_request_is_rejected_and_nothing_after_it_is_read(url: str, name: str) -> None:
    answer = await said(url, REFUSED[name])
    assert statuses(answer) == [400]
    assert b"healthy" not in answer


async def test_the_preface_of_http2_is_rejected_if_the_server_speaks_only_http1() -> None:
    async with serving(ScriptedAgent(default=(COMPLETED,)), grpc=False) as url:
        answer = await said(url, PREFACE + HIDDEN)
    assert statuses(answer) == [400]
    assert b"healthy" not in answer


async def test_a_request_of_http1_behind_the_preface_of_http2_ends_the_connection(url: str) -> None:
    answer = await said(url, PREFACE + HIDDEN)
    frames, rest = split_frames(answer)
    assert (frames[-1].kind, rest) == (GOAWAY, b"")
    assert b"healthy" not in answer


# ---- requests with an upgrade header, as Java's HttpClient sends them ---------------------------------------------

OFFERED = {b"h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"}
OFFERED[b"websocket"] = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"


def offering(request: bytes, protocol: bytes = b"h2c") -> bytes:
    return request.replace(b"Host: localhost\r\n", b"Host: localhost\r\n" + OFFERED[protocol], 1)


@pytest.mark.parametrize("name", REFUSED)
async def test_an_ambiguous_request_with_an_upgrade_header_is_rejected(url: str, name: str) -> None:
    answer = await said(url, offering(REFUSED[name]))
    assert statuses(answer) == [400]
    assert b"healthy" not in answer


@pytest.mark.parametrize("protocol", OFFERED)
@pytest.mark.parametrize("at_once", [10_000, 1], ids=["whole", "byte by byte"])
@pytest.mark.parametrize(
    "request_",
    [
        post(b"Content-Length: " + SIZE),
        post(CHUNKED, body=b"%x\r\n%b\r\n%b" % (len(CALL), CALL, END)),
        offering(post(b"Content-Length: " + SIZE)).removesuffix(HIDDEN) + post(b"Content-Length: " + SIZE),
    ],
    ids=["length", "chunks", "two of them"],
)
async def test_a_request_with_an_upgrade_header_and_the_next_one_are_answered(
    url: str, request_: bytes, at_once: int, protocol: bytes
) -> None:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    request_ = offering(request_, protocol)
    async with asyncio.timeout(PATIENCE):
        for start in range(0, len(request_), at_once):
            writer.write(request_[start : start + at_once])
            await writer.drain()
            await asyncio.sleep(0)
        answer = await reader.read()
    writer.transport.abort()
    assert set(statuses(answer)) == {200}
    assert answer.count(b"Task not found: x") == request_.count(CALL)
    assert answer.count(b"healthy") == 1


async def test_nothing_is_read_after_the_last_request_with_an_upgrade_header(url: str) -> None:
    last = post(b"Content-Length: " + SIZE).replace(b"Host: localhost", b"Host: localhost\r\nUpgrade: h2c", 1)
    last = last.replace(b"Host: localhost", b"Host: localhost\r\nConnection: Upgrade, close", 1)
    answer = await said(url, last)
    assert statuses(answer) == [200]
    assert b"Task not found: x" in answer


# ---- valid requests --------------------------------------------------------------------------------------------------


async def test_a_valid_request_and_the_next_one_are_answered(url: str) -> None:
    for request in (
        post(b"Content-Length: " + SIZE),
        post(CHUNKED, body=b"%x;a=b\r\n%b\r\n%b" % (len(CALL), CALL, END)),  # with a chunk extension, which is valid
        b"\r\n" + post(b"Content-Length: " + SIZE),  # RFC 9112 §2.2
    ):
        assert statuses(await said(url, request)) == [200, 200]


async def test_a_body_of_get_is_not_the_next_request(url: str) -> None:
    hidden = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden
    answer = await said(url, request + HIDDEN)
    assert statuses(answer) == [200, 200]
    assert b"alive" not in answer


async def test_nothing_is_read_after_the_last_request(url: str) -> None:
    last = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await said(url, last + HIDDEN)
    assert statuses(answer) == [200]
    # RFC 9112 §6.1: chunks in HTTP/1.0 are faulty, so that request is the last one. HTTP/2 has another format.
    for version in (b"1.0", b"2.0"):
        assert b"healthy" not in await said(url, post(CHUNKED, body=END, version=version))


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
async def test_the_protocol_of_a_connection_cannot_be_changed(url: str, protocol: str) -> None:
    request = (
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: %b\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n" % protocol.encode()
    )
    assert statuses(await said(url, request)) == [200]


async def test_a_websocket_forwarded_by_another_server_is_closed() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    app = build_app(ScriptedAgent(default=(COMPLETED,)))
    await app({"type": "websocket", "path": "/", "headers": [], "query_string": b""}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
