"""Blocking modules: they run on threads that are counted, also if apcore itself stops waiting for them."""

import asyncio
import threading
from typing import Any

import apcore
import pytest

from apcore_a2a.agent import CancelToken
from apcore_a2a.agents.apcore.executor import HAS_EXECUTE_STEP, ServedExecutor
from apcore_a2a.agents.apcore.modules import RunToken
from apcore_a2a.agents.threads import Threads
from apcore_a2a.errors import OverloadedError
from apcore_a2a.protocol.model import Task, TaskState
from apcore_a2a.testing import app_client
from tests.agents.apcore.running import agent_of, call_of, registry_of
from tests.agents.functions.test_blocking_functions import until
from tests.fakes import PATIENCE

pytestmark = pytest.mark.skipif(not HAS_EXECUTE_STEP, reason="apcore 0.19 and newer")


class Waits:
    """Blocks until the test opens its gate."""

    description = "Waits"
    input_schema = output_schema = {"type": "object"}  # noqa: RUF012  # as modules are written

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.thread = ""

    def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        self.thread = threading.current_thread().name
        assert self.gate.wait(PATIENCE)
        return {}


async def test_a_module_that_exceeds_the_time_limit_of_apcore_is_counted_until_it_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waits = Waits()
    config = apcore.Config({"executor": {"default_timeout": 50}})
    executor = ServedExecutor(registry_of(a__module=waits), config=config, threads=Threads(last_job_time=0.01))
    async with asyncio.timeout(PATIENCE), app_client(executor) as client:
        task = await client.send_message({})
        await until(lambda: executor.threads.stuck == 1)
        waits.gate.set()
        await until(lambda: executor.threads.stuck == 0)

    assert isinstance(task, Task)
    assert task.status.state is TaskState.FAILED
    assert "function goes on after its run has ended" in caplog.messages
    assert waits.thread == "module a.module"


async def test_a_module_that_returns_in_time_is_not_counted() -> None:
    waits = Waits()
    waits.gate.set()
    executor = ServedExecutor(registry_of(a__module=waits), threads=Threads(last_job_time=0.0))
    async with asyncio.timeout(PATIENCE), app_client(executor) as client:
        task = await client.send_message({})

    assert isinstance(task, Task)
    assert task.status.state is TaskState.COMPLETED
    assert executor.threads.stuck == 0


async def test_other_calls_of_the_executor_use_apcores_own_threads() -> None:
    waits = Waits()
    waits.gate.set()
    executor = ServedExecutor(registry_of(a__module=waits))

    assert await executor.call_async("a.module", {}) == {}
    assert not waits.thread.startswith("module")


def test_a_token_made_without_an_event_loop_runs_no_callbacks() -> None:
    token = RunToken.of_run(CancelToken())
    called: list[str] = []
    token.on_cancel(lambda: called.append("called"))
    token.cancel()
    assert token.is_cancelled and not called


async def test_a_blocking_module_is_rejected_when_no_thread_is_left() -> None:
    executor = ServedExecutor(registry_of(a__module=Waits()), threads=Threads(0, spare=0))
    with pytest.raises(OverloadedError, match="Every thread of the agent is held"):
        await agent_of(executor).admit(call_of({}, skill="a.module"))
