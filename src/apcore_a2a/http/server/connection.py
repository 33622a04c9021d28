"""uvicorn's connections, guarded: an answer in one write, HTTP/1.1 and nothing else, an end to every wait."""

import asyncio
import logging
import ssl
from collections.abc import Iterable
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from apcore_a2a.http.traffic import CERTIFICATE_KEY, KEY, Room, Traffic
from apcore_a2a.web import NO_STORE, SAFE

# uvicorn's connections, guarded.
#
# A connection that dribbles its headers, never ends them, goes on with a body after its answer, or takes nothing of its
# answer, is closed; so is one too many.
#
# uvicorn bounds neither the time nor the size of a request's headers, nor how many connections there are, and waits for
# ever for a client that reads nothing; a few hundred such connections would hold it.

HEADER_DEADLINE: Final = 15.0
MAX_HEADERS: Final = 64 * 1024
STALLED: Final = 60.0  # seconds after which a client that has taken nothing of what waits for it is let go
CHECKS: Final = 4  # how often in that time we look whether it has


def _last_answer(status: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """The whole answer of a connection that is closed after it."""
    length = b"%d" % len(body)
    lines = [b"HTTP/1.1 " + status]
    for name, value in (*headers, *SAFE, *NO_STORE, (b"connection", b"close"), (b"content-length", length)):
        lines.append(name + b": " + value)
    return b"\r\n".join((*lines, b"", body))


def _full(message: bytes) -> bytes:
    body = (
        b'{"error":{"code":503,"status":"UNAVAILABLE","message":"%s","details":'
        b'[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"OVERLOADED",'
        b'"domain":"a2a-protocol.org","metadata":{"type":"OverloadedError"}}]}}' % message
    )
    return _last_answer(
        b"503 Service Unavailable", ((b"content-type", b"application/json"), (b"retry-after", b"1")), body
    )


NO_ROOM: Final = {
    Room.ALL_TAKEN: _full(b"The agent is at its limit of connections; try again later"),
    Room.SHARE_TAKEN: _full(b"Your address is at its limit of connections; try again later"),
}
# uvicorn warns of each request that it cannot read, and twice of each that asks for a WebSocket: whoever wants to can
# fill the disk with that. What it says of errors is still said. A filter, and no level: uvicorn resets those.
_UVICORN: Final = logging.getLogger("uvicorn.error.connections")
_UVICORN.addFilter(lambda record: record.levelno >= logging.ERROR)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits; a request that arrives whole costs four comparisons."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: uvicorn's business
        super().__init__(*args, **kwargs)
        self.logger = _UVICORN
        self.parser: Any = OneProtocolParser(self.parser, self)
        # An application of ours has put it there; around any other there are no limits over all connections.
        self._guard_traffic: Traffic = self.app_state.get(KEY) or Traffic()
        self._guard_address = ""  # whose share of connections this one is
        self._guard_timer: asyncio.TimerHandle | None = None
        self._guard_check_timer: asyncio.TimerHandle | None = None
        self._guard_idle_checks = 0
        self._guard_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(CoalescingTransport(transport))  # type: ignore[arg-type]  # it has all that one has
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.context.verify_mode is not ssl.CERT_NONE:
            # What every request of this connection has in its scope. A copy: the other connections have another.
            self.app_state = {**self.app_state, CERTIFICATE_KEY: tls.getpeercert(binary_form=True)}
        traffic = self._guard_traffic
        self._guard_address = traffic.address_of(self._guard_peer())
        room = traffic.connection_opened(self._guard_address)
        if room is Room.FREE:
            self._guard_start()
            return
        if room is Room.ALL_TAKEN:
            traffic.refusals.refuse_connection(self._guard_peer(), limit=traffic.max_connections)
        else:
            traffic.refusals.refuse_address(self._guard_address, limit=traffic.max_connections_per_address)
        self.transport.write(NO_ROOM[room])
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        before: Any = self.scope  # Any: it is None before the first request, and so is the cycle
        HttpToolsProtocol.data_received(self, data)
        cycle: Any = self.cycle
        if cycle is not None and cycle.scope is self.scope:  # the headers are all there: only then is there a cycle
            self._guard_bytes = 0
            # What comes after an answer is the rest of a body that nobody has waited for. uvicorn has stopped its
            # timer for it, and sets no other: the next request must come in time.
            if cycle.response_complete:
                self._guard_start()
            elif self._guard_timer is not None:
                self._guard_stop()
            return
        if before is None or before is self.scope:  # else most of it was the request before
            self._guard_bytes += len(data)
        if self._guard_bytes > MAX_HEADERS:
            self.transport.close()
        else:
            self._guard_start()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read; uvicorn's own answer has none of the headers that ours have."""
        self._guard_traffic.refusals.refuse_peer(self._guard_peer(), "what was sent is no HTTP")
        headers = (*self.server_state.default_headers, (b"content-type", b"text/plain; charset=utf-8"))
        self.transport.write(_last_answer(b"400 Bad Request", headers, msg.encode()))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard_stop()
        self._guard_forget()
        self._guard_traffic.connection_closed(self._guard_address)
        super().connection_lost(exc)

    # ---- answers that wait to be read -----------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._guard_watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread():  # nearly all is read, and the rest counts as long as it waits
            self._guard_traffic.has_read_more(self)
        else:
            self._guard_forget()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()  # which closes, as soon as the client has read everything
        if self.unread():
            self._guard_watch()

    def unread(self) -> int:
        return self.transport.get_write_buffer_size()

    def hang_up(self) -> None:
        self._guard_traffic.refusals.cut_off_reader(self._guard_peer(), unread=self.unread())
        self.transport.abort()  # close() would wait until the client has read everything

    def _guard_watch(self) -> None:
        """Look from now on whether the client reads, until it has read everything."""
        self._guard_forget()
        self._guard_idle_checks = 0
        self._guard_check_timer = self.loop.call_later(STALLED / CHECKS, self._guard_check)
        self._guard_traffic.reader_waits(self)

    def _guard_check(self) -> None:
        if not self.unread():
            self._guard_forget()
            return
        if self._guard_traffic.has_read_more(self):
            self._guard_idle_checks = 0
        else:
            self._guard_idle_checks += 1
        if self._guard_idle_checks >= CHECKS:
            self.hang_up()
        else:
            self._guard_check_timer = self.loop.call_later(STALLED / CHECKS, self._guard_check)

    def _guard_forget(self) -> None:
        if self._guard_check_timer is not None:
            self._guard_check_timer.cancel()
            self._guard_check_timer = None
            self._guard_traffic.reader_done(self)

    # ---- headers --------------------------------------------------------------------------------------------------

    def _guard_start(self) -> None:
        if self._guard_timer is None:
            self._guard_timer = self.loop.call_later(HEADER_DEADLINE, self._too_slow)

    def _guard_stop(self) -> None:
        if self._guard_timer is not None:
            self._guard_timer.cancel()
            self._guard_timer = None

    def _guard_peer(self) -> str:
        return self.client[0] if self.client else ""

    def _too_slow(self) -> None:
        self._guard_timer = None
        self.transport.close()


# ---- an answer in one write -----------------------------------------------------------------------------------------
# An answer in one write.
#
# uvicorn writes the head of an answer and then its body, and each write is a call of the system and a packet; together
# they are a tenth of a small request. Here the head waits for the body, but never longer than a turn of the loop: a
# stream whose first event takes its time shows its head at once.

LARGE: Final = 64 * 1024  # bytes of a body that is not copied to save a call
HEAD: Final = b"HTTP/1.1 "  # how every head begins; a body that does waits a turn as well, and nothing else happens


class CoalescingTransport:
    """A connection's transport, for uvicorn. What is not here is the transport's own."""

    __slots__ = ("_head", "_sending", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing  # asked for each request: by way of `__getattr__` it takes a µs
        self._head = b""
        self._sending: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:  # Any: whatever it is there
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            head = self._take_head()
            if len(data) > LARGE:
                self._transport.write(head)
            else:
                data = head + data  # not `writelines`: that of asyncio 3.12 pauses nobody, however much waits
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


# ---- offers of another protocol are ignored -------------------------------------------------------------------------
# httptools' parser for a server that speaks HTTP/1.1 and nothing else.
#
# A client may offer to change the protocol: Java's HttpClient offers HTTP/2 (`Upgrade: h2c`) with every request that it
# sends without TLS, and the Java SDK is built on it. A server that does not want to goes on as if nothing had been said
# (RFC 9110 §7.8). The parser cannot: it takes whatever follows the headers for the other protocol, so that the body is
# lost, and the next request is refused.
#
# So a fresh parser goes on in its place. It is told how the body is framed by a head of our own, of which the
# connection hears nothing, and then reads what is left. The headers themselves have been checked by the first parser.

_FRAMING: Final = (b"content-length", b"transfer-encoding")


class OneProtocolParser:
    """A parser of requests, as uvicorn's connections use it. `connection` is such a connection."""

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
                if self._is_taken():
                    raise
                data = self._head() + data[offer.args[0] :]
            self._use(_strict_parser(_AfterHead(self._connection)))

    def _is_taken(self) -> bool:
        """Whether it is an offer that the server takes: WebSockets, for an application that knows them."""
        offered = dict(self._connection.headers).get(b"upgrade", b"")
        return self._connection.ws_protocol_class is not None and offered.lower() == b"websocket"

    def _head(self) -> bytes:
        """The head of the request as far as it says where the request ends, and whether another may follow."""
        lines = [b"POST / HTTP/" + self.get_http_version().encode()]
        for name, value in self._connection.headers:
            if name in _FRAMING:
                # The first parser has said that the body is complete; nobody has listened yet.
                self._connection.cycle.more_body = True
            elif name != b"connection":  # which may say that this is the last request; without `upgrade`, no offer
                continue
            lines.append(name + b": " + value)
        return b"\r\n".join((*lines, b"", b""))


def _strict_parser(target: object) -> Any:
    parser = httptools.HttpRequestParser(target)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
    return parser


class _AfterHead:
    """Hands on what a parser finds, but for the first head."""

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
