"""httptools' parser for a server that speaks HTTP/1.1 and nothing else.

A client may offer to change the protocol: Java's HttpClient offers HTTP/2 (`Upgrade: h2c`) with every request that it
sends without TLS, and the Java SDK is built on it. A server that does not want to goes on as if nothing had been said
(RFC 9110 §7.8). The parser cannot: it takes whatever follows the headers for the other protocol, so that the body is
lost, and the next request is refused.

So a fresh parser goes on in its place. It is told how the body is framed by a head of our own, of which the connection
hears nothing, and then reads what is left. The headers themselves have been checked by the first parser.
"""

from typing import Any, Final

import httptools

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
