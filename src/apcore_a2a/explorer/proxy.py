"""The Explorer for a remote agent: a server on the loopback interface between the browser and the agent.

A page may send requests only to its own server, and most agents allow no other origin. So this server serves the page
and forwards its requests. Two checks keep other programs out: the path contains a secret that changes at each start,
and a Host that is not a loopback name is rejected (DNS rebinding).

Invariant: requests and credentials go only to the origin that the user named and to origins that the user allowed. An
address on a card is untrusted data until it is checked.
"""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from starlette.types import Receive, Scope, Send

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.auth import Auth, AuthContext, TrustedOrigins, card_urls, check_url, may_hold_key
from apcore_a2a.client.discovery import MAX_CARD
from apcore_a2a.client.transport import HttpRequest, HttpResponse, Transport
from apcore_a2a.errors import A2AConnectionError, A2AError
from apcore_a2a.explorer.page import BuiltPage, Headers, answer, issuers_of
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.web import is_loopback

CARD: Final = ".well-known/agent-card.json"
CALLBACK: Final = "/callback"
MAX_BODY: Final = 64 * 1024 * 1024
ANSWER_TIME: Final = 30.0  # seconds for a card or a token
IDLE: Final = 120.0  # seconds of silence after which a stream counts as broken; keep-alives are more frequent
_JSON: Final = [(b"content-type", b"application/json")]
# The headers that are forwarded in each direction: none about this connection, and no cookies.
_REQUEST_HEADERS: Final = frozenset(
    {
        "accept",
        "content-type",
        "a2a-version",
        "a2a-extensions",
        "x-a2a-extensions",
        "authorization",
        "if-none-match",
        "last-event-id",
        "idempotency-key",
    }
)
_RESPONSE_HEADERS: Final = frozenset({"content-type", "etag", "retry-after", "www-authenticate", "a2a-version"})


class ExplorerProxy:
    """An ASGI application: the page at `/<secret>/explorer/`, the agent at `/<secret>/`.

    Args:
        url: The address of the agent or of its card.
        network: The transport to the agent, opened and closed with the server.
        allowed: Further origins that its card may point to.
        auth: Credentials that are added to requests of the page that have none.
    """

    def __init__(
        self,
        url: str,
        network: AbstractAsyncContextManager[Transport],
        *,
        allowed: tuple[str, ...] = (),
        auth: Auth | None = None,
    ) -> None:
        self._url = check_url(url)
        self._base = self._url.rpartition("/.well-known/")[0] or self._url
        self._network = network
        self._opened: Transport | None = None
        self._trusted = TrustedOrigins(self._url, allowed)
        self._auth = auth
        self._card: AgentCard | None = None
        self._key_headers: frozenset[str] = frozenset()
        self.secret = secrets.token_urlsafe(24)
        # An issuer knows the address to return to, so that contains no secret.
        self._page = BuiltPage(root="../", agent=f"{self._base}/", callback=CALLBACK)

    @property
    def path(self) -> str:
        """The path of the page."""
        return f"/{self.secret}/explorer/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self._network as transport:
            self._opened = transport
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await transport.close()
        await send({"type": "lifespan.shutdown.complete"})

    @property
    def _transport(self) -> Transport:
        assert self._opened is not None, "no request comes before the start"
        return self._opened

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not _names_loopback(headers.get("host", "")):
            await answer(send, 404, b"", [])
            return
        if scope["path"] == CALLBACK and scope["method"] == "GET":
            await answer(send, 200, self._page.body, self._page.headers())
            return
        given, _, path = scope["path"].removeprefix("/").partition("/")
        if not secrets.compare_digest(given.encode(), self.secret.encode()):
            await answer(send, 404, b"", [])
            return
        if path == "explorer/" and scope["method"] == "GET":
            await answer(send, 200, self._page.body, self._page.headers(await self._find_issuers()))
            return
        try:
            if path == CARD:
                await self._answer_card(headers, send)
            else:
                await self._forward(scope, path, headers, receive, send)
        except A2AError as error:
            await _answer_error(send, 502, clean_line(str(error), 500))

    async def _find_issuers(self) -> list[str]:
        """Return the origins for a sign-in that the agent's card may name.

        A card that begins at a trustworthy issuer and sends the code elsewhere would receive the token of the user, so
        both addresses must have one origin, or the user must have allowed the second one.
        """
        if self._card is None:
            with suppress(A2AError):  # the page reports it
                response = await self._find_card({})
                if response.status == 200:
                    self._read_card(response.body)
        schemes = None if self._card is None else self._card.security_schemes
        return [token for begin, token in issuers_of(schemes) if begin == token or f"{token}/" in self._trusted]

    async def _answer_card(self, headers: Mapping[str, str], send: Send) -> None:
        response = await self._find_card(headers)
        if response.status == 200:
            self._read_card(response.body)
        await answer(send, response.status, response.body, _response_headers(response.headers))

    async def _find_card(self, headers: Mapping[str, str]) -> HttpResponse:
        response = HttpResponse(404, {})
        for url in card_urls(self._url):
            request = HttpRequest("GET", url, await self._request_headers(headers))
            response = await self._request(request)
            if response.status in (200, 304):
                break
        return response

    def _read_card(self, body: bytes) -> None:
        """Record the agent's card and the headers of its API keys. If the card is invalid, the page reports it."""
        try:
            self._card = v03.decode_card(body)
        except A2AError:
            return
        names: set[str] = set()
        for scheme in (self._card.security_schemes or {}).values():
            key: Any = scheme.get("apiKeySecurityScheme")  # Any: a card may contain anything
            if isinstance(key, dict) and key.get("location", "header") == "header":
                names.add(str(key.get("name", "")).lower())
        # The card is untrusted: `Cookie` would send the cookies of other programs on this machine to the agent.
        self._key_headers = frozenset(filter(may_hold_key, names))

    async def _forward(self, scope: Scope, path: str, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        url = self._interface(headers.get("a2a-version", ""))
        if path:
            query = scope["query_string"].decode("latin-1")
            url = f"{self._base}/{path}" + (f"?{query}" if query else "")
        if url not in self._trusted:
            place = clean_line(url, 200)
            text = f"The agent card points to {place}. If you trust that origin, start again with --allow-origin"
            await _answer_error(send, 400, text)
            return
        body = await _read_body(receive)
        if body is None:
            await _answer_error(send, 413, "The request is too large to be forwarded")
            return
        request = HttpRequest(scope["method"], url, await self._request_headers(headers), body)
        async with asyncio.TaskGroup() as group:
            relaying = group.create_task(self._relay(request, send))
            disconnected = group.create_task(_wait_for_disconnect(receive))
            await asyncio.wait({relaying, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            relaying.cancel()  # the rest of the response has no reader
            disconnected.cancel()

    def _interface(self, version: str) -> str:
        """Return the agent's JSON-RPC address for this version, or the user's address if the card has none."""
        if self._card is not None:
            wanted = version.partition(".")[0] or "0"
            for interface in self._card.supported_interfaces:
                major = (interface.protocol_version or "1").partition(".")[0]
                if interface.protocol_binding == "JSONRPC" and major == wanted:
                    return interface.url
        return f"{self._base}/"

    async def _request_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers to forward, with the command's credentials if the page has sent none."""
        known = _REQUEST_HEADERS | self._key_headers
        passed = {name: value for name, value in headers.items() if name in known}
        has_credentials = "authorization" in passed or any(name in passed for name in self._key_headers)
        if self._auth is not None and not has_credentials:
            context = AuthContext(self._card, self._trusted, self._request)
            passed |= await self._auth.headers(context)
        return passed

    async def _request(self, request: HttpRequest) -> HttpResponse:
        try:
            async with asyncio.timeout(ANSWER_TIME):
                return await self._transport.request(request, MAX_CARD)
        except TimeoutError as error:
            raise A2AConnectionError(f"{request.url} did not answer within {ANSWER_TIME:g} seconds") from error

    async def _relay(self, request: HttpRequest, send: Send) -> None:
        """Forward the response as it arrives: streams must not be buffered."""
        has_begun = False
        try:
            async with self._transport.stream(request, IDLE) as response:
                headers = _response_headers(response.headers)
                has_begun = True
                await send({"type": "http.response.start", "status": response.status, "headers": headers})
                async for chunk in response.chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except A2AError as error:
            # A started response is left incomplete, so that the page notices the break and reconnects.
            if not has_begun:
                await _answer_error(send, 502, clean_line(str(error), 500))


def _names_loopback(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:  # for example an unclosed bracket
        return False


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body, or None if it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _response_headers(headers: Mapping[str, str]) -> Headers:
    found: Headers = [(b"cache-control", b"no-store")]
    for name, value in headers.items():
        if name.lower() in _RESPONSE_HEADERS:
            found.append((name.lower().encode("latin-1"), value.encode("latin-1")))
    return found


async def _answer_error(send: Send, status: int, text: str) -> None:
    """Answer as the agent would over JSON-RPC. The page shows the text, and treats 502 as an unreachable agent."""
    error: dict[str, object] = {"detail": text}
    if status != 502:
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": text}}
    await answer(send, status, msgspec.json.encode(error), list(_JSON))
