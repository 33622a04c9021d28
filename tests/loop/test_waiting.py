"""Waits that are often none; and those that are not, which nobody can tell from a plain await."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from apcore_a2a.loop.waiting import Progress, Turn, start_now, within
from tests.server.driving import settle, soon

VARIABLE: ContextVar[str] = ContextVar("variable", default="outside")


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


async def test_a_stage_that_is_reached_keeps_nobody_waiting() -> None:
    progress = Progress()
    waiting = [asyncio.create_task(progress.until(stage)) for stage in (1, 2, 3)]
    gone = asyncio.create_task(progress.until(1))
    await settle()
    gone.cancel()
    await settle()
    assert [task.done() for task in (*waiting, gone)] == [False, False, False, True]
    progress.reach(2)
    await settle()
    assert [task.done() for task in waiting] == [True, True, False]
    progress.reach(1)  # too late
    assert progress.stage == 2
    await soon(progress.until(1))
    progress.reach(3)
    await soon(waiting[2])


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


# ---- a task that takes its first step at once ---------------------------------------------------------------------


async def test_work_that_never_waits_is_done_when_it_has_started() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("done")

    task, is_all = start_now(work(), name="quick")
    assert (seen, is_all, task.get_name()) == (["done"], True, "quick")
    await soon(task)


async def test_work_runs_in_its_own_task_and_context_from_its_first_step_on() -> None:
    seen: list[object] = []

    async def work() -> None:
        seen.append(asyncio.current_task())
        VARIABLE.set("inside")
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())
        seen.append(VARIABLE.get())

    here = asyncio.current_task()
    task, is_all = start_now(work(), name="work")
    assert not is_all
    assert asyncio.current_task() is here
    await soon(task)
    assert seen == [task, task, "inside"]
    assert VARIABLE.get() == "outside"


async def test_a_timeout_that_the_first_step_set_ends_the_wait() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("late")

    task, _ = start_now(work(), name="work")
    await soon(task)
    assert seen == ["late"]


async def fail() -> None:
    raise KeyError("lost")


async def fail_later() -> None:
    await asyncio.sleep(0)
    raise KeyError("lost")


@pytest.mark.parametrize("work", [fail, fail_later])
async def test_an_error_is_the_tasks(work: Callable[[], Any]) -> None:
    task, _ = start_now(work(), name="work")
    with pytest.raises(KeyError):
        await soon(task)


async def never() -> None:
    await asyncio.Event().wait()


async def turn() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("wait", [never, turn])
@pytest.mark.parametrize("turns", [0, 1])
async def test_a_cancellation_reaches_the_work_where_it_waits(wait: Callable[[], Awaitable[None]], turns: int) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            while True:
                await wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task, _ = start_now(work(), name="work")
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert seen == ["cancelled"]


@pytest.mark.parametrize("wait", [never, turn])
@pytest.mark.parametrize("turns", [0, 1])
async def test_work_may_go_on_after_its_cancellation(wait: Callable[[], Awaitable[None]], turns: int) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            while True:
                await wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("went on")

    task, _ = start_now(work(), name="work")
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await soon(task)
    assert seen == ["went on"]


async def test_work_that_ends_at_its_cancellation_has_ended() -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return

    task, _ = start_now(work(), name="work")
    task.cancel()
    await soon(task)


async def test_what_the_work_waited_for_is_cancelled_with_it() -> None:
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await shared

    task, _ = start_now(work(), name="work")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert shared.cancelled()


async def test_a_task_whose_work_is_done_is_not_cancelled_any_more() -> None:
    async def work() -> None:
        pass

    task, _ = start_now(work(), name="work")
    task.cancel()
    await soon(task)


def test_work_may_start_outside_any_task() -> None:
    seen: list[object] = []

    async def work() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    async def main() -> None:
        started: list[asyncio.Task[None]] = []
        asyncio.get_running_loop().call_soon(lambda: started.append(start_now(work(), name="work")[0]))
        await settle()
        assert seen == started * 2

    asyncio.run(main())
