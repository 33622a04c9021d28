"""The connection to one agent: discovery, authentication, sending, retries and timeouts.

Invariant: every request of a client passes through `Channel`. Credentials go only to an origin that the caller trusts.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from importlib.util import find_spec
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from msgspec.structs import replace

from apcore_a2a.client.auth import AuthContext, name_schemes
from apcore_a2a.client.bindings import ChosenInterface, EventWithId, Exchange, WebhookExchange
from apcore_a2a.client.discovery import BINDINGS, GRPC, MAX_CARD, Discovery
from apcore_a2a.client.failures import from_status
from apcore_a2a.client.options import SENDS, ClientSettings, ResolvedOptions, Retry, repeat
from apcore_a2a.client.transport import (
    HttpRequest,
    HttpResponse,
    HttpStream,
    NoHTTP2Error,
    Transport,
    read_all,
    with_headers,
)
from apcore_a2a.errors import (
    A2AConnectionError,
    A2ADiscoveryError,
    OverloadedError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.model import Operation, Value
from apcore_a2a.trace_context import continued_trace

if TYPE_CHECKING:
    import httpx


# Protocol buffers are decoded in Python. A message of so many bytes may take milliseconds, so a thread decodes it.
LARGE_MESSAGE: Final = 32 * 1024


class Channel:
    """The client's connection to one agent. Every request goes through `call`, `ask` or `events`."""

    def __init__(
        self,
        url: str,
        settings: ClientSettings,
        defaults: ResolvedOptions,
        *,
        http: "httpx.AsyncClient | Transport | None",
        card_ttl: float,
    ) -> None:
        self.url = url
        self.settings = settings
        self.defaults = defaults
        self._http = http
        obstacle = find_grpc_obstacle(http)
        if settings.binding == GRPC and obstacle:
            raise ValueError(obstacle)
        self.discovery = Discovery(url, settings, ttl=card_ttl, fetch=self._fetch_card, grpc_obstacle=obstacle)
        # Opened at the first request: a client is created outside an event loop, but connections belong to one.
        self._transport: Transport | None = None
        self._grpc_transport: Transport | None = None  # unless the caller's transport carries gRPC as well
        self._closed = False

    async def call(
        self, operation: Operation, request: Value, options: ResolvedOptions, *, retry: Retry | None = None
    ) -> Any:  # Any: each operation has its own result
        """Send one request and return its typed result. The timeout covers all attempts together."""
        policy = retry or self.settings.retry
        # Created once, outside the attempts, because all of them must carry the same key.
        options = with_idempotency_key(operation, options, policy)

        async def attempt() -> Any:
            return await self._call_once(operation, request, options)

        async with span_of(operation, self.url) as span, call_deadline(options.timeout) as deadline:
            with span.current():
                return await repeat(policy, operation, attempt, deadline)

    async def _call_once(self, operation: Operation, request: Value, options: ResolvedOptions) -> Any:
        exchange = await self._prepare(operation, request)
        try:
            return await self._exchange(exchange.request, exchange.result, options)
        except NoHTTP2Error as error:
            self._leave_grpc(error)
        exchange = await self._prepare(operation, request)
        return await self._exchange(exchange.request, exchange.result, options)

    def _leave_grpc(self, error: NoHTTP2Error) -> None:
        """Use another interface of the card, unless the caller wants gRPC or there is none. Then raise the error."""
        if self.settings.binding == GRPC or not self.discovery.pass_over_grpc(str(error)):
            raise error

    async def ask(self, prepare: Callable[[ChosenInterface], WebhookExchange], options: ResolvedOptions) -> Any:
        """Send one request that is not an operation of A2A, and return its result."""
        async with call_deadline(options.timeout):
            exchange = prepare(await self.discovery.interface())
            return await self._exchange(exchange.request, exchange.result, options)

    async def _exchange(
        self, request: HttpRequest, read: Callable[[HttpResponse], Any], options: ResolvedOptions
    ) -> Any:
        response = await self._send(request, options)
        if request.needs_trailers and len(response.body) > LARGE_MESSAGE:
            return await asyncio.to_thread(read, response)
        try:
            return read(response)
        except UnauthenticatedError as error:
            if options.auth is None or not options.auth.renew():
                raise self._with_schemes(error) from None
        # A rejected request was not executed, so even a message may be sent again, with the renewed credentials.
        return self._read(read, await self._send(request, options))

    def _read(self, read: Callable[[HttpResponse], Any], response: HttpResponse) -> Any:  # Any: as in `_exchange`
        try:
            return read(response)
        except UnauthenticatedError as error:
            raise self._with_schemes(error) from None

    def _with_schemes(self, error: UnauthenticatedError) -> UnauthenticatedError:
        """Add the credentials that the card asks for to the text of an error: a challenge seldom names them all."""
        card = self.discovery.known_card
        schemes = "" if card is None else name_schemes(card)
        if schemes:
            error.message = f"{error.message}. {schemes}"
            error.args = (error.message,)
        return error

    async def events(
        self, operation: Operation, request: Value, options: ResolvedOptions, last_id: str = ""
    ) -> AsyncGenerator[EventWithId]:
        """Yield the events of one connection. The call's timeout covers the first byte, `idle_timeout` the rest.

        Args:
            last_id: Ask the agent to replay the events after this id.
        """
        if last_id:
            options = replace(options, headers={**options.headers, "Last-Event-ID": last_id})
        async with AsyncExitStack() as stack:
            span = await stack.enter_async_context(span_of(operation, self.url))
            async with call_deadline(options.timeout):
                with span.current():
                    await self._check_streaming()
                    exchange = await self._prepare(operation, request)
                    try:
                        response = await self._open_stream(exchange, options, stack)
                    except NoHTTP2Error as error:
                        self._leave_grpc(error)
                        exchange = await self._prepare(operation, request)
                        response = await self._open_stream(exchange, options, stack)
                is_stream = exchange.is_stream(response)
                body = b""
                if not is_stream:  # an error, or a single answer instead of a stream
                    body = await read_all(response, self.settings.max_response)
            if not is_stream:
                answer = HttpResponse(response.status, response.headers, body, response.trailers)
                yield EventWithId(self._read(exchange.result, answer), "")
                return
            async with aclosing(self._read_events(exchange, response)) as received:
                async for event in received:
                    yield event

    async def _open_stream(self, exchange: Exchange, options: ResolvedOptions, stack: AsyncExitStack) -> HttpStream:
        """Return the response with its body unread. `stack` closes it."""
        for _ in range(2):
            request = await self._complete_headers(exchange.request, options)
            opened = self._get_transport(request).stream(request, self.settings.idle_timeout)
            response = await stack.enter_async_context(opened)
            if not _is_unauthenticated(response):
                break
            # A rejected request was not executed: try once more if other credentials may be available.
            if options.auth is None or not options.auth.renew():
                break
        return response

    async def _read_events(self, exchange: Exchange, response: HttpStream) -> AsyncGenerator[EventWithId]:
        decoder = exchange.decoder(self.settings.max_response)
        async for chunk in response.chunks:
            if decoder.waiting > LARGE_MESSAGE:
                for event in await asyncio.to_thread(list, decoder.feed(chunk)):
                    yield event
                continue
            for event in decoder.feed(chunk):
                yield event
        decoder.end(response.trailers)

    async def _check_streaming(self) -> None:
        card = await self.discovery.card()
        # `is False`: an agent that does not declare streaming (None) may support it, so the request is sent.
        if card.capabilities.streaming is False:
            raise UnsupportedOperationError("The agent does not stream. Use send_message, or wait for the task")

    async def _prepare(self, operation: Operation, request: Value) -> Exchange:
        interface = await self.discovery.interface()
        prepare = BINDINGS[interface.binding]
        return prepare(interface, operation, request)

    async def _fetch_card(self, request: HttpRequest) -> HttpResponse:
        """Fetch the card: return the response with any status, but retry while the agent is overloaded (429, 503)."""

        async def attempt() -> HttpResponse:
            response = await self._send(request, self.defaults, MAX_CARD)
            if response.status in (429, 503):
                raise from_status(response, request.url)
            return response

        try:
            async with call_deadline(self.defaults.timeout) as deadline:
                # Fetching the public card is not an A2A operation. It is retried like the other card, which is a read.
                return await repeat(self.settings.retry, Operation.EXTENDED_CARD, attempt, deadline)
        except OverloadedError as error:
            status = int(error.metadata["status"])
            raise A2ADiscoveryError(f"No agent card: {error}", url=request.url, status=status) from error

    async def _send(self, request: HttpRequest, options: ResolvedOptions, limit: int = 0) -> HttpResponse:
        request = await self._complete_headers(request, options)
        return await self._get_transport(request).request(request, limit or self.settings.max_response)

    async def _complete_headers(self, request: HttpRequest, options: ResolvedOptions) -> HttpRequest:
        """Return the request with credentials. The caller's own headers replace the client's."""
        if options.auth is not None:
            context = AuthContext(self.discovery.known_card, self.discovery.trusted, self._send_without_credentials)
            request = with_headers(request, await options.auth.headers(context))
        trace = continued_trace(options.headers)
        if trace and self.settings.propagate_trace:
            request = with_headers(request, trace)
        if options.headers:
            request = with_headers(request, options.headers)
        return request

    async def _send_without_credentials(self, request: HttpRequest) -> HttpResponse:
        """Send the token request of an `Auth`. If this request needed credentials, the `Auth` would wait for itself."""
        return await self._get_transport(request).request(request, MAX_CARD)

    def _get_transport(self, request: HttpRequest) -> Transport:
        if self._closed:
            raise RuntimeError("The client is closed")
        if self._http is None and request.needs_trailers:
            if self._grpc_transport is None:
                self._grpc_transport = open_http2_transport()
            return self._grpc_transport
        if self._transport is None:
            self._transport = open_transport(self._http)
        return self._transport

    async def close(self) -> None:
        self._closed = True
        for transport in (self._transport, self._grpc_transport):
            if transport is not None:
                await transport.close()


def _is_unauthenticated(response: HttpStream) -> bool:
    return response.status == 401 or response.headers.get("grpc-status") == "16"


@asynccontextmanager
async def call_deadline(seconds: float | None) -> AsyncIterator[float | None]:
    """Limit the duration of a block. Yield its deadline on the loop's clock. Raise A2AConnectionError if it passes.

    If the deadline passes during a pause between two attempts, the error of the last attempt is raised: "connection
    refused" tells more than a timeout.
    """
    try:
        async with asyncio.timeout(seconds) as scope:
            yield scope.when()
    except TimeoutError as error:
        if not scope.expired():
            raise  # another timeout, for example of a token provider
        last = _last_failure(error)
        if last is not None:
            raise last from None
        text = f"The agent did not answer within {seconds:g} seconds. Pass timeout= to wait longer"
        raise A2AConnectionError(text) from error


def _last_failure(error: TimeoutError) -> A2AConnectionError | None:
    """Return the error of the attempt before the pause that the timeout interrupted, if it was such a pause."""
    cancellation = error.__cause__
    if isinstance(cancellation, asyncio.CancelledError) and isinstance(cancellation.__context__, A2AConnectionError):
        return cancellation.__context__
    return None


def with_idempotency_key(operation: Operation, options: ResolvedOptions, retry: Retry) -> ResolvedOptions:
    """Return the options with an Idempotency-Key if the request may be sent again although it may have arrived."""
    if not retry.sends or operation not in SENDS:
        return options
    for name in options.headers:
        if name.lower() == "idempotency-key":
            return options  # set by the caller, who may use it for several calls
    return replace(options, headers={**options.headers, "Idempotency-Key": new_id()})


# ---- the span -------------------------------------------------------------------------------------------------------


class RequestSpan(Protocol):
    """The span of one request in a trace of OpenTelemetry."""

    def current(self) -> AbstractContextManager[None]:
        """Make it the parent of all that happens within."""


class NoSpan:
    """The span of a program that makes no spans."""

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()


_NO_SPAN: Final = NoSpan()


@asynccontextmanager
async def span_of(operation: Operation, url: str) -> AsyncIterator[RequestSpan]:
    """Yield the span of a request, and end it. It is empty unless the program has loaded OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        yield _NO_SPAN
        return
    from apcore_a2a.telemetry.spans import begin_call

    span = begin_call(operation.value, url)
    if span is None:
        yield _NO_SPAN
        return
    failure: BaseException | None = None
    try:
        yield span
    except BaseException as error:  # whatever it is, it is raised again
        failure = error
        raise
    finally:
        span.end(failure)


# ---- the transport --------------------------------------------------------------------------------------------------
# Which transport a client uses: the caller's own, one over the caller's HTTP client, or the default.


def open_transport(http: "httpx.AsyncClient | Transport | None") -> Transport:
    """Return the transport of a client: the caller's own, one over the caller's `httpx.AsyncClient`, or aiohttp.

    The libraries are imported here, at the first call, so that an import of the client does not load unused libraries.
    """
    if http is None:
        from apcore_a2a.client.aiohttp_transport import AiohttpTransport

        return AiohttpTransport()
    library = sys.modules.get("httpx")  # if the caller created an httpx client, the module is loaded
    if library is not None and isinstance(http, library.AsyncClient):
        from apcore_a2a.client.httpx_transport import HttpxTransport

        return HttpxTransport(http)
    return cast(Transport, http)  # not an httpx client, so a Transport


def open_http2_transport(tls: SSLContext | None = None) -> Transport:
    """Return a transport that carries gRPC. `tls` is as in HTTP2Transport."""
    from apcore_a2a.client.http2_transport import HTTP2Transport  # needs h2, an extra

    return HTTP2Transport(tls)


def find_grpc_obstacle(http: "httpx.AsyncClient | Transport | None") -> str:
    """Return why a client with this `http=` cannot use gRPC, and what to do. An empty string means that it can."""
    if http is not None and not getattr(http, "has_trailers", False):
        return "gRPC needs the trailers of HTTP/2, which the given http= does not carry. Leave http= out"
    if find_spec("h2") is None:
        return "gRPC needs h2: pip install 'apcore-a2a[grpc]'"
    return ""
