"""Who is behind a proxy: the address that a trusted one says it has a request from.

Rule: only what a trusted proxy wrote counts. Each appends to X-Forwarded-For whom it was asked by, so the list is read
from its end, as far as those who wrote are trusted; what stands before that, anybody may have made up.
"""

from collections.abc import Awaitable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.http.asgi import CLIENT_KEY
from apcore_a2a.http.trusted_proxies import TrustedProxies


class ForwardedClient:
    """Notes in the scope whom a request came from, when it came through a trusted proxy."""

    def __init__(self, app: ASGIApp, *, proxies: tuple[str, ...]) -> None:
        self._app = app
        self._proxies = TrustedProxies(proxies)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        peer = scope.get("client")
        if peer is not None and peer[0] in self._proxies:
            scope[CLIENT_KEY] = (self._origin_of(scope, peer[0]), 0)
        return self._app(scope, receive, send)

    def _origin_of(self, scope: Scope, peer: str) -> str:
        named: list[str] = []
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":  # there may be several of them: they are one list
                named += value.decode("latin-1").split(",")
        origin = peer
        for text in reversed(named):
            address = _read_address(text.strip())
            if address is None:
                break
            origin = address
            if address not in self._proxies:
                break
        return origin


def _read_address(text: str) -> str | None:
    """An address, which some proxies write with a port: 10.0.0.1:4711, [::1]:4711."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None
