"""The way to one agent: discovers it, authenticates, sends, repeats what may be repeated, and bounds every wait.

Rule: every request of a client leaves through here, and with credentials only for an origin that the caller trusts.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.client.auth import Auth, AuthContext, to_auth
from apcore_a2a.client.binding import Exchange
from apcore_a2a.client.discovery import MAX_CARD, Discovery
from apcore_a2a.client.failures import from_status
from apcore_a2a.client.negotiation import BINDINGS
from apcore_a2a.client.open_transport import open_transport
from apcore_a2a.client.options import CallOptions, Settings
from apcore_a2a.client.retry import SENDS, Retry, repeat
from apcore_a2a.client.transport import HttpRequest, HttpResponse, HttpStream, Transport, read_all
from apcore_a2a.errors import (
    A2AConnectionError,
    A2ADiscoveryError,
    InvalidAgentResponseError,
    OverloadedError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.model import Event, Value
from apcore_a2a.protocol.operations import Operation
from apcore_a2a.protocol.sse import SSEDecoder

if TYPE_CHECKING:
    import httpx

_OPTIONS: Final = CallOptions.__annotations__.keys()


class Received(NamedTuple):
    """An event, and the id of its frame ("" if it had none)."""

    event: Event
    id: str


class Call(Struct, frozen=True):
    """The options of one call, with the client's where none were given."""

    timeout: float | None
    auth: Auth | None
    headers: Mapping[str, str] = {}


class Channel:
    """One agent, as the client sees it: everything it asks goes through `call` or `events`."""

    def __init__(
        self, url: str, settings: Settings, call: Call, *, http: "httpx.AsyncClient | Transport | None", card_ttl: float
    ) -> None:
        self.settings, self._defaults, self._http = settings, call, http
        self.discovery = Discovery(url, settings, ttl=card_ttl, fetch=self._fetch)
        self._transport: Transport | None = None
        self._closed = False

    def options(self, given: CallOptions) -> Call:
        if not given:
            return self._defaults
        if unknown := given.keys() - _OPTIONS:
            raise TypeError(f"unexpected keyword argument: {', '.join(sorted(unknown))}")
        return Call(
            given.get("timeout", self._defaults.timeout),
            to_auth(given["auth"]) if "auth" in given else self._defaults.auth,
            given.get("headers", {}),
        )

    async def call(self, operation: Operation, request: Value, call: Call, *, retry: Retry | None = None) -> Any:
        """One request and its typed answer, within the call's timeout however often it is tried."""
        policy = retry or self.settings.retry
        call = keyed(operation, call, policy)
        async with bounded(call.timeout) as deadline:
            return await repeat(policy, operation, lambda: self._once(operation, request, call), deadline)

    async def events(
        self, operation: Operation, request: Value, call: Call, last_id: str = ""
    ) -> AsyncGenerator[Received]:
        """The events of one connection. The call's timeout is for its first byte; after that, silence is bounded."""
        if last_id:
            call = replace(call, headers={**call.headers, "Last-Event-ID": last_id})
        async with AsyncExitStack() as stack:
            async with bounded(call.timeout):
                await self._check_streaming()
                exchange = await self._exchange(operation, request)
                response = await self._open(exchange, call, stack)
                is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
                body = b"" if is_stream else await read_all(response, self.settings.max_response)
            if not is_stream:
                yield Received(exchange.result(HttpResponse(response.status, response.headers, body)), "")
                return
            async with aclosing(self._read(exchange, response)) as received:
                async for one in received:
                    yield one

    async def _read(self, exchange: Exchange, response: HttpStream) -> AsyncGenerator[Received]:
        decoder = SSEDecoder(self.settings.max_response)
        async for chunk in response.chunks:
            try:
                frames = decoder.feed(chunk)
            except ValueError as error:
                raise InvalidAgentResponseError(f"The agent's stream cannot be read: {error}") from error
            for frame in frames:
                if frame.data:
                    yield Received(exchange.event(frame), frame.id)

    async def _once(self, operation: Operation, request: Value, call: Call) -> Any:
        exchange = await self._exchange(operation, request)
        try:
            return exchange.result(await self._send(exchange.request, call))
        except UnauthenticatedError:
            if call.auth is None or not call.auth.renew():
                raise
        return exchange.result(await self._send(exchange.request, call))  # refused, so not begun: once more

    async def _open(self, exchange: Exchange, call: Call, stack: AsyncExitStack) -> HttpStream:
        for _ in range(2):
            request = await self._authenticated(exchange.request, call)
            response = await stack.enter_async_context(self._wire().stream(request, self.settings.idle_timeout))
            if response.status != 401 or call.auth is None or not call.auth.renew():
                break
        return response

    async def _check_streaming(self) -> None:
        card = await self.discovery.card()
        if card.capabilities.streaming is False:
            raise UnsupportedOperationError("The agent does not stream; use send_message, or wait for the task")

    async def _exchange(self, operation: Operation, request: Value) -> Exchange:
        interface = await self.discovery.interface()
        return BINDINGS[interface.binding](interface, operation, request)

    async def _fetch(self, request: HttpRequest) -> HttpResponse:
        """For the card: the answer whatever its status, but not while the agent merely asks to come back later."""

        async def once() -> HttpResponse:
            response = await self._send(request, self._defaults, MAX_CARD)
            if response.status in (429, 503):
                raise from_status(response, request.url)
            return response

        try:
            async with bounded(self._defaults.timeout) as deadline:
                return await repeat(self.settings.retry, Operation.EXTENDED_CARD, once, deadline)
        except OverloadedError as error:
            status = int(error.metadata["status"])
            raise A2ADiscoveryError(f"No agent card: {error}", url=request.url, status=status) from error

    async def _send(self, request: HttpRequest, call: Call, limit: int = 0) -> HttpResponse:
        request = await self._authenticated(request, call)
        return await self._wire().request(request, limit or self.settings.max_response)

    async def _authenticated(self, request: HttpRequest, call: Call) -> HttpRequest:
        context = AuthContext(self.discovery.known, self.discovery.trusted, self._send_bare)
        credentials = {} if call.auth is None else await call.auth.headers(context)
        ours = {**request.headers, **credentials}
        named = {name.lower() for name in call.headers}
        kept = {name: value for name, value in ours.items() if name.lower() not in named} if named else ours
        return replace(request, headers={**kept, **call.headers})

    async def _send_bare(self, request: HttpRequest) -> HttpResponse:
        return await self._wire().request(request, MAX_CARD)

    def _wire(self) -> Transport:
        if self._closed:
            raise RuntimeError("The client is closed")
        if self._transport is None:
            self._transport = open_transport(self._http)
        return self._transport

    async def close(self) -> None:
        self._closed = True
        if self._transport is not None:
            await self._transport.close()


@asynccontextmanager
async def bounded(seconds: float | None) -> AsyncIterator[float | None]:
    """The wait of a caller: gives the deadline on the loop's clock, and an A2AConnectionError when it has passed."""
    try:
        async with asyncio.timeout(seconds) as scope:
            yield scope.when()
    except TimeoutError as error:
        if not scope.expired():
            raise  # not ours: of a token provider, say
        text = f"The agent did not answer within {seconds:g} seconds; pass timeout= to wait longer"
        raise A2AConnectionError(text) from error


def keyed(operation: Operation, call: Call, retry: Retry) -> Call:
    """The call with an Idempotency-Key if it may be repeated although it may have arrived."""
    if not retry.sends or operation not in SENDS or "idempotency-key" in map(str.lower, call.headers):
        return call
    return replace(call, headers={**call.headers, "Idempotency-Key": new_id()})
