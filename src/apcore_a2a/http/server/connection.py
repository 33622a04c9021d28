"""uvicorn's HTTP protocol with limits: exchanges of our own, no upgrades, and a timeout for every wait.

A connection that begins with the preface of HTTP/2 is handed over to `HTTP2Connection`.

A connection is closed if its headers are too slow or too large, if its client goes on sending a body after the
response, or if the client does not read its response. Connections over the limit are closed as well.

uvicorn limits neither the time nor the size of a request's headers, nor the number of connections, and waits forever
for a client that reads nothing. A few hundred such connections would block it.
"""

import asyncio
import logging
import ssl
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, Final

import httptools
from msgspec import Struct
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from apcore_a2a.http.server.exchange import (
    COMPLETE,
    WAITING,
    AcceptedConnection,
    Header,
    HTTPExchange,
    encode_head,
    take_length,
)
from apcore_a2a.http.traffic import CERTIFICATE_KEY, HTTP2_KEY, KEY, Room, Traffic
from apcore_a2a.web import NO_STORE, SAFE

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
    headers = ((b"content-type", b"application/json"), (b"retry-after", b"1"))
    return _last_answer(b"503 Service Unavailable", headers, body)


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
    """uvicorn's HTTP protocol with limits, and with `HTTPExchange` in place of uvicorn's cycle of a request.

    uvicorn's class has the parser, its errors, the scope of a request and the switch to WebSocket. This class has what
    follows the headers: it creates an exchange for each request, feeds it with the body, and runs the exchanges of a
    connection one after the other. It overrides the callbacks of the parser for that, and uvicorn's `cycle` and
    `pipeline` stay empty.

    The reason is speed, and one exchange for both versions of HTTP. uvicorn writes the head and the body one by one,
    checks every header of every response, creates an event for every request, and starts and cancels a timer for every
    response. Without that, a message/send takes 0.87 of the processor time.
    """

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
        self.is_stopping = False
        self._guard_exchanges: deque[HTTPExchange] = deque()  # without a complete response. The first one runs
        self._guard_latest: HTTPExchange | None = None  # to which the parser's events belong
        self._guard_idle_since = 0.0
        self._guard_idle_timer: asyncio.TimerHandle | None = None
        self._guard_first = b""  # the first bytes, as long as they may be those of HTTP/2
        self._guard_is_http1 = False
        self._guard_is_lost = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
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
        before: Any = self.scope  # Any: None before the first request
        if before is None:
            data = self._guard_first_data(data)
            if not data:
                return
        HttpToolsProtocol.data_received(self, data)
        latest = self._guard_latest
        if latest is not None and latest.scope is self.scope:  # an exchange exists once the headers are complete
            self._guard_bytes = 0
            # Data of the same request after its response is the rest of a body that the application did not read. The
            # keep-alive timer does not measure it, so the header timer has to limit the wait for the next request.
            if latest.phase is COMPLETE:
                self._guard_start_header_timer()
            elif self._guard_header_timer is not None:
                self._guard_stop_header_timer()
            return
        if self not in self.connections:  # but passed on to a protocol for WebSocket
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
        self._guard_release()
        for exchange in self._guard_exchanges:
            exchange.disconnect()
        self._guard_exchanges.clear()
        self._guard_latest = None
        super().connection_lost(exc)

    def _guard_release(self) -> None:
        """Stop the timers, and give back the place among the connections."""
        self._guard_stop_header_timer()
        self._guard_stop_watching()
        if self._guard_idle_timer is not None:
            self._guard_idle_timer.cancel()
            self._guard_idle_timer = None
        self._guard_traffic.connection_closed(self._guard_address)

    # ---- exchanges ------------------------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        parser = self.parser
        scope: Any = self.scope  # Any: uvicorn's type of an incomplete scope
        scope["method"] = parser.get_method().decode("ascii")
        if parser.should_upgrade() and parser.accepts_upgrade():
            return  # uvicorn passes the connection on
        version = parser.get_http_version()
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        if "%" in path:
            path = urllib.parse.unquote(path)
        scope["http_version"] = version
        scope["path"] = self.root_path + path
        scope["raw_path"] = self.root_path.encode("ascii") + url.path
        scope["query_string"] = url.query or b""
        keeps_alive = version != "1.0" and parser.should_keep_alive()
        response = HTTP1Response(self, keeps_alive=keeps_alive, expects_continue=self.expect_100_continue)
        exchange = HTTPExchange(0, scope, response)
        self._guard_latest = exchange
        self._guard_exchanges.append(exchange)
        if len(self._guard_exchanges) == 1:
            self._guard_run(exchange)
        else:  # pipelined, so it waits for the responses before
            self.flow.pause_reading()

    def _guard_run(self, exchange: HTTPExchange) -> None:
        app: Any = self.app  # Any: an ASGI application, as uvicorn types it
        limit = self.limit_concurrency
        if limit is not None and (len(self.connections) >= limit or len(self.tasks) >= limit):
            app = service_unavailable
        exchange.start(app, self.loop, self.tasks)

    def on_body(self, body: bytes) -> None:
        latest = self._guard_latest
        if latest is not None and latest.feed(body) and latest.unreceived > HIGH_WATER_LIMIT:
            self.flow.pause_reading()  # until the application waits for more

    def on_message_complete(self) -> None:
        # With an upgrade header, the parser stops after the headers. Another parser reads the body and reports its end.
        if self._guard_latest is not None and not self.parser.should_upgrade():
            self._guard_latest.end_body()

    def on_response_complete(self) -> None:
        """Run the next exchange, or wait for a request."""
        self._guard_exchanges.popleft()
        self.server_state.total_requests += 1
        if self.is_stopping:
            self.transport.close()  # requests behind this one, whose body may be incomplete, are not answered
        if self.transport.is_closing():
            if self.unread():
                self._guard_watch_reader()
            return
        if self._guard_exchanges:
            self._guard_run(self._guard_exchanges[0])
        else:
            self._guard_idle_since = self.loop.time()
            if self._guard_idle_timer is None:
                self._guard_idle_timer = self.loop.call_later(self.timeout_keep_alive, self._guard_check_idle)
        if len(self._guard_exchanges) <= 1 and self.flow.read_paused:
            self.flow.resume_reading()

    def _guard_check_idle(self) -> None:
        """Close a connection without requests. One timer serves many requests: it looks at the time of the last one."""
        self._guard_idle_timer = None
        if self._guard_exchanges or self._guard_header_timer is not None:
            return  # a request runs, or its headers arrive
        left = self._guard_idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._guard_idle_timer = self.loop.call_later(left, self._guard_check_idle)
        else:
            self.timeout_keep_alive_handler()

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection on. From now on it does not count, and its limits are those of the other protocol."""
        super().handle_websocket_upgrade()
        self._guard_release()

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
        self.transport.pause_reading()
        loading = self.loop.run_in_executor(None, support.load)
        loading.add_done_callback(partial(self._guard_loaded, data))
        return b""

    def _guard_loaded(self, data: bytes, loading: "asyncio.Future[Opener]") -> None:
        if self._guard_is_lost:
            return
        self._guard_hand_over(loading.result(), data)
        self.transport.resume_reading()

    def _guard_hand_over(self, opener: Opener, data: bytes) -> None:
        """Pass the connection on, with its place in the limits. This protocol is not used any more."""
        self._guard_stop_header_timer()
        self.connections.discard(self)
        accepted = AcceptedConnection(
            app=self.app,
            loop=self.loop,
            transport=self.transport,
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
        self.is_stopping = True
        self._guard_unread_timeout = self.timeouts.unread_at_shutdown
        running = self._guard_exchanges
        is_receiving = len(running) == 1 and running[0].phase is WAITING and not running[0].has_whole_body
        if is_receiving:
            self.transport.write(SHUTTING_DOWN)
            running[0].disconnect()
        if is_receiving or not running:
            self.transport.close()
        if self.unread():
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


# ---- responses ------------------------------------------------------------------------------------------------------

LARGE: Final = 64 * 1024  # bytes of a body that is too large to copy
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"connection: close\r\n"
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
BODILESS: Final = (204, 304)  # statuses of responses without a body


class HTTP1Response:
    """Writes one response: the head and the first part of the body together, the others as they come.

    uvicorn writes the head of a response and then its body. Each write is a system call and a packet, and the two cost
    a tenth of a small request. Here the head waits for the body, but only until the next turn of the event loop, so the
    head of a stream is sent at once even if its first event is late.
    """

    __slots__ = ("_connection", "_expects_continue", "_is_chunked", "_keeps_alive", "_left")

    def __init__(self, connection: "GuardedProtocol", *, keeps_alive: bool, expects_continue: bool) -> None:
        self._connection = connection
        self._keeps_alive = keeps_alive
        self._expects_continue = expects_continue
        self._is_chunked = False
        self._left = 0  # bytes of a body that is not chunked

    # ---- the head ---------------------------------------------------------------------------------------------------

    def begin(self, exchange: HTTPExchange, status: int, headers: Iterable[Header]) -> bytes:
        connection = self._connection
        length, others = take_length(headers)
        head = encode_head((*connection.server_state.default_headers, *others))
        lines = STATUS_LINE[status] + head.lines
        if length is None:
            length = head.length
        else:
            lines += b"content-length: %b\r\n" % length
        if exchange.scope["method"] == "HEAD" or status in BODILESS:
            self._is_chunked = False
            self._left = 0
        elif length is not None and not head.is_chunked:
            self._is_chunked = False
            self._left = int(length)
        else:
            self._is_chunked = True
            if not head.is_chunked:
                lines += CHUNKED
        if head.closes or connection.is_stopping:
            self._keeps_alive = False
        if not self._keeps_alive and not head.closes:
            lines += CLOSE
        if connection.access_log:
            self._log(exchange.scope, status)
        return lines + b"\r\n"

    def hold(self, exchange: HTTPExchange) -> None:
        self._connection.loop.call_soon(exchange.write_head)

    def _log(self, scope: dict[str, Any], status: int) -> None:  # Any: an ASGI scope
        text = '%s - "%s %s HTTP/%s" %d'  # uvicorn's formatter takes it apart
        client = get_client_addr(scope)  # type: ignore[arg-type]  # uvicorn's type of the same dictionary
        path = get_path_with_query_string(scope)  # type: ignore[arg-type]  # as above
        self._connection.access_logger.info(text, client, scope["method"], path, scope["http_version"], status)

    def write_head(self, exchange: HTTPExchange, head: bytes) -> None:
        self._connection.transport.write(head)

    # ---- the body ---------------------------------------------------------------------------------------------------

    async def write(self, exchange: HTTPExchange, head: bytes | None, body: bytes, *, ends: bool) -> None:
        flow = self._connection.flow
        if flow.write_paused:
            await flow.drain()
        if exchange.is_disconnected:
            return
        data = self._framed(body, ends=ends)
        if head is not None and len(body) > LARGE:
            self._connection.transport.write(head)
        elif head is not None:
            data = head + data  # not `writelines`, which in asyncio 3.12 never pauses the writer
        if data:
            self._connection.transport.write(data)

    def _framed(self, body: bytes, *, ends: bool) -> bytes:
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk + LAST_CHUNK if ends else chunk
        self._left -= len(body)
        if self._left < 0:
            raise RuntimeError("Response content longer than Content-Length")
        if self._left and ends:
            raise RuntimeError("Response content shorter than Content-Length")
        return body

    def write_trailers(self, exchange: HTTPExchange, headers: list[Header]) -> None:
        """Do nothing: the scope offers no trailers, so the exchange never calls this."""

    # ---- the request, and the end -----------------------------------------------------------------------------------

    def body_wanted(self, exchange: HTTPExchange) -> None:
        connection = self._connection
        is_waiting = exchange.phase is WAITING and not exchange.has_whole_body
        if self._expects_continue and is_waiting and not connection.transport.is_closing():
            connection.transport.write(CONTINUE)
        self._expects_continue = False
        connection.flow.resume_reading()

    def body_taken(self, exchange: HTTPExchange, size: int) -> None:
        """Do nothing: the connection reads more as soon as the application waits for it."""

    def completed(self, exchange: HTTPExchange) -> None:
        if not self._keeps_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()

    def abort(self, exchange: HTTPExchange) -> None:
        self._connection.transport.close()

    def finished(self, exchange: HTTPExchange) -> None:
        if exchange.phase is not COMPLETE and not exchange.is_disconnected:
            self._connection.transport.close()  # the application was cancelled


# ---- Upgrade headers are ignored ------------------------------------------------------------------------------------

_HEAD: Final = (b"content-length", b"transfer-encoding", b"connection")  # which may say that no request follows


class OneProtocolParser:
    """The part of httptools' parser that uvicorn uses, without upgrades. `connection` receives the parser's events.

    A client may offer to upgrade the protocol. Java's HttpClient offers HTTP/2 (`Upgrade: h2c`) with every request that
    has no TLS, and the Java SDK is built on it. A server that does not upgrade ignores the offer (RFC 9110 §7.8).
    httptools cannot ignore it: it treats the bytes after the headers as the other protocol, so the body is lost, and
    the next request fails.

    So a second parser replaces the first one, which has already checked the headers. The second parser first receives a
    synthetic head with only the headers that frame the body or end the connection, then the bytes after the real head.
    `_AfterHead` hides the events of the synthetic head from the connection.
    """

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
                if self.accepts_upgrade():
                    raise
                data = self._head() + data[offer.args[0] :]
            self._use(_strict_parser(_AfterHead(self._connection)))

    def accepts_upgrade(self) -> bool:
        """Whether the server accepts the upgrade: to WebSocket, if the application supports it."""
        offered = dict(self._connection.headers).get(b"upgrade", b"")
        has_websockets = self._connection.ws_protocol_class is not None
        return has_websockets and offered.lower() == b"websocket" and bool(self.get_method() == b"GET")

    def _head(self) -> bytes:
        """Return the part of the head that frames the body and says whether another request may follow."""
        first = b"POST / HTTP/" + self.get_http_version().encode()
        lines = [name + b": " + value for name, value in self._connection.headers if name in _HEAD]
        return b"\r\n".join((first, *lines, b"", b""))


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
