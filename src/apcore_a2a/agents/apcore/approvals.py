"""Calls that wait for a human: what is kept of them, how a reply is read, and who is told what was decided.

apcore asks an approval handler before it runs a module that requires approval. If the handler says *pending*, apcore
raises `ApprovalPendingError`; the same call with the approval's id as `_approval_token` has the handler asked again.
So a task that waits keeps the call it waits for (`PendingCall`), and each reply makes that call again. An executor that
has no handler would run the module unasked: then we ask, and make the call when the reply approves (`Asking`).

Rule: what is resumed is the call that was kept. A reply can decide about it, never change it.
"""

import inspect
import secrets
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import apcore
from msgspec import Struct

from apcore_a2a.agent import AgentEvent, Remember
from apcore_a2a.agents.apcore.failures import make_public
from apcore_a2a.agents.apcore.modules import held_by_gate
from apcore_a2a.agents.content import approval_required, rejected
from apcore_a2a.protocol.model import StatusUpdate

TOKEN: Final = "_approval_token"  # apcore's, and ours alone to give: it would approve whatever call it is in
MAX_DECISIONS: Final = 10_000
HAS_APPROVALS: Final = hasattr(apcore, "ApprovalResult")  # from 0.7 on


class PendingCall(Struct, frozen=True):
    """A call that waits, as it is kept with its task."""

    skill: str
    inputs: Any
    approval_id: str | None


class Approval(Struct, frozen=True):
    """What a resumed module finds in its context: which approval, and what was answered, by whom."""

    id: str | None
    approved: bool | None
    """None if the reply only asks to look again."""
    by: str


# ---- what the task says ----------------------------------------------------------------------------------------------


def wait_for_handler(error: Exception, skill: str, inputs: dict[str, Any]) -> Iterator[AgentEvent]:
    """Keep the call that apcore has not made, because its handler waits for a decision."""
    kept = dict(inputs)
    kept.pop(TOKEN, None)  # the next reply brings it again
    return wait_for_approval(PendingCall(skill, kept, getattr(error, "approval_id", None)), _reason(error))


def wait_for_caller(skill: str, inputs: Any, approval: Approval | None) -> Iterator[AgentEvent]:
    """Keep a call that apcore would make unasked. `approval` is what the caller was asked for before, if they were."""
    approval_id = secrets.token_urlsafe(16)
    if approval is not None and approval.id:
        approval_id = approval.id
    return wait_for_approval(PendingCall(skill, inputs, approval_id))


def wait_for_approval(pending: PendingCall, reason: str = "") -> Iterator[AgentEvent]:
    yield Remember(pending)
    what = f"module {pending.skill}{reason}"
    yield approval_required(what, skill_id=pending.skill, approval_id=pending.approval_id)


def denied(error: Exception, skill: str) -> StatusUpdate:
    """The handler said no."""
    return rejected(f"Approval denied for module {skill}{_reason(error)}")


def rejected_by_caller(skill: str) -> StatusUpdate:
    return rejected(f"Module {skill} was not run: rejected by the caller")


def _reason(error: Exception) -> str:
    reason = make_public(getattr(error, "reason", None))
    if not reason:
        return ""
    return f" ({reason})"


# ---- approval handlers -----------------------------------------------------------------------------------------------


class Asking(Enum):
    """Who is asked before an executor runs a module that requires approval."""

    HANDLER = "the executor's approval handler; or nobody, because its policy refuses such a module"
    NOBODY = "nobody: without us it would be run"
    UNKNOWN = "the executor does not tell"


def find_asking(executor: Any) -> Asking:
    """Who is asked, as things are now."""
    if not HAS_APPROVALS:
        return Asking.NOBODY
    if find_approval_handler(executor) is not None:
        return Asking.HANDLER
    gate = getattr(apcore, "BuiltinApprovalGate", None)
    if not hasattr(executor, "current_strategy") or not hasattr(gate, "handler"):  # from 0.32 on the gate tells
        return Asking.UNKNOWN
    if getattr(held_by_gate(executor, "BuiltinApprovalGate", "policy"), "strict", False):
        return Asking.HANDLER
    return Asking.NOBODY


def find_approval_handler(executor: Any) -> Any:
    """The approval handler of an executor, as it is now; None if there is none, or if the executor does not tell."""
    handler = held_by_gate(executor, "BuiltinApprovalGate", "handler")
    if handler is not None:
        return handler
    return getattr(executor, "approval_handler", None)  # a ServedExecutor tells on every version of apcore


async def tell_handler(handler: Any, approval: Approval) -> None:
    """Tell an approval handler what the caller decided, if it wants to know.

    It does if it has a method `resolve`, or a `store` that has one. apcore does not know the method; the name and the
    arguments are those of apcore-mcp's ApprovalStore.
    """
    resolve = getattr(handler, "resolve", None) or getattr(getattr(handler, "store", None), "resolve", None)
    if resolve is None or not approval.id or approval.approved is None:
        return
    told = resolve(approval.id, approved=approval.approved, reason=f"Decided by {approval.by}")
    if inspect.isawaitable(told):
        await told


class AskCaller:
    """The approval handler of an agent that brought none: it asks whoever sent the message.

    Every approval is pending until the task's reply decides it; a decision is good for one call. What a module calls is
    denied: a reply makes the whole call of that module again, which would ask again, and do twice what it did before.
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
        """Take a decision. The task that keeps the id vouches for it, so it may be older than this process."""
        # Decisions nobody comes back for would pile up: the oldest make room.
        while len(self._decisions) >= MAX_DECISIONS:
            oldest = next(iter(self._decisions))
            del self._decisions[oldest]
        self._decisions[approval_id] = (approved, reason)
