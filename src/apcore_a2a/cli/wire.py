"""What stands between a command and the network when it is asked to: a card from a file, and a look at the exchange."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import click
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line
from apcore_a2a.cli.rendering import indent
from apcore_a2a.client.transport import HttpRequest, HttpResponse, HttpStream, Transport

PLAIN: Final = frozenset({"accept", "content-type", "a2a-version", "a2a-extensions", "last-event-id", "if-none-match"})
MAX_SHOWN: Final = 4000


class LocalCard(Struct, frozen=True):
    """A card out of a file, and where it pretends to come from."""

    url: str
    body: bytes
    origins: tuple[str, ...]


class FileCardTransport:
    """A transport that has the card already."""

    def __init__(self, inner: Transport, card: LocalCard) -> None:
        self._inner, self._card = inner, card

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        if request.url == self._card.url:
            return HttpResponse(200, {"content-type": "application/json"}, self._card.body)
        return await self._inner.request(request, limit)

    def stream(self, request: HttpRequest, idle: float) -> AbstractAsyncContextManager[HttpStream]:
        return self._inner.stream(request, idle)

    async def close(self) -> None:
        await self._inner.close()


class HeaderTransport:
    """A transport that adds the caller's service parameters to each request."""

    def __init__(self, inner: Transport, headers: Mapping[str, str]) -> None:
        self._inner, self._headers = inner, headers

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        return await self._inner.request(self._with_headers(request), limit)

    def stream(self, request: HttpRequest, idle: float) -> AbstractAsyncContextManager[HttpStream]:
        return self._inner.stream(self._with_headers(request), idle)

    def _with_headers(self, request: HttpRequest) -> HttpRequest:
        return replace(request, headers={**request.headers, **self._headers})

    async def close(self) -> None:
        await self._inner.close()


class DebugTransport:
    """A transport that shows what it carries on standard error. Headers that may hold a secret are named, not shown."""

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
            yield HttpStream(response.status, response.headers, _watch(response.chunks))

    async def close(self) -> None:
        await self._inner.close()


async def _watch(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        _show("<", chunk)
        yield chunk


def _show_request(request: HttpRequest) -> None:
    headers = [f"{name}: {value if name.lower() in PLAIN else '…'}" for name, value in request.headers.items()]
    _show(f"> {request.method} {request.url}", "\n".join(headers).encode())
    if request.body:
        _show(">", request.body)


def _show(head: str, body: bytes = b"") -> None:
    text = body[:MAX_SHOWN].decode(errors="replace") + ("…" if len(body) > MAX_SHOWN else "")
    click.echo(f"{clean_line(head)}\n{indent(text)}" if text else clean_line(head), err=True)
