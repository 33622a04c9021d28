"""A webhook on a real socket, for tests of push notifications: it keeps what it got, and answers as it was told."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from msgspec import Struct

from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import Event

PATIENCE: Final = 5.0  # seconds: a test that waits for what never comes fails instead of hanging
MAX_BODY: Final = 32 * 1024 * 1024  # what our client reads at most, too; a length unchecked is memory for the asking


class Delivery(Struct, frozen=True):
    """One request that came in. Header names are in lower case.

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
        """The body, decoded."""
        return msgspec.json.decode(self.body)

    @property
    def event(self) -> Event:
        """The event in the body, as A2A 1.0 has it: a `StreamResponse`."""
        return v1.decode_event(self.body)


class WebhookReceiver:
    """Receives webhooks at `url` for as long as the `async with` block runs.

    Args:
        statuses: What to answer, one after the other; the last one stays. `(503, 503, 200)` fails twice.

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
        self._server: asyncio.Server | None = None  # while the block runs
        self._unread: asyncio.Queue[Delivery] = asyncio.Queue()
        # asyncio starts a task for each connection, and does not end them with the server.
        self._connections: set[asyncio.Task[None]] = set()
        self.received: list[Delivery] = []
        """Everything that has come in, in order."""
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
        """The next delivery that nobody has read yet.

        Raises:
            TimeoutError: none came in time.
        """
        async with asyncio.timeout(timeout):
            return await self._unread.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None  # asyncio runs us in one
        self._connections.add(connection)
        try:
            delivery = await _read_delivery(reader)
            self.received.append(delivery)
            self._unread.put_nowait(delivery)
            # HTTP wants a reason after the status, and nobody reads it.
            status = self._next_status()
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        except (ValueError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # that was no delivery; a test that waits for one is told by `next`
        finally:
            self._connections.discard(connection)
            writer.close()

    def _next_status(self) -> int:
        if len(self._statuses) > 1:
            return self._statuses.pop(0)
        return self._statuses[0]


async def _read_delivery(reader: asyncio.StreamReader) -> Delivery:
    """Read one request, of a sender that says how long its body is: chunks and continuations are not for tests."""
    head = await reader.readuntil(b"\r\n\r\n")
    request_line, *fields = head.decode("latin-1").split("\r\n")
    method, path, _ = request_line.split(" ")
    headers = {}
    for field in fields:
        if field:  # the head ends with an empty line
            name, _, value = field.partition(":")
            headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= MAX_BODY:
        raise ValueError("The body is too large")
    return Delivery(method, path, headers, await reader.readexactly(length))
