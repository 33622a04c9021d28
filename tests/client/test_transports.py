"""Both transports behave alike: the built-in one, and the one over a caller's httpx client."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import aiohttp
import httpx
import pytest

from apcore_a2a.client import aiohttp_transport, httpx_transport
from apcore_a2a.client.channel import open_transport
from apcore_a2a.client.transport import HttpRequest, Transport, read_all
from apcore_a2a.errors import A2AConnectionError, InvalidAgentResponseError
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.client.conftest import Connect
from tests.client.logged_agent import LoggedAgent, counting
from tests.client.scripted import (
    CARD,
    STREAM_END,
    STREAM_HEAD,
    Answer,
    Request,
    ScriptedServer,
    card_03,
    chunk,
    hang,
    reset,
    respond,
)


@pytest.fixture(params=["aiohttp", "httpx"])
async def http(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient | None]:
    if request.param == "aiohttp":
        yield None
        return
    async with httpx.AsyncClient() as client:
        yield client


@pytest.fixture
async def transport(http: httpx.AsyncClient | None) -> AsyncIterator[Transport]:
    opened = open_transport(http)
    yield opened
    await opened.close()


def ask(server: ScriptedServer, path: str = "/") -> HttpRequest:
    return HttpRequest("POST", server.url + path, {"X-One": "1"}, b'{"n":1}')


async def test_a_request_and_its_answer(server: ScriptedServer, transport: Transport) -> None:
    server.on("/", respond({"ok": True}, 201, {"X-Two": "2"}))

    response = await transport.request(ask(server), 1000)

    assert (response.status, response.headers["x-two"], response.body) == (201, "2", b'{"ok": true}')
    (asked,) = server.requests
    assert (asked.method, asked.headers["x-one"], asked.body) == ("POST", "1", b'{"n":1}')


def poured(*chunks: bytes, end: bool = True) -> Answer:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + b"".join(map(chunk, chunks)))
        if end:
            writer.write(STREAM_END)

    return write


@pytest.mark.parametrize(
    "answer",
    [respond(b"x" * 101), poured(b"x" * 50, b"x" * 51), b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"],
    ids=["whole", "in pieces", "announced"],
)
async def test_no_more_than_the_limit_is_read(server: ScriptedServer, transport: Transport, answer: Answer) -> None:
    server.on("/", answer)

    with pytest.raises(InvalidAgentResponseError, match="larger than 100 bytes"):
        await transport.request(ask(server), 100)


async def test_as_much_as_the_limit_is_read(server: ScriptedServer, transport: Transport) -> None:
    server.on("/", respond(b"x" * 100), poured(b"x" * 100))

    for _ in range(2):
        assert len((await transport.request(ask(server), 100)).body) == 100


async def test_a_transport_does_not_decompress(server: ScriptedServer, transport: Transport) -> None:
    server.on("/", respond(b"\x1f\x8b", headers={"Content-Encoding": "gzip"}))

    with pytest.raises(InvalidAgentResponseError, match="compressed"):
        await transport.request(ask(server), 100)
    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_no_redirect_is_followed(server: ScriptedServer, transport: Transport) -> None:
    server.on("/", respond(b"", 302, {"Location": "/elsewhere"}))

    assert (await transport.request(ask(server), 100)).status == 302
    assert len(server.requests) == 1


async def test_no_cookie_is_kept(server: ScriptedServer, transport: Transport, http: object) -> None:
    server.on("/", respond(b"", headers={"Set-Cookie": "a=b"}))

    for _ in range(2):  # by name, because cookies of an IP address are never stored
        await transport.request(HttpRequest("POST", f"http://localhost:{server.port}/", {}), 100)
    if http is None:  # the caller's own client may store cookies
        assert "cookie" not in server.requests[1].headers


async def test_a_refused_connection_means_that_nothing_was_sent(transport: Transport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"

    with pytest.raises(
        A2AConnectionError, match=f"Cannot connect to {url}: Connection refused. Is the agent running"
    ) as caught:
        await transport.request(HttpRequest("GET", url, {}), 100)
    assert not caught.value.sent


async def test_an_address_without_tls_is_reported_as_such(transport: Transport) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(A2AConnectionError, match="Does the server use TLS") as caught:
            await transport.request(HttpRequest("GET", url, {}), 100)
    assert not caught.value.sent


async def test_an_invalid_host_name_means_that_nothing_was_sent(transport: Transport) -> None:
    with pytest.raises(A2AConnectionError, match="Cannot connect to") as caught:
        await transport.request(HttpRequest("GET", f"http://{'a' * 64}.example/", {}), 100)
    assert not caught.value.sent


@pytest.mark.parametrize("url", ["http://xn--.example/", f"http://127.0.0.1/?{'a' * 70_000}"], ids=["name", "length"])
async def test_an_address_that_httpx_rejects_means_that_nothing_was_sent(url: str) -> None:
    async with httpx.AsyncClient() as http:
        with pytest.raises(A2AConnectionError, match="Cannot connect to") as caught:
            await open_transport(http).request(HttpRequest("GET", url, {}), 100)
    assert not caught.value.sent


async def cut(request: Request, writer: asyncio.StreamWriter) -> None:
    reset(writer)


@pytest.mark.parametrize(
    "answer",
    [cut, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", poured(b"half", end=False), b"garbage\r\n\r\n"],
    ids=["reset", "closed", "half", "half a stream", "not http"],
)
async def test_a_connection_that_breaks_may_have_carried_the_request(
    server: ScriptedServer, transport: Transport, answer: Answer
) -> None:
    server.on("/", answer)

    with pytest.raises(A2AConnectionError, match=r"broke: .*The agent may have received the request") as caught:
        await transport.request(ask(server), 100)
    assert caught.value.sent


async def test_a_stream_is_yielded_as_it_arrives(server: ScriptedServer, transport: Transport) -> None:
    go_on = asyncio.Event()

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(b"one"))
        await go_on.wait()
        writer.write(chunk(b"two") + STREAM_END)

    server.on("/", write)
    async with asyncio.timeout(5), transport.stream(ask(server), idle=5.0) as response:
        chunks = aiter(response.chunks)
        assert (response.status, await anext(chunks)) == (200, b"one")
        go_on.set()
        assert [one async for one in chunks] == [b"two"]


async def test_a_streamed_answer_can_be_read_whole(server: ScriptedServer, transport: Transport) -> None:
    server.on("/", respond(b"x" * 10))

    async with transport.stream(ask(server), idle=5.0) as response:
        assert await read_all(response, 10) == b"x" * 10


async def test_a_silent_stream_is_broken(server: ScriptedServer, transport: Transport) -> None:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(b"one"))
        await hang(request, writer)

    server.on("/", write)
    with pytest.raises(A2AConnectionError, match="sent nothing within the idle timeout"):
        async with asyncio.timeout(5), transport.stream(ask(server), idle=0.05) as response:
            assert await anext(aiter(response.chunks)) == b"one"
            await anext(aiter(response.chunks))


async def test_a_stream_that_breaks_is_a_connection_error(server: ScriptedServer, transport: Transport) -> None:
    server.on("/", poured(b"one", end=False))

    with pytest.raises(A2AConnectionError, match="broke"):
        async with asyncio.timeout(5), transport.stream(ask(server), idle=5.0) as response:
            async for _ in response.chunks:
                pass


async def test_streams_survive_their_connections_over_either(
    server: ScriptedServer, connect: Connect, http: httpx.AsyncClient | None
) -> None:
    agent = LoggedAgent(v03, counting(50), cuts=[2] * 10, missed=1)
    server.on(CARD, respond(card_03(server.url))).on("/", agent)
    got = []
    async with asyncio.timeout(5), aclosing(connect(http=http).stream_message("hi")) as events:
        async for one in events:
            got.append(one)
            agent.seen()

    assert got == agent.events


async def test_open_streams_do_not_block_calls(server: ScriptedServer, connect: Connect) -> None:
    """The pool has no limit that open streams could exhaust."""
    client = connect()
    all_there = asyncio.Barrier(151)

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        await all_there.wait()
        await hang(request, writer)

    server.on("/", write)
    async with asyncio.timeout(5):
        waiting = [asyncio.ensure_future(anext(client.stream_message("hi"))) for _ in range(150)]
        await all_there.wait()
        await client.refresh_card()
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting, timeout=5)


def test_a_transport_of_the_caller_is_used_unchanged() -> None:
    class Own:
        async def request(self, request: Any, limit: Any) -> Any: ...
        def stream(self, request: Any, idle: Any) -> Any: ...
        async def close(self) -> None: ...

    own = Own()
    assert open_transport(own) is own


Translate = Callable[[Any, str], A2AConnectionError]


@pytest.mark.parametrize(
    ("translate", "error"),
    [
        (aiohttp_transport._translate, aiohttp.ConnectionTimeoutError()),
        (httpx_transport._translate, httpx.ConnectTimeout("")),
    ],
)
def test_a_connect_timeout_means_that_nothing_was_sent(translate: Translate, error: Exception) -> None:
    told = translate(error, "http://agent.example/")

    assert not told.sent
    assert "no connection within 5 seconds" in str(told)
