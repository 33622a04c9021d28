"""An exchange: which task runs it, and what the bindings of this package may ask of it beyond ASGI."""

import asyncio
from typing import Any

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from apcore_a2a.http.asgi import HTTPError, inbound, read_json, respond
from apcore_a2a.http.server.connection import GuardedProtocol
from apcore_a2a.http.server.exchange import WAITING, ResponsePhase, exchange_of
from tests.http.server.test_http1 import GET, HEAD, Endpoint, Recorded, finish, hello


def connect(app: Endpoint) -> tuple[GuardedProtocol, Recorded, ServerState]:
    config = uvicorn.Config(app, log_config=None, access_log=False)
    config.load()
    state = ServerState()
    connection = GuardedProtocol(config, state, {}, asyncio.get_running_loop())
    transport = Recorded()
    connection.connection_made(transport)
    return connection, transport, state


# ---- the task -------------------------------------------------------------------------------------------------------


async def test_a_task_that_was_cancelled_is_not_running_any_more() -> None:
    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    connection, transport, state = connect(waiting)
    connection.data_received(GET)
    await asyncio.sleep(0)
    (task,) = state.tasks
    task.cancel()
    await asyncio.wait([task])
    assert not state.tasks
    assert transport.is_closing()


class Done(asyncio.Future[None]):
    """An asyncio task that has ended."""

    def set_name(self, name: object) -> None:  # called by Python 3.13
        """Do nothing."""


async def test_an_event_loop_that_runs_tasks_at_once_leaves_none_running() -> None:
    def run_at_once(loop: asyncio.AbstractEventLoop, work: Any, **_: Any) -> Any:
        with pytest.raises(StopIteration):
            work.send(None)
        done = Done(loop=loop)
        done.set_result(None)
        return done

    connection, transport, state = connect(hello)
    asyncio.get_running_loop().set_task_factory(run_at_once)  # as asyncio.eager_task_factory of Python 3.12 does
    try:
        connection.data_received(GET)
    finally:
        asyncio.get_running_loop().set_task_factory(None)
    assert transport.written == HEAD + b"hello"
    assert not state.tasks


# ---- a whole body ---------------------------------------------------------------------------------------------------

POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def answered(app: Endpoint, *data: bytes) -> list[bytes | str]:
    """Return what is done with the transport, if these parts of a request arrive one by one."""
    connection, transport, state = connect(app)
    for part in data:
        connection.data_received(part)
        for _ in range(3):
            await asyncio.sleep(0)
    await finish(state)
    return transport.done


async def echo_json(scope: Scope, receive: Receive, send: Send) -> None:
    try:
        body = await read_json(inbound(scope), receive, limit=4)
    except HTTPError as error:
        body = b"%d" % error.status
    await respond(send, 200, body)


def body_in(done: list[bytes | str]) -> bytes:
    written = b"".join(part for part in done if isinstance(part, bytes))
    return written.rpartition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ((b"Content-Length: 4\r\n\r\nabcd",), b"abcd"),
        ((b"Content-Length: 4\r\n\r\n", b"ab", b"cd"), b"abcd"),
        ((b"Content-Length: 4\r\n\r\nab", b"cd"), b"abcd"),
        ((b"Content-Length: 0\r\n\r\n",), b""),
        ((b"Content-Length: 5\r\n\r\nabcde",), b"413"),
        ((b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n",), b"abcd"),
        ((b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",), b"413"),
        ((b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"), b"413"),
    ],
)
async def test_a_body_is_the_same_at_once_and_in_parts(parts: tuple[bytes, ...], body: bytes) -> None:
    first, *others = parts
    assert body_in(await answered(echo_json, POST + first, *others)) == body


async def test_the_body_that_a_middleware_passes_on_is_read() -> None:
    async def upper(scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_upper() -> Message:
            message = await receive()
            return {**message, "body": message["body"].upper()}

        await echo_json(scope, receive_upper, send)

    assert body_in(await answered(upper, POST + b"Content-Length: 4\r\n\r\nabcd")) == b"ABCD"


async def test_a_body_is_received_once() -> None:
    found: list[bytes | str | None] = []

    async def twice(scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(receive)
        assert exchange is not None
        found.append(exchange.take_whole_body())
        found.append(exchange.take_whole_body())
        await respond(send, 200, b"")
        found.append((await receive())["type"])

    await answered(twice, POST + b"Content-Length: 4\r\n\r\nabcd")
    assert found == [b"abcd", None, "http.disconnect"]


async def test_the_body_of_a_client_that_has_disconnected_is_not_taken() -> None:
    gate = asyncio.Event()
    statuses: list[int] = []

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        with pytest.raises(HTTPError) as raised:
            await read_json(inbound(scope), receive, limit=4)
        statuses.append(raised.value.status)

    connection, _, state = connect(late)
    connection.data_received(POST + b"Content-Length: 4\r\n\r\nabcd")
    await asyncio.sleep(0)
    connection.connection_lost(ConnectionResetError())
    gate.set()
    await finish(state)
    assert statuses == [400]


async def test_an_incomplete_body_is_not_taken() -> None:
    found: list[bytes | None] = []

    async def asking(scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(receive)
        assert exchange is not None
        found.append(exchange.take_whole_body())
        await respond(send, 200, b"")

    await answered(asking, POST + b"Content-Length: 4\r\n\r\nabc")
    assert found == [None]


# ---- a whole response -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1", b"HEAD / HTTP/1.1", b"GET / HTTP/1.0"])
async def test_a_response_is_the_same_through_a_middleware(request_line: bytes) -> None:
    async def direct(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"hello")

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            await send(message)

        await respond(pass_on, 200, b"hello")

    request = request_line + b"\r\nHost: x\r\n\r\n"
    done = await answered(direct, request)
    assert done == await answered(wrapped, request)
    assert isinstance(done[0], bytes)
    assert done[0].startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_middleware_sees_each_message_of_a_response() -> None:
    kinds: list[str] = []

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            kinds.append(message["type"])
            await send(message)

        await respond(count, 200, b"hello")

    await answered(counting, GET)
    assert kinds == ["http.response.start", "http.response.body"]


async def test_a_second_response_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def twice(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"hello")
        with pytest.raises(RuntimeError, match="Unexpected response: the response is written"):
            await respond(send, 200, b"hello")

    assert body_in(await answered(twice, GET)) == b"hello"
    assert not caplog.records


async def test_a_response_with_an_invalid_header_is_replaced_by_500() -> None:
    async def splitting(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"hello", headers=((b"a", b"b\r\nc: d"),))

    assert body_in(await answered(splitting, GET)) == b"Internal Server Error"


async def test_a_client_that_has_disconnected_gets_no_response() -> None:
    gate = asyncio.Event()
    phases: list[ResponsePhase] = []

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        await respond(send, 200, b"hello")
        exchange = exchange_of(send)
        assert exchange is not None
        phases.append(exchange.phase)

    connection, transport, state = connect(late)
    connection.data_received(GET)
    await asyncio.sleep(0)
    connection.connection_lost(ConnectionResetError())
    gate.set()
    await finish(state)
    assert transport.done == []
    assert phases == [WAITING]
