"""The gRPC binding: the operations of A2A 1.0 and 0.3 in protocol buffers, over any HTTP/2 server with trailers.

Invariant: a deadline of the client ends only its wait. The task of the call goes on, and GetTask returns it.
"""

import asyncio
from functools import cache
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.engine import Engine
from apcore_a2a.engine.event_log import Encoder, LogEntry
from apcore_a2a.engine.streams import Events
from apcore_a2a.engine.waiting import notice_wait
from apcore_a2a.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    OverloadedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
    wire,
)
from apcore_a2a.http.asgi import (
    GRPC_BINDING,
    PIECE,
    HTTPError,
    Inbound,
    echo_extensions,
    error_headers,
    inbound,
    internal,
    path_of,
    read_body,
    send_status,
    write_stream,
)
from apcore_a2a.http.card import CardEndpoint
from apcore_a2a.http.health import HealthEndpoint
from apcore_a2a.http.traffic import MAX_BODY
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import MAX_VALUES
from apcore_a2a.protocol.dialect import choose
from apcore_a2a.protocol.grpc import (
    HEALTH_CHECK,
    METHODS,
    PREFIX,
    SERVICES,
    Metadata,
    Method,
    StatusError,
    error_status,
    find_method,
    frame_message,
    plain_status,
    read_health_request,
    read_timeout,
    unframe_message,
    write_health,
)
from apcore_a2a.protocol.model import Operation

# The codec is Python. A message of this size may take milliseconds, so larger ones are handled on a thread.
LARGE: Final = 32 * 1024
BY_HTTP_STATUS: Final = {408: "DEADLINE_EXCEEDED", 413: "RESOURCE_EXHAUSTED"}
NO_METHOD: Final = "There is no such method"
TOO_LATE: Final = "The deadline has passed. The task goes on"
CUT: Final = "The server is shutting down. Subscribe again"
_HEADERS: Final = ((b"content-type", b"application/grpc+proto"), (b"grpc-accept-encoding", b"identity,deflate,gzip"))


class GRPCBinding:
    """Serves an engine over gRPC. `old_statuses` selects the codes of A2A 1.0.0 where 1.0.1 changed them."""

    def __init__(
        self,
        engine: Engine,
        cards: CardEndpoint,
        *,
        max_values: int = MAX_VALUES,
        max_body: int = MAX_BODY,
        old_statuses: bool = False,
    ) -> None:
        self._engine = engine
        self._cards = cards
        self._max_values = max_values
        self._max_body = max_body
        self._old_statuses = old_statuses
        # One large message at a time: more threads would not be faster, and each needs several times its size.
        self._large = asyncio.Semaphore(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = METHODS.get(path_of(scope))
        if method is None:
            await send_status(send, plain_status("UNIMPLEMENTED", NO_METHOD))
            return
        request = inbound(scope)
        deadline = _CallDeadline(send)
        try:
            deadline.seconds = read_timeout(request.headers.get(b"grpc-timeout", b""))
            result = await notice_wait(self._perform(method, request, receive), deadline.start)
        except (Exception, SystemExit) as error:  # sys.exit() in an agent that admits a message must not end the server
            deadline.stop()
            if not deadline.has_passed:
                await self._refuse(error, request, send)
        else:
            activated = request.extensions(method.dialect) & self._engine.options.extensions
            send = echo_extensions(send, activated, method.dialect)
            if deadline.has_passed:
                if method.streams:
                    result.close()
            elif method.streams:
                await self._send_stream(result, receive, send, method, deadline)
            else:
                deadline.stop()
                await self._answer(result, scope, send, method)
        finally:
            await deadline.settle()

    async def _perform(self, method: Method, request: Inbound, receive: Receive) -> Any:
        body = await read_body(request, receive, limit=self._max_body + PREFIX)
        _check_version(request, method)
        encoding = request.headers.get(b"grpc-encoding", b"")
        if len(body) > LARGE or body[:1] == b"\x01":
            async with self._large:
                params = await asyncio.to_thread(self._decode, method, body, encoding)
        else:
            params = self._decode(method, body, encoding)
        context = request.context(method.dialect, str(getattr(params, "tenant", "")), GRPC_BINDING)
        del body  # maybe megabytes, which are not needed while the agent works
        try:
            return await self._engine.handle(method.operation, params, context)
        except (ExtendedAgentCardNotConfiguredError, UnsupportedOperationError):
            if method.operation is Operation.EXTENDED_CARD and method.dialect.VERSION != v1.VERSION:
                return self._cards.card  # GetAgentCard of 0.3, which does not require an extended card
            raise

    def _decode(self, method: Method, body: bytes, encoding: bytes) -> Any:  # Any: the request of the operation
        message = unframe_message(body, encoding, self._max_body)
        return method.decode_request(message, max_values=self._max_values)

    async def _answer(self, result: Any, scope: Scope, send: Send, method: Method) -> None:
        if isinstance(result, AgentCard):
            result = self._cards.at(result, scope, method.dialect.VERSION)
        answer = method.result_json(result)
        if len(answer) > LARGE:
            async with self._large:
                framed = await asyncio.to_thread(_encode, method, answer)
        else:
            framed = _encode(method, answer)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS, "trailers": True})
        await send({"type": "http.response.body", "body": framed})
        await _send_trailers(send, plain_status("OK"))

    async def _send_stream(
        self, stream: Events, receive: Receive, send: Send, method: Method, deadline: "_CallDeadline"
    ) -> None:
        deadline.stream = stream
        try:
            await write_stream(stream, receive, _MessageWriter(send, method, deadline, self._large))
        except ExceptionGroup as group:  # of its task group
            error = group.exceptions[0]
            known = error if isinstance(error, A2AError) else internal(error)
            await _end_stream(send, error_status(known))

    async def _refuse(self, error: BaseException, request: Inbound, send: Send) -> None:
        match error:
            case StatusError():
                request.note_refusal(error.error)
                status = error_status(error.error, error.code)
            case HTTPError():
                request.note_refusal(error.error)
                status = error_status(error.error, BY_HTTP_STATUS.get(error.status, ""))
            case _:
                known = error if isinstance(error, A2AError) else internal(error)
                if isinstance(known, OverloadedError):
                    request.note_refusal(known)
                status = self._status_of(known)
        await send_status(send, status)

    def _status_of(self, error: A2AError) -> Metadata:
        code = ""
        if self._old_statuses:
            code = wire(error).grpc_v1_0_0 or ""
        return [*error_status(error, code), *error_headers(error)]


def _encode(method: Method, answer: bytes) -> bytes:
    return frame_message(method.encode(answer))


def _check_version(request: Inbound, method: Method) -> None:
    """Check that the version header, if any, is that of the service."""
    version = request.version()
    if version and choose(version).VERSION != method.dialect.VERSION:
        raise VersionNotSupportedError(version, [method.dialect.VERSION])


async def _send_trailers(send: Send, trailers: Metadata) -> None:
    await send({"type": "http.response.trailers", "headers": trailers})


async def _end_stream(send: Send, trailers: Metadata) -> None:
    await send({"type": "http.response.body", "body": b""})
    await _send_trailers(send, trailers)


class _CallDeadline:
    """The deadline of a call. When it has passed, the client gets its status, and the call goes on without it."""

    def __init__(self, send: Send) -> None:
        self.seconds: float | None = None
        self.stream: Events | None = None
        self.has_passed = False
        self._send = send
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Set the timer. Called when the call has to wait: most do not, and need none."""
        if self.seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._pass)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self) -> None:
        self.has_passed = True
        if self.stream is not None:
            self.stream.close()  # wakes its writer, which sends the status
            return
        sending = send_status(self._send, plain_status("DEADLINE_EXCEEDED", TOO_LATE))
        self._sending = asyncio.get_running_loop().create_task(sending, name="deadline of a call")

    async def settle(self) -> None:
        """Stop the timer, and wait until the status is sent."""
        self.stop()
        if self._sending is not None:
            await self._sending


# ---- streams --------------------------------------------------------------------------------------------------------


class _MessageWriter:
    """Writes events as messages: small ones coalesced, large ones encoded on a thread."""

    def __init__(self, send: Send, method: Method, deadline: _CallDeadline, large: asyncio.Semaphore) -> None:
        self._send = send
        self._large = large
        self._encoder = _event_encoder(method.dialect.VERSION)
        self._deadline = deadline

    async def begin(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS, "trailers": True})

    async def write(self, batch: list[LogEntry]) -> None:
        """Write entries. A silent stream needs no keep-alive, because the connection has its own PING."""
        frames: list[bytes] = []
        size = 0
        for entry in batch:
            if len(entry.body) > LARGE:
                async with self._large:
                    made = await entry.encoded_on_thread(self._encoder)
            else:
                made = entry.encoded(self._encoder)
            frames.append(made)
            size += len(made)
            if size > PIECE:
                await self._write(frames)
                frames = []
                size = 0
        await self._write(frames)

    async def end(self, *, is_cut: bool) -> None:
        if self._deadline.has_passed:
            status = plain_status("DEADLINE_EXCEEDED", TOO_LATE)
        elif is_cut:
            status = plain_status("UNAVAILABLE", CUT)
        else:
            status = plain_status("OK")
        await _end_stream(self._send, status)

    async def _write(self, frames: list[bytes]) -> None:
        if frames:
            body = frames[0] if len(frames) == 1 else b"".join(frames)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})


# Cached, so that a dialect always has the same function: a log entry stores its encodings under these functions.


@cache
def _event_encoder(version: str) -> Encoder:
    method = find_method(version, Operation.STREAM)[1]
    dialect = method.dialect
    if dialect.SENDS_EVENTS_AS_STORED:
        return lambda stored: frame_message(method.encode(stored))
    return lambda stored: frame_message(method.encode(dialect.encode_event(v1.decode_event(stored))))


# ---- health ---------------------------------------------------------------------------------------------------------


class GRPCHealth:
    """grpc.health.v1: `Check` for the probes of Kubernetes and of load balancers.

    The server, and each of its services, is serving while GET /health/ready answers 200. The service "liveness" is
    serving as long as the event loop turns.
    """

    def __init__(self, health: HealthEndpoint) -> None:
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if path_of(scope) != HEALTH_CHECK:
            await send_status(send, plain_status("UNIMPLEMENTED", NO_METHOD))
            return
        try:
            body = await read_body(inbound(scope), receive, limit=LARGE)
            service = read_health_request(unframe_message(body, b"", LARGE))
        except HTTPError as error:
            await send_status(send, error_status(error.error, BY_HTTP_STATUS.get(error.status, "")))
        except StatusError as error:
            await send_status(send, error_status(error.error, error.code))
        except A2AError as error:
            await send_status(send, error_status(error))
        else:
            await self._answer(service, send)

    async def _answer(self, service: str, send: Send) -> None:
        if service == "liveness":
            is_serving = True
        elif service in ("", "readiness", *SERVICES):
            is_serving = await self._health.is_ready()
        else:
            await send_status(send, plain_status("NOT_FOUND", "There is no such service"))
            return
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS, "trailers": True})
        await send({"type": "http.response.body", "body": frame_message(write_health(is_serving=is_serving))})
        await _send_trailers(send, plain_status("OK"))
