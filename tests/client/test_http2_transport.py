"""Connections of HTTP/2: what is shared, what is sent again, and what ends them. The servers send single frames."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from random import Random
from typing import Any

import pytest
import trustme

from apcore_a2a.client import A2AClient, Retry
from apcore_a2a.client.http2_connection import STREAM_WINDOW
from apcore_a2a.client.http2_transport import HTTP2Transport
from apcore_a2a.client.transport import HttpRequest
from apcore_a2a.errors import A2AConnectionError, A2AError, InvalidAgentResponseError
from apcore_a2a.protocol.model import Event, Task, TaskState
from tests.client.conftest import QUICK
from tests.client.scripted import CARD, ScriptedServer, card, respond
from tests.client.scripted_http2 import (
    OK,
    SENT,
    TASK,
    Connection,
    Script,
    ScriptedHTTP2,
    an_event,
    answering,
    data,
    goaway,
    reset,
    serving_frames,
)
from tests.fakes import PATIENCE, ScriptedAgent
from tests.http2_peer import (
    CANCEL,
    DATA,
    END_STREAM,
    HEADERS,
    MAX_STREAMS,
    PING,
    REFUSED_STREAM,
    RST_STREAM,
    WINDOW_UPDATE,
    frame,
    setting,
    window_update,
)
from tests.interaction.serving import CARD as PLAIN_CARD
from tests.interaction.serving import serving

ONCE = Retry(attempts=1, base=0.0)


@asynccontextmanager
async def calling(*scripts: Script, **options: Any) -> AsyncIterator[tuple[A2AClient, ScriptedHTTP2]]:
    """Yield a client whose agent is a server with these scripts, and that server. Another server has the card."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving_frames(*scripts))
        offer = {"url": server.target, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
        cards = await stack.enter_async_context(ScriptedServer())
        cards.on(CARD, respond(card(cards.url, supportedInterfaces=[offer])))
        defaults: dict[str, Any] = {"retry": QUICK, "timeout": PATIENCE, "poll_interval": 0.0}
        origins = [f"http://{server.target}"]
        client = A2AClient(cards.url, allow_origins=origins, **defaults | options)
        yield await stack.enter_async_context(client), server


# ---- sharing a connection --------------------------------------------------------------------------------------------


async def test_calls_share_a_connection() -> None:
    async with calling(answering(TASK)) as (client, server):
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(client.get_task("t-1"))

    assert len(server.connections) == 1


async def test_a_further_connection_opens_when_the_server_allows_no_more_streams() -> None:
    held = asyncio.Event()

    async def one_at_a_time(connection: Connection) -> None:
        await connection.begin(setting(MAX_STREAMS, 1))
        await connection.request()
        held.set()
        await connection.until(RST_STREAM)

    async with calling(one_at_a_time, answering(TASK)) as (client, server):
        waiting = asyncio.create_task(client.get_task("t-1"))
        await held.wait()
        assert (await client.get_task("t-1")).id == "t-1"
        waiting.cancel()

    assert len(server.connections) == 2


async def test_a_reader_that_is_slow_delays_no_other_call() -> None:
    """Its stream fills its own window, and the window of the connection opens again."""
    filled = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.begin()
        for _ in range(3):
            slow = await connection.request()
            connection.send(connection.answer_head(slow.stream), data(an_event("WORKING"), slow.stream))
            frames = [frame(DATA, b"\0" * 16_384, stream=slow.stream)] * (STREAM_WINDOW // 16_384 - 1)
            connection.send(*frames)
        while (await connection.until(WINDOW_UPDATE)).stream != 0:
            pass
        filled.set()
        connection.answer(await connection.request(), TASK)

    async with calling(script) as (client, server), AsyncExitStack() as stack:
        for _ in range(3):
            events = await stack.enter_async_context(aclosing(client.stream_message("hi")))
            await anext(events)
        async with asyncio.timeout(PATIENCE):
            await filled.wait()
        assert (await client.get_task("t-1")).id == "t-1"

    assert len(server.connections) == 1


async def test_a_connection_without_requests_closes() -> None:
    closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.begin()
        connection.answer(await connection.request(), TASK)
        with pytest.raises(ConnectionError):
            while True:
                await connection.read()
        closed.set()

    async with serving_frames(script) as server, asyncio.timeout(PATIENCE):
        transport = HTTP2Transport(keep_open=0.01)
        await transport.request(HttpRequest("POST", f"http://{server.target}/x", {}), 1000)
        await closed.wait()
        await transport.close()


# ---- the end of a connection -----------------------------------------------------------------------------------------


async def test_a_server_that_drains_finishes_the_calls_that_it_has_begun() -> None:
    async def draining(connection: Connection) -> None:
        await connection.begin()
        call = await connection.request()
        connection.send(goaway(2**31 - 1), goaway(call.stream))
        connection.answer(call, TASK)

    async with calling(draining) as (client, server):
        for _ in range(2):
            assert (await client.get_task("t-1")).status.state is TaskState.COMPLETED

    assert len(server.connections) == 2


@pytest.mark.parametrize("refuses", [goaway(0), reset(1, REFUSED_STREAM)], ids=["GOAWAY", "REFUSED_STREAM"])
async def test_a_message_that_the_server_has_not_processed_is_sent_again(refuses: bytes) -> None:
    async def refusing(connection: Connection) -> None:
        await connection.begin()
        await connection.request()
        connection.send(refuses)
        if refuses == reset(1, REFUSED_STREAM):
            connection.answer(await connection.request(), SENT)

    async with calling(refusing, answering(SENT)) as (client, _):
        assert isinstance(await client.send_message("hi"), Task)


async def test_a_message_that_may_have_been_processed_is_not_sent_again() -> None:
    async def resetting(connection: Connection) -> None:
        await connection.begin()
        connection.send(reset((await connection.request()).stream, CANCEL))

    async with calling(resetting, answering(SENT)) as (client, server):
        with pytest.raises(A2AConnectionError, match=r"reset the stream \(CANCEL\)") as caught:
            await client.send_message("hi")

    assert caught.value.sent
    assert len(server.connections) == 1


async def test_a_stream_whose_connection_breaks_is_resumed() -> None:
    async def breaking(connection: Connection) -> None:
        await connection.begin()
        call = await connection.request()
        connection.send(connection.answer_head(call.stream), data(an_event("WORKING"), call.stream))
        await connection.writer.drain()
        connection.writer.close()

    resumed: list[str] = []

    async def resuming(connection: Connection) -> None:
        await connection.begin()
        call = await connection.request()
        resumed.append(call.method)
        connection.answer(call, an_event("COMPLETED"))

    async with calling(breaking, resuming) as (client, _):
        states = [state_of(event) async for event in client.stream_message("hi")]

    assert states == [TaskState.WORKING, TaskState.COMPLETED]
    assert resumed == ["SubscribeToTask"]


async def test_a_stream_that_the_agent_cuts_with_a_status_is_resumed() -> None:
    async def cutting(connection: Connection) -> None:
        await connection.begin()
        call = await connection.request()
        connection.answer(call, an_event("WORKING"), trailers={"grpc-status": "14", "grpc-message": "restarting"})
        connection.answer(await connection.request(), an_event("COMPLETED"))

    async with calling(cutting) as (client, _):
        states = [state_of(event) async for event in client.stream_message("hi")]

    assert states == [TaskState.WORKING, TaskState.COMPLETED]


def state_of(event: Event) -> TaskState:
    assert isinstance(event, Task)
    return event.status.state


# ---- silence ---------------------------------------------------------------------------------------------------------


async def test_a_silent_server_that_answers_a_ping_keeps_its_stream() -> None:
    async def silent(connection: Connection) -> None:
        await connection.begin()
        call = await connection.request()
        connection.send(connection.answer_head(call.stream), data(an_event("WORKING"), call.stream))
        await connection.until(PING)
        connection.send(data(an_event("COMPLETED"), call.stream), connection.head(call.stream, OK, ends=True))

    async with calling(silent, idle_timeout=0.05) as (client, server):
        assert len([event async for event in client.stream_message("hi")]) == 2

    assert len(server.connections) == 1


async def test_a_server_that_answers_no_ping_loses_its_stream() -> None:
    was_closed = asyncio.Event()

    async def dead(connection: Connection) -> None:
        await connection.begin()
        connection.answers_pings = False
        call = await connection.request()
        connection.send(connection.answer_head(call.stream), data(an_event("WORKING"), call.stream))
        await connection.until(PING)
        with pytest.raises(ConnectionError):
            while True:
                await connection.read()
        was_closed.set()

    async with calling(dead, answering(an_event("COMPLETED")), idle_timeout=0.05) as (client, server):
        assert len([event async for event in client.stream_message("hi")]) == 2

    assert was_closed.is_set()
    assert len(server.connections) == 2


async def test_a_server_that_reads_no_body_is_given_up_at_the_timeout() -> None:
    async def reading_nothing(connection: Connection) -> None:
        await connection.begin()

    async with calling(reading_nothing, timeout=0.3) as (client, _):
        with pytest.raises(A2AConnectionError, match=r"did not answer within 0\.3 seconds"):
            await client.send_message("x" * 100_000)


async def test_an_answer_before_the_end_of_the_request_is_read() -> None:
    """The server rejects a message when it has read a part of it, and opens no window for the rest."""
    was_reset = asyncio.Event()

    async def rejecting(connection: Connection) -> None:
        await connection.begin()
        head = await connection.until(HEADERS)
        connection.refuse(head.stream, {"grpc-status": "8", "grpc-message": "too large"})
        await connection.until(RST_STREAM)
        was_reset.set()

    async with calling(rejecting) as (client, _), asyncio.timeout(PATIENCE):
        with pytest.raises(A2AError, match="too large"):
            await client.send_message("x" * 200_000)
        await was_reset.wait()


# ---- servers that cannot be used -------------------------------------------------------------------------------------


async def test_a_server_without_http_2_is_named(server: ScriptedServer) -> None:
    target = {"url": f"127.0.0.1:{server.port}", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    server.on(CARD, respond(card(server.url, supportedInterfaces=[target])))

    async with A2AClient(server.url, retry=ONCE) as client:
        with pytest.raises(A2AConnectionError, match="does not speak HTTP/2, which gRPC needs") as caught:
            await client.get_task("t-1")
    assert not caught.value.sent


async def test_calls_that_wait_for_a_connection_fail_together() -> None:
    async def closing(connection: Connection) -> None:
        connection.writer.close()

    async with calling(closing, retry=ONCE) as (client, server):
        await client.agent_card
        answers = await asyncio.gather(*(client.get_task("t-1") for _ in range(20)), return_exceptions=True)

    assert {type(answer) for answer in answers} == {A2AConnectionError}
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (frame(DATA, b"x" * 20_000, stream=1), "too large"),
        (frame(9, b"", stream=1), "cannot be read"),
        (frame(DATA, b"x", stream=7), "cannot be read"),
        (frame(PING, b"12345678") * 3_000, "too many frames without content"),
        (frame(250) * 3_000, "too many frames without content"),
        (frame(DATA, b"x", stream=1) * 3_000, "too many frames without content"),
    ],
    ids=["a large frame", "CONTINUATION alone", "an unknown stream", "PINGs", "unknown frames", "small DATA"],
)
async def test_frames_that_break_the_protocol_end_the_connection(sent: bytes, said: str) -> None:
    async def breaking(connection: Connection) -> None:
        await connection.begin()
        connection.send(connection.answer_head((await connection.request()).stream), sent)

    async with calling(breaking, retry=ONCE) as (client, _):
        with pytest.raises(A2AConnectionError, match=said):
            await client.get_task("t-1")


async def test_an_answer_above_the_limit_is_rejected() -> None:
    async with calling(answering(b"x" * 2000), max_response=1000) as (client, _):
        with pytest.raises(InvalidAgentResponseError, match="larger than 1,000 bytes"):
            await client.get_task("t-1")


async def test_a_header_with_a_line_end_is_rejected() -> None:
    async with calling(answering(TASK)) as (client, server):
        with pytest.raises(ValueError, match="line end"):
            await client.get_task("t-1", headers={"x-one": "1\r\nx-two: 2"})

    assert server.connections == []


async def test_closing_the_client_ends_its_streams() -> None:
    opened = asyncio.Event()

    async def silent(connection: Connection) -> None:
        await connection.begin()
        call = await connection.request()
        connection.send(connection.answer_head(call.stream), data(an_event("WORKING"), call.stream))
        opened.set()

    async with calling(silent) as (client, _):
        events = client.stream_message("hi")
        await anext(events)
        await client.close()
        with pytest.raises((RuntimeError, A2AConnectionError)):
            await anext(events)


async def test_no_bytes_of_a_server_raise_anything_but_the_errors_of_a_connection() -> None:
    """Mutated conversations: each call ends with a result or an error of its own."""
    random = Random(7)
    for _ in range(60):
        noise = bytes(random.randrange(256) for _ in range(random.randrange(1, 60)))
        cut = random.randrange(3)

        async def noisy(connection: Connection, noise: bytes = noise, cut: int = cut) -> None:
            await connection.begin()
            call = await connection.request()
            if cut:
                connection.send(connection.answer_head(call.stream))
            if cut == 2:
                connection.send(data(TASK, call.stream)[:-3])
            connection.send(noise)
            await connection.writer.drain()
            connection.writer.close()

        async with calling(noisy, retry=ONCE) as (client, _):
            with pytest.raises((A2AConnectionError, InvalidAgentResponseError)):
                await client.get_task("t-1")


# ---- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def client_tls(authority: trustme.CA, *, offers: str = "h2") -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols([offers])
    return context


@pytest.fixture
def server_tls(authority: trustme.CA) -> Callable[..., ssl.SSLContext]:
    def make(*protocols: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
        if protocols:
            context.set_alpn_protocols(protocols)
        return context

    return make


@pytest.mark.parametrize("binding", ["GRPC", "JSONRPC", "HTTP+JSON"])
async def test_tls_chooses_http_2(
    authority: trustme.CA, server_tls: Callable[..., ssl.SSLContext], binding: Any
) -> None:
    """A transport of HTTP/2 carries the other bindings and the card as well."""
    async with serving(ScriptedAgent(), card=PLAIN_CARD, tls=server_tls("h2", "http/1.1")) as url:
        transport = HTTP2Transport(client_tls(authority))
        async with A2AClient(url, binding=binding, http=transport, retry=ONCE) as client:
            assert isinstance(await client.send_message("hi"), Task)
            assert [event async for event in client.stream_message("hi")]
        await transport.close()


async def test_a_server_that_chooses_no_http_2_is_named(
    authority: trustme.CA, server_tls: Callable[..., ssl.SSLContext]
) -> None:
    async with serving(ScriptedAgent(), tls=server_tls(), grpc=False) as url:
        transport = HTTP2Transport(client_tls(authority))
        with pytest.raises(A2AConnectionError, match="does not speak HTTP/2"):
            await transport.request(HttpRequest("GET", url, {}), 1000)
        await transport.close()


async def test_an_unknown_authority_is_not_trusted(server_tls: Callable[..., ssl.SSLContext]) -> None:
    async with serving(ScriptedAgent(), tls=server_tls("h2")) as url:
        transport = HTTP2Transport()
        with pytest.raises(A2AConnectionError, match="set SSL_CERT_FILE"):
            await transport.request(HttpRequest("GET", url, {}), 1000)
        await transport.close()


async def test_many_requests_allow_as_many_frames_without_content() -> None:
    """Each response ends with an empty frame of DATA, and brings two window updates."""

    async def script(connection: Connection) -> None:
        await connection.begin()
        while True:
            stream = (await connection.request()).stream
            connection.send(window_update(100), window_update(100, stream))
            connection.send(connection.head(stream, {":status": "204"}), frame(DATA, flags=END_STREAM, stream=stream))

    async with serving_frames(script) as server:
        transport = HTTP2Transport()
        for _ in range(1_000):
            response = await transport.request(HttpRequest("GET", f"http://{server.target}/x", {}), 1000)
            assert response.status == 204
        await transport.close()
    assert len(server.connections) == 1
