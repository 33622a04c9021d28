"""The default transport: aiohttp carries about twenty times the calls per second of httpx (docs/decisions/0030)."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

import aiohttp

from apcore_a2a import __version__
from apcore_a2a.client.transport import (
    CONNECT_TIMEOUT,
    HttpRequest,
    HttpResponse,
    HttpStream,
    broken,
    check_plain,
    not_reached,
    read_all,
)
from apcore_a2a.errors import A2AConnectionError

# Servers close idle connections after five seconds or more: closing ours first, we never write into a closed one.
KEEP_ALIVE: Final = 4.0
HEADERS: Final = {"User-Agent": f"apcore-a2a/{__version__}", "Accept-Encoding": "identity"}
FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError)


class AiohttpTransport:
    """One pool of connections, opened at the first request."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._plain = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT)

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        async with await self._send(request, self._plain) as response:
            if response.content_length is None:
                async with aclosing(_chunks(response)) as chunks:
                    body = await read_all(HttpStream(response.status, response.headers, chunks), limit)
                return HttpResponse(response.status, response.headers, body)
            check_plain(response.headers, limit)
            try:
                return HttpResponse(response.status, response.headers, await response.read())
            except FAILURES as error:
                raise _translate(error, request.url) from error

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float) -> AsyncIterator[HttpStream]:
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT, sock_read=idle)
        async with await self._send(request, timeout) as response, aclosing(_chunks(response)) as chunks:
            yield HttpStream(response.status, response.headers, chunks)

    async def _send(self, request: HttpRequest, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),  # streams must not hold up calls
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
                auto_decompress=False,  # a small answer must not become a large one
            )
        try:
            return await self._session.request(
                request.method,
                request.url,
                headers=request.headers,
                data=request.body or None,
                allow_redirects=False,
                timeout=timeout,
            )
        except FAILURES as error:
            raise _translate(error, request.url) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except FAILURES as error:
        raise _translate(error, str(response.url)) from error


def _translate(error: Exception, url: str) -> A2AConnectionError:
    match error:
        case aiohttp.ConnectionTimeoutError():
            return not_reached(url, f"no connection within {CONNECT_TIMEOUT:g} seconds")
        case aiohttp.ClientConnectorError():
            return not_reached(url, error.os_error.strerror or type(error.os_error).__name__)
        case TimeoutError():
            return broken(url, "the agent went silent")
    return broken(url, str(error) or type(error).__name__)
