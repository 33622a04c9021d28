"""The default transport: aiohttp carries about twenty times the calls per second of httpx (docs/decisions/0030)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final
from weakref import WeakSet

import aiohttp

from apcore_a2a import __version__
from apcore_a2a.client.transport import (
    CONNECT_TIMEOUT,
    HttpRequest,
    HttpResponse,
    HttpStream,
    broken,
    check_headers,
    not_reached,
    read_all,
)
from apcore_a2a.errors import A2AConnectionError

# Servers close idle connections after five seconds or more: closing ours first, we never write into a closed one.
KEEP_ALIVE: Final = 4.0
HEADERS: Final = {"User-Agent": f"apcore-a2a/{__version__}", "Accept-Encoding": "identity"}
FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, UnicodeError)


class AiohttpTransport:
    """One pool of connections, opened at the first request."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the session's
        self._responses: WeakSet[aiohttp.ClientResponse] = WeakSet()  # those that somebody may still be reading
        # total=None: the call as a whole is bounded by whoever makes it, all its attempts together.
        self._only_connecting = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT)

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        async with await self._send(request, self._only_connecting) as response:
            if response.content_length is None:
                # Its size is known only when all of it is here: read chunk by chunk, and stop at the limit.
                async with aclosing(_chunks(response)) as chunks:
                    body = await read_all(HttpStream(response.status, response.headers, chunks), limit)
                return HttpResponse(response.status, response.headers, body)
            # aiohttp reads no more than the length that the headers promise, so checking that is enough.
            check_headers(response.headers, limit)
            try:
                body = await response.read()
            except FAILURES as error:
                raise _translate(error, request.url) from error
            return HttpResponse(response.status, response.headers, body)

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float) -> AsyncIterator[HttpStream]:
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT, sock_read=idle)
        async with await self._send(request, timeout) as response, aclosing(_chunks(response)) as chunks:
            yield HttpStream(response.status, response.headers, chunks)

    async def _send(self, request: HttpRequest, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if self._session is None:
            self._loop = asyncio.get_running_loop()
            self._session = aiohttp.ClientSession(
                # limit=0, no limit: each open stream holds a connection, and streams must not hold up calls.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
                # A cookie is a credential that the caller did not give.
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
                auto_decompress=False,  # a small answer must not become a large one
            )
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("A client belongs to the event loop of its first call: make one in each, or use Client")
        try:
            response = await self._session.request(
                request.method,
                request.url,
                headers=request.headers,
                data=request.body or None,
                allow_redirects=False,  # elsewhere is not what the caller trusts (docs/decisions/0032)
                timeout=timeout,
            )
        except FAILURES as error:
            raise _translate(error, request.url) from error
        self._responses.add(response)
        return response

    async def close(self) -> None:
        if self._session is None:
            return
        # The session would close their connections and not tell whoever is reading: that one would wait for ever.
        for response in list(self._responses):
            response.close()
        await self._session.close()


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except FAILURES as error:
        raise _translate(error, str(response.url)) from error


def _translate(error: Exception, url: str) -> A2AConnectionError:
    # The order matters: ConnectionTimeoutError is a TimeoutError as well, but then nothing was sent.
    match error:
        case aiohttp.ConnectionTimeoutError():
            return not_reached(url, f"no connection within {CONNECT_TIMEOUT:g} seconds")
        case aiohttp.ClientConnectorError():
            return not_reached(url, error.os_error.strerror or type(error.os_error).__name__)
        case UnicodeError():  # a host with a part of more than 63 letters, say
            return not_reached(url, "no host has such a name")
        case TimeoutError():
            return broken(url, "the agent went silent")
    return broken(url, str(error) or type(error).__name__)
