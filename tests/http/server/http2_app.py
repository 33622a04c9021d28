"""An ASGI application with an endpoint for each behaviour of a server, behind HTTP/2."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.types import Receive, Scope, Send

from apcore_a2a.http.server.connection import HTTP2Support
from apcore_a2a.http.server.http2 import (
    HTTP2Connection,
    HTTP2Timeouts,
)
from apcore_a2a.http.traffic import KEY, Traffic
from tests.interaction.serving import serving_app

TIMEOUTS = HTTP2Timeouts(first_request=0.3, idle=0.3, check=0.1, unread=0.3, unread_at_shutdown=0.1, after_goaway=0.2)


class App:
    """An ASGI application with an endpoint for each behaviour of a server."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.received: list[Any] = []
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.ended: list[str] = []
        self.traffic = Traffic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.begun.set()
        endpoint: Callable[..., Any] = getattr(self, scope["path"].strip("/").partition("/")[0] or "hello", self.hello)
        try:
            await endpoint(scope, receive, send)
        finally:
            self.ended.append(scope["path"])

    async def answer(self, send: Send, body: bytes = b"hello", status: int = 200) -> None:
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": status, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    async def hello(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer(send)

    async def echo(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            body += part["body"]
            if not part["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": True})
        await send({"type": "http.response.body", "body": body})
        await send({"type": "http.response.trailers", "headers": [(b"size", b"%d" % len(body))]})

    async def large(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer(send, b"x" * int(scope["query_string"]))

    async def wait(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gate.wait()
        await self.answer(send)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.gate.wait()
        await send({"type": "http.response.body", "body": b"late"})

    async def watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note what is received after the body, up to the disconnection."""
        while True:
            part = await receive()
            self.received.append(part)
            if part["type"] == "http.disconnect":
                return

    async def fail(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("broken")

    async def half(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError("broken")

    async def nothing(self, scope: Scope, receive: Receive, send: Send) -> None:
        return

    async def headers(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"X-Upper", b"1"), (b"connection", b"close"), (b"transfer-encoding", b"chunked")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def inject(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"1\r\nb: 2")]})


class Short(HTTP2Connection):
    timeouts = TIMEOUTS


def serving_http2(app: App, support: HTTP2Support) -> AbstractAsyncContextManager[str]:
    async def with_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        scope["state"][KEY] = app.traffic
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return serving_app(with_lifespan, http2=support)
