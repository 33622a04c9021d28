"""Waits that are often none; and those that are not, which nobody can tell from a plain await."""

import asyncio

import pytest

from apcore_a2a.engine.waiting import Progress, Turn, within
from tests.engine.driving import settle, soon


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
