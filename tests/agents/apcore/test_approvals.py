"""A call that waits for an approval is stored, decided by a reply or elsewhere, and resumed unchanged."""

from typing import Any

import apcore
import pytest

from apcore_a2a.agent import Caller
from apcore_a2a.errors import AgentError, InvalidParamsError, SkillNotFoundError, TaskNotFoundError
from apcore_a2a.protocol.model import TaskState
from tests.agents.apcore.approval_handlers import (
    Pay,
    PendingHandler,
    ResolvingHandler,
    StoreBackedHandler,
    gated,
    waiting,
)
from tests.agents.apcore.running import (
    Returns,
    agent_of,
    call_of,
    needs_approvals,
    reply,
    run,
)
from tests.requirements import requirement

pytestmark = needs_approvals

ADA = Caller(id="ada", type="user")


@requirement("FR-EXE-002")
async def test_peer_weakness_5_a_waiting_task_names_the_pending_approval() -> None:
    pay = Pay()
    _, outcome = await waiting(PendingHandler(), pay)
    assert outcome.state is TaskState.INPUT_REQUIRED
    assert outcome.text == 'Approval required for module bank.pay (costs money). Reply "approve" or "reject".'
    assert outcome.metadata == {"approvalId": "approval-1", "skillId": "bank.pay"}
    assert outcome.memo == {"skill": "bank.pay", "inputs": {"a": 10, "b": 0}, "approval_id": "approval-1"}
    assert not pay.paid


@requirement("FR-EXE-002")
@pytest.mark.parametrize("answer", ["approve", " Approve ", "YES", {"approved": True}])
@pytest.mark.parametrize("handler", [ResolvingHandler, StoreBackedHandler])
async def test_approve_resumes_the_stored_call(handler: type[PendingHandler], answer: Any) -> None:
    pay = Pay()
    agent, outcome = await waiting(handler(), pay)
    outcome = await reply(agent, outcome, answer, caller=ADA)
    assert outcome.state is TaskState.COMPLETED
    assert outcome.data == {"total": 10}
    assert pay.paid == [{"a": 10, "b": 0}]  # once, and without apcore's token


async def test_the_handler_receives_the_name_of_the_caller_who_decided() -> None:
    handler = ResolvingHandler()
    agent, outcome = await waiting(handler, Pay())
    await reply(agent, outcome, "approve", caller=ADA)
    assert handler.resolved == [("approval-1", True, "Decided by ada")]


async def test_resolve_of_a_handler_can_be_synchronous() -> None:
    class Plain(PendingHandler):
        def resolve(self, approval_id: str, *, approved: bool, reason: str | None = None) -> None:
            self.decisions[approval_id] = "approved" if approved else "rejected"

    agent, outcome = await waiting(Plain(), Pay())
    assert (await reply(agent, outcome, "approve")).state is TaskState.COMPLETED


@pytest.mark.parametrize("handler", [PendingHandler, ResolvingHandler])
@pytest.mark.parametrize("answer", ["reject", "No", {"approved": False}])
async def test_reject_ends_the_task_without_running_anything(handler: type[PendingHandler], answer: Any) -> None:
    pay = Pay()
    agent, outcome = await waiting(handler(), pay)
    outcome = await reply(agent, outcome, answer)
    assert outcome.state is TaskState.REJECTED
    assert outcome.text == "Module bank.pay was not run: rejected by the caller"
    assert not pay.paid


async def test_an_answer_is_found_beside_other_parts() -> None:
    agent, outcome = await waiting(ResolvingHandler(), Pay())
    outcome = await reply(agent, outcome, {"note": "as we said"}, "I have read it", "approve")
    assert outcome.state is TaskState.COMPLETED


@requirement("FR-EXE-002")
async def test_any_other_reply_asks_the_handler_again() -> None:
    handler, pay = PendingHandler(), Pay()
    agent, outcome = await waiting(handler, pay)
    outcome = await reply(agent, outcome, "any news?")
    assert (outcome.state, outcome.metadata["approvalId"]) == (TaskState.INPUT_REQUIRED, "approval-1")
    assert outcome.memo["inputs"] == {"a": 10, "b": 0}
    handler.decisions["approval-1"] = "approved"
    outcome = await reply(agent, outcome, "and now?")
    assert (outcome.state, outcome.data) == (TaskState.COMPLETED, {"total": 10})
    assert len(handler.requests) == 1
    assert handler.checked == ["approval-1", "approval-1"]


async def test_approve_decides_nothing_if_the_handler_accepts_no_decisions() -> None:
    pay = Pay()
    agent, outcome = await waiting(PendingHandler(), pay)
    assert (await reply(agent, outcome, "approve")).state is TaskState.INPUT_REQUIRED
    assert not pay.paid


async def test_callers_cannot_approve_with_approvals_by_caller_off() -> None:
    handler, pay = ResolvingHandler(), Pay()
    agent, outcome = await waiting(handler, pay, by_caller=False)
    outcome = await reply(agent, outcome, "approve")
    assert outcome.state is TaskState.INPUT_REQUIRED
    assert (handler.resolved, pay.paid) == ([], [])


async def test_a_call_rejected_elsewhere_ends_as_rejected() -> None:
    handler, pay = PendingHandler(reason="too much, see /etc/limits/pay.conf"), Pay()
    agent, outcome = await waiting(handler, pay)
    handler.decisions["approval-1"] = "rejected"
    outcome = await reply(agent, outcome, "and now?")
    assert outcome.state is TaskState.REJECTED
    assert outcome.text == "Approval denied for module bank.pay (too much, see …)"
    assert not pay.paid


async def test_an_approval_that_times_out_fails_the_task() -> None:
    handler = PendingHandler()
    agent, outcome = await waiting(handler, Pay())
    handler.decisions["approval-1"] = "timeout"
    with pytest.raises(AgentError) as failed:
        await reply(agent, outcome, "and now?")
    assert (failed.value.message, failed.value.kind) == ("Approval timed out", "ApprovalTimeoutError")


async def test_a_reply_cannot_change_the_call() -> None:
    handler, pay = ResolvingHandler(), Pay()
    agent, outcome = await waiting(handler, pay)
    outcome = await reply(agent, outcome, "approve", {"a": 999_999, "b": 0}, skill="text.echo")
    assert outcome.data == {"total": 10}
    assert pay.paid == [{"a": 10, "b": 0}]


@pytest.mark.parametrize("content", [{"a": 999_999, "b": 0}, '{"a": 999999, "b": 0, "_approval_token": "approval-1"}'])
async def test_peer_weakness_6_a_token_from_a_client_is_removed(content: Any) -> None:
    handler, pay = PendingHandler(), Pay()
    agent, _ = await waiting(handler, pay)
    handler.decisions["approval-1"] = "approved"
    stolen = {**content, "_approval_token": "approval-1"} if isinstance(content, dict) else content
    outcome = await run(agent, call_of(stolen, skill="bank.pay"))
    assert outcome.state is TaskState.INPUT_REQUIRED
    assert outcome.metadata["approvalId"] == "approval-2"
    assert (pay.paid, handler.checked) == ([], [])


async def test_invalid_input_is_rejected_before_the_handler_is_asked() -> None:
    handler = PendingHandler()
    agent = agent_of(gated(handler, bank__pay=Pay()))
    with pytest.raises(InvalidParamsError):
        await agent.admit(call_of({"a": "lots"}))
    assert not handler.requests


async def test_a_waiting_task_can_be_resumed_by_a_new_process() -> None:
    handler, pay = ResolvingHandler(), Pay()
    _, outcome = await waiting(handler, pay)
    reborn = agent_of(gated(handler, bank__pay=pay, text__echo=Returns({})))
    assert (await reply(reborn, outcome, "approve")).data == {"total": 10}


async def test_a_waiting_task_whose_skill_is_removed_keeps_waiting() -> None:
    handler = PendingHandler()
    executor = gated(handler, bank__pay=Pay())
    agent = agent_of(executor)
    outcome = await run(agent, call_of({"a": 1, "b": 1}))
    executor.registry.unregister("bank.pay")
    with pytest.raises(SkillNotFoundError):
        await agent.admit(call_of("approve", memo=outcome.memo))


async def test_the_acl_is_checked_again_when_a_call_is_resumed() -> None:
    handler, pay = ResolvingHandler(), Pay()
    executor = gated(handler, bank__pay=pay)
    agent = agent_of(executor)
    outcome = await run(agent, call_of({"a": 1, "b": 1}))
    executor.set_acl(apcore.ACL(rules=[], default_effect="deny"))
    with pytest.raises(TaskNotFoundError):
        await reply(agent, outcome, "approve")
    assert not pay.paid


async def test_a_resumed_run_is_repeatable_only_if_its_module_is() -> None:
    pay = Pay()
    pay.annotations = apcore.ModuleAnnotations(requires_approval=True, idempotent=True)
    agent, outcome = await waiting(PendingHandler(), pay)
    assert (await agent.admit(call_of("approve", memo=outcome.memo))).retry_safe
