"""Unusual cases of approvals: modules that ask, streams, failing handlers."""

import asyncio
from typing import Any

import apcore
import pytest

from apcore_a2a.agent import Caller
from apcore_a2a.agents.apcore.call import APPROVAL
from apcore_a2a.agents.questions import WORDS
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import TaskState
from tests.agents.apcore.approval_handlers import Pay, PendingHandler, ResolvingHandler, gated, waiting
from tests.agents.apcore.running import (
    Data,
    Pair,
    agent_of,
    call_of,
    needs_approvals,
    reply,
    run,
)

pytestmark = needs_approvals

ADA = Caller(id="ada", type="user")


async def test_a_module_can_ask_for_approval_itself_and_finds_the_answer() -> None:
    class Asks:
        description = "Ask once"
        input_schema = Pair
        output_schema = None

        async def execute(self, inputs: Data, context: Any) -> Data:
            if context.data[APPROVAL] is None:
                result = apcore.ApprovalResult(status="pending", approval_id="mine", reason="are you sure?")
                raise apcore.ApprovalPendingError(result=result, module_id="a.asks")
            return {"inputs": inputs, "answer": context.data[APPROVAL]}

    agent = agent_of(a__asks=Asks())
    outcome = await run(agent, call_of({"a": 1, "b": 2}))
    assert (outcome.state, outcome.metadata["approvalId"]) == (TaskState.INPUT_REQUIRED, "mine")
    outcome = await reply(agent, outcome, "yes", caller=ADA)
    assert outcome.data == {"inputs": {"a": 1, "b": 2}, "answer": {"id": "mine", "approved": True, "by": "ada"}}


async def test_an_approval_without_an_id_is_asked_for_again() -> None:
    class Nameless(PendingHandler):
        async def request_approval(self, request: Any) -> Any:
            self.requests.append(request)
            return apcore.ApprovalResult(status="pending" if len(self.requests) == 1 else "approved")

    pay = Pay()
    agent, outcome = await waiting(Nameless(), pay)
    assert outcome.metadata["approvalId"] is None
    assert (await reply(agent, outcome, "and now?")).state is TaskState.COMPLETED


async def test_a_streaming_module_is_gated_as_well() -> None:
    class Streams(Pay):
        async def stream(self, inputs: Data, context: Any) -> Any:
            self.paid.append(inputs)
            yield {"total": 10}

    module, handler = Streams(), ResolvingHandler()
    agent, outcome = await waiting(handler, module)
    assert (outcome.state, module.paid) == (TaskState.INPUT_REQUIRED, [])
    assert (await reply(agent, outcome, "approve")).data == {"total": 10}
    assert module.paid == [{"a": 10, "b": 0}]


async def test_a_handler_that_fails_fails_the_task_without_details() -> None:
    class Broken(PendingHandler):
        async def request_approval(self, request: Any) -> Any:
            raise ConnectionError("postgres://admin:hunter2@db/approvals")

    agent = agent_of(gated(Broken(), bank__pay=Pay()))
    with pytest.raises(AgentError) as failed:
        await run(agent, call_of({"a": 1, "b": 1}))
    assert failed.value.message == "Internal error"


async def test_a_resumed_run_that_is_canceled_ends_at_once() -> None:
    class Waits(Pay):
        def __init__(self) -> None:
            super().__init__()
            self.started = asyncio.Event()

        async def execute(self, inputs: Data, context: Any) -> Data:
            self.started.set()
            await asyncio.Event().wait()
            return {}

    module = Waits()
    agent, outcome = await waiting(ResolvingHandler(), module)
    async with asyncio.timeout(5):
        running = asyncio.ensure_future(reply(agent, outcome, "approve"))
        await module.started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


def test_every_answer_is_lower_case() -> None:
    assert [word.strip().lower() for word in WORDS] == list(WORDS)
