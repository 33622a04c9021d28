"""Transports that stand between a command's client and the network, each around another one.

What the options ask for is done here, beneath the client, because the client as a library has no such options: a card
that comes out of a file, headers for every request, a look at the exchange. `validate` records the exchange: its rules
are about bytes and headers that the client takes in and does not hand on.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import click
import msgspec
from msgspec import Struct

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli.rendering import indent
from apcore_a2a.client.transport import HttpRequest, HttpResponse, HttpStream, Transport, with_headers
from apcore_a2a.errors import InvalidParamsError, ParseError
from apcore_a2a.protocol.decoding import decode

# Headers that cannot hold a secret. A list of those that can would miss the API key of the next agent.
HARMLESS_HEADERS: Final = frozenset(
    {"accept", "content-type", "a2a-version", "a2a-extensions", "last-event-id", "if-none-match"}
)
MAX_SHOWN: Final = 4000  # bytes of a body; an artifact can be megabytes of Base64
# What a webhook is given to prove who calls. The text may be cut, so the closing quote may be missing.
_SECRETS: Final = re.compile(r'("(?:token|credentials)"\s*:\s*)"(?:[^"\\]|\\.)*"?')
_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)


class LocalCard(Struct, frozen=True):
    """A card out of a file, and where it pretends to come from."""

    url: str
    body: bytes
    origins: tuple[str, ...]


class FileCardTransport:
    """Answers the request for the agent's card itself, with a card out of a file."""

    def __init__(self, inner: Transport, card: LocalCard) -> None:
        self._inner = inner
        self._card = card

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        if request.url == self._card.url:
            return HttpResponse(200, {"content-type": "application/json"}, self._card.body)
        return await self._inner.request(request, limit)

    def stream(self, request: HttpRequest, idle: float) -> AbstractAsyncContextManager[HttpStream]:
        return self._inner.stream(request, idle)

    async def close(self) -> None:
        await self._inner.close()


class HeaderTransport:
    """Adds the caller's service parameters (A2A 1.0 §3.2.6: HTTP headers) to each request.

    They win: whoever sets A2A-Version by hand means it.
    """

    def __init__(self, inner: Transport, headers: Mapping[str, str]) -> None:
        self._inner = inner
        self._headers = headers

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        return await self._inner.request(with_headers(request, self._headers), limit)

    def stream(self, request: HttpRequest, idle: float) -> AbstractAsyncContextManager[HttpStream]:
        return self._inner.stream(with_headers(request, self._headers), idle)

    async def close(self) -> None:
        await self._inner.close()


class RecordingTransport:
    """Keeps the last request and its answer, as they were on the wire; the body of a stream is not kept."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.last_request = HttpRequest("GET", "", {})
        self.last_response = HttpResponse(0, {})

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        self.last_request = request
        self.last_response = await self._inner.request(request, limit)
        return self.last_response

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float) -> AsyncIterator[HttpStream]:
        self.last_request = request
        async with self._inner.stream(request, idle) as response:
            self.last_response = HttpResponse(response.status, response.headers)
            yield response

    async def close(self) -> None:
        await self._inner.close()

    def last_json(self) -> Any:  # Any: whatever the agent sent
        """The last answer, decoded; None if it is not JSON, which no rule accepts either."""
        try:
            return decode(self.last_response.body, _ANY)
        except (ParseError, InvalidParamsError):
            return None


class DebugTransport:
    """Shows what it carries on standard error; secrets of headers and webhooks are named, not shown."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        _show_request(request)
        response = await self._inner.request(request, limit)
        _show(f"< HTTP {response.status}", response.body)
        return response

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float) -> AsyncIterator[HttpStream]:
        _show_request(request)
        async with self._inner.stream(request, idle) as response:
            _show(f"< HTTP {response.status}, a stream")
            yield HttpStream(response.status, response.headers, _show_chunks(response.chunks))

    async def close(self) -> None:
        await self._inner.close()


async def _show_chunks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        _show("<", chunk)
        yield chunk


def _show_request(request: HttpRequest) -> None:
    headers = []
    for name, value in request.headers.items():
        if name.lower() not in HARMLESS_HEADERS:
            value = "…"
        headers.append(f"{name}: {value}")
    _show(f"> {request.method} {request.url}", "\n".join(headers).encode())
    if request.body:
        _show(">", request.body)


def _show(head: str, body: bytes = b"") -> None:
    """A line, and the body set in below it; both cleaned, because agents wrote some of it."""
    click.echo(clean_line(head), err=True)
    text = _SECRETS.sub(r'\1"…"', body[:MAX_SHOWN].decode(errors="replace"))
    if len(body) > MAX_SHOWN:
        text += "…"
    if text:
        click.echo(indent(text), err=True)
