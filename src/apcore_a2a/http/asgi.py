"""What every HTTP binding needs: headers, a bounded body, one response, a stream of events, the last-resort handler."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from apcore_a2a.agent import Caller
from apcore_a2a.engine.call_context import CallContext
from apcore_a2a.engine.event_log import LogEntry
from apcore_a2a.engine.streams import Stream
from apcore_a2a.engine.waiting import within
from apcore_a2a.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    VersionNotSupportedError,
    wire,
)
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.dialect import DIALECTS, VERSION_HEADER, Dialect, choose
from apcore_a2a.protocol.sse import KEEP_ALIVE, frame

logger = logging.getLogger(__name__)

MAX_BODY: Final = 10 * 1024 * 1024
BODY_DEADLINE: Final = 30.0
MAX_KEY: Final = 256  # characters of an Idempotency-Key
JSON: Final = b"application/json"
A2A_JSON: Final = b"application/a2a+json"
EVENT_STREAM: Final = b"text/event-stream"
CLOSE: Final = ((b"connection", b"close"),)  # what is left of the request is not worth reading
TRACE: Final = ("traceparent", "tracestate")
_STREAM_HEADERS: Final = (
    (b"content-type", EVENT_STREAM),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx would keep events until it has enough of them
)

Headers = tuple[tuple[bytes, bytes], ...]
Locate = Callable[[AgentCard, Scope], AgentCard]


def as_it_is(card: AgentCard, scope: Scope) -> AgentCard:
    """The card of an agent that knows its address; others say on a card where it was asked for."""
    return card


class HTTPError(Exception):
    """A request refused with a status of HTTP's own; `error` is what the protocol calls it."""

    def __init__(self, status: int, error: A2AError, headers: Headers = ()) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error
        self.headers = headers


def too_large(limit: int) -> HTTPError:
    return HTTPError(413, InvalidRequestError(f"Request body larger than {limit} bytes"), CLOSE)


def wrong_media_type(text: str) -> HTTPError:
    return HTTPError(415, ContentTypeNotSupportedError(text))


# ---- requests -----------------------------------------------------------------------------------------------------


class Inbound(Struct, gc=False):
    """The headers of a request, by lower-case name; of a repeated one the last counts, save where that is refused."""

    headers: dict[bytes, bytes]
    query: bytes
    caller: Caller
    peer: tuple[str, int] | None

    def text(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def accepts(self, media: bytes) -> bool:
        return media in self.headers.get(b"accept", b"")

    def version(self) -> str:
        """What the client says it speaks, by header or by query parameter (1.0 §3.6)."""
        version = self.text(b"a2a-version")
        if not version and b"A2A-Version=" in self.query:
            version = QueryParams(self.query).get(VERSION_HEADER, "")
        return version.strip()

    def dialect(self) -> Dialect:
        exact = _DIALECTS.get(self.headers.get(b"a2a-version"))  # most clients write "1.0", and need no parsing
        if exact is not None:
            return exact
        return choose(self.version())

    def error_dialect(self) -> Dialect:
        """What to refuse a request in; a version that is not known is probably newer than those that are."""
        try:
            return self.dialect()
        except VersionNotSupportedError:
            return v1

    def context(self, dialect: Dialect, tenant: str) -> CallContext:
        """What the engine may know of this request."""
        caller = self.caller
        if tenant:
            caller = replace(caller, tenant=tenant)
        if _CARRIED.isdisjoint(self.headers):  # none of the headers below: most requests have none
            return CallContext(caller=caller, rules=dialect.RULES, peer=self.peer)
        return CallContext(
            caller=caller,
            rules=dialect.RULES,
            headers=self._trace_headers(),
            extensions=self._extensions(dialect),
            idempotency_key=self.text(b"idempotency-key")[:MAX_KEY],
            last_event_id=self._last_event_id(),
            peer=self.peer,
        )

    def _trace_headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in TRACE:
            value = self.text(name.encode())
            if value:
                found[name] = value
        return found

    def _extensions(self, dialect: Dialect) -> frozenset[str]:
        asked = self.text(dialect.EXTENSIONS_HEADER.lower().encode())
        return frozenset(uri.strip() for uri in asked.split(",")) - {""}

    def _last_event_id(self) -> int | None:
        text = self.text(b"last-event-id")
        # What is no number of ours is ignored, as the specification of server-sent events has it; so is a huge one.
        if not text.isascii() or not text.isdigit() or len(text) >= 19:
            return None
        return int(text)


_DIALECTS: Final[dict[bytes | None, Dialect]] = {version.encode(): dialect for version, dialect in DIALECTS.items()}
_CARRIED: Final = frozenset(
    {b"traceparent", b"tracestate", b"a2a-extensions", b"x-a2a-extensions", b"idempotency-key", b"last-event-id"}
)
_ANYONE: Final = Caller()


def inbound(scope: Scope) -> Inbound:
    """The request as the bindings see it; the caller is whom the authentication found, else anonymous."""
    caller = scope.get("a2a.caller", _ANYONE)
    return Inbound(dict(scope["headers"]), scope["query_string"], caller, scope.get("client"))


def media_type(request: Inbound) -> bytes:
    given = request.headers.get(b"content-type", b"")
    if given == JSON:  # what nearly everybody writes
        return given
    return given.partition(b";")[0].strip().lower()


async def read_body(request: Inbound, receive: Receive, *, limit: int = MAX_BODY) -> bytes:
    """The whole body, or 413 as soon as it is too large, or 408 when it does not come."""
    length = request.headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise too_large(limit)
    if request.headers.get(b"content-encoding", b"identity") != b"identity":
        raise wrong_media_type("Content-Encoding is not supported")
    try:
        return await within(BODY_DEADLINE, _collect(receive, limit))
    except TimeoutError as error:
        raise HTTPError(408, InvalidRequestError("The request body did not arrive in time"), CLOSE) from error


async def _collect(receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HTTPError(400, InvalidRequestError("The client disconnected"))
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


# ---- answers ------------------------------------------------------------------------------------------------------


async def respond(send: Send, status: int, body: bytes, *, media: bytes = JSON, headers: Headers = ()) -> None:
    length = b"%d" % len(body)
    start = [(b"content-type", media), (b"content-length", length), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


def error_headers(error: A2AError) -> Headers:
    """Retry-After for a limit, a challenge for missing credentials."""
    if isinstance(error, OverloadedError):
        return ((b"retry-after", b"%d" % error.retry_after),)
    if wire(error).http == 401:
        return ((b"www-authenticate", b"Bearer"),)
    return ()


def internal(error: BaseException) -> InternalError:
    """Log what went wrong under a reference that the client gets, too."""
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


async def send_stream(
    stream: Stream, receive: Receive, send: Send, dialect: Dialect, *, head: bytes = b"", tail: bytes = b""
) -> None:
    """Write a stream as server-sent events until it ends or the client leaves; events ready together leave together.

    `head` and `tail` are written around each event: JSON-RPC's envelope.
    """
    try:
        await send({"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS]})
        ready = stream.take()
        if ready:  # before anybody listens for the client: the first event is urgent
            await _send_batch(send, ready, dialect, head, tail)
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
                    await _send_batch(send, batch, dialect, head, tail)
            await send({"type": "http.response.body", "body": b""})
            listener.cancel()
    except* _Disconnected:
        logger.debug("stream closed by its client")
    finally:
        stream.close()


async def _send_batch(send: Send, batch: list[LogEntry], dialect: Dialect, head: bytes, tail: bytes) -> None:
    """Write entries, or that the stream is alive if there are none."""
    if batch:
        body = b"".join([frame(head + entry.encode(dialect) + tail, entry.seq) for entry in batch])
    else:
        body = KEEP_ALIVE
    await send({"type": "http.response.body", "body": body, "more_body": True})
