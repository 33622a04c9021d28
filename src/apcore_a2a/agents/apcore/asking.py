"""The approval handler of an agent that brought none: it asks whoever sent the message.

Without a handler apcore runs what requires approval, and writes a warning. An agent on a network asks instead.
"""

import secrets
from typing import Any, Final

import apcore

MAX_DECISIONS: Final = 10_000


class AskCaller:
    """Every approval is pending until the task's reply decides it; a decision is good for one call."""

    def __init__(self) -> None:
        self._decisions: dict[str, tuple[bool, str | None]] = {}

    async def request_approval(self, request: Any) -> Any:  # Any: apcore's ApprovalRequest and ApprovalResult
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
        while len(self._decisions) >= MAX_DECISIONS:
            del self._decisions[next(iter(self._decisions))]
        self._decisions[approval_id] = (approved, reason)


def asking() -> dict[str, AskCaller]:
    """The argument for an Executor that has such a handler; before 0.7 apcore has no approvals."""
    return {"approval_handler": AskCaller()} if hasattr(apcore, "ApprovalResult") else {}
