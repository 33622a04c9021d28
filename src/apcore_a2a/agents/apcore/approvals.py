"""Approvals of module calls: the stored call, the status of the task, and the approval handlers.

apcore asks an approval handler before it runs a module that requires approval. If the handler answers *pending*,
apcore raises `ApprovalPendingError`. The same call with the approval's id as `_approval_token` makes apcore ask the
handler again. So a waiting task stores its call (`PendingCall`), and each reply repeats that call. An executor without
a handler would run the module without an approval. In that case this package asks the caller, and makes the call when
the reply approves (`Approver`).

Invariant: a reply decides about the stored call and cannot change it.
"""

import inspect
import secrets
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import apcore
from msgspec import Struct

from apcore_a2a.agent import AgentEvent, Remember
from apcore_a2a.agents.apcore.failures import sanitize
from apcore_a2a.agents.apcore.modules import held_by_gate
from apcore_a2a.agents.questions import approval_required, rejected
from apcore_a2a.protocol.model import StatusUpdate

TOKEN: Final = "_approval_token"  # an argument of apcore that approves its call, so clients must not send it
MAX_DECISIONS: Final = 10_000
HAS_APPROVALS: Final = hasattr(apcore, "ApprovalResult")  # from 0.7 on


class PendingCall(Struct, frozen=True):
    """A call that waits for an approval, as stored with its task."""

    skill: str
    inputs: Any
    approval_id: str | None


class Approval(Struct, frozen=True):
    """The approval in the context of a resumed module: its id, the decision, and the caller who decided."""

    id: str | None
    approved: bool | None
    """None if the reply contains no decision, so the handler is asked again."""
    by: str


# ---- status of the task ----------------------------------------------------------------------------------------------


def wait_for_handler(error: Exception, skill: str, inputs: dict[str, Any]) -> Iterator[AgentEvent]:
    """Yield the events that store a call and ask for its approval, after the handler of apcore answered *pending*."""
    kept = dict(inputs)
    kept.pop(TOKEN, None)  # the next reply adds it again
    return wait_for_approval(PendingCall(skill, kept, getattr(error, "approval_id", None)), _reason(error))


def wait_for_caller(skill: str, inputs: Any, approval: Approval | None) -> Iterator[AgentEvent]:
    """Yield the events that store a call, which apcore would make without an approval, and ask the caller.

    `approval` is the one that this call has already waited for, if any. The question keeps its id.
    """
    approval_id = secrets.token_urlsafe(16)
    if approval is not None and approval.id:
        approval_id = approval.id
    return wait_for_approval(PendingCall(skill, inputs, approval_id))


def wait_for_approval(pending: PendingCall, reason: str = "") -> Iterator[AgentEvent]:
    yield Remember(pending)
    what = f"module {pending.skill}{reason}"
    yield approval_required(what, skill_id=pending.skill, approval_id=pending.approval_id, inputs=pending.inputs)


def denied(error: Exception, skill: str) -> StatusUpdate:
    """Return the status for a call that the approval handler denied."""
    return rejected(f"Approval denied for module {skill}{_reason(error)}")


def rejected_by_caller(skill: str) -> StatusUpdate:
    return rejected(f"Module {skill} was not run: rejected by the caller")


def _reason(error: Exception) -> str:
    reason = sanitize(getattr(error, "reason", None))
    if not reason:
        return ""
    return f" ({reason})"


# ---- approval handlers -----------------------------------------------------------------------------------------------


class Approver(Enum):
    """What decides whether an executor runs a module that requires approval."""

    HANDLER = "the executor's approval handler, or a strict policy that rejects such modules"
    NONE = "nothing: the executor would run the module"
    UNKNOWN = "the executor does not expose its handler"


def find_approver(executor: Any) -> Approver:
    """Return what currently decides about approvals."""
    if not HAS_APPROVALS:
        return Approver.NONE
    if find_approval_handler(executor) is not None:
        return Approver.HANDLER
    gate = getattr(apcore, "BuiltinApprovalGate", None)
    if not hasattr(executor, "current_strategy") or not hasattr(gate, "handler"):  # exposed from 0.32 on
        return Approver.UNKNOWN
    if getattr(held_by_gate(executor, "BuiltinApprovalGate", "policy"), "strict", False):
        return Approver.HANDLER
    return Approver.NONE


def find_approval_handler(executor: Any) -> Any:
    """Return the current approval handler of an executor. None if it has none or does not expose it."""
    handler = held_by_gate(executor, "BuiltinApprovalGate", "handler")
    if handler is not None:
        return handler
    return getattr(executor, "approval_handler", None)  # a ServedExecutor exposes it on every version of apcore


async def notify_handler(handler: Any, approval: Approval) -> None:
    """Pass the decision of the caller to an approval handler that accepts it.

    A handler accepts decisions if it, or its `store`, has a method `resolve`. apcore does not define this method. Its
    name and arguments are those of apcore-mcp's ApprovalStore.
    """
    resolve = getattr(handler, "resolve", None) or getattr(getattr(handler, "store", None), "resolve", None)
    if resolve is None or not approval.id or approval.approved is None:
        return
    resolved = resolve(approval.id, approved=approval.approved, reason=f"Decided by {approval.by}")
    if inspect.isawaitable(resolved):
        await resolved


class AskCaller:
    """The default approval handler, which asks the caller who sent the message.

    Each approval is pending until a reply to the task decides it, and a decision covers one call. Calls that a module
    makes itself are denied: a reply repeats the whole call of that module, which would ask again, and repeat what it
    has already done.
    """

    def __init__(self) -> None:
        self._decisions: dict[str, tuple[bool, str | None]] = {}

    async def request_approval(self, request: Any) -> Any:  # Any: apcore's ApprovalRequest and ApprovalResult
        if request.context.caller_id is not None:
            reason = f"{request.module_id} requires approval, and a caller can approve only what they call"
            return apcore.ApprovalResult(status="rejected", reason=reason)
        return apcore.ApprovalResult(status="pending", approval_id=secrets.token_urlsafe(16))

    async def check_approval(self, approval_id: str) -> Any:
        decision = self._decisions.pop(approval_id, None)
        if decision is None:
            return apcore.ApprovalResult(status="pending", approval_id=approval_id)
        approved, reason = decision
        status = "approved" if approved else "rejected"
        return apcore.ApprovalResult(status=status, approval_id=approval_id, reason=reason)

    def resolve(self, approval_id: str, *, approved: bool, reason: str | None = None) -> None:
        """Store a decision. The id may be older than this process, because it is stored with the task."""
        # Decisions that are never fetched would accumulate, so the oldest are evicted.
        while len(self._decisions) >= MAX_DECISIONS:
            oldest = next(iter(self._decisions))
            del self._decisions[oldest]
        self._decisions[approval_id] = (approved, reason)
