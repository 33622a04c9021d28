"""Flow control of HTTP/2: windows, unread responses, streams that end early."""

import asyncio

import pytest

from apcore_a2a.http.server import http2
from apcore_a2a.http.server.http2 import (
    MAX_ABANDONED,
    MAX_STREAMS,
)
from tests.engine.driving import until
from tests.http.server.http2_app import TIMEOUTS, App
from tests.http2_peer import (
    CANCEL,
    DATA,
    ENHANCE_YOUR_CALM,
    HEADERS,
    INITIAL_WINDOW,
    LARGEST,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    connected,
    frame,
    setting,
    window_update,
)

# ---- flow control ---------------------------------------------------------------------------------------------------


async def test_a_response_waits_for_the_window_of_its_stream_while_others_go_on(url: str) -> None:
    async with connected(url, setting(INITIAL_WINDOW, 10)) as peer:
        stream = peer.request("GET", "/large?25")
        await peer.until(lambda got: got.kind == DATA)
        assert (await peer.response(peer.request("GET", "/"))).body == b"hello"
        assert peer.received(stream) == b"x" * 10
        peer.send(window_update(10, stream))
        await peer.until(lambda got: got.kind == DATA)
        peer.send(frame(SETTINGS, setting(INITIAL_WINDOW, 15)))
        assert (await peer.response(stream)).body == b"x" * 25


async def test_responses_share_the_window_of_the_connection(url: str) -> None:
    size = 200_000
    async with connected(url, setting(INITIAL_WINDOW, LARGEST)) as peer:
        streams = [peer.request("GET", f"/large?{size}") for _ in range(3)]
        await peer.pings()
        given = 65_535
        while not all(len(peer.received(stream)) == size for stream in streams):
            peer.send(window_update(30_000))
            given += 30_000
            await peer.pings()
            lengths = [len(peer.received(stream)) for stream in streams]
            assert max(lengths) - min(lengths) <= 65_535 + 16_384  # the first had the first window
        for stream in streams:
            assert len((await peer.response(stream)).body) == size


async def test_a_response_that_is_not_read_is_reset_and_counted(app: App, short_url: str) -> None:
    async with connected(short_url, setting(INITIAL_WINDOW, 10)) as peer:
        stream = peer.request("GET", "/large?25")
        got = await peer.until(lambda got: got.kind == RST_STREAM)
        assert (got.stream, got.code) == (stream, CANCEL)
        assert app.traffic.refusals.readers == 1
        assert app.traffic.answer_bytes == 0
        assert (await peer.response(peer.request("GET", "/"))).status == 200


async def test_a_response_that_is_read_slowly_but_steadily_is_not_reset(short_url: str) -> None:
    async with connected(short_url, setting(INITIAL_WINDOW, 5)) as peer:
        stream = peer.request("GET", "/large?60")
        for _ in range(11):
            await peer.until(lambda got: got.kind == DATA)
            await asyncio.sleep(TIMEOUTS.unread / 3)  # in all, several times the timeout
            peer.send(window_update(5, stream))
        assert (await peer.response(stream)).body == b"x" * 60


async def test_unread_responses_of_a_connection_have_a_limit(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MAX_UNSENT", 100_000)
    async with connected(url, setting(INITIAL_WINDOW, 0)) as peer:
        first = peer.request("GET", "/large?90000")
        await peer.until(lambda got: got.stream == first)
        second = peer.request("GET", "/large?90000")
        got = await peer.until(lambda got: got.kind == RST_STREAM)
        assert (got.stream, got.code) == (second, ENHANCE_YOUR_CALM)
        assert app.traffic.answer_bytes == 90_000
        peer.send(window_update(90_000, first), window_update(90_000))
        assert len((await peer.response(first)).body) == 90_000
        await peer.pings()
        assert app.traffic.answer_bytes == 0


async def test_of_several_connections_the_one_that_reads_nothing_is_closed(app: App, url: str) -> None:
    app.traffic.max_answer_bytes = 100_000
    closed = setting(INITIAL_WINDOW, 0)
    async with connected(url, closed) as silent, connected(url, closed) as other:
        silent.request("GET", "/large?90000")
        await silent.until(lambda got: got.kind == HEADERS)
        stream = other.request("GET", "/large?90000")
        await other.until(lambda got: got.kind == HEADERS)
        await silent.ends()
        other.send(window_update(90_000, stream), window_update(90_000))
        assert len((await other.response(stream)).body) == 90_000


# ---- streams that end early -----------------------------------------------------------------------------------------


async def test_a_reset_disconnects_the_request_which_goes_on(app: App, url: str) -> None:
    async with connected(url) as peer:
        watching = peer.request("POST", "/watch", b"hi")
        waiting = peer.request("GET", "/wait")
        await peer.pings()
        for stream in (watching, waiting):
            peer.send(frame(RST_STREAM, CANCEL.to_bytes(4, "big"), stream=stream))
        await peer.pings()
        assert app.received[-1] == {"type": "http.disconnect"}
        assert app.ended == ["/watch"]
        app.gate.set()
        assert (await peer.response(peer.request("GET", "/"))).status == 200
        assert "/wait" in app.ended


async def test_more_streams_than_the_limit_are_refused_one_by_one(app: App, url: str) -> None:
    async with connected(url) as peer:
        streams = [peer.request("GET", "/wait") for _ in range(MAX_STREAMS + 5)]
        refused = [await peer.until(lambda got: got.kind == RST_STREAM) for _ in range(5)]
        assert [(got.stream, got.code) for got in refused] == [(stream, REFUSED_STREAM) for stream in streams[-5:]]
        app.gate.set()
        for stream in streams[:-5]:
            assert (await peer.response(stream)).status == 200


async def test_requests_that_still_run_after_a_reset_have_a_limit(
    app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "MAX_ABANDONED", 20)
    assert MAX_ABANDONED > MAX_STREAMS
    async with connected(url) as peer:
        for _ in range(20):
            stream = peer.request("GET", "/wait")
            peer.send(frame(RST_STREAM, CANCEL.to_bytes(4, "big"), stream=stream))
        stream = peer.request("GET", "/")
        got = await peer.until(lambda got: got.kind == RST_STREAM)
        assert (got.stream, got.code) == (stream, REFUSED_STREAM)
        app.gate.set()
        await peer.pings()
        await peer.pings()
        assert (await peer.response(peer.request("GET", "/"))).status == 200


async def test_a_lost_connection_disconnects_all_its_requests(app: App, url: str) -> None:
    async with connected(url) as peer:
        for _ in range(3):
            peer.request("POST", "/watch", b"hi")
        await peer.pings()
    await until(lambda: app.ended == ["/watch"] * 3 and not app.traffic.connections)
    assert app.traffic.body_bytes == 0
