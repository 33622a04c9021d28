"""HTTP/2 connections of a server on a socket: requests, responses, timeouts and the end."""

import asyncio
import logging

import pytest

from apcore_a2a.http.server.connection import HTTP2Support
from apcore_a2a.http.server.exchange import AcceptedConnection
from apcore_a2a.http.server.http2 import (
    CONNECTION_WINDOW,
    STREAM_WINDOW,
    HTTP2Connection,
)
from apcore_a2a.http.traffic import KEY
from tests.engine.driving import until
from tests.fakes import PATIENCE
from tests.http.server.http2_app import TIMEOUTS, App, serving_http2
from tests.http2_peer import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    INTERNAL_ERROR,
    LARGEST,
    NO_ERROR,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    FramePeer,
    connected,
    frame,
    setting,
    window_update,
)

# ---- requests -------------------------------------------------------------------------------------------------------


async def test_a_request_has_the_scope_of_http_1_1_with_trailers(app: App, url: str) -> None:
    async with connected(url) as peer:
        headers = (("x-a", "1"), ("cookie", "a=1"), ("cookie", "b=2"), ("content-length", "2"))
        answer = await peer.response(peer.request("POST", "/echo/%C3%BC?q=%20", b"hi", headers))
    assert (answer.status, answer.body, answer.trailers) == (200, b"hi", {"size": "2"})
    scope = app.scopes[0]
    assert (scope["type"], scope["http_version"], scope["method"], scope["scheme"]) == ("http", "2", "POST", "http")
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/echo/ü", b"/echo/%C3%BC", b"q=%20")
    assert scope["headers"] == [
        (b"host", peer.authority.encode()),
        (b"x-a", b"1"),
        (b"content-length", b"2"),
        (b"cookie", b"a=1; b=2"),
    ]
    assert scope["client"][0] == "127.0.0.1" and scope["server"][1] == int(url.rpartition(":")[2])
    assert scope["extensions"] == {"http.response.trailers": {}}
    assert scope["state"][KEY] is app.traffic


async def test_http_1_1_works_at_the_same_port_however_its_first_bytes_arrive(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    for first in (b"P", b"PR", b"PRI", b"G", b""):
        rest = {b"P": b"OST", b"PR": b"OPFIND", b"PRI": b"NT", b"G": b"ET", b"": b"GET"}[first]
        reader, writer = await asyncio.open_connection(host, int(port))
        if first:
            writer.write(first)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(rest + b" / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 " + (b"400" if first == b"PRI" else b"200"))
        writer.close()


@pytest.mark.parametrize("size", [1, 3, 23, 24, 25, 1000])
async def test_the_preface_may_arrive_in_any_pieces(url: str, size: int) -> None:
    async with connected(url) as peer:
        pass
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    peer = FramePeer(reader, writer, "localhost")
    data = PREFACE + frame(SETTINGS)
    for start in range(0, len(data), size):
        writer.write(data[start : start + size])
        await asyncio.sleep(0)
    assert (await peer.response(peer.request("GET", "/"))).body == b"hello"
    writer.close()


async def test_a_wrong_preface_ends_the_connection(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    peer = FramePeer(reader, writer, "localhost")
    writer.write(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n")
    assert (await peer.goaway()).code == PROTOCOL_ERROR
    await peer.ends()
    writer.close()


async def test_requests_of_one_connection_run_concurrently(app: App, url: str) -> None:
    async with connected(url) as peer:
        waiting = peer.request("GET", "/wait")
        assert (await peer.response(peer.request("GET", "/"))).body == b"hello"
        app.gate.set()
        assert (await peer.response(waiting)).body == b"hello"


async def test_large_bodies_arrive_whole_in_both_directions(url: str) -> None:
    body = bytes(range(256)) * 12_000
    async with connected(url, setting(INITIAL_WINDOW, LARGEST)) as peer:
        peer.send(window_update(LARGEST - 65_535))
        sent = 0
        stream = peer.next_stream
        peer.next_stream += 2
        peer.send(frame(HEADERS, peer.block("POST", "/echo"), flags=END_HEADERS, stream=stream))
        windows = {0: CONNECTION_WINDOW, stream: STREAM_WINDOW}
        while sent < len(body):
            size = min(*windows.values(), 16_384, len(body) - sent)
            if size <= 0:
                got = await peer.until(lambda got: got.kind == WINDOW_UPDATE)
                windows[got.stream] += int.from_bytes(got.payload, "big")
                continue
            flags = END_STREAM if sent + size == len(body) else 0
            peer.send(frame(DATA, body[sent : sent + size], flags=flags, stream=stream))
            sent += size
            windows = {name: left - size for name, left in windows.items()}
        assert (await peer.response(stream)).body == body


@pytest.mark.parametrize(
    "headers",
    [(("te", "gzip"),), (("Upper", "1"),), (("connection", "close"),), (("host", "other"),), (("a", "1\n2"),)],
    ids=["te", "upper case", "connection", "another host", "a line break"],
)
async def test_malformed_headers_are_rejected_and_reach_no_application(
    app: App, url: str, headers: tuple[tuple[str, str]]
) -> None:
    async with connected(url) as peer:
        stream = peer.request("GET", "/", headers=headers)
        got = await peer.until(lambda got: got.kind in (GOAWAY, RST_STREAM))
        assert got.code == PROTOCOL_ERROR
        assert got.kind == GOAWAY or got.stream == stream
    assert app.scopes == []


@pytest.mark.parametrize("path", ["relative", "http://other/", "/ü"])
async def test_a_target_that_is_not_a_path_resets_only_its_stream(app: App, url: str, path: str) -> None:
    async with connected(url) as peer:
        peer.request("GET", path)
        assert (await peer.until(lambda got: got.kind == RST_STREAM)).code == PROTOCOL_ERROR
        assert (await peer.response(peer.request("GET", "/"))).status == 200
    assert len(app.scopes) == 1


async def test_a_client_that_expects_100_gets_it(url: str) -> None:
    async with connected(url) as peer:
        block = peer.block("POST", "/echo", [("expect", "100-continue")])
        peer.next_stream += 2
        peer.send(frame(HEADERS, block, flags=END_HEADERS, stream=1))
        await peer.until(lambda got: got.kind == HEADERS)
        peer.send(frame(DATA, b"hi", flags=END_STREAM, stream=1))
        assert (await peer.response(1)).body == b"hi"


async def test_the_body_of_a_get_is_discarded_and_makes_no_stream_wait(app: App, url: str) -> None:
    async with connected(url) as peer:
        for stream in range(1, 1 + 2 * 8, 2):
            peer.send(frame(HEADERS, peer.block("GET", "/wait"), flags=END_HEADERS, stream=stream))
            for _ in range(STREAM_WINDOW // 16_384 - 1):
                peer.send(frame(DATA, b"x" * 16_384, stream=stream))
        peer.next_stream = 101
        assert (await peer.response(peer.request("POST", "/echo", b"x" * 30_000))).trailers == {"size": "30000"}
        assert app.traffic.body_bytes == 0


async def test_a_body_over_the_limit_of_all_bodies_resets_its_stream(app: App, url: str) -> None:
    app.traffic.max_body_bytes = 50_000
    app.traffic.max_body_bytes_per_caller = 50_000
    async with connected(url) as peer:
        stream = peer.next_stream
        peer.next_stream += 2
        peer.send(frame(HEADERS, peer.block("POST", "/wait"), flags=END_HEADERS, stream=stream))
        for _ in range(4):
            peer.send(frame(DATA, b"x" * 16_384, stream=stream))
        got = await peer.until(lambda got: got.kind == RST_STREAM)
        assert (got.stream, got.code) == (stream, ENHANCE_YOUR_CALM)
        assert (await peer.response(peer.request("POST", "/echo", b"hi"))).body == b"hi"
        assert app.traffic.body_bytes == 0


# ---- responses ------------------------------------------------------------------------------------------------------


async def test_a_head_request_gets_no_body(url: str) -> None:
    async with connected(url) as peer:
        answer = await peer.response(peer.request("HEAD", "/"))
    assert (answer.headers["content-length"], answer.body) == ("5", b"")
    assert [got.kind for got in peer.frames if got.stream] == [HEADERS]


async def test_headers_of_http_1_1_are_left_out_and_names_are_in_lower_case(url: str) -> None:
    async with connected(url) as peer:
        answer = await peer.response(peer.request("GET", "/headers"))
    assert answer.headers["x-upper"] == "1"
    assert not {"connection", "transfer-encoding"} & answer.headers.keys()
    assert "date" in answer.headers


async def test_the_head_of_a_stream_is_sent_before_its_first_event(app: App, url: str) -> None:
    async with connected(url) as peer:
        stream = peer.request("GET", "/stream")
        got = await peer.until(lambda got: got.stream == stream)
        assert (got.kind, got.flags) == (HEADERS, END_HEADERS)
        app.gate.set()
        assert (await peer.response(stream)).body == b"late"


@pytest.mark.parametrize("path", ["/fail", "/nothing", "/inject"])
async def test_an_application_that_fails_is_answered_with_500(
    url: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(url) as peer:
        answer = await peer.response(peer.request("GET", path))
        assert (answer.status, answer.body) == (500, b"Internal Server Error")
        assert (await peer.response(peer.request("GET", "/"))).status == 200
    assert any("ASGI" in record.message for record in caplog.records)


async def test_a_response_that_breaks_off_is_reset(url: str) -> None:
    async with connected(url) as peer:
        peer.request("GET", "/half")
        assert (await peer.until(lambda got: got.kind == RST_STREAM)).code == INTERNAL_ERROR
        assert (await peer.response(peer.request("GET", "/"))).status == 200


async def test_a_response_before_the_end_of_the_body_asks_for_no_more_of_it(url: str) -> None:
    async with connected(url) as peer:
        block = peer.block("POST", "/")
        peer.next_stream += 2
        peer.send(frame(HEADERS, block, flags=END_HEADERS, stream=1))
        assert (await peer.response(1)).body == b"hello"
        assert (await peer.until(lambda got: got.kind == RST_STREAM)).code == NO_ERROR


# ---- timeouts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [0, 1])
async def test_an_idle_connection_is_closed_with_goaway(app: App, short_url: str, requests: int) -> None:
    async with connected(short_url) as peer:
        for _ in range(requests):
            await peer.response(peer.request("GET", "/"))
        assert (await peer.goaway()).code == NO_ERROR
        await peer.ends()


async def test_headers_that_arrive_too_slowly_end_the_connection(short_url: str) -> None:
    async with connected(short_url) as peer:
        peer.send(frame(HEADERS, peer.block("GET", "/"), stream=1))
        dribble = asyncio.create_task(_dribble(peer))
        last = await peer.goaway()
        assert (last.code, last.payload[8:]) == (ENHANCE_YOUR_CALM, b"the headers did not arrive in time")
        dribble.cancel()


async def _dribble(peer: FramePeer) -> None:
    """Send a frame that never ends, byte by byte, so that the connection is never silent."""
    peer.send(b"\0\x20\0\x09\0\0\0\0\1")
    while True:
        peer.send(b"\0")
        await asyncio.sleep(TIMEOUTS.check / 4)


async def test_a_client_with_an_open_stream_is_disconnected_when_it_answers_no_ping(app: App, short_url: str) -> None:
    async with connected(short_url) as peer:
        peer.request("GET", "/stream")
        for _ in range(5):
            await peer.until(lambda got: got.kind == PING and not got.flags)
        assert app.ended == []
        peer.answers_pings = False
        await peer.ends()
    app.gate.set()
    await until(lambda: app.ended == ["/stream"])


# ---- GOAWAY ---------------------------------------------------------------------------------------------------------


class Known(HTTP2Connection):
    """Lets a test find the connections of its server."""

    opened: list["Known"]

    def __init__(self, accepted: AcceptedConnection) -> None:
        super().__init__(accepted)
        Known.opened.append(self)


async def test_a_shutdown_finishes_requests_and_accepts_those_already_sent(app: App) -> None:
    Known.opened = []
    support = HTTP2Support()
    support.opener = Known
    async with serving_http2(app, support) as url, connected(url) as peer:
        peer.answers_pings = False
        running = peer.request("GET", "/wait")
        half = peer.next_stream
        peer.next_stream += 2
        peer.send(frame(HEADERS, peer.block("POST", "/echo"), flags=END_HEADERS, stream=half))
        await peer.pings()
        Known.opened[0].shutdown()
        announced = await peer.goaway()
        assert (announced.code, int.from_bytes(announced.payload[:4], "big")) == (NO_ERROR, LARGEST)
        assert [(got.stream, got.code) for got in peer.frames if got.kind == RST_STREAM] == [(half, REFUSED_STREAM)]
        crossed = peer.request("GET", "/")  # the client has not read the GOAWAY yet
        assert (await peer.response(crossed)).status == 200
        ping = next(got for got in peer.frames if got.kind == PING and not got.flags & ACK)
        peer.send(frame(PING, ping.payload, flags=ACK))
        last = await peer.goaway()
        assert int.from_bytes(last.payload[:4], "big") == crossed
        late = peer.request("GET", "/")
        refused = await peer.until(lambda got: got.kind == RST_STREAM)
        assert (refused.stream, refused.code) == (late, REFUSED_STREAM)
        app.gate.set()
        assert (await peer.response(running)).body == b"hello"
        await peer.ends()


async def test_a_client_that_says_goaway_is_disconnected_when_its_requests_have_ended(app: App, url: str) -> None:
    async with connected(url) as peer:
        peer.request("POST", "/watch", b"hi")
        await peer.pings()
        peer.send(frame(GOAWAY, b"\0" * 8))
        await peer.ends()
    assert app.received[-1] == {"type": "http.disconnect"}


# ---- without h2 -----------------------------------------------------------------------------------------------------


async def test_without_h2_the_port_speaks_http_1_1_and_says_once_what_is_missing(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    support = HTTP2Support()
    support.is_installed = False
    async with serving_http2(app, support) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        for _ in range(2):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(PREFACE)
            async with asyncio.timeout(PATIENCE):
                assert (await reader.read()).startswith(b"HTTP/1.1 400")
            writer.close()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in warnings if "pip install 'apcore-a2a[grpc]'" in text]) == 1
