"""A gRPC call of an application without a connection, for comparisons of its answers byte by byte."""

import asyncio
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from apcore_a2a.protocol.grpc import frame_message
from tests.fakes import PATIENCE


class RawAnswer(NamedTuple):
    """What an application sends for a call. The details of its status are decoded."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    details: bytes


async def call_app(app: ASGIApp, path: str, body: bytes, headers: Mapping[str, str]) -> RawAnswer:
    """Call an application without a connection, and return its answer byte by byte."""
    sent: list[Any] = []
    unread = [{"type": "http.request", "body": frame_message(body), "more_body": False}]
    done = asyncio.Event()

    async def receive() -> Any:
        if unread:
            return unread.pop()
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    names = {"host": "localhost", "content-type": "application/grpc", **headers}
    scope = {
        "type": "http",
        "http_version": "2",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in names.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    async with asyncio.timeout(PATIENCE):
        await app(scope, receive, send)
    done.set()
    found: list[tuple[bytes, bytes]] = []
    details = b""
    for message in sent:
        for name, value in message.get("headers", ()):
            if name == b"grpc-status-details-bin":
                details = b64decode(value + b"=" * (-len(value) % 4))
            else:
                found.append((name, value))
    return RawAnswer(tuple(found), b"".join(message.get("body", b"") for message in sent), details)
