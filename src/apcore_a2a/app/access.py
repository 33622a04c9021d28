"""Authentication of requests, and the entries of the audit log.

Invariant: `AuthMiddleware` has no exempt paths. Public routes are not wrapped in it: `routes` names each of them.
"""

import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apcore_a2a.auth.audit import AuditLog
from apcore_a2a.auth.authenticator import Authenticator, challenge, credential_headers, identify, security_schemes
from apcore_a2a.engine.context import CallContext, Observer
from apcore_a2a.errors import A2AError, AccessDeniedError, OverloadedError, UnauthenticatedError, wire
from apcore_a2a.http.asgi import client_of, error_headers, inbound, refuse_early
from apcore_a2a.protocol.model import Operation, SendMessage, TaskState, Value

logger = logging.getLogger(__name__)

NOT_AVAILABLE = "Authentication is not available; try again later"


class AuthMiddleware:
    """Authenticates requests: passes on a request with its caller in `scope["a2a.caller"]`, or answers 401 or 503."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator, *, audit: AuditLog | None = None) -> None:
        self._app = app
        self._audit = audit
        self._authenticator = authenticator
        self._schemes = security_schemes(authenticator)
        self._credential_headers = credential_headers(self._schemes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._read_headers(scope)
        if headers is None:
            shown = {"authorization": ""}  # the challenge has to say that the credentials are invalid, not missing
            await self._refuse(scope, send, shown, "two sets of credentials")
            return
        try:
            caller = await identify(self._authenticator, headers)
        except OverloadedError as error:
            await self._refuse_with_503(scope, send, "authentication is not available", log=error.message)
            return
        # The authenticator may be code of the application. SystemExit as well: it must not end this server.
        except (Exception, SystemExit):
            logger.exception("the authenticator failed; the request was refused")
            await self._refuse_with_503(scope, send, "the authenticator failed")
            return
        if caller is None:
            is_shown = not self._credential_headers.isdisjoint(headers)
            await self._refuse(scope, send, headers, "bad credentials" if is_shown else "no credentials")
            return
        # A new scope: the given one belongs to the server.
        await self._app({**scope, "a2a.caller": caller}, receive, send)

    def _read_headers(self, scope: Scope) -> dict[str, str] | None:
        """Return the headers by lower-case name, or None if a header with credentials occurs twice."""
        # Of two Authorization headers, a proxy in front of this server might check one, and this server the other.
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            name_text = name.decode("latin-1").lower()  # latin-1 decodes any byte, so no header raises
            if name_text in headers and name_text in self._credential_headers:
                return None
            headers[name_text] = value.decode("latin-1")
        return headers

    async def _refuse(self, scope: Scope, send: Send, shown: dict[str, str], reason: str) -> None:
        self._audit_rejection(scope, reason)
        how_to = challenge(self._schemes, shown)
        await refuse_early(scope, send, 401, UnauthenticatedError(), ((b"www-authenticate", how_to),), reason=reason)

    async def _refuse_with_503(self, scope: Scope, send: Send, reason: str, *, log: str = "") -> None:
        """Reject the request with 503, because its caller cannot be determined."""
        self._audit_rejection(scope, reason)
        error = OverloadedError(NOT_AVAILABLE, retry_after=5)
        await refuse_early(scope, send, 503, error, error_headers(error), reason=log or reason)

    def _audit_rejection(self, scope: Scope, reason: str) -> None:
        """Write a rejected request to the audit log."""
        if self._audit is not None:
            peer = client_of(scope)
            host = "" if peer is None else peer[0]
            asked = f"{scope['method']} {scope['path']}"
            self._audit.write("authentication", operation=asked, peer=host, outcome="denied", reason=reason)


# ---- audit log ------------------------------------------------------------------------------------------------------
# Entries of A2A operations, of requests to other routes, and of ended tasks.


class AuditedOperations:
    """An interceptor that writes a line for each operation: the caller, the request and its outcome."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    async def before(self, operation: Operation, request: Value, context: CallContext) -> None:
        """Write nothing: the outcome is not known yet."""

    async def after(self, operation: Operation, request: Value, context: CallContext, result: Any) -> None:
        outcome = "allowed"
        reason = ""
        match result:
            case AccessDeniedError():
                outcome = "denied"
                reason = result.reason
            case A2AError():
                outcome = "refused"
                reason = wire(result).reason
            case Exception():
                outcome = "failed"
                reason = type(result).__name__
        peer = context.peer
        self._log.write(
            "operation",
            operation=operation.name.lower(),
            caller=context.owner,
            peer="" if peer is None else peer[0],
            task=_task_of(request),
            skill=_skill_of(request),
            outcome=outcome,
            reason=reason,
        )


def _task_of(request: Value) -> str:
    """Return the id of the task that a request names. A new task has none yet."""
    if isinstance(request, SendMessage):
        return request.message.task_id
    return str(getattr(request, "task_id", "") or getattr(request, "id", ""))


def _skill_of(request: Value) -> str:
    if not isinstance(request, SendMessage):
        return ""
    for metadata in (request.message.metadata, request.metadata):
        skill = (metadata or {}).get("skillId")
        if isinstance(skill, str):
            return skill
    return ""


class AuditedRoute:
    """Writes a line to the audit log for each request to a route that is not an A2A operation."""

    def __init__(self, app: ASGIApp, log: AuditLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500

        async def note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            self._write(scope, status)

    def _write(self, scope: Scope, status: int) -> None:
        peer = client_of(scope)
        outcome = "allowed"
        if status >= 400:
            outcome = "refused" if status < 500 else "failed"
        self._log.write(
            "operation",
            operation=f"{scope['method']} {scope['path']}",
            caller=inbound(scope).caller.owner,
            peer="" if peer is None else peer[0],
            outcome=outcome,
            reason="" if outcome == "allowed" else HTTPStatus(status).name,
        )


class AuditedTasks(Observer):
    """An observer that writes a line when a task ends: its owner and its final state."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def task_ended(self, task_id: str, owner: str, state: TaskState) -> None:
        outcome = state.removeprefix("TASK_STATE_").lower()
        self._log.write("task_ended", task=task_id, caller=owner, outcome=outcome)


class Observers(Observer):
    """Passes each event on to the observers that override its hook."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def add(self, observer: Observer) -> None:
        """Pass the events on to this observer, too."""
        self._observers.append(observer)
        for hook in HOOKS:
            listening = [getattr(each, hook) for each in self._observers if _overrides(each, hook)]
            if len(listening) == 1:
                setattr(self, hook, listening[0])  # without a step in between: some hooks are called for each message
            elif listening:
                setattr(self, hook, partial(_call_all, tuple(listening)))


HOOKS: Final = tuple(name for name in vars(Observer) if not name.startswith("_"))


def _overrides(observer: Observer, hook: str) -> bool:
    return getattr(type(observer), hook) is not getattr(Observer, hook)


def _call_all(hooks: tuple[Callable[..., None], ...], *details: object) -> None:
    for hook in hooks:
        hook(*details)
