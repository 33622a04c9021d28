"""The door: who comes in without credentials, and what everybody else must show.

Rule: what is open is named exactly, method and path. There are no prefixes.
"""

import logging
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.auth.authenticator import Authenticator, identify

logger = logging.getLogger(__name__)

_REFUSED: Final = b'{"error":{"code":401,"message":"Authentication required"}}'


class AuthMiddleware:
    """Lets a request through with its caller in `scope["a2a.caller"]`, or answers 401."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, *, exempt: frozenset[tuple[str, str]]) -> None:
        self._app, self._authenticator, self._exempt = app, authenticator, exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
        if (scope["method"], path) in self._exempt:
            await self._app(scope, receive, send)
            return
        headers = _single(scope)
        caller = None if headers is None else await identify(self._authenticator, headers)
        if caller is None:
            await _refuse(send, given=headers is None or "authorization" in headers)
            return
        await self._app({**scope, "a2a.caller": caller}, receive, send)


def _single(scope: Scope) -> dict[str, str] | None:
    """The headers by lower-case name; None when there are two sets of credentials."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        text = name.decode("latin-1").lower()
        if text == "authorization" and text in headers:
            return None
        headers[text] = value.decode("latin-1")
    return headers


async def _refuse(send: Send, *, given: bool) -> None:
    challenge = b'Bearer error="invalid_token"' if given else b"Bearer"
    start = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(_REFUSED)),
        (b"www-authenticate", challenge),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": start})
    await send({"type": "http.response.body", "body": _REFUSED})
