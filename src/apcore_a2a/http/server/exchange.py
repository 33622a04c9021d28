"""One request and its response, between a connection and the ASGI application. It knows no HTTP version.

A connection feeds the body, and a `ResponseWriter` writes the response: in HTTP/2 the connection, in HTTP/1.1 an
`HTTP1Response`. The order of ASGI messages, the check of headers, the held head, and the end of a request whose
application fails are the same for both.

An exchange creates nothing to wait with until the application waits, so a request that arrives whole costs no event.
"""

import asyncio
import logging
import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Protocol, final
from urllib.parse import unquote

from msgspec import Struct

from apcore_a2a.http.traffic import Traffic

logger = logging.getLogger("uvicorn.error")

Header = tuple[bytes, bytes]
Headers = list[Header]
FAILURE: Final = b"Internal Server Error"
_NOT_IN_NAMES: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")  # RFC 9110 §5.6.2
_NOT_IN_VALUES: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


EncodedHeader = tuple[bytes, bytes, bytes]
MAX_CACHED: Final = 256  # bytes of a value. A client may choose a long one, for example of a CORS header


def encode_headers(headers: Iterable[Header]) -> list[EncodedHeader]:
    """Return the name in lower case, the value, and the line in HTTP/1.1 of each header of a response.

    Responses have the same headers again and again. To check one takes 1,700 instructions, and a response has ten.

    Raises:
        RuntimeError: A name or a value would end its line, or is otherwise invalid.
    """
    encoded: list[EncodedHeader] = []
    for name, value in headers:
        if len(value) <= MAX_CACHED:
            encoded.append(_encode_cached(name, value))
        else:
            encoded.append(_encode(name, value))
    return encoded


def _encode(name: bytes, value: bytes) -> EncodedHeader:
    if not name or _NOT_IN_NAMES.search(name):
        raise RuntimeError("Invalid HTTP header name.")
    if _NOT_IN_VALUES.search(value):
        raise RuntimeError("Invalid HTTP header value.")
    name = name.lower()
    return name, value, b"%b: %b\r\n" % (name, value)


_encode_cached: Final = lru_cache(maxsize=1024)(_encode)


_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"connection"})
MAX_HEADS: Final = 256  # cached heads. Responses have a few dozen combinations of headers
MAX_HEAD: Final = 2048  # bytes of a cached head. A client may choose a long value, for example of a CORS header


class ResponseHead(Struct, frozen=True, gc=False):
    """The headers of a response as lines of HTTP/1.1, and what they say about its end."""

    lines: bytes
    length: bytes | None
    is_chunked: bool
    closes: bool


class _LargeHead(Exception):
    pass


def encode_head(headers: tuple[Header, ...]) -> ResponseHead:
    """Return the head with these headers.

    Responses have the same headers again and again. A lookup takes a quarter of the time of encoding them.

    Raises:
        RuntimeError: A name or a value would end its line, or is otherwise invalid.
    """
    try:
        return _encode_small_head(headers)
    except (_LargeHead, TypeError):  # TypeError: a header is a list, and has no hash
        return _encode_head(headers)


@lru_cache(maxsize=MAX_HEADS)
def _encode_small_head(headers: tuple[Header, ...]) -> ResponseHead:
    head = _encode_head(headers)
    if len(head.lines) > MAX_HEAD:
        raise _LargeHead  # so it is not cached
    return head


def _encode_head(headers: tuple[Header, ...]) -> ResponseHead:
    lines: list[bytes] = []
    framing: dict[bytes, bytes] = {}
    for name, value, line in encode_headers(headers):
        lines.append(line)
        if name in _FRAMING:
            framing.setdefault(name, value)
    options = framing.get(b"connection", b"").lower().split(b",")
    return ResponseHead(
        lines=b"".join(lines),
        length=framing.get(b"content-length"),
        is_chunked=framing.get(b"transfer-encoding", b"").lower() == b"chunked",
        closes=b"close" in map(bytes.strip, options),
    )


def take_length(headers: Iterable[Header]) -> tuple[bytes | None, list[Header]]:
    """Return the Content-Length, and the other headers, which many responses have in common."""
    others = list(headers)
    for header in others:
        if header[0] == b"content-length":
            length = header[1]
            if not length.isdigit():  # to be checked with the others
                break
            others.remove(header)
            return length, others
    return None, others


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


# Module constants, because Python 3.11 takes 0.1 µs to find a member of an enum.
WAITING: Final = ResponsePhase.WAITING
HEAD: Final = ResponsePhase.HEAD
BODY: Final = ResponsePhase.BODY
TRAILERS: Final = ResponsePhase.TRAILERS
COMPLETE: Final = ResponsePhase.COMPLETE


class ResponseWriter(Protocol):
    """Writes the response of an exchange in one version of HTTP. A head is a value that only its writer reads."""

    def begin(self, exchange: "HTTPExchange", status: int, headers: Iterable[Header]) -> Any:  # Any: the head
        """Return the head.

        Raises:
            RuntimeError: A header is invalid.
        """

    def hold(self, exchange: "HTTPExchange") -> None:
        """Call `exchange.write_head` at the end of this turn of the event loop, for a head that waits for the body."""

    def write_head(self, exchange: "HTTPExchange", head: Any) -> None: ...  # Any: as `begin` has returned it

    async def write(self, exchange: "HTTPExchange", head: Any, body: bytes, *, ends: bool) -> None:  # Any: as above
        """Write the head, if it is not None, and a part of the body.

        Return when the client has room for more, or has disconnected.
        """

    def write_trailers(self, exchange: "HTTPExchange", headers: Headers) -> None: ...

    def body_wanted(self, exchange: "HTTPExchange") -> None:
        """Note that the application waits for the client: for more of the body, or for its disconnection."""

    def body_taken(self, exchange: "HTTPExchange", size: int) -> None:
        """Note that the application has received so many bytes of the body."""

    def completed(self, exchange: "HTTPExchange") -> None:
        """Note that the response is written."""

    def abort(self, exchange: "HTTPExchange") -> None:
        """End a response that the application has not completed."""

    def finished(self, exchange: "HTTPExchange") -> None:
        """Note that the application has returned, or was cancelled."""


Tasks = set[asyncio.Task[None]]


@final
class HTTPExchange:
    """One request and its response: the `scope`, `receive` and `send` of an ASGI application."""

    __slots__ = (
        "_body_ended",
        "_chunks",
        "_end_received",
        "_has_trailers",
        "_head",
        "_task",
        "_waiter",
        "_writer",
        "id",
        "is_disconnected",
        "phase",
        "scope",
        "unreceived",
    )

    def __init__(self, id: int, scope: dict[str, Any], writer: ResponseWriter) -> None:
        self.id = id
        self.scope = scope
        self.phase = WAITING
        self.is_disconnected = False  # the client has closed the stream or the connection, or was closed
        self.unreceived = 0  # bytes of the body that wait for the application
        self._writer = writer
        self._task: asyncio.Task[None] | None = None
        self._chunks: list[bytes] = []
        self._body_ended = False
        self._end_received = False  # whether the application has received the end of the body
        self._waiter: asyncio.Future[None] | None = None
        self._head: Any = None  # Any: a value of the writer, until it is written
        self._has_trailers = False

    @property
    def has_whole_body(self) -> bool:
        return self._body_ended

    def start(self, app: Any, loop: asyncio.AbstractEventLoop, tasks: Tasks) -> None:  # Any: an ASGI application
        """Run the application in an asyncio task, which is in `tasks` until it ends."""
        task = loop.create_task(self._run(app, tasks))
        if not task.done():  # an eager event loop has run it already
            self._task = task
            tasks.add(task)

    async def _run(self, app: Any, tasks: Tasks) -> None:  # Any: as above
        try:
            await app(self.scope, self.receive, self.send)
        # The application may be the user's. SystemExit as well: it must not end the server.
        except (Exception, SystemExit) as error:
            logger.error("Exception in ASGI application\n", exc_info=error)
            await self._fail()
        else:
            if self.phase is not COMPLETE and not self.is_disconnected:
                logger.error("ASGI callable returned without completing response.")
                await self._fail()
        finally:
            # Not a callback of the task, which the event loop would have to schedule: 2 % of a small request.
            if self._task is not None:
                tasks.discard(self._task)
            self._writer.finished(self)

    async def _fail(self) -> None:
        if self.phase not in (WAITING, HEAD):
            self._writer.abort(self)
            return
        self.phase = WAITING
        length = b"%d" % len(FAILURE)
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", length),
            (b"connection", b"close"),  # HTTP/2 drops it
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": FAILURE})

    # ---- the request ------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Add a part of the body, and return whether the application may receive it."""
        if self.is_disconnected or self.phase is COMPLETE:
            return False
        self._chunks.append(data)
        self.unreceived += len(data)
        if self._waiter is not None:
            self._wake()
        return True

    def end_body(self) -> None:
        self._body_ended = True
        if self._waiter is not None:
            self._wake()

    def disconnect(self) -> int:
        """End the exchange without a complete response. Return the number of bytes that were not received."""
        self.is_disconnected = True
        self._wake()
        return self.drop_body()

    def drop_body(self) -> int:
        """Drop the part of the body that the application has not received, and return its size."""
        size = self.unreceived
        self.unreceived = 0
        self._chunks.clear()
        return size

    async def receive(self) -> dict[str, Any]:  # Any: an ASGI message
        while not self.is_disconnected and self.phase is not COMPLETE:
            if self._chunks or (self._body_ended and not self._end_received):
                return self._next_part()
            if self._waiter is None or self._waiter.done():
                self._waiter = asyncio.get_running_loop().create_future()
                self._writer.body_wanted(self)
            await self._waiter
        return {"type": "http.disconnect"}

    def take_whole_body(self) -> bytes | None:
        """Return the body, or the rest of it, if its end has arrived. Otherwise return None: `receive` waits for it.

        Nearly every body arrives together with its headers. Taking it at once, without the timeout that `receive`
        needs, saves 5 % of the processor time of a small request to the bindings.
        """
        if self.is_disconnected or self.phase is COMPLETE or not self._body_ended or self._end_received:
            return None
        body: bytes = self._next_part()["body"]
        return body

    def _next_part(self) -> dict[str, Any]:  # Any: an ASGI message
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unreceived = 0
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
        phase = self.phase
        if phase is WAITING and kind == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
            self._has_trailers = "extensions" in self.scope and message.get("trailers", False)
            self._writer.hold(self)
        elif (phase is HEAD or phase is BODY) and kind == "http.response.body":
            await self._write_body(message.get("body", b""), more=message.get("more_body", False))
        elif self._has_trailers and kind == "http.response.trailers" and phase is not COMPLETE:
            self.write_head()
            self._writer.write_trailers(self, list(message["headers"]))
            self._complete()
        else:
            raise RuntimeError(f"Unexpected ASGI message '{kind}': {phase.value}")

    def _begin(self, status: int, headers: Iterable[Header]) -> None:
        self._head = self._writer.begin(self, status, headers)
        self.phase = HEAD

    async def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole response, as the two messages of ASGI do together.

        No head has to wait for its body. That saves a tenth of the processor time of a small request to the bindings.
        """
        if self.is_disconnected:
            return
        if self.phase is not WAITING:
            raise RuntimeError(f"Unexpected response: {self.phase.value}")
        self._begin(status, headers)
        await self._write_body(body, more=False)

    def write_head(self) -> None:
        """Write the head, if it still waits for the body."""
        if self.phase is HEAD and not self.is_disconnected:
            self._writer.write_head(self, self._take_head())

    def _take_head(self) -> Any:  # Any: a value of the writer
        head = self._head
        self._head = None
        self.phase = BODY
        return head

    async def _write_body(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            body = b""
        head = self._take_head() if self.phase is HEAD else None
        ends = not more and not self._has_trailers
        await self._writer.write(self, head, body, ends=ends)
        if ends:
            self._complete()
        elif not more:
            self.phase = TRAILERS

    def _complete(self) -> None:
        self.phase = COMPLETE
        if self._waiter is not None:
            self._wake()
        if not self.is_disconnected:
            self._writer.completed(self)


def exchange_of(function: Any) -> HTTPExchange | None:  # Any: `receive` or `send` of ASGI
    """Return the exchange to which a `receive` or `send` belongs directly.

    None is returned for those of another server, and of a middleware, which expects to see each message.
    """
    owner = getattr(function, "__self__", None)
    return owner if type(owner) is HTTPExchange else None
