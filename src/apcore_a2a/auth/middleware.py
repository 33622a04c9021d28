"""The door: what everybody must show who wants to go further.

Rule: the door knows no exceptions. What is open to all stands beside it: the routes say which, each by itself.
"""

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.auth.audit import AuditLog
from apcore_a2a.auth.authenticator import Authenticator, identify, security_schemes
from apcore_a2a.auth.credentials import challenge, credential_headers
from apcore_a2a.errors import A2AError, OverloadedError, UnauthenticatedError, VersionNotSupportedError, wire
from apcore_a2a.protocol import jsonrpc, v1
from apcore_a2a.protocol.dialect import DIALECTS, REST_DIALECTS, choose
from apcore_a2a.safe_headers import NO_STORE, SAFE

logger = logging.getLogger(__name__)

Headers = dict[str, str]


class AuthMiddleware:
    """Lets a request through with its caller in `scope["a2a.caller"]`, or answers 401."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, *, audit: AuditLog | None = None) -> None:
        self._app = app
        self._audit = audit
        self._authenticator = authenticator
        self._schemes = security_schemes(authenticator)
        self._credential_headers = credential_headers(self._schemes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._read_headers(scope)
        if headers is None:
            self._note(scope, "two sets of credentials")
            shown = {"authorization": ""}  # something was shown, and it is not good
            await _refuse(scope, {}, send, challenge=challenge(self._schemes, shown))
            return
        try:
            caller = await identify(self._authenticator, headers)
        except OverloadedError as error:
            logger.warning("authentication is not available", extra={"reason": error.message})
            self._note(scope, "authentication is not available")
            await _refuse_for_now(scope, headers, send)
            return
        # Foreign code. SystemExit, too: whoever calls it means a program of theirs, not this server.
        except (Exception, SystemExit):
            logger.exception("the authenticator failed; the request was refused")
            self._note(scope, "the authenticator failed")
            await _refuse_for_now(scope, headers, send)
            return
        if caller is None:
            is_shown = not self._credential_headers.isdisjoint(headers)
            self._note(scope, "bad credentials" if is_shown else "no credentials")
            await _refuse(scope, headers, send, challenge=challenge(self._schemes, headers))
            return
        # A new scope: the one that was handed in belongs to the server.
        await self._app({**scope, "a2a.caller": caller}, receive, send)

    def _note(self, scope: Scope, reason: str) -> None:
        """Tell the audit log of somebody who was not let in."""
        if self._audit is not None:
            peer = scope.get("client")
            host = "" if peer is None else peer[0]
            asked = f"{scope['method']} {scope['path']}"
            self._audit.write("authentication", operation=asked, peer=host, outcome="denied", reason=reason)

    def _read_headers(self, scope: Scope) -> Headers | None:
        """The headers by lower-case name; None when there are two sets of credentials."""
        # Of two Authorization headers, a proxy in front of us may have checked the one that we would not look at.
        headers: Headers = {}
        for name, value in scope["headers"]:
            name_text = name.decode("latin-1").lower()  # latin-1 decodes any byte: bad headers are no crash
            if name_text in headers and name_text in self._credential_headers:
                return None
            headers[name_text] = value.decode("latin-1")
        return headers


def _path(scope: Scope) -> str:
    """The path as routes are named: mounted below another application, a request's has that one's prefix."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/"))


async def _refuse_for_now(scope: Scope, headers: Headers, send: Send) -> None:
    """Nobody comes in while nobody can tell who they are."""
    error = OverloadedError("Authentication is not available; try again later", retry_after=5)
    await _answer(scope, headers, send, error, (b"retry-after", b"%d" % error.retry_after))


async def _refuse(scope: Scope, headers: Headers, send: Send, *, challenge: bytes) -> None:
    await _answer(scope, headers, send, UnauthenticatedError(), (b"www-authenticate", challenge))


async def _answer(scope: Scope, headers: Headers, send: Send, error: A2AError, header: tuple[bytes, bytes]) -> None:
    """Say an error as the binding behind the door would say it."""
    version = headers.get("a2a-version", "").strip()
    status = wire(error).http
    try:
        known = choose(version).VERSION
    except VersionNotSupportedError:
        known = v1.VERSION
    if (scope["method"], _path(scope)) == ("POST", "/"):
        body = jsonrpc.format_error(jsonrpc.NULL, DIALECTS[known].encode_error(error, typed=bool(version)))
    else:
        body = REST_DIALECTS[known].encode_rest_error(error, status, typed=bool(version))
    start = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), header, *SAFE, *NO_STORE]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
