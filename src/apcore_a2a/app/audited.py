"""What the audit log is told: by the door, the engine, routes of our own, and when a task ends."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apcore_a2a.auth.audit import AuditLog
from apcore_a2a.engine.call_context import CallContext
from apcore_a2a.engine.observer import Observer, Silent
from apcore_a2a.errors import A2AError, AccessDeniedError, wire
from apcore_a2a.http.asgi import client_of, inbound
from apcore_a2a.protocol.model import SendMessage, TaskState, Value
from apcore_a2a.protocol.operations import Operation


class AuditedOperations:
    """An interceptor that writes a line for each operation: who asked for what, and whether they got it."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    async def before(self, operation: Operation, request: Value, context: CallContext) -> None:
        """Nothing is known yet."""

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
    """The task that a request names; a new one has no name yet."""
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
    """Before a route that leads to no operation of A2A: writes a line for each request, as an operation has one."""

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


class AuditedTasks(Silent):
    """An observer that writes a line when a task ends: whose it was, and how it ended."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def task_ended(self, task_id: str, owner: str, state: TaskState) -> None:
        outcome = state.removeprefix("TASK_STATE_").lower()
        self._log.write("task_ended", task=task_id, caller=owner, outcome=outcome)


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def run_started(self, task_id: str) -> None:
        for observer in self._observers:
            observer.run_started(task_id)

    def run_ended(self, task_id: str, state: TaskState, seconds: float) -> None:
        for observer in self._observers:
            observer.run_ended(task_id, state, seconds)

    def run_abandoned(self, task_id: str) -> None:
        for observer in self._observers:
            observer.run_abandoned(task_id)

    def task_ended(self, task_id: str, owner: str, state: TaskState) -> None:
        for observer in self._observers:
            observer.task_ended(task_id, owner, state)

    def stream_opened(self, task_id: str) -> None:
        for observer in self._observers:
            observer.stream_opened(task_id)

    def stream_closed(self, task_id: str) -> None:
        for observer in self._observers:
            observer.stream_closed(task_id)

    def notification_sent(self, task_id: str) -> None:
        for observer in self._observers:
            observer.notification_sent(task_id)

    def notification_failed(self, task_id: str) -> None:
        for observer in self._observers:
            observer.notification_failed(task_id)

    def notification_retried(self, task_id: str) -> None:
        for observer in self._observers:
            observer.notification_retried(task_id)

    def webhook_given_up(self, task_id: str) -> None:
        for observer in self._observers:
            observer.webhook_given_up(task_id)

    def storage_refused(self, account: str) -> None:
        for observer in self._observers:
            observer.storage_refused(account)
