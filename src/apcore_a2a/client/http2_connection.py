"""A connection over HTTP/2: h2 implements the protocol, this module requests, flow control and limits.

Invariants: a reader that is slow delays no other stream of its connection, and a stream holds at most STREAM_WINDOW
bytes that are unread. A request that the server has not processed fails with `sent=False`, so it may be sent again.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from enum import Enum
from typing import Any, Final, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from apcore_a2a.client.transport import NoHTTP2Error, broken, connect_failure, not_reached
from apcore_a2a.errors import A2AConnectionError

logger = logging.getLogger(__name__)

ALPN: Final = "h2"
NO_HTTP2: Final = "the server does not speak HTTP/2, which gRPC needs"
MAX_FRAME: Final = 16_384  # bytes of a payload: the smallest maximum that HTTP/2 allows
MAX_HEADERS: Final = 64 * 1024  # bytes of the headers of a response
MAX_STREAMS: Final = 1000  # of a connection, even if the server allows more
MAX_REQUESTS: Final = 2**29  # of a connection. Numbers of streams end at 2**31
STREAM_WINDOW: Final = 256 * 1024
CONNECTION_WINDOW: Final = 1024 * 1024
SLICE: Final = 16 * 1024  # bytes that h2 receives at once. It copies the rest of its buffer for each frame
KEEP_OPEN: Final = 60.0  # seconds without a stream after which a connection closes. Servers close it later
# A PING checks whether the server of a silent connection still exists. grpc-core closes connections with more PINGs
# than one in five minutes. Keep-alive probes of TCP find dead hosts in between.
PING_WAIT: Final = 10.0
PING_INTERVAL: Final = 300.0
KEEP_ALIVE_PROBES: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
# Frames that carry nothing (SETTINGS, PING, WINDOW_UPDATE, DATA of a few bytes, unknown types) take 20 µs each. The
# server may send so many at once, so many per second, and some for each request and frame of DATA that it receives.
FREE_FRAMES: Final = 2_000.0
FRAMES_PER_SECOND: Final = 200.0
PER_SENT_FRAME: Final = 4.0
SMALL: Final = 32  # bytes of DATA. The smallest event has more
DATA: Final = 0
HEADERS: Final = 1
GOAWAY: Final = 7

Codes = h2.errors.ErrorCodes


class _NoLog:
    """The logger of h2. The one that h2 has by default takes a tenth of the time of a request."""

    def debug(self, *args: object) -> None: ...
    def trace(self, *args: object) -> None: ...


_CONFIG: Final = h2.config.H2Configuration(
    client_side=True,
    header_encoding=None,
    logger=_NoLog(),  # type: ignore[arg-type]  # it has the methods that h2 calls
)


class HTTP2Stream:
    """A request and its response."""

    __slots__ = (
        "_chunks",
        "_connection",
        "_consumed",
        "_error",
        "_idle",
        "_waiter",
        "headers",
        "id",
        "is_complete",
        "is_sent",
        "status",
        "trailers",
        "url",
    )

    def __init__(self, id: int, url: str, connection: "Connection", idle: float | None) -> None:
        self.id = id
        self.url = url
        self.status = 0  # until the headers of the response have arrived
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.is_sent = False  # the request is complete
        self.is_complete = False  # the response is complete
        self._connection = connection
        self._idle = idle
        self._chunks: deque[bytes] = deque()
        self._consumed = 0  # bytes that the server may send again
        self._error: A2AConnectionError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.is_complete or self._error is not None

    def add(self, data: bytes, padding: int) -> None:
        self._consumed += padding
        if data:
            self._chunks.append(data)
        self.wake()

    def end(self) -> None:
        self.is_complete = True
        self.wake()

    def fail(self, error: A2AConnectionError) -> None:
        """End the stream with an error, unless it has ended."""
        if not self.is_over:
            self._error = error
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def change(self) -> None:
        """Wait until something has happened. The caller checks what."""
        self._waiter = asyncio.get_running_loop().create_future()
        if self._idle is None:
            await self._waiter
            return
        while not self._waiter.done():
            done, _ = await asyncio.wait((self._waiter,), timeout=self._idle)
            if not done:
                self._connection.check_server(self._idle)

    async def head(self) -> None:
        """Wait for the headers of the response."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self.change()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body of the response. After it, the trailers are complete."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._consumed += len(chunk)
                if self._consumed >= STREAM_WINDOW // 2 and not self.is_over:
                    self._connection.allow_more(self._consumed, self.id)
                    self._consumed = 0
                yield chunk
            if self._error is not None:
                raise self._error
            if self.is_complete:
                return
            await self.change()


class _Phase(Enum):
    """The states of a connection."""

    CONNECTING = "the settings of the server have not arrived"
    OPEN = "new streams may open"
    DRAINING = "the server accepts no more streams, and the open ones finish"
    OVER = "the connection is closed, or about to close"


class _H2(h2.connection.H2Connection):
    DEFAULT_MAX_HEADER_LIST_SIZE = MAX_HEADERS
    MAX_CLOSED_STREAMS = 1024  # that h2 remembers. Its 65,536 take megabytes for each connection


class Connection(asyncio.Protocol):
    """A connection to a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, keep_open: float = KEEP_OPEN) -> None:
        self._loop = loop
        self._keep_open = keep_open
        self._phase = _Phase.CONNECTING
        self._transport: asyncio.Transport | None = None
        self._begun: asyncio.Future[None] = loop.create_future()
        self._h2 = _H2(_CONFIG)
        self._frames = _FrameSplitter()
        self._streams: dict[int, HTTP2Stream] = {}
        self._requests = 0
        self._is_paused = False  # the transport's buffer is full
        self._will_flush = False
        self._unacknowledged = 0  # bytes that have arrived since the last WINDOW_UPDATE of the connection
        self._received_at = loop.time()
        self._pinged_at: float | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._idle_since = loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        return self._phase is _Phase.OVER

    @property
    def has_room(self) -> bool:
        allowed = min(self._h2.remote_settings.max_concurrent_streams, MAX_STREAMS)
        return self._phase is _Phase.OPEN and len(self._streams) < allowed and self._requests < MAX_REQUESTS

    # ---- the beginning ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of a TCP connection
        secure = transport.get_extra_info("ssl_object")
        if secure is not None and secure.selected_alpn_protocol() != ALPN:
            self.close(NO_HTTP2)
            return
        _probe(transport.get_extra_info("socket"))
        self._h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW - 65_535)
        self._flush()

    async def begun(self) -> None:
        """Wait for the settings of the server: they contain the number of streams that it allows."""
        await self._begun
        if not self.has_room:
            raise A2AConnectionError("the server accepts no requests")

    # ---- what the server sends --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        try:
            for kind, frames in self._frames.feed(data, self._received_at):
                if self._phase is _Phase.OVER:
                    return
                if kind == GOAWAY:
                    self._goaway_received(frames)
                    continue
                for event in self._h2.receive_data(frames):
                    handle = _HANDLERS.get(type(event))
                    if handle is not None:
                        handle(self, event)
        except ValueError as error:
            self.close(str(error))
        except h2.exceptions.ProtocolError as error:  # h2 has prepared the GOAWAY
            self._flush()
            self.close(f"its frames cannot be read ({type(error).__name__})")
        except Exception as error:  # a bug of h2, which must not end the program
            logger.debug("HTTP/2 frames could not be read", exc_info=error)
            self.close("its frames cannot be read")
        else:
            self._flush_soon()

    def _settings_received(self, event: h2.events.RemoteSettingsChanged) -> None:
        if self._phase is _Phase.CONNECTING:
            self._phase = _Phase.OPEN
            self._idle_timer = self._loop.call_later(self._keep_open, self._close_if_idle)
            if not self._begun.done():
                self._begun.set_result(None)
        self._wake_all()  # the window of each stream may have grown

    def _head_received(self, event: h2.events.ResponseReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.headers |= _read_headers(event.headers)
            status = stream.headers.pop(":status", "")
            stream.status = int(status) if status.isdecimal() and len(status) == 3 else 502
            stream.wake()

    def _trailers_received(self, event: h2.events.TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.trailers |= _read_headers(event.headers)

    def _data_arrived(self, event: h2.events.DataReceived) -> None:
        size = event.flow_controlled_length or 0
        self._pinged_at = None  # grpc-core allows further PINGs after data
        # The connection's window opens at once, whether the bytes are read or not: a slow reader delays only itself.
        self._unacknowledged += size
        if self._unacknowledged >= CONNECTION_WINDOW // 2:
            self.allow_more(self._unacknowledged)
            self._unacknowledged = 0
        stream = self._streams.get(event.stream_id)
        data = event.data or b""
        if stream is not None:
            stream.add(data, size - len(data))

    def _response_ended(self, event: h2.events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.end()

    def _stream_reset(self, event: h2.events.StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        if event.error_code == Codes.REFUSED_STREAM:  # RFC 9113 §8.7: the server has not processed it
            stream.fail(not_reached(stream.url, "the server refused the request"))
        else:
            stream.fail(broken(stream.url, f"the agent reset the stream ({_name_code(event.error_code)})"))

    def _window_grew(self, event: h2.events.WindowUpdated) -> None:
        if event.stream_id == 0:
            self._wake_all()
            return
        stream = self._streams.get(event.stream_id or 0)
        if stream is not None:
            stream.wake()

    def _goaway_received(self, payload: bytes) -> None:
        """Open no more streams. Those that the server has begun to process go on.

        h2 does not see the frame, because it would send and receive nothing more.
        """
        last_stream = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
        code = int.from_bytes(payload[4:8], "big")
        for stream in list(self._streams.values()):
            if stream.id > last_stream:
                stream.fail(not_reached(stream.url, f"the server is closing the connection ({_name_code(code)})"))
        if self._phase is _Phase.CONNECTING:
            self.close(f"the server closed the connection ({_name_code(code)})")
            return
        self._phase = _Phase.DRAINING
        self._close_if_done()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def open_stream(
        self, url: str, headers: list[tuple[bytes, bytes]], *, ends: bool, idle: float | None
    ) -> HTTP2Stream:
        stream_id = self._h2.get_next_available_stream_id()
        try:
            self._h2.send_headers(stream_id, headers, end_stream=ends)
        except h2.exceptions.ProtocolError as error:
            raise not_reached(url, f"the request cannot be sent ({error})") from error
        stream = HTTP2Stream(stream_id, url, self, idle)
        stream.is_sent = ends
        self._requests += 1
        self._frames.sent()
        self._streams[stream_id] = stream
        self._flush_soon()
        return stream

    async def send_body(self, stream: HTTP2Stream, body: bytes) -> None:
        """Send a body as the server reads it. Return early if the stream is over: the response may not need it."""
        position = 0
        while not stream.is_sent and not stream.is_over:
            room = self._room(stream)
            if room <= 0:
                await stream.change()
                continue
            piece = body[position : position + room]
            position += len(piece)
            stream.is_sent = position == len(body)
            try:
                self._h2.send_data(stream.id, piece, end_stream=stream.is_sent)
                self._frames.sent()
            except h2.exceptions.ProtocolError:  # the server has reset it
                stream.fail(broken(stream.url, "the agent reset the stream"))
            self._flush_soon()

    def _room(self, stream: HTTP2Stream) -> int:
        """Return how many bytes may be sent now."""
        if self._is_paused:
            return 0
        try:
            return min(self._h2.local_flow_control_window(stream.id), self._h2.max_outbound_frame_size)
        except h2.exceptions.ProtocolError:
            stream.fail(broken(stream.url, "the agent reset the stream"))
            return 0

    def release(self, stream: HTTP2Stream) -> None:
        """Forget a stream. If it is not over, reset it: its response is not needed."""
        self._streams.pop(stream.id, None)
        if self._phase is _Phase.OVER:
            return
        if not (stream.is_sent and stream.is_complete):
            try:
                self._h2.reset_stream(stream.id, Codes.CANCEL)
            except h2.exceptions.ProtocolError:
                pass  # it is closed already
            self._flush_soon()
        if not self._streams:
            self._idle_since = self._loop.time()
            self._close_if_done()

    def allow_more(self, size: int, stream_id: int | None = None) -> None:
        """Let the server send so many bytes more: of one stream, or of all streams together."""
        try:
            self._h2.increment_flow_control_window(size, stream_id)
        except (h2.exceptions.ProtocolError, KeyError):
            return  # the stream is closed
        self._flush_soon()

    # ---- writing ----------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """Write at the end of this turn of the event loop, so that what belongs together is one packet."""
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._wake_all()

    def _wake_all(self) -> None:
        for stream in self._streams.values():
            stream.wake()

    # ---- silence and the end ----------------------------------------------------------------------------------------

    def check_server(self, idle: float) -> None:
        """Send a PING to a server that has been silent for `idle` seconds."""
        now = self._loop.time()
        if self._phase is _Phase.OVER or now - self._received_at < idle or self._ping_timer is not None:
            return
        if self._pinged_at is not None and now - self._pinged_at < PING_INTERVAL:
            return
        self._pinged_at = now
        self._h2.ping(b"you here")
        self._flush_soon()
        self._ping_timer = self._loop.call_later(min(idle, PING_WAIT), self._check_pong, now)

    def _check_pong(self, pinged_at: float) -> None:
        self._ping_timer = None
        if self._received_at < pinged_at:
            self.abort("the agent sent nothing within the idle timeout")

    def _close_if_idle(self) -> None:
        """Close the connection if it has had no stream for a while. Called at intervals."""
        if not self._streams and self._loop.time() - self._idle_since >= self._keep_open:
            self.close("it was idle")
        else:
            self._idle_timer = self._loop.call_later(self._keep_open, self._close_if_idle)

    def _close_if_done(self) -> None:
        if self._phase is _Phase.DRAINING and not self._streams:
            self.close("the server was draining")

    def close(self, reason: str) -> None:
        """Write what is left, and close the connection."""
        self._flush()
        self._end(reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str = "the connection was not needed") -> None:
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(connect_failure(exc) if exc is not None else "the agent closed the connection")

    def _end(self, reason: str) -> None:
        if self._phase is _Phase.OVER:
            return
        self._phase = _Phase.OVER
        for timer in (self._ping_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        if not self._begun.done():
            kind = NoHTTP2Error if reason == NO_HTTP2 else A2AConnectionError
            self._begun.set_exception(kind(reason, sent=False))
            self._begun.exception()  # nothing waits for it if the connection failed in its first moment
        for stream in list(self._streams.values()):
            stream.fail(broken(stream.url, reason))


_HANDLERS: Final[dict[type, Callable[[Connection, Any], None]]] = {  # Any: the event of the key
    h2.events.RemoteSettingsChanged: Connection._settings_received,
    h2.events.ResponseReceived: Connection._head_received,
    h2.events.TrailersReceived: Connection._trailers_received,
    h2.events.DataReceived: Connection._data_arrived,
    h2.events.StreamEnded: Connection._response_ended,
    h2.events.StreamReset: Connection._stream_reset,
    h2.events.WindowUpdated: Connection._window_grew,
}


class _FrameSplitter:
    """Splits what the server sends into complete frames, and finds the GOAWAY frames, which h2 must not see."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._has_begun = False
        self._free = FREE_FRAMES
        self._seen_at = 0.0

    def sent(self) -> None:
        """Allow frames for one that the server receives."""
        self._free = min(FREE_FRAMES, self._free + PER_SENT_FRAME)

    def feed(self, data: bytes, now: float) -> Iterator[tuple[int, bytes]]:
        """Yield the payload of each GOAWAY with its kind, and the other frames with 0, as many as fit into a slice.

        Raises:
            ValueError: These are not the frames of HTTP/2, one is too large, or too many carry nothing.
        """
        self._free = min(FREE_FRAMES, self._free + (now - self._seen_at) * FRAMES_PER_SECOND)
        self._seen_at = now
        buffer = self._buffer
        buffer += data
        self._check_beginning()
        begin = 0
        end = 0
        while len(buffer) - end >= 9:
            size = int.from_bytes(buffer[end : end + 3], "big")
            if size > MAX_FRAME:
                raise ValueError("it sent a frame that is too large")
            stop = end + 9 + size
            if stop > len(buffer):
                break
            kind = buffer[end + 3]
            self._count(kind, size)
            is_goaway = kind == GOAWAY
            if is_goaway or stop - begin > SLICE:
                if end > begin:
                    yield 0, bytes(buffer[begin:end])
                begin = end
            if is_goaway:
                yield GOAWAY, bytes(buffer[end + 9 : stop])
                begin = stop
            end = stop
        if end > begin:
            yield 0, bytes(buffer[begin:end])
        del buffer[:end]

    def _check_beginning(self) -> None:
        """Recognize a server that answers with HTTP/1.1."""
        if not self._has_begun and len(self._buffer) >= 9:
            self._has_begun = True
            if self._buffer.startswith(b"HTTP/"):
                raise ValueError(NO_HTTP2)

    def _count(self, kind: int, size: int) -> None:
        if kind == HEADERS or (kind == DATA and size >= SMALL):
            return
        self._free -= 1
        if self._free < 0:
            raise ValueError("it sent too many frames without content")


def _read_headers(fields: Any) -> dict[str, str]:  # Any: headers of h2
    headers: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name = raw_name.decode("latin-1")
        value = raw_value.decode("latin-1")
        if name in headers:
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _name_code(code: Any) -> str:  # Any: a code of h2, or a number that it does not know
    try:
        return Codes(code).name
    except ValueError:
        return str(code)


def _probe(connected: socket.socket | None) -> None:
    """Turn on keep-alive probes of TCP, which find a host that no longer exists."""
    if connected is None:
        return
    try:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE_PROBES:
            option = getattr(socket, name, None)
            if option is not None:  # not every system has all of them
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError as error:
        logger.debug("TCP keep-alive is not available", exc_info=error)
