"""An HTTP/2 connection: h2 implements the protocol, this module the rest: transport, limits, and requests.

Each stream is a request of the same application, so everything behind the connection applies to it as in HTTP/1.1.

Invariant: a client can make the server hold no more than with HTTP/1.1. Requests, bodies, unread responses, frames
without content and silence have limits. A client that exceeds one gets GOAWAY or RST_STREAM with ENHANCE_YOUR_CALM.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, ClassVar, Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from msgspec import Struct

from apcore_a2a.http.server.exchange import AcceptedConnection, Header, Headers, HTTPExchange, encode_headers
from apcore_a2a.http.server.http2_guard import MAX_HEADERS, Flooded, FrameGuard
from apcore_a2a.http.traffic import MIB

logger = logging.getLogger(__name__)

MAX_STREAMS: Final = 100
# A client that does not know the limit yet may open more. They are refused one by one, and the connection goes on.
MAX_STREAMS_OF_H2: Final = 1000
MAX_ABANDONED: Final = 1000  # requests that still run although the client has reset their streams
STREAM_WINDOW: Final = 256 * 1024  # bytes of one body that the application has not received
CONNECTION_WINDOW: Final = MIB  # the same for all bodies of a connection
MAX_UNSENT: Final = 64 * MIB  # bytes of responses that wait for the client of a connection
PIECE: Final = 64 * 1024  # bytes after which the transport is asked whether the client keeps up
SLICE: Final = 16 * 1024  # bytes that h2 receives at once. It copies the rest of its buffer for each frame
LAST_STREAM: Final = 2**31 - 1
DRAIN_PING: Final = b"draining"
PEER_PING: Final = b"listen? "
BODILESS: Final = ("GET", "HEAD")  # no endpoint reads the body of such a request
# HTTP/2 has its own means for these.
HOP_BY_HOP: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})

Codes = h2.errors.ErrorCodes


class HTTP2Timeouts(Struct, frozen=True, kw_only=True):
    """Timeouts of a connection, in seconds. Only tests use other values than the defaults."""

    first_request: float = 15.0
    """Time until the first request is complete, and for each incomplete header block."""
    idle: float = 120.0
    """Time without a request after which the connection closes."""
    check: float = 15.0
    """Interval of these checks. A client that has sent nothing in an interval gets a PING, and has one interval to
    answer it."""
    unread: float = 60.0
    """Time without progress after which a response that the client does not read is reset."""
    unread_at_shutdown: float = 5.0
    """The same during the shutdown of the server."""
    after_goaway: float = 1.0
    """Time that the client has to react to GOAWAY before the connection closes."""


class State(Enum):
    """The states of a connection."""

    OPEN = "requests are accepted"
    ANNOUNCED = "GOAWAY tells the client to open no more streams. Those that it has opened meanwhile are still accepted"
    DRAINING = "no more requests are accepted, and the running ones finish"
    OVER = "what the client sends is ignored, and the connection is about to close"


class _Connection(h2.connection.H2Connection):
    DEFAULT_MAX_HEADER_LIST_SIZE = MAX_HEADERS
    MAX_CLOSED_STREAMS = 1024  # that h2 remembers. Its 65,536 take megabytes for each connection


class _Silent:
    """The logger of h2. The one that h2 has by default takes a tenth of the time of a request."""

    def debug(self, *args: object) -> None: ...
    def trace(self, *args: object) -> None: ...


_CONFIG: Final = h2.config.H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_outbound_headers=False,  # `_response_headers` has done so
    normalize_outbound_headers=False,
    logger=_Silent(),  # type: ignore[arg-type]  # it has the methods that h2 calls
)


class _Unsent:
    """The part of a response's body that waits for the client."""

    __slots__ = ("body", "done", "ends", "has_progressed", "position")

    def __init__(self, body: bytes, *, ends: bool) -> None:
        self.body = body
        self.ends = ends
        self.position = 0
        self.has_progressed = False
        self.done: asyncio.Future[None] | None = None

    @property
    def left(self) -> int:
        return len(self.body) - self.position


class HTTP2Connection(asyncio.Protocol):
    """A connection that has begun with the preface of HTTP/2. `data_received` gets all its bytes, the preface too."""

    timeouts: ClassVar = HTTP2Timeouts()

    def __init__(self, accepted: AcceptedConnection) -> None:
        self._accepted = accepted
        self._loop = accepted.loop
        self.transport = accepted.transport
        self._traffic = accepted.traffic
        self._server_state = accepted.server_state
        self._guard = FrameGuard()
        self._state = State.OPEN
        self._exchanges: dict[int, HTTPExchange] = {}  # those whose streams are open
        self._running = 0  # requests whose application has not returned, those of reset streams included
        self._held: list[HTTPExchange] = []  # heads that wait for their bodies
        self._unsent: dict[HTTPExchange, _Unsent] = {}  # in the order in which they may send next
        self._unsent_bytes = 0
        self._is_paused = False  # the transport's buffer is full
        self._will_flush = False
        self._may_send_more = False  # a window has grown
        self._unread_timeout = self.timeouts.unread
        self._stall_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._has_received = True  # since the last check
        self._headers_since: float | None = None  # when the incomplete headers began
        self._awaits_pong = False
        self._deadline = self._loop.time() + self.timeouts.first_request
        self._check_timer = self._loop.call_later(min(self.timeouts.check, self.timeouts.first_request), self._check)
        self._h2 = self._open()
        self._server_state.connections.add(self)
        self.transport.set_protocol(self)
        self._flush()

    def _open(self) -> _Connection:
        connection = _Connection(_CONFIG)
        values = {
            h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS,
        }
        connection.local_settings = h2.settings.Settings(client=False, initial_values=values)
        connection.initiate_connection()
        connection.increment_flow_control_window(CONNECTION_WINDOW - 65_535)
        values[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = MAX_STREAMS_OF_H2
        connection.local_settings = h2.settings.Settings(client=False, initial_values=values)
        return connection

    # ---- what the client sends --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        for start in range(0, len(data), SLICE):
            if self._state is State.OVER:
                return
            self._receive(data[start : start + SLICE])
        if not self._guard.awaits_headers:
            self._headers_since = None
        elif self._headers_since is None:
            self._headers_since = self._loop.time()
        if self._may_send_more:
            self._may_send_more = False
            self._send_waiting()

    def _receive(self, data: bytes) -> None:
        try:
            self._guard.check(data)
            for event in self._h2.receive_data(data):
                handle = _HANDLERS.get(type(event))
                if handle is not None:
                    handle(self, event)
        except Flooded as flood:
            self._end(str(flood), flood.code)
        except h2.exceptions.ProtocolError as error:  # h2 has prepared the GOAWAY
            self._end(f"HTTP/2: {type(error).__name__}", None)
        except Exception as error:  # a bug of h2, which must not end the server
            logger.debug("HTTP/2 frames could not be read", exc_info=error)
            self._end("HTTP/2: the frames cannot be read", Codes.PROTOCOL_ERROR)
        else:
            self._flush_soon()

    def _request_received(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        if self._is_full():
            self._guard.refused()
            self._reset(stream_id, Codes.REFUSED_STREAM)
            return
        try:
            exchange = HTTPExchange(stream_id, _make_scope(self._accepted, event.headers), self)
        except ValueError:
            self._guard.refused()
            self._reset(stream_id, Codes.PROTOCOL_ERROR)
            return
        self._guard.served()
        self._exchanges[stream_id] = exchange
        self._running += 1
        if (b"expect", b"100-continue") in exchange.scope["headers"]:
            self._call(exchange, self._h2.send_headers, stream_id, [(b":status", b"100")])
        exchange.start(self._accepted.app, self._loop, self._server_state.tasks)

    def _is_full(self) -> bool:
        if self._state in (State.DRAINING, State.OVER):
            return True
        return len(self._exchanges) >= MAX_STREAMS or self._running >= MAX_ABANDONED

    def _data_arrived(self, event: h2.events.DataReceived) -> None:
        exchange = self._exchanges.get(event.stream_id)
        data = event.data or b""
        size = len(data)
        padding = (event.flow_controlled_length or 0) - size
        if exchange is None or not size:
            self._acknowledge(event.stream_id, padding + size)
            return
        if self._traffic.take_body(size, self._accepted.address) is not None:
            self._close_exchange(exchange, Codes.ENHANCE_YOUR_CALM)
            self._acknowledge(event.stream_id, padding + size)
            return
        if exchange.scope["method"] in BODILESS or not exchange.feed(data):
            self._traffic.release_body(size, self._accepted.address)
            padding += size
        self._acknowledge(event.stream_id, padding)

    def _body_ended(self, event: h2.events.StreamEnded) -> None:
        exchange = self._exchanges.get(event.stream_id)
        if exchange is not None:
            exchange.end_body()

    def _stream_reset(self, event: h2.events.StreamReset) -> None:
        exchange = self._exchanges.get(event.stream_id)
        if exchange is not None:
            self._forget(exchange)
        if not event.remote_reset:  # h2 has found an error
            self._guard.refused()

    def _window_grew(self, event: h2.events.Event) -> None:
        self._may_send_more = bool(self._unsent)

    def _pong_received(self, event: h2.events.PingAckReceived) -> None:
        if event.ping_data == DRAIN_PING:
            self._accept_no_more()

    def _goaway_received(self, event: h2.events.ConnectionTerminated) -> None:
        """Disconnect the requests: after the GOAWAY of the client, h2 sends nothing more."""
        self._state = State.DRAINING
        for exchange in list(self._exchanges.values()):
            self._forget(exchange)
        self._close_if_done()

    # ---- the exchanges ----------------------------------------------------------------------------------------------

    def begin(self, exchange: HTTPExchange, status: int, headers: Iterable[Header]) -> Headers:
        return _response_headers(status, (*self._server_state.default_headers, *headers))

    def hold(self, exchange: HTTPExchange) -> None:
        self._held.append(exchange)
        self._flush_soon()

    def write_head(self, exchange: HTTPExchange, head: Headers, *, ends: bool = False) -> None:
        self._call(exchange, self._h2.send_headers, exchange.id, head, ends)

    def write_trailers(self, exchange: HTTPExchange, headers: Headers) -> None:
        self._call(exchange, self._h2.send_headers, exchange.id, headers, True)

    async def write(self, exchange: HTTPExchange, head: Headers | None, body: bytes, *, ends: bool) -> None:
        if head is not None:
            self.write_head(exchange, head, ends=ends and not body)
            ends = ends and bool(body)
        if exchange.is_disconnected:
            return
        if body:
            await self._write(exchange, body, ends=ends)
        elif ends:
            self._call(exchange, self._h2.send_data, exchange.id, b"", True)

    def completed(self, exchange: HTTPExchange) -> None:
        """Make room for another stream, even if the application goes on after its response."""
        if exchange.has_whole_body:
            self._exchanges.pop(exchange.id, None)

    def body_wanted(self, exchange: HTTPExchange) -> None:
        """Do nothing: the windows tell the client how much it may send."""

    async def _write(self, exchange: HTTPExchange, body: bytes, *, ends: bool) -> None:
        unsent = _Unsent(body, ends=ends)
        if not self._unsent and not self._is_paused:  # the usual case: no other response waits
            self._send_some(exchange, unsent, self._room(exchange))
            if not unsent.left or exchange.is_disconnected:
                return
        self._unsent[exchange] = unsent
        self._unsent_bytes += unsent.left
        if self._unsent_bytes > MAX_UNSENT and len(self._unsent) > 1:  # one response may exceed it
            self._close_exchange(exchange, Codes.ENHANCE_YOUR_CALM)
            return
        self._send_waiting()
        await self._until_sent(exchange, unsent)

    async def _until_sent(self, exchange: HTTPExchange, unsent: _Unsent) -> None:
        if not unsent.left or exchange.is_disconnected:
            return
        unsent.done = self._loop.create_future()
        timer = self._loop.call_later(self._unread_timeout, self._check_progress, exchange, unsent)
        try:
            await unsent.done
        finally:
            timer.cancel()

    def _check_progress(self, exchange: HTTPExchange, unsent: _Unsent) -> None:
        """Reset a response that the client has not read any part of since the last check."""
        if unsent.done is None or unsent.done.done():
            return
        if unsent.has_progressed:
            unsent.has_progressed = False
            self._loop.call_later(self._unread_timeout, self._check_progress, exchange, unsent)
            return
        self._traffic.refusals.cut_off_reader(self._accepted.peer, unread=unsent.left)
        self._close_exchange(exchange, Codes.CANCEL)

    def body_taken(self, exchange: HTTPExchange, size: int) -> None:
        self._traffic.release_body(size, self._accepted.address)
        self._acknowledge(exchange.id, size)

    def abort(self, exchange: HTTPExchange) -> None:
        if not exchange.is_disconnected:
            self._close_exchange(exchange, Codes.INTERNAL_ERROR)

    def finished(self, exchange: HTTPExchange) -> None:
        self._running -= 1
        self._server_state.total_requests += 1
        if exchange.id in self._exchanges and not exchange.has_whole_body:
            self._reset(exchange.id, Codes.NO_ERROR)  # RFC 9113 §8.1: the rest of the request is not needed
        self._forget(exchange)
        if not self._running:
            self._deadline = self._loop.time() + self.timeouts.idle
            self._close_if_done()

    def _close_exchange(self, exchange: HTTPExchange, code: Codes) -> None:
        """Reset a stream. Its request goes on without a reader."""
        self._reset(exchange.id, code)
        self._forget(exchange)

    def _forget(self, exchange: HTTPExchange) -> None:
        """Note that a stream is closed."""
        self._exchanges.pop(exchange.id, None)
        unread = exchange.drop_body() if exchange.is_disconnected else exchange.disconnect()
        if unread:
            self.body_taken(exchange, unread)
        unsent = self._unsent.pop(exchange, None)
        if unsent is not None:
            self._unsent_bytes -= unsent.left
            _finish(unsent)
            self._note_unread(has_progressed=False)

    def _call(self, exchange: HTTPExchange, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function of h2 for a stream, which the client may have reset."""
        try:
            function(*arguments)
        except h2.exceptions.ProtocolError:
            self._forget(exchange)
        else:
            self._flush_soon()

    def _reset(self, stream_id: int, code: Codes) -> None:
        try:
            self._h2.reset_stream(stream_id, code)
        except h2.exceptions.ProtocolError:
            return  # it is closed already
        self._flush_soon()

    def _acknowledge(self, stream_id: int, size: int) -> None:
        """Allow the client to send so many bytes more."""
        if size and self._state is not State.OVER:
            self._h2.acknowledge_received_data(size, stream_id)
            self._flush_soon()

    # ---- flow control -----------------------------------------------------------------------------------------------

    def _room(self, exchange: HTTPExchange) -> int:
        """Return how many bytes of a response may be sent now."""
        try:
            return min(self._h2.local_flow_control_window(exchange.id), self._h2.max_outbound_frame_size, PIECE)
        except h2.exceptions.ProtocolError:
            self._forget(exchange)
            return 0

    def _send_some(self, exchange: HTTPExchange, unsent: _Unsent, room: int) -> None:
        """Send the next part of a body, as far as there is room for one frame."""
        if room <= 0:
            return
        begin = unsent.position
        end = min(begin + room, len(unsent.body))
        is_last = end == len(unsent.body)
        piece = unsent.body if end - begin == len(unsent.body) else unsent.body[begin:end]
        self._call(exchange, self._h2.send_data, exchange.id, piece, unsent.ends and is_last)
        unsent.position = end
        unsent.has_progressed = True
        if is_last:
            self._guard.wrote(len(unsent.body))

    def _send_waiting(self) -> None:
        """Send what waits, one frame of each response in turn, until a window or the transport's buffer is full."""
        blocked = 0
        total = 0
        buffered = 0
        while blocked < len(self._unsent) and not self._is_paused and self._h2.outbound_flow_control_window > 0:
            exchange, unsent = next(iter(self._unsent.items()))
            room = self._room(exchange)
            if exchange not in self._unsent:
                continue
            del self._unsent[exchange]
            self._unsent[exchange] = unsent  # now the last in the order
            if room <= 0:
                blocked += 1
                continue
            blocked = 0
            before = unsent.left
            self._send_some(exchange, unsent, room)
            sent = before - unsent.left
            total += sent
            buffered += sent
            if exchange in self._unsent:
                self._unsent_bytes -= sent
                if not unsent.left:
                    del self._unsent[exchange]
                    _finish(unsent)
            if buffered >= PIECE:
                buffered = 0
                self._flush()
        self._note_unread(has_progressed=total > 0)

    def pause_writing(self) -> None:
        self._is_paused = True
        # Answers to its frames would be added to the responses that the client does not read.
        self.transport.pause_reading()
        self._stall_timer = self._loop.call_later(self._unread_timeout, self.disconnect)
        self._note_unread(has_progressed=False)

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self.transport.resume_reading()
        self._send_waiting()
        self._note_unread(has_progressed=True)

    def _note_unread(self, *, has_progressed: bool) -> None:
        """Count the unread bytes of this connection with those of all clients, which have a common limit."""
        if self._unsent or self._is_paused:
            self._traffic.reader_holds(self, has_progressed=has_progressed)
        else:
            self._traffic.reader_done(self)

    def unread(self) -> int:
        return self._unsent_bytes + self.transport.get_write_buffer_size()

    def disconnect(self) -> None:
        self._traffic.refusals.cut_off_reader(self._accepted.peer, unread=self.unread())
        self.transport.abort()

    def _flush_soon(self) -> None:
        """Write at the end of this turn of the event loop, so that what belongs together is one packet."""
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        if self._held:
            held = self._held
            self._held = []
            for exchange in held:
                exchange.write_head()
        data = self._h2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """End an idle or silent connection. Called at intervals."""
        now = self._loop.time()
        begun = self._headers_since
        if begun is not None and now - begun >= self.timeouts.first_request:
            self._end("the headers did not arrive in time", Codes.ENHANCE_YOUR_CALM)
        elif not self._running and now >= self._deadline:
            self.shutdown()
        elif self._running and not self._has_received:
            self._check_peer()
        if self._has_received:
            self._awaits_pong = False
        self._has_received = False
        self._check_timer = self._loop.call_later(self.timeouts.check, self._check)

    def _check_peer(self) -> None:
        """Send a PING to a silent client, because a stream may have no events for hours."""
        if self._awaits_pong and not self._is_paused:
            self.transport.abort()
        elif not self._is_paused and self._state is not State.OVER:
            self._awaits_pong = True
            self._h2.ping(PEER_PING)
            self._flush_soon()

    def shutdown(self) -> None:
        """Let the running requests finish, and accept no more. Called by uvicorn at its shutdown, too."""
        self._unread_timeout = min(self._unread_timeout, self.timeouts.unread_at_shutdown)
        if self._state is not State.OPEN:
            return
        self._state = State.ANNOUNCED
        for exchange in list(self._exchanges.values()):
            if not exchange.has_whole_body:  # its client decides when it is complete
                self._close_exchange(exchange, Codes.REFUSED_STREAM)
        # RFC 9113 §6.8: the client may have opened streams before it reads this. The PING shows when it has.
        self._write_goaway(LAST_STREAM, Codes.NO_ERROR)
        self._h2.ping(DRAIN_PING)
        self._flush()
        self._loop.call_later(self.timeouts.after_goaway, self._accept_no_more)

    def _accept_no_more(self) -> None:
        if self._state is State.ANNOUNCED:
            self._state = State.DRAINING
            self._write_goaway(self._h2.highest_inbound_stream_id, Codes.NO_ERROR)
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._state is State.DRAINING and not self._running:
            self._flush()
            self._close_soon()

    def _end(self, reason: str, code: int | None) -> None:
        """Send GOAWAY and end the connection. Its tasks go on, as after any disconnection."""
        if self._state is State.OVER:
            return
        self._traffic.refusals.refuse_peer(self._accepted.peer, reason)
        if code is None:
            self._flush()
        else:
            self._write_goaway(self._h2.highest_inbound_stream_id, code, reason=reason)
        self._close_soon()
        for exchange in list(self._exchanges.values()):
            self._forget(exchange)

    def _write_goaway(self, last_stream: int, code: int, *, reason: str = "") -> None:
        """Write a GOAWAY. Clients of gRPC show its reason."""
        # Not h2's, which ends the connection in its view, while open streams may finish.
        self._flush()
        if not self.transport.is_closing():
            payload = last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + reason.encode()
            head = len(payload).to_bytes(3, "big") + b"\x07\x00\x00\x00\x00\x00"
            self.transport.write(head + payload)

    def _close_soon(self) -> None:
        """Ignore what the client sends from now on, and close when it does, or after a moment.

        Closing a connection with unread bytes resets it, and the reset may overtake what was written last.
        """
        self._state = State.OVER
        if self._close_timer is None:
            self._close_timer = self._loop.call_later(self.timeouts.after_goaway, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = State.OVER
        self._server_state.connections.discard(self)
        for timer in (self._check_timer, self._stall_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        for exchange in list(self._exchanges.values()):
            self._forget(exchange)
        self._is_paused = False
        self._traffic.reader_done(self)
        self._traffic.connection_closed(self._accepted.address)


_HANDLERS: Final[dict[type, Callable[[HTTP2Connection, Any], None]]] = {  # Any: the event of the key
    h2.events.RequestReceived: HTTP2Connection._request_received,
    h2.events.DataReceived: HTTP2Connection._data_arrived,
    h2.events.StreamEnded: HTTP2Connection._body_ended,
    h2.events.StreamReset: HTTP2Connection._stream_reset,
    h2.events.WindowUpdated: HTTP2Connection._window_grew,
    h2.events.RemoteSettingsChanged: HTTP2Connection._window_grew,
    h2.events.PingAckReceived: HTTP2Connection._pong_received,
    h2.events.ConnectionTerminated: HTTP2Connection._goaway_received,
}


def _finish(unsent: _Unsent) -> None:
    if unsent.done is not None and not unsent.done.done():
        unsent.done.set_result(None)


def _make_scope(accepted: AcceptedConnection, fields: Any) -> dict[str, Any]:  # Any: headers of h2, an ASGI scope
    method = ""
    target = b""
    headers: Headers = []
    cookies: list[bytes] = []
    for name, value in fields:
        if name == b":method":
            method = value.decode("ascii")
        elif name == b":path":
            target = value
        elif name == b":authority":
            headers.append((b"host", value))
        elif name == b"cookie":
            cookies.append(value)
        elif name == b"host" and headers and headers[0][0] == b"host":
            continue  # h2 has checked that it is equal to :authority
        elif not name.startswith(b":"):
            headers.append((name, value))
    if cookies:  # HTTP/2 allows one header for each
        headers.append((b"cookie", b"; ".join(cookies)))
    scope = accepted.make_scope("2", method, target, headers)
    scope["extensions"] = {"http.response.trailers": {}}
    return scope


def _response_headers(status: int, headers: tuple[Header, ...]) -> Headers:
    block: Headers = [(b":status", b"%d" % status)]
    for name, value, _ in encode_headers(headers):
        if name not in HOP_BY_HOP:
            block.append((name, value))
    return block
