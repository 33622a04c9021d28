"""An executor without an approval handler: the caller is asked instead."""

import logging
from typing import Any

import apcore
import pytest

from apcore_a2a.agents.apcore import approvals
from apcore_a2a.agents.apcore.call import APPROVAL
from apcore_a2a.agents.apcore.executor import ServedExecutor
from apcore_a2a.protocol.model import Message, Operation, Part, Role, SendMessage, Task, TaskState
from apcore_a2a.protocol.questions import questions_of
from tests.agents.apcore.approval_handlers import Pay, PendingHandler
from tests.agents.apcore.conftest import SpeakTo
from tests.agents.apcore.running import Add, Data, Spy, agent_of, call_of, needs_approvals, registry_of, reply, run
from tests.interaction.wire_client import WireClient
from tests.requirements import requirement

TELLS = not hasattr(apcore, "ApprovalResult") or hasattr(getattr(apcore, "BuiltinApprovalGate", None), "handler")
needs_to_know = pytest.mark.skipif(not TELLS, reason="this apcore does not expose the approval handler")
GATED = apcore.ModuleAnnotations(requires_approval=True)
AMOUNT = {"a": 10, "b": 0}


async def send(speaker: WireClient, content: Any, task_id: str = "") -> Task:
    part = Part(text=content) if isinstance(content, str) else Part(data=content)
    message = Message(message_id=f"m-{content}-{task_id}", role=Role.USER, parts=(part,), task_id=task_id)
    answer = await speaker.call(Operation.SEND, SendMessage(message=message))
    assert isinstance(answer, Task)
    return answer


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.startswith("apcore_a2a.agents")]


@needs_to_know
@requirement("FR-EXE-002")
async def test_the_caller_is_asked_and_the_call_is_made_once_after_the_approval(speak_to: SpeakTo) -> None:
    pay = Pay()
    speaker = await speak_to(apcore.Executor(registry_of(bank__pay=pay)))
    asked = await send(speaker, AMOUNT)
    assert asked.status.state is TaskState.INPUT_REQUIRED
    assert asked.status.message is not None
    assert asked.status.message.text == 'Approval required for module bank.pay. Reply "approve" or "reject".'
    (question,) = questions_of(asked.status.message)
    assert (question.kind, question.tool, question.arguments) == ("approval", "bank.pay", AMOUNT)
    metadata = asked.status.message.metadata or {}
    assert metadata["skillId"] == "bank.pay"
    assert metadata["approvalId"] == question.id
    assert pay.paid == []
    unclear = await send(speaker, "what for?", asked.id)
    assert unclear.status.state is TaskState.INPUT_REQUIRED
    assert unclear.status.message is not None
    assert unclear.status.message.metadata == metadata
    assert pay.paid == []
    done = await send(speaker, "approve", asked.id)
    assert done.status.state is TaskState.COMPLETED
    assert pay.paid == [AMOUNT]  # once, and without a token


@needs_to_know
async def test_a_rejected_call_does_not_run(speak_to: SpeakTo) -> None:
    pay = Pay()
    speaker = await speak_to(apcore.Executor(registry_of(bank__pay=pay)))
    asked = await send(speaker, AMOUNT)
    done = await send(speaker, "reject", asked.id)
    assert done.status.state is TaskState.REJECTED
    assert pay.paid == []


@needs_to_know
async def test_callers_cannot_approve_if_they_may_not(speak_to: SpeakTo) -> None:
    pay = Pay()
    speaker = await speak_to(apcore.Executor(registry_of(bank__pay=pay)), approvals_by_caller=False)
    asked = await send(speaker, AMOUNT)
    assert (await send(speaker, "approve", asked.id)).status.state is TaskState.INPUT_REQUIRED
    assert pay.paid == []


@needs_to_know
async def test_the_context_has_the_caller_who_approved() -> None:
    spy = Spy()
    vars(spy)["annotations"] = GATED
    agent = agent_of(apcore.Executor(registry_of(a__spy=spy)))
    asked = await run(agent, call_of({"a": 1}))
    await reply(agent, asked, "yes")
    assert spy.inputs == {"a": 1}
    assert spy.seen[APPROVAL] == {"id": asked.memo["approval_id"], "approved": True, "by": "anonymous"}


@needs_to_know
async def test_a_module_without_requires_approval_runs_without_a_question() -> None:
    outcome = await run(agent_of(apcore.Executor(registry_of(math__add=Add()))), call_of({"a": 1, "b": 2}))
    assert outcome.data == {"total": 3}


@needs_approvals
async def test_a_handler_that_is_set_later_is_asked_instead() -> None:
    executor = apcore.Executor(registry_of(bank__pay=Pay()))
    agent = agent_of(executor)
    handler = PendingHandler()
    executor.set_approval_handler(handler)
    outcome = await run(agent, call_of(AMOUNT))
    assert (outcome.state, len(handler.requests)) == (TaskState.INPUT_REQUIRED, 1)
    assert outcome.metadata["approvalId"] == "approval-1"


async def test_the_caller_is_asked_on_an_apcore_without_approvals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "HAS_APPROVALS", False)  # as before 0.7
    pay = Pay()
    agent = agent_of(Own(registry_of(bank__pay=pay)))
    outcome = await run(agent, call_of(AMOUNT))
    assert outcome.state is TaskState.INPUT_REQUIRED
    assert (await reply(agent, outcome, "approve")).data == {"called": "bank.pay"}


async def test_a_strict_policy_rejects_without_a_question() -> None:
    if not hasattr(apcore, "ExecutionPolicy") or not TELLS:
        pytest.skip("this apcore has no policies, or does not tell them")
    pay = Pay()
    executor = apcore.Executor(registry_of(bank__pay=pay), policy=apcore.ExecutionPolicy(strict=True))
    outcome = await run(agent_of(executor), call_of(AMOUNT))
    assert outcome.state is TaskState.REJECTED
    assert pay.paid == []


# What is said at the start


@needs_to_know
def test_an_executor_without_an_approval_handler_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        agent_of(apcore.Executor(registry_of(bank__pay=Pay(), math__add=Add())))
    (record,) = warnings(caplog)
    assert record.getMessage() == (
        "executor has no approval handler: callers are asked for approval, but not about calls that modules make"
    )
    assert record.__dict__["modules"] == "bank.pay"


class Own:
    """An executor that does not expose whether it has an approval handler."""

    def __init__(self, registry: Any) -> None:
        self.registry = registry

    async def call_async(self, module_id: str, inputs: Data, context: Any) -> Data:
        return {"called": module_id}


@needs_approvals
async def test_an_executor_that_does_not_expose_its_handler_logs_a_warning_and_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        agent = agent_of(Own(registry_of(bank__pay=Pay())))
    (record,) = warnings(caplog)
    assert record.getMessage() == (
        "executor does not expose its approval handler: if it has none, modules that require approval run without one"
    )
    assert record.__dict__["modules"] == "bank.pay"
    assert (await run(agent, call_of(AMOUNT))).data == {"called": "bank.pay"}


@needs_approvals
def test_an_executor_with_a_handler_or_without_need_of_one_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        if TELLS:
            agent_of(apcore.Executor(registry_of(bank__pay=Pay()), approval_handler=PendingHandler()))
        agent_of(ServedExecutor(registry_of(bank__pay=Pay())))
        agent_of(registry_of(bank__pay=Pay()))
        agent_of(apcore.Executor(registry_of(math__add=Add())))
    assert warnings(caplog) == []
