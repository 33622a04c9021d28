"""The door: who comes in without credentials, and what everybody else must show.

Rule: what is open is named exactly, method and path. There are no prefixes.
"""

import logging
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.auth.authenticator import Authenticator, identify
from apcore_a2a.errors import OverloadedError, VersionNotSupportedError
from apcore_a2a.protocol import jsonrpc, v1
from apcore_a2a.protocol.dialect import DIALECTS, REST_DIALECTS, choose

logger = logging.getLogger(__name__)

_REFUSED: Final = b'{"error":{"code":401,"message":"Authentication required"}}'


class AuthMiddleware:
    """Lets a request through with its caller in `scope["a2a.caller"]`, or answers 401."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, *, exempt: frozenset[tuple[str, str]]) -> None:
        self._app = app
        self._authenticator = authenticator
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Mounted below another application, the path has that one's prefix; what is exempt is named without it.
        root = scope.get("root_path", "").rstrip("/")
        path = scope["path"].removeprefix(root)
        if (scope["method"], path) in self._exempt:
            await self._app(scope, receive, send)
            return
        headers = _read_headers(scope)
        if headers is None:
            await _refuse(send, had_credentials=True)
            return
        try:
            caller = await identify(self._authenticator, headers)
        # Foreign code. SystemExit, too: whoever calls it means a program of theirs, not this server.
        except (Exception, SystemExit):
            logger.exception("the authenticator failed; the request was refused")
            await _refuse_for_now(scope, path, headers, send)
            return
        if caller is None:
            await _refuse(send, had_credentials="authorization" in headers)
            return
        # A new scope: the one that was handed in belongs to the server.
        await self._app({**scope, "a2a.caller": caller}, receive, send)


def _read_headers(scope: Scope) -> dict[str, str] | None:
    """The headers by lower-case name; None when there are two sets of credentials."""
    # Of two Authorization headers, a proxy in front of us may have checked the one that we would not look at.
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        name_text = name.decode("latin-1").lower()  # latin-1 decodes any byte: bad headers are no crash
        if name_text == "authorization" and name_text in headers:
            return None
        headers[name_text] = value.decode("latin-1")
    return headers


async def _refuse_for_now(scope: Scope, path: str, headers: dict[str, str], send: Send) -> None:
    """Nobody comes in while nobody can tell who they are; said as the binding behind the door would say it."""
    error = OverloadedError("Authentication is not available; try again later", retry_after=5)
    try:
        version = choose(headers.get("a2a-version", "").strip()).VERSION
    except VersionNotSupportedError:
        version = v1.VERSION
    if (scope["method"], path) == ("POST", "/"):
        body = jsonrpc.format_error(jsonrpc.NULL, DIALECTS[version].encode_error(error))
    else:
        body = REST_DIALECTS[version].encode_rest_error(error, 503)
    start = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"%d" % error.retry_after),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Send, *, had_credentials: bool) -> None:
    # RFC 6750 §3.1: no error code for a request that showed nothing; and never why a token is invalid.
    challenge = b'Bearer error="invalid_token"' if had_credentials else b"Bearer"
    start = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(_REFUSED)),
        (b"www-authenticate", challenge),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": start})
    await send({"type": "http.response.body", "body": _REFUSED})
