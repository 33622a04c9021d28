"""Contexts of executors, built by a RequestContextBuilder."""

import asyncio
from typing import Any

import pytest

from apcore_a2a import A2AClient, as_agent, async_serve
from apcore_a2a.agent import Call
from apcore_a2a.agents.executors import EventQueue, RequestContext, TaskUpdater
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import SendConfiguration, Task, TaskState
from tests.conversations import text_of
from tests.fakes import PATIENCE, ScriptedAgent
from tests.interaction.serving import serving
from tests.modules import registry
from tests.scripted_executor import Scripted, forever


class Named(RequestContext):
    database = "tenant_db"


class Names:
    async def build(self, call: Call) -> Named:
        if call.message.parts[0].text == "refuse":
            raise AgentError("This tenant has no database")
        return Named(call)


async def tell(context: Any, updater: TaskUpdater, queue: EventQueue) -> None:
    if context.get_user_input() == "wait":
        await forever(context, updater, queue)
    await updater.complete(context.database)


async def stop(context: Any, updater: TaskUpdater, queue: EventQueue) -> None:
    await updater.cancel(context.database)


async def test_both_methods_of_an_executor_receive_the_context_of_the_builder() -> None:
    agent = Scripted(tell, stop)
    async with serving(agent, card=None, request_context_builder=Names()) as url, A2AClient(url) as client:
        done = await client.send_message("go")
        refused = await client.send_message("refuse")
        waiting = await client.send_message("wait", configuration=SendConfiguration(return_immediately=True))
        assert isinstance(done, Task) and isinstance(refused, Task) and isinstance(waiting, Task)
        async with asyncio.timeout(PATIENCE):
            canceled = await client.cancel_task(waiting.id)
    assert text_of(done) == text_of(canceled) == "tenant_db"
    assert (refused.status.state, text_of(refused)) == (TaskState.FAILED, "This tenant has no database")


async def echo(text: str) -> str:
    return text


@pytest.mark.parametrize("target", [echo, ScriptedAgent(), registry()], ids=["function", "agent", "registry"])
async def test_a_builder_for_anything_but_an_executor_is_rejected(target: Any) -> None:
    with pytest.raises(TypeError, match="request_context_builder is for executors"):
        await async_serve(target, request_context_builder=Names())


def test_a_builder_without_build_is_rejected() -> None:
    with pytest.raises(TypeError, match="request_context_builder object lacks the method build"):
        as_agent(Scripted(tell), request_context_builder=object())
