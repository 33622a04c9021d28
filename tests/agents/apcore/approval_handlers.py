"""Approval handlers that wait for a decision, and a module that requires approval."""

from typing import Any

import apcore

from tests.agents.apcore.running import Add, Data, Outcome, Returns, agent_of, call_of, registry_of, run


class PendingHandler:
    """An approval handler whose approvals stay pending until `decisions` has a decision."""

    def __init__(self, *, reason: str | None = "costs money") -> None:
        self.requests: list[Any] = []
        self.decisions: dict[str, str] = {}
        self.checked: list[str] = []
        self.resolved: list[tuple[str, bool, str | None]] = []
        self.reason = reason

    def result(self, status: str, approval_id: str) -> Any:
        return apcore.ApprovalResult(status=status, approval_id=approval_id, reason=self.reason)

    async def request_approval(self, request: Any) -> Any:
        self.requests.append(request)
        return self.result("pending", f"approval-{len(self.requests)}")

    async def check_approval(self, approval_id: str) -> Any:
        self.checked.append(approval_id)
        return self.result(self.decisions.get(approval_id, "pending"), approval_id)


class ResolvingHandler(PendingHandler):
    async def resolve(self, approval_id: str, *, approved: bool, reason: str | None = None) -> bool:
        self.resolved.append((approval_id, approved, reason))
        self.decisions[approval_id] = "approved" if approved else "rejected"
        return True


class StoreBackedHandler(PendingHandler):
    """Its store has `resolve`, as in apcore-mcp."""

    def __init__(self) -> None:
        super().__init__()
        self.store = ResolvingHandler()
        self.decisions = self.store.decisions


class Pay(Add):
    annotations = apcore.ModuleAnnotations(requires_approval=True)

    def __init__(self) -> None:
        self.paid: list[Data] = []

    async def execute(self, inputs: Data, context: Any) -> Data:
        self.paid.append(inputs)
        return await super().execute(inputs, context)


def gated(handler: PendingHandler, **modules: Any) -> apcore.Executor:
    return apcore.Executor(registry_of(**modules), approval_handler=handler)


async def waiting(handler: PendingHandler, pay: Pay, **options: Any) -> tuple[Any, Outcome]:
    agent = agent_of(gated(handler, bank__pay=pay, text__echo=Returns({"echo": True})), **options)
    return agent, await run(agent, call_of({"a": 10, "b": 0}, skill="bank.pay"))
