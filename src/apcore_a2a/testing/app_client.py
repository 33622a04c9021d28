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
STARTUP, SHUTDOWN = "lifespan.startup", "lifespan.shutdown"


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
    app: Any = target if isinstance(target, Starlette) else build(target, options)
    async with _lifespan(app), A2AClient(URL, http=AppTransport(app), **(client or {})) as connected:
        yield connected


@asynccontextmanager
async def _lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start an application up and shut it down, as an ASGI server does."""
    inbox: asyncio.Queue[ASGIMessage] = asyncio.Queue()
    outbox: asyncio.Queue[ASGIMessage] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    running = asyncio.create_task(_run(app, scope, inbox, outbox))
    try:
        await _say(STARTUP, inbox, outbox)
        yield
        await _say(SHUTDOWN, inbox, outbox)
    finally:
        running.cancel()
        await asyncio.wait({running})


async def _run(
    app: ASGIApp, scope: object, inbox: asyncio.Queue[ASGIMessage], outbox: asyncio.Queue[ASGIMessage]
) -> None:
    try:
        await app(scope, inbox.get, outbox.put)
    except Exception as error:  # told to whoever waits for the application
        await outbox.put({"type": "failed", "message": f"{type(error).__name__}: {error}"})


async def _say(what: str, inbox: asyncio.Queue[ASGIMessage], outbox: asyncio.Queue[ASGIMessage]) -> None:
    await inbox.put({"type": what})
    answer = await outbox.get()
    if answer["type"] != f"{what}.complete":
        raise RuntimeError(f"The application failed at {what}: {answer.get('message', '')}")
