"""Events that are ready together are taken together, and the agent never notices."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from apcore_a2a.loop.batches import LIMIT, Batches


def keep(event: int) -> tuple[int, bool]:
    return event, False


def lose() -> None:
    raise KeyError("lost")


async def _all(events: AsyncGenerator[int, None]) -> list[list[int]]:
    batches, seen = Batches(events, keep), []
    while True:
        seen.append(batches.take())
        if batches.waits:
            await batches.wait()
        elif batches.ended:
            return seen


async def test_what_is_ready_together_comes_together() -> None:
    async def agent() -> AsyncGenerator[int, None]:
        yield 1
        yield 2
        await asyncio.sleep(0)
        yield 3

    assert await _all(agent()) == [[1, 2], [3]]


async def test_what_came_before_a_wait_is_there_while_the_agent_waits() -> None:
    gate = asyncio.Event()

    async def agent() -> AsyncGenerator[int, None]:
        yield 1
        await gate.wait()
        yield 2

    batches = Batches(agent(), keep)
    assert batches.take() == [1]
    assert batches.waits
    await asyncio.sleep(0)  # others may run, and await, in between
    gate.set()
    await batches.wait()
    assert batches.take() == [2]
    assert batches.ended


async def test_an_agent_that_never_waits_is_cut_into_batches() -> None:
    async def agent() -> AsyncGenerator[int, None]:
        for number in range(LIMIT + 1):
            yield number

    assert [len(batch) for batch in await _all(agent())] == [LIMIT, 1]


async def test_an_error_comes_after_the_events_before_it() -> None:
    async def agent() -> AsyncGenerator[int, None]:
        yield 1
        raise KeyError("lost")

    batches = Batches(agent(), keep)
    assert batches.take() == [1]
    with pytest.raises(KeyError):
        batches.take()


async def test_an_error_at_once_is_raised_at_once() -> None:
    async def agent() -> AsyncGenerator[int, None]:
        lose()
        yield 1

    with pytest.raises(KeyError):
        Batches(agent(), keep).take()


async def test_an_error_after_a_wait_is_raised_there() -> None:
    async def agent() -> AsyncGenerator[int, None]:
        await asyncio.sleep(0)
        lose()
        yield 1

    batches = Batches(agent(), keep)
    assert batches.take() == []
    with pytest.raises(KeyError):
        await batches.wait()


async def test_an_agent_that_waits_and_then_ends_has_ended() -> None:
    async def agent() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.sleep(0)

    assert await _all(agent()) == [[1], []]


async def test_a_cancellation_reaches_the_agent_where_it_waits() -> None:
    seen: list[str] = []
    waiting = asyncio.Event()

    async def agent() -> AsyncGenerator[int, None]:
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            yield 7
        finally:
            seen.append("closed")

    async def drive() -> list[int]:
        async with aclosing(agent()) as events:
            batches = Batches(events, keep)
            batches.take()
            await batches.wait()
            return batches.take()

    driver = asyncio.create_task(drive())
    await asyncio.wait_for(waiting.wait(), 5)
    driver.cancel()
    assert await asyncio.wait_for(driver, 5) == [7]
    assert seen == ["cancelled", "closed"]


async def test_the_agent_runs_in_one_task_with_its_timeouts_working() -> None:
    tasks: list[object] = []

    async def agent() -> AsyncGenerator[int, None]:
        tasks.append(asyncio.current_task())
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            tasks.append(asyncio.current_task())
            yield 1

    assert await _all(agent()) == [[], [1]]
    assert tasks == [asyncio.current_task()] * 2


async def test_nothing_is_taken_after_the_last_event() -> None:
    seen: list[str] = []

    async def agent() -> AsyncGenerator[int, None]:
        yield 1
        seen.append("went on")
        await asyncio.sleep(0)
        yield 2
        seen.append("went on")
        yield 3

    first, second = (
        Batches(agent(), lambda event: (event, event == 1)),
        Batches(agent(), lambda event: (event, event == 2)),
    )
    assert first.take() == [1]
    assert (seen, first.waits, first.ended) == ([], False, False)
    assert second.take() == [1]
    await second.wait()
    assert second.take() == [2]
    assert (seen, second.waits, second.ended) == (["went on"], False, False)


async def test_an_event_is_kept_where_it_is_yielded() -> None:
    async def agent() -> AsyncGenerator[list[int], None]:
        reused = [1]
        yield reused
        reused[0] = 2
        yield reused
        await asyncio.sleep(0)
        reused[0] = 3
        yield reused
        reused[0] = 4

    batches = Batches(agent(), lambda event: (list(event), False))
    assert batches.take() == [[1], [2]]
    await batches.wait()
    assert batches.take() == [[3]]


async def test_an_event_that_cannot_be_kept_is_the_agents_error() -> None:
    async def agent() -> AsyncGenerator[str, None]:
        yield "1"
        yield "x"
        yield "3"

    batches = Batches(agent(), lambda event: (int(event), False))
    assert batches.take() == [1]
    with pytest.raises(ValueError, match="x"):
        batches.take()


async def test_an_agent_that_is_closed_in_its_wait_leaves_it_and_tidies_up() -> None:
    seen: list[str] = []

    async def agent() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    batches = Batches(agent(), keep)
    assert batches.take() == [1]
    await batches.close()
    assert seen == ["closed"]


async def test_an_agent_that_is_closed_at_its_event_ends_there() -> None:
    seen: list[str] = []

    async def agent() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            seen.append("closed")

    batches = Batches(agent(), lambda event: (event, True))
    assert batches.take() == [1]
    await batches.close()
    assert seen == ["closed"]


async def test_two_agents_may_wait_for_the_same_future() -> None:
    shared: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def agent() -> AsyncGenerator[int, None]:
        yield 1
        yield await shared

    async def drive() -> list[int]:
        batches = Batches(agent(), keep)
        first = batches.take()
        await asyncio.sleep(0)  # what came first is being saved, and the other agent begins to wait, too
        await batches.wait()
        return first + batches.take()

    drivers = [asyncio.create_task(drive()) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    shared.set_result(2)
    assert await asyncio.wait_for(asyncio.gather(*drivers), 5) == [[1, 2], [1, 2]]
