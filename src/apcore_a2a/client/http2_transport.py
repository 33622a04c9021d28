"""A transport over HTTP/2, which gRPC needs.

Requests to one server share a connection, up to the number of streams that the server allows. Then a further one opens.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from apcore_a2a import __version__
from apcore_a2a.client.http2_connection import ALPN, KEEP_OPEN, Connection, HTTP2Stream
from apcore_a2a.client.transport import (
    CONNECT_TIMEOUT,
    HttpRequest,
    HttpResponse,
    HttpStream,
    connect_failure,
    not_reached,
    read_all,
)
from apcore_a2a.errors import A2AConnectionError

HEADERS: Final = {"user-agent": f"apcore-a2a/{__version__}", "accept-encoding": "identity"}
# HTTP/2 has its own means for these.
HOP_BY_HOP: Final = frozenset({"connection", "host", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
PORTS: Final = {"http": 80, "https": 443}


class HTTP2Transport:
    """A transport whose connections speak HTTP/2. They open when requests need them, and close when they are idle.

    Args:
        tls: The TLS settings for https, with "h2" among the ALPN protocols. By default the certificates of the system
            are trusted.
        keep_open: Seconds without a request after which a connection closes.
    """

    has_trailers = True

    def __init__(self, tls: ssl.SSLContext | None = None, *, keep_open: float = KEEP_OPEN) -> None:
        self._tls = tls
        self._keep_open = keep_open
        self._servers: dict[tuple[str, str, int], _Server] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop that the connections belong to

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        async with self._send(request, None) as stream:
            response = HttpStream(stream.status, stream.headers, stream.chunks(), stream.trailers)
            body = await read_all(response, limit)
        return HttpResponse(response.status, response.headers, body, response.trailers)

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float) -> AsyncIterator[HttpStream]:
        async with self._send(request, idle) as stream, aclosing(stream.chunks()) as chunks:
            yield HttpStream(stream.status, stream.headers, chunks, stream.trailers)

    @asynccontextmanager
    async def _send(self, request: HttpRequest, idle: float | None) -> AsyncIterator[HTTP2Stream]:
        """Send a request, and yield its stream when the headers of the response have arrived."""
        target = _read_target(request.url)
        headers = _make_headers(request, target)
        server = self._server_at(target)
        connection = await server.free_connection(request.url)
        stream = connection.open_stream(request.url, headers, ends=not request.body, idle=idle)
        try:
            await connection.send_body(stream, request.body)
            await stream.head()
            yield stream
        finally:
            connection.release(stream)

    def _server_at(self, target: "_Target") -> "_Server":
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise RuntimeError("A client belongs to the event loop of its first call. Make one per loop, or use Client")
        key = (target.scheme, target.host, target.port)
        server = self._servers.get(key)
        if server is None:
            server = _Server(target, self._tls_for(target.scheme), self._keep_open)
            self._servers[key] = server
        return server

    def _tls_for(self, scheme: str) -> ssl.SSLContext | None:
        if scheme == "http":
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols([ALPN])
        return self._tls

    async def close(self) -> None:
        for server in self._servers.values():
            server.close()


class _Target(NamedTuple):
    """The server of a request, and the path there."""

    scheme: str
    host: str
    port: int
    authority: str
    path: str


def _read_target(url: str) -> _Target:
    parts = urlsplit(url)
    try:
        host = (parts.hostname or "").encode("idna").decode()
        port = parts.port or PORTS[parts.scheme]
    except (UnicodeError, ValueError, KeyError):  # for example a label of more than 63 characters
        raise not_reached(url, "this is not a valid address") from None
    authority = f"[{host}]" if ":" in host else host
    if port != PORTS[parts.scheme]:
        authority += f":{port}"
    path = parts.path or "/"
    if parts.query:
        path += f"?{parts.query}"
    return _Target(parts.scheme, host, port, authority, path)


def _make_headers(request: HttpRequest, target: _Target) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request, the pseudo-headers first.

    Raises:
        ValueError: A header has a line end or a zero byte.
    """
    fields = {
        ":method": request.method,
        ":scheme": target.scheme,
        ":authority": target.authority,
        ":path": target.path,
        **HEADERS,
    }
    for name, value in request.headers.items():
        if name.lower() not in HOP_BY_HOP:
            fields[name.lower()] = value
    encoded: list[tuple[bytes, bytes]] = []
    for name, value in fields.items():
        if "\r" in value or "\n" in value or "\0" in value:
            raise ValueError(f"The header {name} has a line end or a zero byte in its value")
        encoded.append((name.encode(), value.strip().encode()))
    return encoded


class _Server:
    """The connections to one server."""

    def __init__(self, target: _Target, tls: ssl.SSLContext | None, keep_open: float) -> None:
        self._host = target.host
        self._port = target.port
        self._tls = tls
        self._keep_open = keep_open
        self._connections: list[Connection] = []
        self._lock = asyncio.Lock()
        self._attempts = 0
        self._failure: A2AConnectionError | None = None  # of the last attempt to connect

    async def free_connection(self, url: str) -> Connection:
        """Return a connection with room for a stream. No other request can take the room before the next `await`."""
        seen = self._attempts
        found = self._find()
        if found is not None:
            return found
        async with self._lock:
            found = self._find()
            if found is not None:
                return found
            # Calls that wait together fail together. Otherwise each would wait for its own attempt after the others.
            if self._attempts != seen and self._failure is not None:
                raise type(self._failure)(str(self._failure), sent=False)
            return await self._connect(url)

    def _find(self) -> Connection | None:
        self._connections = [connection for connection in self._connections if not connection.is_over]
        for connection in self._connections:
            if connection.has_room:
                return connection
        return None

    async def _connect(self, url: str) -> Connection:
        connection = Connection(asyncio.get_running_loop(), keep_open=self._keep_open)
        self._failure = None
        try:
            await self._open(connection)
        except A2AConnectionError as error:
            self._failure = type(error)(str(not_reached(url, str(error))), sent=False)
        except TimeoutError:
            self._failure = not_reached(url, f"no connection within {CONNECT_TIMEOUT:g} seconds")
        except (OSError, UnicodeError) as error:
            self._failure = not_reached(url, connect_failure(error) or str(error))
        except asyncio.CancelledError:
            connection.abort()
            raise
        finally:
            self._attempts += 1
        if self._failure is not None:
            connection.abort()
            raise self._failure
        self._connections.append(connection)
        return connection

    async def _open(self, connection: Connection) -> None:
        server_name = None
        if self._tls is not None:
            server_name = self._host
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await asyncio.get_running_loop().create_connection(
                lambda: connection, self._host, self._port, ssl=self._tls, server_hostname=server_name
            )
            await connection.begun()

    def close(self) -> None:
        for connection in self._connections:
            connection.close("the client was closed")
