"""A webhook receiver on a real socket, for tests of push notifications. It records all requests."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from msgspec import Struct

from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import Event

PATIENCE: Final = 5.0  # seconds: a test that waits in vain fails instead of hanging
# The same limit as for responses to the client. Without one, a Content-Length could request any amount of memory.
MAX_BODY: Final = 32 * 1024 * 1024


class Delivery(Struct, frozen=True):
    """One received request. Header names are in lower case.

    Example:
        >>> delivery = Delivery("POST", "/hook", {"content-type": "application/json"}, b'{"task": {"id": "t"}}')
        >>> delivery.json
        {'task': {'id': 't'}}
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # Any: JSON
        """Return the decoded body."""
        return msgspec.json.decode(self.body)

    @property
    def event(self) -> Event:
        """Return the event in the body, an A2A 1.0 `StreamResponse`."""
        return v1.decode_event(self.body)


class WebhookReceiver:
    """Receives webhooks at `url` inside the `async with` block.

    Args:
        statuses: The statuses to answer with, in order. The last one repeats: `(503, 503, 200)` fails twice.

    Example:
        >>> import asyncio, httpx
        >>> async def main():
        ...     async with WebhookReceiver() as hook, httpx.AsyncClient() as http:
        ...         await http.post(hook.url, json={"n": 1})
        ...         return (await hook.next()).json
        >>> asyncio.run(main())
        {'n': 1}
    """

    def __init__(self, statuses: Sequence[int] = (200,)) -> None:
        self._statuses = list(statuses)
        self._server: asyncio.Server | None = None  # set while the block runs
        self._unread: asyncio.Queue[Delivery] = asyncio.Queue()
        # asyncio starts a task for each connection, and does not end them with the server.
        self._connections: set[asyncio.Task[None]] = set()
        self.received: list[Delivery] = []
        """All received requests, in order."""
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/hook"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def next(self, timeout: float = PATIENCE) -> Delivery:
        """Return the next unread delivery.

        Raises:
            TimeoutError: no delivery arrived in time.
        """
        async with asyncio.timeout(timeout):
            return await self._unread.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None  # asyncio calls this in a task
        self._connections.add(connection)
        try:
            delivery = await _read_delivery(reader)
            self.received.append(delivery)
            self._unread.put_nowait(delivery)
            # HTTP requires a reason phrase after the status, but clients ignore it.
            status = self._next_status()
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        except (ValueError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # not a valid request: `next` raises TimeoutError
        finally:
            self._connections.discard(connection)
            writer.close()

    def _next_status(self) -> int:
        if len(self._statuses) > 1:
            return self._statuses.pop(0)
        return self._statuses[0]


async def _read_delivery(reader: asyncio.StreamReader) -> Delivery:
    """Read one request with a Content-Length. Tests need no chunked bodies and no 100-continue."""
    head = await reader.readuntil(b"\r\n\r\n")
    request_line, *fields = head.decode("latin-1").split("\r\n")
    method, path, _ = request_line.split(" ")
    headers = {}
    for field in fields:
        if field:  # an empty line ends the head
            name, _, value = field.partition(":")
            headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= MAX_BODY:
        raise ValueError("The body is too large")
    return Delivery(method, path, headers, await reader.readexactly(length))
