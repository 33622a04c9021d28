"""Waits that are often already over, and waits that are not, which behave like a plain await."""

import asyncio

import pytest

from apcore_a2a.agent import Call, CancelToken
from apcore_a2a.engine.context import DEFAULTS, Observer
from apcore_a2a.engine.run import NewTask, Run, Stage
from apcore_a2a.engine.task import LiveTask, TaskRegistry
from apcore_a2a.engine.waiting import Turn, within
from apcore_a2a.protocol.model import Task, TaskState, TaskStatus
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.engine.driving import ALICE, request, settle, soon
from tests.fakes import COMPLETED, Gate, ScriptedAgent


async def test_what_is_ready_needs_no_deadline_and_what_is_not_has_one() -> None:
    async def ready() -> int:
        return 1

    async def soon() -> int:
        await asyncio.sleep(0)
        return 2

    assert await within(-1, ready()) == 1
    assert await within(5, soon()) == 2
    with pytest.raises(TimeoutError):
        await within(0.01, asyncio.Event().wait())


async def test_requests_that_wait_for_a_stage_go_on_when_the_run_reaches_it() -> None:
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.SUBMITTED))
    call = Call(request=request("go"), task=task, caller=ALICE, cancel=CancelToken())
    live = LiveTask(task, ALICE.owner, TaskRegistry(InMemoryTaskStore(), Observer()))
    gate = Gate()
    run = Run(
        live, call, NewTask(), agent=ScriptedAgent(default=(gate, COMPLETED)), observer=Observer(), options=DEFAULTS
    )
    opened = asyncio.create_task(run.until(Stage.OPENED))
    rested = asyncio.create_task(run.until(Stage.RESTED))
    gone = asyncio.create_task(run.until(Stage.OPENED))
    await settle()
    gone.cancel()
    await settle()
    assert [waiting.done() for waiting in (opened, rested, gone)] == [False, False, True]
    run.driver = asyncio.create_task(run.drive())
    await gate.reached()
    await settle()
    assert [waiting.done() for waiting in (opened, rested)] == [True, False]
    gate.open()
    await soon(rested)
    assert run.stage is Stage.RESTED
    await soon(run.until(Stage.OPENED))  # reached long ago
    await soon(run.driver)


async def take_turns(turn: Turn, seen: list[str], name: str) -> None:
    await turn.take()
    seen.append(name)
    await asyncio.sleep(0)
    turn.give()


async def test_turns_come_in_the_order_of_asking() -> None:
    turn, seen = Turn(is_taken=True), list[str]()
    waiting = [asyncio.create_task(take_turns(turn, seen, name)) for name in "abc"]
    await settle()
    assert seen == []
    turn.give()
    await soon(take_turns(turn, seen, "late"))
    await soon(asyncio.gather(*waiting))
    assert (seen, turn.is_taken) == (["a", "b", "c", "late"], False)


@pytest.mark.parametrize("given", ["not yet", "before", "after"])
async def test_who_is_cancelled_while_waiting_passes_the_turn_on(given: str) -> None:
    turn, seen = Turn(is_taken=True), list[str]()
    gone, other = [asyncio.create_task(take_turns(turn, seen, name)) for name in ("gone", "other")]
    await settle()
    if given == "before":
        turn.give()
    gone.cancel()
    if given == "after":
        turn.give()
    await settle()
    if given == "not yet":
        turn.give()
    await soon(other)
    assert (seen, gone.cancelled(), turn.is_taken) == (["other"], True, False)


async def test_a_cancellation_from_outside_is_no_timeout_even_when_both_come_together() -> None:
    waits = asyncio.Event()

    async def work() -> None:
        waits.set()
        await asyncio.Event().wait()

    cancelled = asyncio.create_task(within(60, work()))
    await soon(waits.wait())
    cancelled.cancel()
    await asyncio.wait({cancelled}, timeout=5)
    assert cancelled.cancelled()

    both = asyncio.create_task(within(0, work()))
    await asyncio.sleep(0)
    both.cancel()  # before the deadline, which has passed already, gets its turn
    await asyncio.wait({both}, timeout=5)
    assert both.cancelled()
