"""Modules that block: on threads that are counted, also when apcore stops waiting for them by itself."""

import asyncio
import threading
from typing import Any

import apcore
import pytest

from apcore_a2a.agent import CancelToken
from apcore_a2a.agents import threads
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
    """Waits until the test lets it go."""

    description = "Waits"
    input_schema = output_schema = {"type": "object"}  # noqa: RUF012  # as modules are written

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.thread = ""

    def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        self.thread = threading.current_thread().name
        assert self.gate.wait(PATIENCE)
        return {}


async def test_a_module_that_outlives_the_limit_apcore_has_for_it_is_counted_until_it_returns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "LAST_JOB_TIME", 0.01)
    waits = Waits()
    config = apcore.Config({"executor": {"default_timeout": 50}})
    executor = ServedExecutor(registry_of(a__module=waits), config=config)
    async with asyncio.timeout(PATIENCE), app_client(executor) as client:
        task = await client.send_message({})
        await until(lambda: executor.threads.stuck == 1)
        waits.gate.set()
        await until(lambda: executor.threads.stuck == 0)

    assert isinstance(task, Task)
    assert task.status.state is TaskState.FAILED
    assert "function goes on after its run has ended" in caplog.messages
    assert waits.thread == "module a.module"


async def test_a_module_that_returns_in_time_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LAST_JOB_TIME", 0.0)
    waits = Waits()
    waits.gate.set()
    executor = ServedExecutor(registry_of(a__module=waits))
    async with asyncio.timeout(PATIENCE), app_client(executor) as client:
        task = await client.send_message({})

    assert isinstance(task, Task)
    assert task.status.state is TaskState.COMPLETED
    assert executor.threads.stuck == 0


async def test_whoever_calls_the_executor_elsewhere_gets_apcores_own_threads() -> None:
    waits = Waits()
    waits.gate.set()
    executor = ServedExecutor(registry_of(a__module=waits))

    assert await executor.call_async("a.module", {}) == {}
    assert not waits.thread.startswith("module")


def test_a_token_that_is_only_looked_at_has_no_loop_to_call_back_on() -> None:
    token = RunToken.of_run(CancelToken())
    called: list[str] = []
    token.on_cancel(lambda: called.append("called"))
    token.cancel()
    assert token.is_cancelled and not called


async def test_a_module_that_blocks_is_refused_when_no_thread_is_left() -> None:
    executor = ServedExecutor(registry_of(a__module=Waits()))
    executor.threads = Threads(0, spare=0)
    with pytest.raises(OverloadedError, match="Every thread of the agent is held"):
        await agent_of(executor).admit(call_of({}, skill="a.module"))
