"""A client of an application in this process: opened, called and closed as by a server, without one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Unpack

from starlette.applications import Starlette

from apcore_a2a.app.serve import ServeOptions, build
from apcore_a2a.client import A2AClient
from apcore_a2a.client.options import ClientOptions
from apcore_a2a.testing.app_transport import AppTransport, ASGIApp, ASGIMessage

URL: Final = "http://agent.test"
# Messages of the ASGI lifespan protocol; the application answers each with the same name and `.complete`.
STARTUP: Final = "lifespan.startup"
SHUTDOWN: Final = "lifespan.shutdown"


@asynccontextmanager
async def app_client(
    target: object, *, client: ClientOptions | None = None, **options: Unpack[ServeOptions]
) -> AsyncIterator[A2AClient]:
    """A client of an application, or of anything that `serve` takes; the application ends with the block.

    Args:
        target: A Starlette or FastAPI application; or a Registry, an Executor, an `Agent`, a function, …
        client: Options of the client.
        options: What `serve` takes, if the target is not an application yet.

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
    app: Any = target  # Any: an ASGI application, which Starlette types otherwise than we do
    if not isinstance(target, Starlette):
        app = build(target, options)
    async with lifespan(app), A2AClient(URL, http=AppTransport(app), **(client or {})) as connected:
        yield connected


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start an application up and shut it down, as an ASGI server does."""
    inbox: asyncio.Queue[ASGIMessage] = asyncio.Queue()
    outbox: asyncio.Queue[ASGIMessage] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    running = asyncio.create_task(_run(app, scope, inbox, outbox))
    try:
        await _tell_app(STARTUP, inbox, outbox)
        yield
        # Not after a failure of the test: a shutdown that fails would hide it.
        await _tell_app(SHUTDOWN, inbox, outbox)
    finally:
        # It has ended by itself, unless it did not start or the test failed.
        running.cancel()
        await asyncio.wait({running})


async def _run(
    app: ASGIApp, scope: object, inbox: asyncio.Queue[ASGIMessage], outbox: asyncio.Queue[ASGIMessage]
) -> None:
    try:
        await app(scope, inbox.get, outbox.put)
    except Exception as error:  # whoever waits for an answer gets this one
        await outbox.put({"type": "failed", "message": f"{type(error).__name__}: {error}"})


async def _tell_app(event: str, inbox: asyncio.Queue[ASGIMessage], outbox: asyncio.Queue[ASGIMessage]) -> None:
    await inbox.put({"type": event})
    answer = await outbox.get()
    if answer["type"] != f"{event}.complete":
        raise RuntimeError(f"The application failed at {event}: {answer.get('message', '')}")
