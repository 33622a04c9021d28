"""Shared parts of the HTTP bindings: request headers, a bounded body, responses, event streams, internal errors."""

import asyncio
import io
import logging
import secrets
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.types import Message, Receive, Scope, Send

from apcore_a2a.agent import Caller
from apcore_a2a.engine.context import CallContext, live_quota_key
from apcore_a2a.engine.event_log import READ_AT_ONCE, Encoder, LogEntry
from apcore_a2a.engine.streams import Events
from apcore_a2a.engine.waiting import within
from apcore_a2a.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    OverloadedError,
    VersionNotSupportedError,
    wire,
)
from apcore_a2a.http.server.exchange import exchange_of
from apcore_a2a.http.traffic import KEY, MAX_BODY, Traffic
from apcore_a2a.protocol import jsonrpc, v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.dialect import DIALECTS, REST_DIALECTS, VERSION_HEADER, Dialect, choose
from apcore_a2a.protocol.jsonrpc import ErrorObject
from apcore_a2a.protocol.model import Event
from apcore_a2a.protocol.sse import FRAME_END, KEEP_ALIVE, RECONNECT, frame, frame_head, one_line
from apcore_a2a.trace_context import TRACE_HEADERS, read_trace
from apcore_a2a.web import NO_STORE, SAFE

logger = logging.getLogger(__name__)

BODY_DEADLINE: Final = 30.0
DRAIN_BYTES: Final = 256 * 1024 * 1024  # of a rejected body, read so that its sender sees the response: see `refuse`
DRAIN_SECONDS: Final = 10.0
DRAIN_PAUSE: Final = 2.0  # seconds without a byte, after which reading stops
PIECE: Final = 64 * 1024  # bytes: a larger event is written in pieces of this size
LARGE: Final = 1024 * 1024  # bytes: a larger event is encoded on a thread, not on the event loop
MAX_KEY: Final = 256  # characters of an Idempotency-Key
JSON: Final = b"application/json"
A2A_JSON: Final = b"application/a2a+json"
EVENT_STREAM: Final = b"text/event-stream"
GRPC: Final = b"application/grpc"
# The bindings as the card names them (1.0 §5.8).
JSONRPC: Final = "JSONRPC"
HTTP_JSON: Final = "HTTP+JSON"
GRPC_BINDING: Final = "GRPC"
CLOSE: Final = ((b"connection", b"close"),)  # the rest of the request is not read
RETRY: Final = ((b"retry-after", b"1"),)
CLIENT_KEY: Final = "a2a.client"  # in a scope: the client behind a trusted proxy. `client` is the proxy
_STREAM_HEADERS: Final = (
    (b"content-type", EVENT_STREAM),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers events
    *NO_STORE,
    *SAFE,
)

Headers = tuple[tuple[bytes, bytes], ...]
Locate = Callable[[AgentCard, Scope, str], AgentCard]
"""Returns the card with the URLs that fit the request and its protocol version."""


def unchanged_card(card: AgentCard, scope: Scope, version: str) -> AgentCard:
    """Return the card unchanged, for an agent whose card has URLs already."""
    return card


class HTTPError(Exception):
    """A request that HTTP rules reject, with their status (405, 413, 415 …). `error` is the A2A error in the body.

    `is_sending`: the client is still sending the body, and does not read yet.
    """

    def __init__(self, status: int, error: A2AError, headers: Headers = (), *, is_sending: bool = False) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error
        self.headers = headers
        self.is_sending = is_sending


def too_large(limit: int) -> HTTPError:
    return HTTPError(413, InvalidRequestError(f"Request body larger than {limit} bytes"), CLOSE, is_sending=True)


def wrong_media_type(text: str) -> HTTPError:
    return HTTPError(415, ContentTypeNotSupportedError(text))


# ---- requests -----------------------------------------------------------------------------------------------------


class Inbound(Struct, gc=False):
    """A request: its headers by lower-case name, its caller and its address.

    Of a repeated header the last value counts, except where repetition is rejected.
    """

    headers: dict[bytes, bytes]
    query: bytes
    caller: Caller
    traffic: Traffic
    peer: tuple[str, int] | None

    def text(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def accepts(self, media: bytes) -> bool:
        return media in self.headers.get(b"accept", b"")

    def version(self) -> str:
        """Return the protocol version in the header or the query parameter, or an empty string (1.0 §3.6)."""
        version = self.text(b"a2a-version")
        if not version and b"A2A-Version=" in self.query:
            version = QueryParams(self.query).get(VERSION_HEADER, "")
        return version.strip()

    def dialect(self) -> Dialect:
        exact = _DIALECTS.get(self.headers.get(b"a2a-version"))  # most clients write "1.0", which needs no parsing
        if exact is not None:
            return exact
        return choose(self.version())

    def error_dialect(self) -> Dialect:
        """Return the dialect of an error response: 1.0 for an unknown version, which is probably a newer one."""
        try:
            return self.dialect()
        except VersionNotSupportedError:
            return v1

    def encode_error(self, error: A2AError, dialect: Dialect) -> ErrorObject:
        """Return the `error` of a JSON-RPC response, in the form that this client can read."""
        # A client that sends the header of 1.0, even to ask for 0.3, reads errors of 1.0 (docs/decisions/0043).
        return dialect.encode_error(error, typed=bool(self.version()))

    def encode_rest_error(self, error: A2AError, dialect: Dialect, status: int) -> bytes:
        """Return the body of a REST error, in the form that this client can read."""
        return dialect.encode_rest_error(error, status, typed=bool(self.version()))

    def note_refusal(self, error: A2AError, reason: str = "") -> None:
        """Count this request as rejected, and log it. `reason` is for the log, if the client gets less detail."""
        self.traffic.refusals.refuse_request(error, self.caller, self.peer, reason=reason)

    def context(self, dialect: Dialect, tenant: str, binding: str = "", request_id: bytes = b"") -> CallContext:
        """Return what the engine needs to know about this request."""
        caller = self.caller
        if tenant:
            caller = replace(caller, tenant=tenant)
        if _CONTEXT_HEADERS.isdisjoint(self.headers):  # most requests have none of the headers below
            return CallContext(
                caller=caller,
                rules=dialect.RULES,
                raw_headers=self.headers,
                binding=binding,
                request_id=request_id,
                peer=self.peer,
            )
        return CallContext(
            caller=caller,
            rules=dialect.RULES,
            headers=read_trace(self.headers),
            raw_headers=self.headers,
            binding=binding,
            request_id=request_id,
            extensions=self.extensions(dialect),
            idempotency_key=self._idempotency_key(),
            last_event_id=self._last_event_id(),
            peer=self.peer,
        )

    def _idempotency_key(self) -> str:
        key = self.text(b"idempotency-key")
        if len(key) > MAX_KEY:  # not truncated, because two keys could become equal
            raise InvalidParamsError(f"Idempotency-Key is longer than {MAX_KEY} characters")
        return key

    def extensions(self, dialect: Dialect) -> frozenset[str]:
        """Return the extensions that the request asks for."""
        asked = self.text(dialect.EXTENSIONS_HEADER.lower().encode())
        return frozenset(uri.strip() for uri in asked.split(",")) - {""}

    def _last_event_id(self) -> int | None:
        text = self.text(b"last-event-id")
        # Other values are ignored, as the specification of server-sent events says. So are huge numbers.
        if not text.isascii() or not text.isdigit() or len(text) >= 19:
            return None
        return int(text)


_DIALECTS: Final[dict[bytes | None, Dialect]] = {version.encode(): dialect for version, dialect in DIALECTS.items()}
_CONTEXT_HEADERS: Final = frozenset(
    {
        *(name.encode() for name in TRACE_HEADERS),
        b"a2a-extensions",
        b"x-a2a-extensions",
        b"idempotency-key",
        b"last-event-id",
    }
)
_ANONYMOUS: Final = Caller()
_UNSHARED_TRAFFIC: Final = Traffic()  # for a binding without an application


def inbound(scope: Scope) -> Inbound:
    """Return the request for the bindings. Its caller is the authenticated one, or an anonymous one."""
    caller = scope.get("a2a.caller", _ANONYMOUS)
    return Inbound(
        dict(scope["headers"]), scope["query_string"], caller, scope.get(KEY, _UNSHARED_TRAFFIC), client_of(scope)
    )


def path_of(scope: Scope) -> str:
    """Return the path of a request without the prefix under which the application is mounted."""
    path: str = scope["path"]
    prefix = scope.get("root_path", "")
    if prefix:
        path = path.removeprefix(prefix.rstrip("/"))
    return path or "/"


def client_of(scope: Scope) -> tuple[str, int] | None:
    """Return the address of the client: that of the connection, or the one that a trusted proxy reports."""
    client: tuple[str, int] | None = scope.get(CLIENT_KEY) or scope.get("client")
    return client


def is_grpc(scope: Scope) -> bool:
    """Whether a request is a gRPC call, which has trailers in its response. HTTP/1.1 has none that clients read."""
    if scope.get("http_version") not in ("2", "3"):
        return False
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bool(value.startswith(GRPC))
    return False


def media_type(request: Inbound) -> bytes:
    given = request.headers.get(b"content-type", b"")
    if given == JSON:  # the usual value
        return given
    return given.partition(b";")[0].strip().lower()


async def read_json(request: Inbound, receive: Receive, *, limit: int) -> bytes:
    """Read a body of type application/json, which a page of another origin cannot send without a CORS preflight."""
    if media_type(request) != JSON:
        raise wrong_media_type("Content-Type must be application/json")
    return await read_body(request, receive, limit=limit)


async def read_body(request: Inbound, receive: Receive, *, limit: int = MAX_BODY) -> bytes:
    """Read the whole body.

    Raises:
        HTTPError: 413 as soon as the body is too large, 408 if it does not arrive in time, 415 if it is compressed.
    """
    length = request.headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise too_large(limit)
    if request.headers.get(b"content-encoding", b"identity") != b"identity":
        raise wrong_media_type("Content-Encoding is not supported")
    exchange = exchange_of(receive)
    body = None if exchange is None else exchange.take_whole_body()
    if body is not None:
        if len(body) > limit:
            raise too_large(limit)
        return body
    try:
        return await within(BODY_DEADLINE, _collect(receive, limit, request))
    except TimeoutError as error:
        raise HTTPError(408, InvalidRequestError("The request body did not arrive in time"), CLOSE) from error


async def _collect(receive: Receive, limit: int, request: Inbound) -> bytes:
    chunk, is_last = await _receive_chunk(receive)
    if is_last:  # nearly every body arrives in one piece
        if len(chunk) > limit:
            raise too_large(limit)
        return chunk
    caller = live_quota_key(request.caller, request.peer)
    body = io.BytesIO()  # a list of chunks to join would hold everything twice
    try:
        while True:
            if body.tell() + len(chunk) > limit:
                raise too_large(limit)
            no_room = request.traffic.take_body(len(chunk), caller)
            if no_room is not None:
                raise HTTPError(wire(no_room).http, no_room, (*RETRY, *CLOSE), is_sending=True)
            body.write(chunk)
            if is_last:
                return body.getvalue()
            chunk, is_last = await _receive_chunk(receive)
    finally:
        request.traffic.release_body(body.tell(), caller)


async def _receive_chunk(receive: Receive) -> tuple[bytes, bool]:
    """Return the next piece of a body, and whether it is the last."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise HTTPError(400, InvalidRequestError("The client disconnected"))
    return message.get("body", b""), not message.get("more_body", False)


# ---- responses ----------------------------------------------------------------------------------------------------


async def respond(
    send: Send, status: int, body: bytes, *, media: bytes = JSON, headers: Headers = (), cache: Headers = NO_STORE
) -> None:
    length = b"%d" % len(body)
    start = [(b"content-type", media), (b"content-length", length), *SAFE, *cache, *headers]
    exchange = exchange_of(send)
    if exchange is not None:
        await exchange.respond(status, start, body)
        return
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def echo_extensions(send: Send, activated: frozenset[str], dialect: Dialect) -> Send:
    """Return `send` that names the activated extensions in the response."""
    if not activated:
        return send
    header = (dialect.EXTENSIONS_HEADER.lower().encode(), ", ".join(sorted(activated)).encode())

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], header]}
        await send(message)

    return send_with_header


async def refuse(refused: HTTPError, body: bytes, receive: Receive, send: Send, *, media: bytes = JSON) -> None:
    """Write the response to a request that HTTP rules reject.

    Closing a connection with unread bytes resets it, and the reset overtakes the response. A client that sends its
    whole body before it reads would see a broken connection. So the response is written at once, for clients that
    read. Then the rest of the body is read and discarded, within limits, and only then is the connection closed.
    """
    if not refused.is_sending:
        await respond(send, refused.status, body, media=media, headers=refused.headers)
        return
    length = b"%d" % len(body)
    start = [(b"content-type", media), (b"content-length", length), *SAFE, *NO_STORE, *refused.headers]
    await send({"type": "http.response.start", "status": refused.status, "headers": start})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _drain_body(receive)
    await send({"type": "http.response.body", "body": b""})


async def _drain_body(receive: Receive) -> None:
    """Read and discard the rest of a body, up to a number of bytes and seconds."""
    now = asyncio.get_running_loop().time
    end = now() + DRAIN_SECONDS
    size = 0
    is_last = False
    try:
        while not is_last and size < DRAIN_BYTES and now() < end:
            chunk, is_last = await within(DRAIN_PAUSE, _receive_chunk(receive))
            size += len(chunk)
    except (TimeoutError, HTTPError):
        logger.debug("the sender of a rejected body stopped or disconnected")


async def refuse_early(
    scope: Scope, send: Send, status: int, error: A2AError, headers: Headers = (), *, reason: str = ""
) -> None:
    """Reject a request before its binding sees it, in the format of that binding: JSON-RPC for POST /, else REST."""
    request = inbound(scope)
    request.note_refusal(error, reason)
    if is_grpc(scope):
        await _refuse_call(send, error, headers)
        return
    dialect = request.error_dialect()
    if scope["method"] == "POST" and path_of(scope) == "/":
        body = jsonrpc.format_error(jsonrpc.NULL, request.encode_error(error, dialect))
    else:
        body = request.encode_rest_error(error, REST_DIALECTS[dialect.VERSION], status)
    await respond(send, status, body, headers=headers)


async def _refuse_call(send: Send, error: A2AError, headers: Headers) -> None:
    from apcore_a2a.protocol.grpc import error_status  # only gRPC needs the tables of message types, 10 ms

    await send_status(send, [*error_status(error), *headers])


async def send_status(send: Send, status: Sequence[tuple[bytes, bytes]]) -> None:
    """Answer a gRPC call with a status and no message.

    The status is in trailers. gRPC also allows it in the headers, if they end the response, but not every ASGI server
    writes such a response as one frame.
    """
    start = [(b"content-type", GRPC)]
    await send({"type": "http.response.start", "status": 200, "headers": start, "trailers": True})
    await send({"type": "http.response.body", "body": b""})
    await send({"type": "http.response.trailers", "headers": status})


def error_headers(error: A2AError) -> Headers:
    """Return Retry-After for a limit, and WWW-Authenticate for missing credentials."""
    if isinstance(error, OverloadedError):
        return ((b"retry-after", b"%d" % error.retry_after),)
    if wire(error).http == 401:
        return ((b"www-authenticate", b"Bearer"),)
    return ()


def internal(error: BaseException) -> InternalError:
    """Log an exception under a reference, and return the error with that reference for the client."""
    reference = secrets.token_hex(6)
    logger.error("request failed", exc_info=error, extra={"reference": reference})
    return InternalError(reference)


# ---- streams ------------------------------------------------------------------------------------------------------


class _Disconnected(Exception):
    pass


async def _until_disconnect(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected


class StreamWriter(Protocol):
    """Writes the events of a stream in the form of a binding."""

    async def begin(self) -> None: ...

    async def write(self, batch: list[LogEntry]) -> None:
        """Write events. An empty batch means that there was none for the keep-alive interval."""

    async def end(self, *, is_cut: bool) -> None: ...


async def send_stream(
    stream: Events, receive: Receive, send: Send, dialect: Dialect, *, head: bytes = b"", tail: bytes = b""
) -> None:
    """Write a stream as server-sent events until it ends or the client disconnects. Ready events are coalesced.

    `head` and `tail` are written around each event: JSON-RPC's envelope.
    """
    await write_stream(stream, receive, _EventWriter(send, dialect, head, tail))


async def write_stream(stream: Events, receive: Receive, writer: StreamWriter) -> None:
    """Write a stream until it ends or the client disconnects. Events that are ready together are written together."""
    try:
        await writer.begin()
        ready = stream.take()
        if ready:  # before the task that waits for a disconnect starts: the first event is urgent
            await writer.write(ready)
        async with asyncio.TaskGroup() as group:
            listener = group.create_task(_until_disconnect(receive))
            while True:
                batch = stream.take()
                if batch is None:
                    break
                if not batch:
                    await stream.wait()
                    batch = stream.take()
                if batch is not None:
                    await writer.write(batch)
                    if len(batch) == READ_AT_ONCE:
                        await asyncio.sleep(0)  # otherwise a fast client would keep this loop from yielding
            await writer.end(is_cut=stream.is_cut)
            listener.cancel()
    except* _Disconnected:
        logger.debug("stream closed by its client")
    finally:
        stream.close()


def encode_entry(entry: LogEntry, dialect: Dialect) -> bytes:
    """Return an event in a dialect, encoded once for all its readers."""
    if dialect.SENDS_EVENTS_AS_STORED:
        return entry.body
    return entry.encoded(_event_encoder(dialect.encode_event))


async def encode_large_entry(entry: LogEntry, dialect: Dialect) -> bytes:
    """Return an event in a dialect as one line, made on a thread once for all its readers."""
    if dialect.SENDS_EVENTS_AS_STORED:
        return await entry.encoded_on_thread(one_line)
    return await entry.encoded_on_thread(_line_encoder(dialect.encode_event))


# Cached, so that a dialect always has the same function: a log entry stores its encodings under these functions.


@cache
def _event_encoder(encode_event: Callable[[Event], bytes]) -> Encoder:
    return lambda stored: encode_event(v1.decode_event(stored))


@cache
def _line_encoder(encode_event: Callable[[Event], bytes]) -> Encoder:
    return lambda stored: one_line(encode_event(v1.decode_event(stored)))


class _EventWriter:
    """Writes events to one client: small ones coalesced, large ones in pieces.

    A piece is written when the client has read the one before, so a client that reads nothing costs a few pieces of
    memory, however large the event is. All subscribers share the event itself.
    """

    def __init__(self, send: Send, dialect: Dialect, head: bytes, tail: bytes) -> None:
        self._send = send
        self._dialect = dialect
        self._head = head
        self._tail = tail

    async def begin(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS]})

    async def end(self, *, is_cut: bool) -> None:
        await self._send({"type": "http.response.body", "body": RECONNECT if is_cut else b""})

    async def write(self, batch: list[LogEntry]) -> None:
        """Write entries, or a keep-alive comment if there are none."""
        if not batch:
            await self._write(KEEP_ALIVE)
            return
        frames: list[bytes] = []
        size = 0
        for entry in batch:
            if len(entry.body) > PIECE:
                await self._write(b"".join(frames))
                frames = []
                size = 0
                await self._write_large(entry)
                continue
            made = frame(self._head + encode_entry(entry, self._dialect) + self._tail, entry.seq)
            frames.append(made)
            size += len(made)
            if size > PIECE:
                await self._write(b"".join(frames))
                frames = []
                size = 0
        await self._write(b"".join(frames))

    async def _write_large(self, entry: LogEntry) -> None:
        if len(entry.body) > LARGE:
            line = await encode_large_entry(entry, self._dialect)
        else:
            line = one_line(encode_entry(entry, self._dialect))
        await self._write(frame_head(entry.seq) + self._head)
        for start in range(0, len(line), PIECE):
            await self._write(line[start : start + PIECE])
        await self._write(self._tail + FRAME_END)

    async def _write(self, body: bytes) -> None:
        if body:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
