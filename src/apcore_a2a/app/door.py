"""The door: what everybody must show who wants to go further.

Rule: the door knows no exceptions. What is open to all stands beside it: the routes say which, each by itself.
"""

import logging

from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.auth.audit import AuditLog
from apcore_a2a.auth.authenticator import Authenticator, identify, security_schemes
from apcore_a2a.auth.credentials import challenge, credential_headers
from apcore_a2a.errors import OverloadedError, UnauthenticatedError
from apcore_a2a.http.asgi import client_of, error_headers, refuse_early

logger = logging.getLogger(__name__)

NOT_AVAILABLE = "Authentication is not available; try again later"


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
            shown = {"authorization": ""}  # something was shown, and it is not good
            await self._refuse(scope, send, shown, "two sets of credentials")
            return
        try:
            caller = await identify(self._authenticator, headers)
        except OverloadedError as error:
            await self._refuse_for_now(scope, send, "authentication is not available", log=error.message)
            return
        # Foreign code. SystemExit, too: whoever calls it means a program of theirs, not this server.
        except (Exception, SystemExit):
            logger.exception("the authenticator failed; the request was refused")
            await self._refuse_for_now(scope, send, "the authenticator failed")
            return
        if caller is None:
            is_shown = not self._credential_headers.isdisjoint(headers)
            await self._refuse(scope, send, headers, "bad credentials" if is_shown else "no credentials")
            return
        # A new scope: the one that was handed in belongs to the server.
        await self._app({**scope, "a2a.caller": caller}, receive, send)

    def _read_headers(self, scope: Scope) -> dict[str, str] | None:
        """The headers by lower-case name; None when there are two sets of credentials."""
        # Of two Authorization headers, a proxy in front of us may have checked the one that we would not look at.
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            name_text = name.decode("latin-1").lower()  # latin-1 decodes any byte: bad headers are no crash
            if name_text in headers and name_text in self._credential_headers:
                return None
            headers[name_text] = value.decode("latin-1")
        return headers

    async def _refuse(self, scope: Scope, send: Send, shown: dict[str, str], reason: str) -> None:
        self._note(scope, reason)
        how_to = challenge(self._schemes, shown)
        await refuse_early(scope, send, 401, UnauthenticatedError(), ((b"www-authenticate", how_to),), reason=reason)

    async def _refuse_for_now(self, scope: Scope, send: Send, reason: str, *, log: str = "") -> None:
        """Nobody comes in while nobody can tell who they are."""
        self._note(scope, reason)
        error = OverloadedError(NOT_AVAILABLE, retry_after=5)
        await refuse_early(scope, send, 503, error, error_headers(error), reason=log or reason)

    def _note(self, scope: Scope, reason: str) -> None:
        """Tell the audit log of somebody who was not let in."""
        if self._audit is not None:
            peer = client_of(scope)
            host = "" if peer is None else peer[0]
            asked = f"{scope['method']} {scope['path']}"
            self._audit.write("authentication", operation=asked, peer=host, outcome="denied", reason=reason)
