"""A client for an ASGI application, without a socket."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, Unpack
from urllib.parse import unquote, urlsplit

from starlette.applications import Starlette

from apcore_a2a.app.serve import ServeOptions, build
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import ClientOptions
from apcore_a2a.client.transport import HttpRequest, HttpResponse, HttpStream, read_all
from apcore_a2a.errors import A2AConnectionError

# ---- app transport --------------------------------------------------------------------------------------------------
# A transport into an ASGI application, without a socket.
#
# Invariant: nothing is buffered: the client can read each message as soon as the application has sent it.

ASGIMessage = MutableMapping[str, Any]  # Any: as the ASGI specification has it
ASGIApp = Callable[
    [Any, Callable[[], Awaitable[ASGIMessage]], Callable[[ASGIMessage], Awaitable[None]]], Awaitable[None]
]

DISCONNECT_TIMEOUT: Final = 5.0  # seconds for an application to notice a disconnected client
# Maximum number of messages that an application may send ahead of its reader. A socket has a limit too, and a test
# should reveal an application that never waits for its reader.
BUFFER: Final = 64


class AppTransport:
    """Lets `A2AClient` call an ASGI application in this process, including streams.

    An exception that the application does not handle is raised in the caller, instead of becoming a status 500.

    Example:
        >>> from apcore_a2a.client import A2AClient
        >>> async def app(scope, receive, send):
        ...     pass
        >>> A2AClient("http://agent", http=AppTransport(app))
        A2AClient('http://agent')
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        """Send a request, and return its response of at most `limit` bytes."""
        async with self.stream(request, DISCONNECT_TIMEOUT) as response:
            return HttpResponse(response.status, response.headers, await read_all(response, limit))

    @asynccontextmanager
    async def stream(self, request: HttpRequest, idle: float) -> AsyncIterator[HttpStream]:
        """Send a request, and yield its response in chunks. `idle` is ignored, because no connection can break."""
        exchange = _Exchange(request)
        running = asyncio.create_task(exchange.run(self._app))
        try:
            start = await exchange.next()
            if start is None:
                raise A2AConnectionError("The application ended without sending a response")
            headers = _decode_headers(start.get("headers", ()))
            async with aclosing(exchange.chunks()) as chunks:
                yield HttpStream(start["status"], headers, chunks)
        finally:
            # Has the effect of a closed socket. After a complete response, the application has already ended.
            exchange.hang_up()
            await _end(running)

    async def close(self) -> None:
        """Do nothing: there are no open connections."""


class _Exchange:
    """One request: the messages between the application and the client."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._request_read = False
        # Messages that the application has sent and the client has not read. None follows the last message.
        self._sent: asyncio.Queue[ASGIMessage | None] = asyncio.Queue(BUFFER)
        self._failure: Exception | None = None
        self._client_gone = asyncio.Event()

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(_scope(self._request), self.receive, self.send)
        except Exception as error:  # an error of the application, for the caller that waits for the response
            self._failure = error
        await self.send(None)

    async def receive(self) -> ASGIMessage:
        if not self._request_read:
            self._request_read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        # ASGI: a second receive waits for the client to disconnect.
        await self._client_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: ASGIMessage | None) -> None:
        if not self._client_gone.is_set():
            await self._sent.put(message)

    def hang_up(self) -> None:
        """Disconnect the client: nothing is read any more, and a blocked send continues."""
        self._client_gone.set()
        while not self._sent.empty():
            self._sent.get_nowait()

    async def next(self) -> ASGIMessage | None:
        """Return the next message, or None after the last."""
        message = await self._sent.get()
        if message is None and self._failure is not None:
            raise self._failure
        return message

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body of the response as it arrives."""
        while True:
            message = await self.next()
            if message is None:
                return
            body = message.get("body", b"")
            if body:
                yield body
            if not message.get("more_body", False):
                return


async def _end(running: "asyncio.Task[None]") -> None:
    """Let the application finish. Cancel it if it does not notice the disconnected client."""
    _, late = await asyncio.wait({running}, timeout=DISCONNECT_TIMEOUT)
    for task in late:
        task.cancel()
        await asyncio.wait({task})


def _decode_headers(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers = {}
    for name, value in fields:
        headers[name.decode("latin-1").lower()] = value.decode("latin-1")
    return headers


def _scope(request: HttpRequest) -> dict[str, Any]:
    """Return the ASGI scope of the request."""
    url = urlsplit(request.url)
    # Headers that a transport adds. The client's own headers take precedence.
    headers = {"host": url.netloc, "content-length": str(len(request.body))}
    for name, value in request.headers.items():
        headers[name.lower()] = value
    default_port = 80
    if url.scheme == "https":
        default_port = 443
    fields = []
    for name, value in headers.items():
        fields.append((name.encode("latin-1"), value.encode("latin-1")))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": url.scheme,
        "path": unquote(url.path) or "/",
        "raw_path": url.path.encode() or b"/",
        "query_string": url.query.encode(),
        "root_path": "",
        "headers": fields,
        "client": ("127.0.0.1", 1),
        "server": (url.hostname, url.port or default_port),
        "state": {},
    }


# ---- app client -----------------------------------------------------------------------------------------------------
# A client for an application in this process, which is started and shut down as by a server.

URL: Final = "http://agent.test"
# Messages of the ASGI lifespan protocol. The application answers each with the same name and `.complete`.
STARTUP: Final = "lifespan.startup"
SHUTDOWN: Final = "lifespan.shutdown"


@asynccontextmanager
async def app_client(
    target: object, *, client: ClientOptions | None = None, **options: Unpack[ServeOptions]
) -> AsyncIterator[A2AClient]:
    """Open a client for an application, or for any target of `serve`. The application ends with the block.

    Args:
        target: A Starlette or FastAPI application, or a Registry, an Executor, an `Agent`, a function, …
        client: Options of the client.
        options: Options of `serve`, if the target is not an application yet.

    Example:
        >>> import asyncio
        >>> from apcore_a2a.testing import app_client
        >>> async def echo(message: str) -> str:
        ...     return message.upper()
        >>> async def main():
        ...     async with app_client(echo) as client:
        ...         task = await client.send_message("hello")
        ...         return task.artifacts[0].parts[0].text
        >>> asyncio.run(main())
        'HELLO'
    """
    app: Any = target  # Any: an ASGI application, which Starlette types differently
    if not isinstance(target, Starlette):
        app = build(target, options)
    async with lifespan(app), A2AClient(URL, http=AppTransport(app), **(client or {})) as connected:
        yield connected


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start an application and shut it down, as an ASGI server does."""
    inbox: asyncio.Queue[ASGIMessage] = asyncio.Queue()
    outbox: asyncio.Queue[ASGIMessage] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    running = asyncio.create_task(_run(app, scope, inbox, outbox))
    try:
        await _tell_app(STARTUP, inbox, outbox)
        yield
        # Skipped after a failed test, whose failure an error of the shutdown would hide.
        await _tell_app(SHUTDOWN, inbox, outbox)
    finally:
        # The application has already ended, unless it did not start or the test failed.
        running.cancel()
        await asyncio.wait({running})


async def _run(
    app: ASGIApp, scope: object, inbox: asyncio.Queue[ASGIMessage], outbox: asyncio.Queue[ASGIMessage]
) -> None:
    try:
        await app(scope, inbox.get, outbox.put)
    except Exception as error:  # passed on to the code that waits for an answer
        await outbox.put({"type": "failed", "message": f"{type(error).__name__}: {error}"})


async def _tell_app(event: str, inbox: asyncio.Queue[ASGIMessage], outbox: asyncio.Queue[ASGIMessage]) -> None:
    await inbox.put({"type": event})
    answer = await outbox.get()
    if answer["type"] != f"{event}.complete":
        raise RuntimeError(f"The application failed at {event}: {answer.get('message', '')}")
