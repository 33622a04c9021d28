"""Runs of modules, and their cancellation."""

import asyncio
import threading
from typing import Any

import apcore
import pytest
from apcore.middleware import manager as middleware_manager

from apcore_a2a.agent import CancelToken
from apcore_a2a.errors import AgentError, InvalidAgentResponseError
from apcore_a2a.protocol.model import TaskState
from tests.agents.apcore.running import (
    Add,
    Data,
    Pair,
    Raises,
    Spy,
    Total,
    agent_of,
    call_of,
    registry_of,
    run,
)
from tests.requirements import requirement


@requirement("FR-EXE-001")
async def test_peer_weakness_9_a_run_is_working_then_one_artifact_then_completed() -> None:
    outcome = await run(agent_of(math__add=Add()), call_of({"a": 1, "b": 2}))
    assert outcome.states == [TaskState.WORKING, TaskState.COMPLETED]
    (update,) = outcome.updates
    assert (update.append, update.last_chunk) == (False, True)
    assert outcome.data == {"total": 3}


@pytest.mark.parametrize("big", [2**53 + 1, 2**63, 2**100])
async def test_peer_weakness_3_integers_stay_exact(big: int) -> None:
    outcome = await run(agent_of(math__add=Add()), call_of({"a": big, "b": 0}))
    assert outcome.data == {"total": big}
    assert isinstance(outcome.data["total"], int)


async def test_a_module_that_changes_its_inputs_does_not_change_the_message() -> None:
    class Vandal:
        description = "Change the inputs"

        async def execute(self, inputs: Data, context: Any) -> Data:
            inputs["list"].append("mine")
            return {}

    call = call_of({"list": []})
    await run(agent_of(a__vandal=Vandal()), call)
    assert call.message.parts[0].data == {"list": []}


async def test_a_sync_module_does_not_block_the_loop() -> None:
    started, go_on = threading.Event(), threading.Event()

    class Blocks:
        description = "Wait in a thread"

        def execute(self, inputs: Data, context: Any) -> Data:
            started.set()
            return {"free": go_on.wait(4)}

    async with asyncio.timeout(5):
        running = asyncio.ensure_future(run(agent_of(a__blocks=Blocks()), call_of("hi")))
        assert await asyncio.to_thread(started.wait, 4)
        go_on.set()
        assert (await running).data == {"free": True}


async def test_peer_weakness_12_retries_and_output_checks_work() -> None:
    if not hasattr(middleware_manager, "RetrySignal"):
        pytest.skip("before apcore 0.19 RetryMiddleware does not retry")

    class Flaky(Add):
        async def execute(self, inputs: Data, context: Any) -> Data:
            self.calls += 1
            if self.calls == 1:
                raise apcore.ModuleTimeoutError(module_id="math.add", timeout_ms=1)
            return {"total": self.calls}

    executor = apcore.Executor(registry_of(math__add=Flaky()))
    executor.use(apcore.RetryMiddleware(apcore.RetryConfig(max_retries=2, base_delay_ms=1)))
    assert (await run(agent_of(executor), call_of({"a": 1, "b": 2}))).data == {"total": 2}


async def test_peer_weakness_12_invalid_output_fails_the_run() -> None:
    class Wrong(Add):
        async def execute(self, inputs: Data, context: Any) -> Data:
            return {"totally": "wrong"}

    with pytest.raises(InvalidAgentResponseError, match="output does not match its schema"):
        await run(agent_of(math__add=Wrong()), call_of({"a": 1, "b": 2}))


class Waits:
    description = "Wait for ever"

    def __init__(self) -> None:
        self.started, self.canceled = asyncio.Event(), asyncio.Event()
        self.token: Any = None

    async def execute(self, inputs: Data, context: Any) -> Data:
        self.token = context.cancel_token
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.canceled.set()
            raise
        return {}


async def test_a_canceled_run_ends_at_once_and_cancels_its_module() -> None:
    module = Waits()
    async with asyncio.timeout(5):
        running = asyncio.ensure_future(run(agent_of(a__waits=module), call_of("go")))
        await module.started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await module.canceled.wait()  # apcore 0.32 alone would not cancel it


async def test_a_canceled_run_of_a_custom_executor_ends_at_once_and_sets_the_token() -> None:
    """That executor decides whether the module is canceled: apcore 0.32 lets it continue."""
    module, token = Waits(), CancelToken()
    async with asyncio.timeout(5):
        agent = agent_of(apcore.Executor(registry_of(a__waits=module)))
        running = asyncio.ensure_future(run(agent, call_of("go", cancel=token)))
        await module.started.wait()
        token.cancel()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert module.token.is_cancelled


async def test_a_module_sees_that_its_task_is_canceled() -> None:
    token = CancelToken()

    class Polite:
        description = "Stop when asked"

        async def execute(self, inputs: Data, context: Any) -> Data:
            token.cancel()
            context.cancel_token.check()
            raise AssertionError

    with pytest.raises(AgentError) as stopped:
        await run(agent_of(a__polite=Polite()), call_of("go", cancel=token))
    assert (stopped.value.message, stopped.value.kind) == ("Execution canceled", "ExecutionCancelledError")


async def test_a_task_canceled_before_it_begins_runs_nothing() -> None:
    token, spy = CancelToken(), Spy()
    agent, call = agent_of(a__spy=spy), call_of("go", cancel=token)
    await agent.admit(call)
    token.cancel()
    with pytest.raises(AgentError, match="Execution canceled"):
        [event async for event in agent.run(call)]
    assert spy.context is None


async def test_an_agent_error_of_a_module_is_the_text_for_the_client() -> None:
    with pytest.raises(AgentError) as failed:
        await run(agent_of(a__bank=Raises(AgentError("The balance is too low", kind="BalanceTooLow"))), call_of("go"))
    assert (failed.value.message, failed.value.kind) == ("The balance is too low", "BalanceTooLow")


async def test_a_module_calls_another_one_through_the_same_executor() -> None:
    class Calls:
        description = "Call math.add"
        input_schema = Pair
        output_schema = Total

        async def execute(self, inputs: Data, context: Any) -> Any:
            return await context.executor.call_async("math.add", inputs, context)

    agent = agent_of(math__add=Add(), a__calls=Calls())
    assert (await run(agent, call_of({"a": 1, "b": 2}, skill="a.calls"))).data == {"total": 3}
