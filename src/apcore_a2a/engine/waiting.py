"""Waiting for a stage, for a turn, and for a limited time."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from apcore_a2a.engine.watched import tell_when_waiting

T = TypeVar("T")


class Progress:
    """Something that goes from stage to stage, one greater than the other; it is mostly there when somebody asks."""

    __slots__ = ("_waiters", "stage")

    def __init__(self) -> None:
        self.stage = 0
        self._waiters: dict[asyncio.Future[None], int] = {}

    def reach(self, stage: int) -> None:
        if stage > self.stage:
            self.stage = stage
            if self._waiters:
                for waiter, wanted in self._waiters.items():
                    if wanted <= stage and not waiter.done():
                        waiter.set_result(None)

    async def until(self, stage: int) -> None:
        if self.stage < stage:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = stage
            try:
                await waiter
            finally:
                del self._waiters[waiter]


class Turn:
    """Taken by one at a time, in the order of asking. It goes from hand to hand: who comes later cannot slip in."""

    __slots__ = ("_queue", "is_taken")

    def __init__(self, *, is_taken: bool = False) -> None:
        self.is_taken = is_taken
        self._queue: dict[asyncio.Future[None], None] = {}

    def join(self) -> "asyncio.Future[None] | None":
        """A place in the queue, taken at once and to be waited for; None when the turn has come already."""
        if not self.is_taken:
            self.is_taken = True
            return None
        place = asyncio.get_running_loop().create_future()
        self._queue[place] = None
        return place

    async def wait(self, place: "asyncio.Future[None] | None") -> None:
        if place is None:
            return
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._queue.pop(place, None)
            else:  # the turn had come already
                self.give()
            raise

    async def take(self) -> None:
        await self.wait(self.join())

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give()

    def give(self) -> None:
        """Let the next one have it."""
        while self._queue:
            waiter = next(iter(self._queue))
            del self._queue[waiter]
            if not waiter.done():
                waiter.set_result(None)
                return
        self.is_taken = False


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Await with a deadline. Its timer is set only if there is need to wait: most bodies arrive with their headers.

    Raises:
        TimeoutError: it took longer.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        result: T = await tell_when_waiting(work, lambda: limit.reschedule(loop.time() + seconds))
        return result
