"""One request and its response, between a connection and the ASGI application. It knows no HTTP version.

A connection feeds the body, and is the `ResponseWriter`. The order of ASGI messages,
the held head, and the end of a request whose application fails are the same for every connection.
"""

import asyncio
import logging
from collections import deque
from enum import Enum
from typing import Any, Final, Protocol
from urllib.parse import unquote

from msgspec import Struct

from apcore_a2a.http.traffic import Traffic

logger = logging.getLogger("uvicorn.error")

Headers = list[tuple[bytes, bytes]]
BODILESS: Final = ("GET", "HEAD")  # no endpoint reads the body of such a request
FAILURE: Final = b"Internal Server Error"
# In HTTP/2, the connection has its own means for these.
HOP_BY_HOP: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})


class AcceptedConnection(Struct, frozen=True, kw_only=True):
    """An open connection, as the protocol that accepted it passes it on."""

    app: Any  # Any: an ASGI application, as uvicorn types it
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None
    scheme: str
    root_path: str
    state: dict[str, Any]  # Any: the values of the application's lifespan
    server_state: Any  # Any: uvicorn's, which has the open connections and the running requests
    traffic: Traffic
    address: str
    """The address for which the connection counts."""

    @property
    def peer(self) -> str:
        return self.client[0] if self.client else ""

    def make_scope(self, version: str, method: str, target: bytes, headers: Headers) -> dict[str, Any]:
        """Return the scope of a request.

        Raises:
            ValueError: The target is not a path in ASCII.
        """
        raw_path, _, query = target.partition(b"?")
        path = raw_path.decode("ascii")
        if not path.startswith("/") and path != "*":
            raise ValueError("the target is not a path")
        if "%" in path:
            path = unquote(path)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": method,
            "root_path": self.root_path,
            "path": self.root_path + path,
            "raw_path": self.root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": headers,
            "state": self.state.copy(),
        }


class ResponsePhase(Enum):
    """How far a response is."""

    WAITING = "the application has sent nothing"
    HEAD = "the head waits for the body, so that both are written together"
    BODY = "the head is written"
    TRAILERS = "the body is written, and trailers follow"
    COMPLETE = "the response is written"


_BODY_EXPECTED: Final = (ResponsePhase.HEAD, ResponsePhase.BODY)
_TRAILERS_EXPECTED: Final = (ResponsePhase.HEAD, ResponsePhase.BODY, ResponsePhase.TRAILERS)


class ResponseWriter(Protocol):
    """The connection of an exchange, which writes its response."""

    def hold_head(self, exchange: "HTTPExchange") -> None:
        """Call `exchange.write_head` at the end of this turn of the event loop, if no body has come until then."""

    def write_head(self, exchange: "HTTPExchange", status: int, headers: Headers, *, ends: bool) -> None: ...

    async def write_body(self, exchange: "HTTPExchange", body: bytes, *, ends: bool) -> None:
        """Write a part of the body. Return when the client has room for more, or has disconnected."""

    def write_trailers(self, exchange: "HTTPExchange", headers: Headers) -> None: ...

    def body_taken(self, exchange: "HTTPExchange", size: int) -> None:
        """Note that the application has received so many bytes of the body."""

    def abort(self, exchange: "HTTPExchange") -> None:
        """End a response that the application has not completed."""

    def finished(self, exchange: "HTTPExchange") -> None:
        """Note that the application has returned."""


class HTTPExchange:
    """One request and its response: the `scope`, `receive` and `send` of an ASGI application."""

    __slots__ = (
        "_body_ended",
        "_chunks",
        "_end_received",
        "_has_trailers",
        "_headers",
        "_status",
        "_waiter",
        "_writer",
        "id",
        "is_disconnected",
        "phase",
        "scope",
    )

    def __init__(self, id: int, scope: dict[str, Any], writer: ResponseWriter) -> None:
        self.id = id
        self.scope = scope
        self.phase = ResponsePhase.WAITING
        self.is_disconnected = False  # the client has closed the stream or the connection, or was closed
        self._writer = writer
        self._chunks: deque[bytes] = deque()
        self._body_ended = False
        self._end_received = False  # whether the application has received the end of the body
        self._waiter: asyncio.Future[None] | None = None
        self._status = 0
        self._headers: Headers = []
        self._has_trailers = False

    @property
    def has_whole_body(self) -> bool:
        return self._body_ended

    async def run(self, app: Any) -> None:  # Any: as in AcceptedConnection
        try:
            await app(self.scope, self.receive, self.send)
        # The application may be the user's. SystemExit as well: it must not end the server.
        except (Exception, SystemExit) as error:
            logger.error("Exception in ASGI application\n", exc_info=error)
            await self._fail()
        else:
            if self.phase is not ResponsePhase.COMPLETE and not self.is_disconnected:
                logger.error("ASGI callable returned without completing response.")
                await self._fail()
        finally:
            self._writer.finished(self)

    async def _fail(self) -> None:
        if self.phase not in (ResponsePhase.WAITING, ResponsePhase.HEAD):
            self._writer.abort(self)
            return
        self.phase = ResponsePhase.WAITING
        length = b"%d" % len(FAILURE)
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", length)]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": FAILURE})

    # ---- the request ------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Add a part of the body, and return whether the application may receive it."""
        if self.is_disconnected or self.phase is ResponsePhase.COMPLETE or self.scope["method"] in BODILESS:
            return False
        self._chunks.append(data)
        self._wake()
        return True

    def end_body(self) -> None:
        self._body_ended = True
        self._wake()

    def disconnect(self) -> int:
        """End the exchange without a complete response. Return the number of bytes that were not received."""
        self.is_disconnected = True
        self._wake()
        return self.drop_body()

    def drop_body(self) -> int:
        """Drop the part of the body that the application has not received, and return its size."""
        size = sum(map(len, self._chunks))
        self._chunks.clear()
        return size

    async def receive(self) -> dict[str, Any]:  # Any: an ASGI message
        while not self.is_disconnected and self.phase is not ResponsePhase.COMPLETE:
            if self._chunks or (self._body_ended and not self._end_received):
                return self._next_part()
            if self._waiter is None or self._waiter.done():
                self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return {"type": "http.disconnect"}

    def _next_part(self) -> dict[str, Any]:  # Any: an ASGI message
        body = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._end_received = self._body_ended
        if body:
            self._writer.body_taken(self, len(body))
        return {"type": "http.request", "body": body, "more_body": not self._body_ended}

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- the response -----------------------------------------------------------------------------------------------

    async def send(self, message: dict[str, Any]) -> None:  # Any: an ASGI message
        if self.is_disconnected:
            return
        kind = message["type"]
        if self.phase is ResponsePhase.WAITING and kind == "http.response.start":
            self._begin(message)
        elif self.phase in _BODY_EXPECTED and kind == "http.response.body":
            await self._write_body(message.get("body", b""), more=message.get("more_body", False))
        elif self._has_trailers and self.phase in _TRAILERS_EXPECTED and kind == "http.response.trailers":
            self.write_head()
            self._writer.write_trailers(self, list(message["headers"]))
            self._complete()
        else:
            raise RuntimeError(f"Unexpected ASGI message '{kind}': {self.phase.value}")

    def _begin(self, message: dict[str, Any]) -> None:  # Any: an ASGI message
        headers: Headers = []
        for name, value in message.get("headers", ()):
            if b"\n" in value or b"\r" in value or b"\0" in value:
                raise RuntimeError("Invalid HTTP header value.")
            headers.append((name, value))
        self._status = message["status"]
        self._headers = headers
        self._has_trailers = message.get("trailers", False)
        self.phase = ResponsePhase.HEAD
        self._writer.hold_head(self)

    def write_head(self, *, ends: bool = False) -> None:
        """Write the head, if it still waits for the body."""
        if self.phase is ResponsePhase.HEAD:
            self.phase = ResponsePhase.BODY
            self._writer.write_head(self, self._status, self._headers, ends=ends)
            self._headers = []

    async def _write_body(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            body = b""
        ends = not more and not self._has_trailers
        if self.phase is ResponsePhase.HEAD:
            self.write_head(ends=ends and not body)
            if ends and not body:
                self._complete()
                return
        if body or ends:
            await self._writer.write_body(self, body, ends=ends)
        if ends:
            self._complete()
        elif not more:
            self.phase = ResponsePhase.TRAILERS

    def _complete(self) -> None:
        self.phase = ResponsePhase.COMPLETE
        self._wake()
