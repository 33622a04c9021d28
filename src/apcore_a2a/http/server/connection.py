"""uvicorn's HTTP protocol with limits: coalesced writes, no upgrades, and a timeout for every wait.

A connection that begins with the preface of HTTP/2 is handed over to `HTTP2Connection`.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, Final

import httptools
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from apcore_a2a.http.server.exchange import AcceptedConnection
from apcore_a2a.http.traffic import CERTIFICATE_KEY, HTTP2_KEY, KEY, Room, Traffic
from apcore_a2a.web import NO_STORE, SAFE

# A connection is closed if its headers are too slow or too large, if its client goes on sending a body after the
# response, or if the client does not read its response. Connections over the limit are closed as well.
#
# uvicorn limits neither the time nor the size of a request's headers, nor the number of connections, and waits forever
# for a client that reads nothing. A few hundred such connections would block it.

MAX_HEADERS: Final = 64 * 1024
CHECKS: Final = 4  # how often the progress of a client that does not read is checked until its timeout


class ConnectionTimeouts(Struct, frozen=True, kw_only=True):
    """Timeouts of a connection, in seconds. Only tests use other values than the defaults."""

    headers: float = 15.0
    """Time to receive the headers of a request. It begins when the connection opens, or with data after a response."""
    unread: float = 60.0
    """Time without progress after which a client that does not read its response is disconnected."""
    unread_at_shutdown: float = 5.0
    """The same during the shutdown of the server."""


def _last_answer(status: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Return the bytes of a complete response, after which the connection closes."""
    length = b"%d" % len(body)
    lines = [b"HTTP/1.1 " + status]
    for name, value in (*headers, *SAFE, *NO_STORE, (b"connection", b"close"), (b"content-length", length)):
        lines.append(name + b": " + value)
    return b"\r\n".join((*lines, b"", body))


def _overloaded(message: bytes) -> bytes:
    body = (
        b'{"error":{"code":503,"status":"UNAVAILABLE","message":"%s","details":'
        b'[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"OVERLOADED",'
        b'"domain":"a2a-protocol.org","metadata":{"type":"OverloadedError"}}]}}' % message
    )
    return _last_answer(
        b"503 Service Unavailable", ((b"content-type", b"application/json"), (b"retry-after", b"1")), body
    )


NO_ROOM: Final = {
    Room.ALL_TAKEN: _overloaded(b"The agent is at its limit of connections; try again later"),
    Room.SHARE_TAKEN: _overloaded(b"Your address is at its limit of connections; try again later"),
}
SHUTTING_DOWN: Final = _overloaded(b"The agent is shutting down")
# uvicorn logs a warning for each invalid request, and two for each that asks for a WebSocket, so any client could fill
# the disk. Its errors are still logged. This is a filter and not a level, because uvicorn resets levels.
_UVICORN: Final = logging.getLogger("uvicorn.error.connections")
_UVICORN.addFilter(lambda record: record.levelno >= logging.ERROR)


PRI: Final = b"PRI "  # how the preface of HTTP/2 begins. No method of HTTP/1.1 has this name
Opener = Callable[[AcceptedConnection], asyncio.Protocol]


class HTTP2Support:
    """Whether and how a server speaks HTTP/2. The code for it is loaded with the first connection that uses it."""

    def __init__(self) -> None:
        self.is_installed = find_spec("h2") is not None
        self.opener: Opener | None = None
        self._has_logged = False

    def load(self) -> Opener:
        """Load the code, which takes a tenth of a second. Called on a thread."""
        from apcore_a2a.http.server.http2 import HTTP2Connection  # an optional extra

        self.opener = HTTP2Connection
        return HTTP2Connection

    def log_missing(self) -> None:
        """Log once that a client needs HTTP/2."""
        if not self._has_logged:
            self._has_logged = True
            text = "a client asked for HTTP/2, as gRPC clients do, which needs h2: pip install 'apcore-a2a[grpc]'"
            logging.getLogger(__name__).warning(text)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits. A request that arrives in one piece costs four comparisons."""

    timeouts: ClassVar = ConnectionTimeouts()  # an attribute of the class, because uvicorn creates its instances

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: arguments of uvicorn
        super().__init__(*args, **kwargs)
        self.logger = _UVICORN
        self.parser: Any = OneProtocolParser(self.parser, self)
        # The application of this package puts its `Traffic` there. Without it, connections have no shared limits.
        self._guard_traffic: Traffic = self.app_state.get(KEY) or Traffic()
        self._guard_address = ""  # the address for which this connection counts
        self._guard_header_timer: asyncio.TimerHandle | None = None
        self._guard_check_timer: asyncio.TimerHandle | None = None
        self._guard_idle_checks = 0
        self._guard_bytes = 0
        self._guard_unread_timeout = self.timeouts.unread
        self._guard_is_stopping = False
        self._guard_first = b""  # the first bytes, as long as they may be those of HTTP/2
        self._guard_is_http1 = False
        self._guard_transport: Any = None  # Any: asyncio's or uvloop's, with or without TLS
        self._guard_is_lost = False

    def connection_made(self, transport: Any) -> None:
        self._guard_transport = transport
        super().connection_made(CoalescingTransport(transport))  # type: ignore[arg-type]  # it delegates all other attributes
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.context.verify_mode is not ssl.CERT_NONE:
            # The scope of each request of this connection has it. A copy, because all connections share the original.
            self.app_state = {**self.app_state, CERTIFICATE_KEY: tls.getpeercert(binary_form=True)}
        traffic = self._guard_traffic
        self._guard_address = traffic.address_of(self._guard_peer())
        room = traffic.connection_opened(self._guard_address)
        if room is Room.FREE:
            self._guard_start_header_timer()
            return
        if room is Room.ALL_TAKEN:
            traffic.refusals.refuse_connection(self._guard_peer(), limit=traffic.max_connections)
        else:
            traffic.refusals.refuse_address(self._guard_address, limit=traffic.max_connections_per_address)
        self.transport.write(NO_ROOM[room])
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        before: Any = self.scope  # Any: None before the first request, like the cycle
        if before is None:
            data = self._guard_first_data(data)
            if not data:
                return
        HttpToolsProtocol.data_received(self, data)
        cycle: Any = self.cycle
        if cycle is not None and cycle.scope is self.scope:  # a cycle exists once the headers are complete
            self._guard_bytes = 0
            # Data of the same request after its response is the rest of a body that the application did not read. It
            # stops uvicorn's keep-alive timer, and uvicorn does not start it again. So the header timer has to limit
            # the wait for the next request.
            if cycle.response_complete:
                self._guard_start_header_timer()
            elif self._guard_header_timer is not None:
                self._guard_stop_header_timer()
            return
        # The data in which a later request begins is not counted, because it may contain the previous request's end.
        if before is None or before is self.scope:
            self._guard_bytes += len(data)
        if self._guard_bytes > MAX_HEADERS:
            self.transport.close()
        else:
            self._guard_start_header_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request. uvicorn's own response lacks the headers of all other responses."""
        self._guard_traffic.refusals.refuse_peer(self._guard_peer(), "the request is not valid HTTP")
        headers = (*self.server_state.default_headers, (b"content-type", b"text/plain; charset=utf-8"))
        self.transport.write(_last_answer(b"400 Bad Request", headers, msg.encode()))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard_is_lost = True
        self._guard_stop_header_timer()
        self._guard_stop_watching()
        self._guard_traffic.connection_closed(self._guard_address)
        super().connection_lost(exc)

    # ---- HTTP/2 ---------------------------------------------------------------------------------------------------

    def _guard_first_data(self, data: bytes) -> bytes:
        """Return the first data for HTTP/1.1. Return nothing if it belongs to HTTP/2, or may still do so."""
        if self._guard_is_http1:
            return data
        data = self._guard_first + data
        if len(data) < len(PRI) and PRI.startswith(data):
            self._guard_first = data
            return b""
        self._guard_first = b""
        self._guard_is_http1 = True
        support: HTTP2Support | None = self.app_state.get(HTTP2_KEY)
        if support is None or not data.startswith(PRI):
            return data
        if not support.is_installed:
            support.log_missing()
            return data  # which is invalid in HTTP/1.1
        if support.opener is not None:
            self._guard_hand_over(support.opener, data)
            return b""
        self._guard_transport.pause_reading()
        loading = self.loop.run_in_executor(None, support.load)
        loading.add_done_callback(partial(self._guard_loaded, data))
        return b""

    def _guard_loaded(self, data: bytes, loading: "asyncio.Future[Opener]") -> None:
        if self._guard_is_lost:
            return
        self._guard_hand_over(loading.result(), data)
        self._guard_transport.resume_reading()

    def _guard_hand_over(self, opener: Opener, data: bytes) -> None:
        """Pass the connection on, with its place in the limits. This protocol is not used any more."""
        self._guard_stop_header_timer()
        self.connections.discard(self)
        accepted = AcceptedConnection(
            app=self.app,
            loop=self.loop,
            transport=self._guard_transport,
            client=self.client,
            server=self.server,
            scheme=self.scheme or "http",
            root_path=self.root_path,
            state=self.app_state,
            server_state=self.server_state,
            traffic=self._guard_traffic,
            address=self._guard_address,
        )
        opener(accepted).data_received(data)

    # ---- shutdown -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Let a complete request finish, and reject one whose body is incomplete: its client decides when it ends."""
        self._guard_is_stopping = True
        self._guard_unread_timeout = self.timeouts.unread_at_shutdown
        cycle: Any = self.cycle  # Any: None before the first request
        is_receiving = cycle is not None and cycle.more_body and not cycle.response_started
        if is_receiving and not self.pipeline:
            self.transport.write(SHUTTING_DOWN)
            self.transport.close()
        else:
            super().shutdown()
        if self.unread():
            self._guard_watch_reader()

    def on_response_complete(self) -> None:
        if self._guard_is_stopping:
            self.transport.close()  # requests behind this one, whose body may be incomplete, are not answered
        super().on_response_complete()
        if self.transport.is_closing() and self.unread():
            self._guard_watch_reader()

    # ---- unread responses -----------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._guard_watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread():  # most is read, and the rest counts until it is read
            self._guard_traffic.has_read_more(self)
        else:
            self._guard_stop_watching()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()  # which closes once the client has read everything
        if self.unread():
            self._guard_watch_reader()

    def unread(self) -> int:
        try:
            return self.transport.get_write_buffer_size()
        except AttributeError:  # asyncio's TLS transport, closed a second time, has let go of its buffer
            return 0

    def disconnect(self) -> None:
        self._guard_traffic.refusals.cut_off_reader(self._guard_peer(), unread=self.unread())
        self.transport.abort()  # close() would wait for the client to read everything

    def _guard_watch_reader(self) -> None:
        """Check the client's progress from now on, until it has read everything."""
        self._guard_stop_watching()
        self._guard_idle_checks = 0
        self._guard_check_timer = self.loop.call_later(self._guard_unread_timeout / CHECKS, self._guard_check)
        self._guard_traffic.reader_waits(self)

    def _guard_check(self) -> None:
        if not self.unread():
            self._guard_stop_watching()
            return
        if self._guard_traffic.has_read_more(self):
            self._guard_idle_checks = 0
        else:
            self._guard_idle_checks += 1
        if self._guard_idle_checks >= CHECKS:
            self.disconnect()
        else:
            self._guard_check_timer = self.loop.call_later(self._guard_unread_timeout / CHECKS, self._guard_check)

    def _guard_stop_watching(self) -> None:
        if self._guard_check_timer is not None:
            self._guard_check_timer.cancel()
            self._guard_check_timer = None
            self._guard_traffic.reader_done(self)

    # ---- headers --------------------------------------------------------------------------------------------------

    def _guard_start_header_timer(self) -> None:
        if self._guard_header_timer is None:
            self._guard_header_timer = self.loop.call_later(self.timeouts.headers, self._too_slow)

    def _guard_stop_header_timer(self) -> None:
        if self._guard_header_timer is not None:
            self._guard_header_timer.cancel()
            self._guard_header_timer = None

    def _guard_peer(self) -> str:
        return self.client[0] if self.client else ""

    def _too_slow(self) -> None:
        self._guard_header_timer = None
        self.transport.close()


# ---- coalesced writes -----------------------------------------------------------------------------------------------
# uvicorn writes the head of a response and then its body. Each write is a system call and a packet, and the two cost a
# tenth of a small request. Here the head waits for the body, but only until the next turn of the event loop, so the
# head of a stream is sent at once even if its first event is late.

LARGE: Final = 64 * 1024  # bytes of a body that is too large to copy
HEAD: Final = b"HTTP/1.1 "  # how every head begins. A body that begins so waits for one turn, which is harmless


class CoalescingTransport:
    """Wraps a connection's transport for uvicorn, and writes a head together with its body."""

    __slots__ = ("_head", "_sending", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing  # used for each request. Through `__getattr__` it takes 1 µs
        self._head = b""
        self._sending: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:  # Any: an attribute of the transport
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            head = self._take_head()
            if len(data) > LARGE:
                self._transport.write(head)
            else:
                data = head + data  # not `writelines`, which in asyncio 3.12 never pauses the writer
            self._transport.write(data)
        elif data.startswith(HEAD):
            self._head = data
            self._sending = asyncio.get_running_loop().call_soon(self._send_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            self._transport.write(self._take_head())

    def _take_head(self) -> bytes:
        head = self._head
        self._head = b""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        return head


# ---- Upgrade headers are ignored ------------------------------------------------------------------------------------
# httptools' parser for a server that speaks only HTTP/1.1.
#
# A client may offer to upgrade the protocol. Java's HttpClient offers HTTP/2 (`Upgrade: h2c`) with every request that
# has no TLS, and the Java SDK is built on it. A server that does not upgrade ignores the offer (RFC 9110 §7.8).
# httptools cannot ignore it: it treats the bytes after the headers as the other protocol, so the body is lost, and the
# next request fails.
#
# So a second parser replaces the first one, which has already checked the headers. The second parser first receives a
# synthetic head with only the headers that frame the body or end the connection, then the bytes after the real head.
# `_AfterHead` hides the events of the synthetic head from the connection.

_FRAMING: Final = (b"content-length", b"transfer-encoding")


class OneProtocolParser:
    """The part of httptools' parser that uvicorn uses, without upgrades. `connection` receives the parser's events."""

    def __init__(self, parser: Any, connection: Any) -> None:  # Any: neither httptools nor uvicorn has types for them
        self._connection = connection
        self._use(parser)

    def _use(self, parser: Any) -> None:
        self._feed = parser.feed_data
        self.get_http_version = parser.get_http_version
        self.get_method = parser.get_method
        self.should_keep_alive = parser.should_keep_alive
        self.should_upgrade = parser.should_upgrade

    def feed_data(self, data: bytes) -> None:
        while True:
            try:
                self._feed(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if self._accepts_upgrade():
                    raise
                data = self._head() + data[offer.args[0] :]
            self._use(_strict_parser(_AfterHead(self._connection)))

    def _accepts_upgrade(self) -> bool:
        """Whether the server accepts the upgrade: to WebSocket, if the application supports it."""
        offered = dict(self._connection.headers).get(b"upgrade", b"")
        return self._connection.ws_protocol_class is not None and offered.lower() == b"websocket"

    def _head(self) -> bytes:
        """Return the part of the head that frames the body and says whether another request may follow."""
        lines = [b"POST / HTTP/" + self.get_http_version().encode()]
        for name, value in self._connection.headers:
            if name in _FRAMING:
                # The first parser has reported a complete body, but the application has not run yet.
                self._connection.cycle.more_body = True
            elif name != b"connection":  # it may say that this is the last request
                continue
            lines.append(name + b": " + value)
        return b"\r\n".join((*lines, b"", b""))


def _strict_parser(target: object) -> Any:
    parser = httptools.HttpRequestParser(target)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # the same as in uvicorn
    return parser


class _AfterHead:
    """Forwards the events of a parser to the connection, except for those of the first head."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_first = True

    def on_message_begin(self) -> None:
        if not self._is_first:
            self._connection.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_first:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_first:
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_first:
            self._connection.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._connection.on_body(body)

    def on_message_complete(self) -> None:
        self._is_first = False
        self._connection.on_message_complete()
