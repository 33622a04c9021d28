"""Exchanges over HTTP/1.1: what is written when, what one connection keeps for the next request, and when it ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from apcore_a2a.http.server.connection import LARGE, ConnectionTimeouts, GuardedProtocol
from apcore_a2a.http.server.exchange import MAX_HEAD, MAX_HEADS, encode_head
from apcore_a2a.http.traffic import KEY, Traffic
from tests.fakes import PATIENCE

GET = b"GET /path?query HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
HEAD = OK + b"content-length: 5\r\n\r\n"


class Recorded(asyncio.Transport):
    """A transport that records what is done with it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.done: list[bytes | str] = []

    def write(self, data: Any) -> None:
        self.done.append(data)

    def close(self) -> None:
        if not self.is_closing():
            self.done.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.done

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.done.append("paused")

    def resume_reading(self) -> None:
        self.done.append("resumed")

    @property
    def written(self) -> bytes:
        return b"".join(part for part in self.done if isinstance(part, bytes))


class Impatient(GuardedProtocol):
    timeouts = ConnectionTimeouts(headers=0)


Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]
Connect = Callable[..., tuple[GuardedProtocol, Recorded]]


@pytest.fixture
def state() -> ServerState:
    return ServerState()


@pytest.fixture
def connect(state: ServerState) -> Connect:
    def connect(
        app: Endpoint,
        *,
        kind: type[GuardedProtocol] = GuardedProtocol,
        app_state: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[GuardedProtocol, Recorded]:
        settings: dict[str, Any] = {"log_config": None, "access_log": False, **options}
        config = uvicorn.Config(app, **settings)
        config.load()
        connection = kind(config, state, app_state or {}, asyncio.get_running_loop())
        transport = Recorded()
        connection.connection_made(transport)
        return connection, transport

    return connect


async def finish(state: ServerState) -> None:
    """Return when the applications have returned."""
    async with asyncio.timeout(PATIENCE):
        while state.tasks:
            await asyncio.wait(list(state.tasks))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0)


async def start(send: Send, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await start(send, (b"Content-Length", b"5"))
    await send({"type": "http.response.body", "body": b"hello"})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = b""
    is_last = False
    while not is_last:
        message = await receive()
        body += message["body"]
        is_last = not message["more_body"]
    await start(send, (b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.body", "body": body})


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    await start(send)
    await send({"type": "http.response.body", "body": b"first", "more_body": True})
    await send({"type": "http.response.body", "body": b"second", "more_body": True})
    await send({"type": "http.response.body"})


# ---- writes ---------------------------------------------------------------------------------------------------------


async def test_head_and_body_are_one_write(connect: Connect, state: ServerState) -> None:
    connection, transport = connect(hello)
    for _ in range(2):
        connection.data_received(GET)
        await finish(state)
    assert transport.done == [HEAD + b"hello", HEAD + b"hello"]


async def test_a_large_body_is_not_copied(connect: Connect, state: ServerState) -> None:
    body = b"x" * (LARGE + 1)

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, (b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.body", "body": body})

    connection, transport = connect(large)
    connection.data_received(GET)
    await finish(state)
    assert len(transport.done) == 2
    assert transport.done[1] is body


async def test_a_head_without_a_body_waits_one_turn(connect: Connect, state: ServerState) -> None:
    asked = asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, (b"content-length", b"5"))
        await asked.wait()
        await send({"type": "http.response.body", "body": b"hello"})

    connection, transport = connect(late)
    connection.data_received(GET)
    await asyncio.sleep(0)  # the application begins
    assert transport.done == []
    await asyncio.sleep(0)
    assert transport.done == [HEAD]
    asked.set()
    await finish(state)
    assert transport.done == [HEAD, b"hello"]


async def test_a_body_without_a_length_is_chunked(connect: Connect, state: ServerState) -> None:
    connection, transport = connect(stream)
    connection.data_received(GET)
    await finish(state)
    head = OK + b"transfer-encoding: chunked\r\n\r\n"
    assert transport.done == [head + b"5\r\nfirst\r\n", b"6\r\nsecond\r\n", b"0\r\n\r\n"]


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
async def test_a_response_without_a_body_has_no_chunks(
    connect: Connect, state: ServerState, method: bytes, status: int
) -> None:
    async def empty(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, status=status)
        await send({"type": "http.response.body", "body": b"body" if method == b"HEAD" else b""})

    connection, transport = connect(empty)
    connection.data_received(GET.replace(b"GET", method))
    await finish(state)
    assert transport.written.startswith(b"HTTP/1.1 %d " % status)
    assert transport.written.count(b"\r\n") == 2
    assert transport.written.endswith(b"\r\n\r\n")


async def test_a_stream_waits_for_a_client_that_does_not_read(connect: Connect, state: ServerState) -> None:
    connection, transport = connect(stream)
    connection.data_received(GET)
    connection.pause_writing()
    for _ in range(5):
        await asyncio.sleep(0)
    assert b"first" not in transport.written
    connection.resume_writing()
    await finish(state)
    assert transport.written.endswith(b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n")
    connection.connection_lost(None)


async def test_a_stream_of_a_client_that_disconnects_ends(connect: Connect, state: ServerState) -> None:
    connection, transport = connect(stream)
    connection.data_received(GET)
    connection.pause_writing()
    await asyncio.sleep(0)
    connection.connection_lost(None)
    await finish(state)
    assert b"first" not in transport.written


# ---- heads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        (b"a b", b"c"),
        (b"a:b", b"c"),
        (b"a\r\nb", b"c"),
        (b"", b"c"),
        (b"a", b"b\r\nc: d"),
        (b"a", b"b\0c"),
        (b"a", b"b" * 1_000 + b"\n"),
        (b"content-length", b"5\r\nb: c"),
    ],
)
async def test_a_response_with_an_invalid_header_is_replaced_by_500(
    connect: Connect, state: ServerState, header: tuple[bytes, bytes]
) -> None:
    async def splitting(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, header)
        await send({"type": "http.response.body", "body": b"hello"})

    for request in (GET, GET, GET.replace(b"GET", b"HEAD")):  # the check is cached for valid headers only
        connection, transport = connect(splitting)
        connection.data_received(request)
        await finish(state)
        assert transport.written.count(b"HTTP/1.1 ") == 1
        assert transport.written.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert transport.is_closing()


async def test_a_header_is_checked_after_a_valid_one_of_the_same_name(connect: Connect, state: ServerState) -> None:
    values = [b"valid", b"valid\r\nset-cookie: a=b"]

    async def changing(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, (b"x-name", values.pop(0)), (b"content-length", b"5"))
        await send({"type": "http.response.body", "body": b"hello"})

    connection, transport = connect(changing)
    for _ in range(2):
        connection.data_received(GET)
        await finish(state)
    assert transport.written.startswith(OK + b"x-name: valid\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 500 ")
    assert b"set-cookie" not in transport.written


async def test_each_response_has_its_own_length_status_and_headers_of_the_server(
    connect: Connect, state: ServerState
) -> None:
    connection, transport = connect(echo)
    for number in range(1, 4):
        state.default_headers = [(b"date", b"%d" % number)]
        connection.data_received(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (number, b"x" * number)
        )
        await finish(state)
    assert transport.done == [
        OK + b"date: %d\r\ncontent-length: %d\r\n\r\n%b" % (number, number, b"x" * number) for number in range(1, 4)
    ]


async def test_headers_may_be_lists(connect: Connect, state: ServerState) -> None:
    async def lists(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [[b"x-name", b"value"], [b"content-length", b"5"]]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})

    connection, transport = connect(lists)
    connection.data_received(GET)
    await finish(state)
    assert transport.written == OK + b"x-name: value\r\ncontent-length: 5\r\n\r\nhello"


def test_a_head_is_encoded_once_if_it_is_small() -> None:
    small = ((b"x-name", b"value"),)
    large = ((b"x-name", b"v" * MAX_HEAD),)
    assert encode_head(small) is encode_head(small)
    assert encode_head(large) is not encode_head(large)
    first = encode_head(small)
    for number in range(MAX_HEADS):
        encode_head(((b"x-name", b"%d" % number),))
    assert encode_head(small) is not first  # the oldest is forgotten


@pytest.mark.parametrize("length", [b"4", b"6"])
async def test_a_body_that_contradicts_its_length_ends_the_connection(
    connect: Connect, state: ServerState, length: bytes
) -> None:
    async def lying(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, (b"content-length", length))
        await send({"type": "http.response.body", "body": b"hello"})

    connection, transport = connect(lying)
    connection.data_received(GET)
    await finish(state)
    assert transport.done == ["closed"]


async def test_every_response_has_the_headers_of_the_server(connect: Connect, state: ServerState) -> None:
    state.default_headers = [(b"Strict-Transport-Security", b"max-age=1")]
    connection, transport = connect(hello)
    connection.data_received(GET)
    await finish(state)
    assert b"\r\nstrict-transport-security: max-age=1\r\n" in transport.written


class Lines(logging.Handler):
    """Keeps the lines of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


async def test_the_access_log_has_a_line_for_each_response(
    connect: Connect, state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Lines()
    log = logging.getLogger("uvicorn.access")
    monkeypatch.setattr(log, "handlers", [kept])
    level = log.level
    log.setLevel(logging.INFO)
    connection, _ = connect(hello, access_log=True)
    connection.data_received(GET)
    await finish(state)
    log.setLevel(level)
    assert kept.lines == ['127.0.0.1:1 - "GET /path?query HTTP/1.1" 200']


# ---- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_pipelined_requests_are_answered_one_after_the_other(
    connect: Connect, state: ServerState, size: int
) -> None:
    running = 0
    order: list[bytes] = []

    async def one(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running
        running += 1
        assert running == 1
        order.append((await receive())["body"])
        await asyncio.sleep(0)
        running -= 1
        await hello(scope, receive, send)

    connection, transport = connect(one)
    requests = b"".join(POST + b"\r\nbod%d" % number for number in range(5))
    for begin in range(0, len(requests), size):
        connection.data_received(requests[begin : begin + size])
    await finish(state)
    assert b"".join(order) == b"bod0bod1bod2bod3bod4"
    assert transport.written == (HEAD + b"hello") * 5
    assert transport.done.count("paused") == transport.done.count("resumed")


async def test_a_body_that_is_not_received_stops_the_reading(connect: Connect, state: ServerState) -> None:
    gate = asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        await echo(scope, receive, send)

    connection, transport = connect(late)
    connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
    connection.data_received(b"x" * 50_000)
    assert transport.done == []
    connection.data_received(b"x" * 49_999)
    assert transport.done == ["paused"]
    gate.set()
    await until(lambda: transport.done != ["paused"])
    assert transport.done == ["paused", "resumed"]
    connection.data_received(b"x")
    await finish(state)
    assert transport.written.endswith(b"x" * 100_000)


@pytest.mark.parametrize("has_begun", [False, True], ids=["waits for 100", "sends its body at once"])
async def test_a_client_that_expects_100_gets_it_if_its_body_is_missing(
    connect: Connect, state: ServerState, has_begun: bool
) -> None:
    connection, transport = connect(echo)
    connection.data_received(POST + b"Expect: 100-continue\r\n\r\n" + b"body" * has_begun)
    if not has_begun:
        for _ in range(3):
            await asyncio.sleep(0)
        assert transport.done == [b"HTTP/1.1 100 Continue\r\n\r\n"]
        connection.data_received(b"body")
    await finish(state)
    assert transport.written.count(b"HTTP/1.1 ") == 2 - has_begun
    assert transport.written.endswith(b"\r\n\r\nbody")


async def test_a_client_that_expects_100_gets_only_the_response_of_an_application_that_needs_no_body(
    connect: Connect, state: ServerState
) -> None:
    connection, transport = connect(hello)
    connection.data_received(POST + b"Expect: 100-continue\r\n\r\n")
    await finish(state)
    assert transport.done == [HEAD + b"hello"]


async def test_requests_over_limit_concurrency_get_503(connect: Connect, state: ServerState) -> None:
    connection, transport = connect(hello, limit_concurrency=1)
    connection.data_received(GET)
    await finish(state)
    assert transport.written.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert transport.is_closing()


async def test_the_body_of_a_get_reaches_the_application(connect: Connect, state: ServerState) -> None:
    connection, transport = connect(echo)
    connection.data_received(POST.replace(b"POST", b"GET") + b"\r\nbody")
    await finish(state)
    assert transport.written.endswith(b"\r\n\r\nbody")


class WebSocket(asyncio.Protocol):
    """What uvicorn passes a connection to when an application supports WebSocket."""

    received: list[bytes]

    def __init__(self, **options: Any) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.received.append(data)


async def test_a_websocket_is_passed_on_to_an_application_that_supports_them(
    connect: Connect, state: ServerState
) -> None:
    WebSocket.received = []
    connection, transport = connect(hello, ws=WebSocket)
    request = GET.replace(b"Host: x", b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket")
    connection.data_received(GET)
    await finish(state)
    connection.data_received(request)
    assert WebSocket.received == [request.replace(b"Host", b"host").replace(b"C", b"c").replace(b"\nU", b"\nu")]
    assert transport.written == HEAD + b"hello"
    assert connection not in state.connections


async def test_a_websocket_outlives_the_timeout_of_headers_and_takes_no_place_among_the_connections(
    connect: Connect,
) -> None:
    WebSocket.received = []
    traffic = Traffic(max_connections=1)
    connection, transport = connect(hello, kind=Impatient, app_state={KEY: traffic}, ws=WebSocket)
    connection.data_received(GET.replace(b"Host: x", b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket"))
    await asyncio.sleep(0)  # the timeout is over
    await asyncio.sleep(0)
    assert transport.done == []
    connection, transport = connect(hello, app_state={KEY: traffic})
    assert transport.done == []


# ---- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [GET.replace(b"1.1", b"1.0"), GET.replace(b"Host: x", b"Host: x\r\nConnection: close")],
    ids=["HTTP/1.0", "close"],
)
async def test_the_last_response_says_so_and_ends_the_connection(
    connect: Connect, state: ServerState, request_: bytes
) -> None:
    connection, transport = connect(hello)
    connection.data_received(request_)
    await finish(state)
    assert transport.done == [OK + b"content-length: 5\r\nconnection: close\r\n\r\nhello", "closed"]


async def test_an_application_may_end_the_connection(connect: Connect, state: ServerState) -> None:
    async def closing(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, (b"Connection", b"x, Close"), (b"content-length", b"0"))
        await send({"type": "http.response.body"})

    connection, transport = connect(closing)
    connection.data_received(GET)
    await finish(state)
    assert transport.done == [OK + b"connection: x, Close\r\ncontent-length: 0\r\n\r\n", "closed"]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_application_that_fails_ends_the_connection(
    connect: Connect, state: ServerState, has_begun: bool
) -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        if has_begun:
            await start(send)
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
        raise ValueError("secret")

    connection, transport = connect(failing)
    connection.data_received(GET)
    await finish(state)
    assert transport.done[-1] == "closed"
    assert transport.written.endswith(b"first\r\n" if has_begun else b"Internal Server Error")
    assert b"secret" not in transport.written


async def test_an_application_that_is_cancelled_ends_the_connection(connect: Connect, state: ServerState) -> None:
    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    connection, transport = connect(waiting)
    connection.data_received(GET)
    await asyncio.sleep(0)
    for task in state.tasks:
        task.cancel()
    await finish(state)
    assert transport.done == ["closed"]


async def test_a_connection_without_requests_is_closed_and_one_with_requests_is_not(
    connect: Connect, state: ServerState
) -> None:
    gate = asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await gate.wait()
        await hello(scope, receive, send)

    idle, closed = connect(late, timeout_keep_alive=0)
    busy, open_ = connect(late, timeout_keep_alive=0)
    idle.data_received(GET)
    busy.data_received(GET)
    busy.data_received(POST)  # pipelined, its headers are incomplete
    busy.data_received(b"\r\nbody")
    await until(closed.is_closing)
    assert not open_.is_closing()
    gate.set()
    await until(open_.is_closing)
    assert open_.written == (HEAD + b"hello") * 2


async def test_a_pipelined_application_and_the_one_before_learn_that_the_client_has_gone(
    connect: Connect, state: ServerState
) -> None:
    received: list[str] = []

    async def until_gone(scope: Scope, receive: Receive, send: Send) -> None:
        while not received or received[-1] != "http.disconnect":
            received.append((await receive())["type"])

    connection, _ = connect(until_gone)
    connection.data_received(GET + GET)
    await asyncio.sleep(0)
    connection.connection_lost(None)
    await finish(state)
    assert received == ["http.request", "http.disconnect"]
