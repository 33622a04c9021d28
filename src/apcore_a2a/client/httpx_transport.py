"""A transport over the caller's own `httpx.AsyncClient`: its proxies, certificates, mounts and event hooks apply."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

import httpx

from apcore_a2a.client.transport import (
    CONNECT_TIMEOUT,
    HttpRequest,
    HttpResponse,
    HttpStream,
    broken,
    connect_failure,
    not_reached,
    read_all,
)
from apcore_a2a.errors import A2AConnectionError

# InvalidURL is not an HTTPError. httpx raises it for example if a page token makes the address too long.
FAILURES: Final = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)


class HttpxTransport:
    """A transport over an `httpx.AsyncClient` of the caller. The caller closes that client."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        async with self.stream(request, None) as response:
            return HttpResponse(response.status, response.headers, await read_all(response, limit))

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float | None) -> AsyncIterator[HttpStream]:
        response = await self._send(request, httpx.Timeout(None, connect=CONNECT_TIMEOUT, read=idle))
        async with aclosing(response), aclosing(_chunks(response)) as chunks:
            yield HttpStream(response.status_code, response.headers, chunks)

    async def _send(self, request: HttpRequest, timeout: httpx.Timeout) -> httpx.Response:
        # `|`: a header of the request overrides this one. Without it httpx would ask for gzip.
        headers = {"accept-encoding": "identity"} | request.headers
        try:
            built = self._client.build_request(
                request.method,
                request.url,
                headers=headers,
                content=request.body or None,
                timeout=timeout,
            )
            # Never follow redirects, even if the caller's client is configured to: credentials would go to another
            # server.
            return await self._client.send(built, stream=True, follow_redirects=False)
        except FAILURES as error:
            raise _translate(error, request.url) from error

    async def close(self) -> None:
        """Do nothing: the httpx client belongs to the caller."""


async def _chunks(response: httpx.Response) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.aiter_raw():  # raw, because httpx would decompress
            yield chunk
    except FAILURES as error:
        raise _translate(error, str(response.url)) from error


def _translate(error: Exception, url: str) -> A2AConnectionError:
    match error:
        case httpx.ConnectTimeout():
            return not_reached(url, f"no connection within {CONNECT_TIMEOUT:g} seconds")
        case httpx.ConnectError() | httpx.InvalidURL():
            return not_reached(url, connect_failure(error) or str(error) or "no connection")
        case UnicodeError():  # for example a host with a label of more than 63 characters
            return not_reached(url, "this is not a valid host name")
        case httpx.ReadTimeout():
            return broken(url, "the agent sent nothing within the idle timeout")
    return broken(url, str(error) or type(error).__name__)
