"""A registry without an executor: the caller is asked for approvals."""

from typing import Any

import apcore
import pytest

from apcore_a2a.agents.apcore.approvals import MAX_DECISIONS
from apcore_a2a.protocol.model import TaskState
from tests.agents.apcore.approval_handlers import Pay
from tests.agents.apcore.running import Data, agent_of, call_of, registry_of, run
from tests.requirements import requirement

pytestmark = pytest.mark.skipif(not hasattr(apcore, "ApprovalResult"), reason="this apcore has no approvals")


@requirement("FR-EXE-002")
async def test_a_bare_registry_asks_before_it_runs_a_module_that_requires_approval() -> None:
    agent = agent_of(registry_of(bank__pay=Pay()))
    asked = await run(agent, call_of(Data({"a": 1, "b": 2}), skill="bank.pay"))
    assert asked.state is TaskState.INPUT_REQUIRED
    done = await run(agent, call_of("approve", memo=asked.memo))
    assert done.state is TaskState.COMPLETED


@requirement("FR-EXE-002")
async def test_a_decision_after_a_restart_applies() -> None:
    asked = await run(agent_of(registry_of(bank__pay=Pay())), call_of(Data({"a": 1, "b": 2}), skill="bank.pay"))
    done = await run(agent_of(registry_of(bank__pay=Pay())), call_of("approve", memo=asked.memo))
    assert done.state is TaskState.COMPLETED


async def test_any_other_reply_asks_again() -> None:
    agent = agent_of(registry_of(bank__pay=Pay()))
    asked = await run(agent, call_of(Data({"a": 1, "b": 2}), skill="bank.pay"))
    again = await run(agent, call_of("what for?", memo=asked.memo))
    assert again.state is TaskState.INPUT_REQUIRED


async def test_a_nested_call_that_requires_approval_is_denied() -> None:
    class Shop:
        description = "Buy something"

        async def execute(self, inputs: Data, context: Any) -> Any:
            return await context.executor.call_async("bank.pay", {"a": 1, "b": 2}, context)

    pay = Pay()
    ended = await run(agent_of(registry_of(bank__pay=pay, shop__buy=Shop())), call_of(Data(), skill="shop.buy"))
    assert ended.state is TaskState.REJECTED
    assert ended.text == (
        "Approval denied for module shop.buy (bank.pay requires approval, and a caller can approve only what they call)"
    )
    assert pay.calls == 0


async def test_a_decision_covers_one_call() -> None:
    from apcore_a2a.agents.apcore.approvals import AskCaller

    asking = AskCaller()
    asking.resolve("a-1", approved=True)
    assert (await asking.check_approval("a-1")).status == "approved"
    assert (await asking.check_approval("a-1")).status == "pending"
    asking.resolve("a-2", approved=False, reason="no")
    assert (await asking.check_approval("a-2")).status == "rejected"


async def test_decisions_that_are_never_fetched_are_evicted() -> None:
    from apcore_a2a.agents.apcore.approvals import AskCaller

    asking = AskCaller()
    for number in range(MAX_DECISIONS + 1):
        asking.resolve(str(number), approved=True)
    assert (await asking.check_approval("0")).status == "pending"
    assert (await asking.check_approval("1")).status == "approved"
