"""The default transport. aiohttp carries about twenty times the calls per second of httpx (docs/decisions/0030)."""

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
    connect_failure,
    not_reached,
    read_all,
)
from apcore_a2a.errors import A2AConnectionError

# Servers close idle connections after five seconds or more. This client closes them first, so it never writes to a
# connection that the server has closed.
KEEP_ALIVE: Final = 4.0
HEADERS: Final = {"User-Agent": f"apcore-a2a/{__version__}", "Accept-Encoding": "identity"}
FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, UnicodeError)


class AiohttpTransport:
    """A transport with one connection pool, which opens at the first request.

    Args:
        verify: False accepts any TLS certificate.
    """

    def __init__(self, *, verify: bool = True) -> None:
        self._verify = verify
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop that the session belongs to
        self._responses: WeakSet[aiohttp.ClientResponse] = WeakSet()  # responses that may still be read
        # total=None: the caller of the transport bounds the whole call, all attempts together.
        self._connect_timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT)

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        async with await self._send(request, self._connect_timeout) as response:
            if response.content_length is None:
                # The size is unknown until the body is complete: read it chunk by chunk, and stop at the limit.
                async with aclosing(_chunks(response)) as chunks:
                    body = await read_all(HttpStream(response.status, response.headers, chunks), limit)
                return HttpResponse(response.status, response.headers, body)
            # aiohttp reads at most the length that the headers announce, so it is enough to check that length.
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
                # limit=0 means no limit: each open stream holds a connection, and streams must not block calls.
                connector=aiohttp.TCPConnector(ssl=self._verify, limit=0, keepalive_timeout=KEEP_ALIVE),
                # Cookies are credentials that the caller did not supply.
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
                auto_decompress=False,  # a small body must not expand into a large one
            )
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("A client belongs to the event loop of its first call. Make one per loop, or use Client")
        try:
            response = await self._session.request(
                request.method,
                request.url,
                headers=request.headers,
                data=request.body or None,
                # The redirect target is not an address that the caller trusts (docs/decisions/0032).
                allow_redirects=False,
                timeout=timeout,
            )
        except FAILURES as error:
            raise _translate(error, request.url) from error
        self._responses.add(response)
        return response

    async def close(self) -> None:
        if self._session is None:
            return
        # session.close() closes connections without waking the readers of their responses, which would wait forever.
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
    # The order matters: ConnectionTimeoutError is a TimeoutError too, but after it the request has not been sent.
    match error:
        case aiohttp.ConnectionTimeoutError():
            return not_reached(url, f"no connection within {CONNECT_TIMEOUT:g} seconds")
        case aiohttp.ClientConnectorError():
            return not_reached(url, connect_failure(error.os_error) or str(error.os_error))
        case UnicodeError():  # for example a host with a label of more than 63 characters
            return not_reached(url, "this is not a valid host name")
        case TimeoutError():
            return broken(url, "the agent sent nothing within the idle timeout")
    return broken(url, str(error) or type(error).__name__)
