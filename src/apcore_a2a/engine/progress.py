"""How far a run has come, and those who wait for it to come further."""

import asyncio
from enum import IntEnum
from typing import Final


class Stage(IntEnum):
    """How far a run has come, for those who wait for its answer."""

    BEGUN = 0
    OPENED = 1
    """The sender can be told: there is a task, an earlier one, a reply instead of one, or an error."""
    RESTED = 2
    """The task has come to rest, stored and published; or that could not be stored in time, which is an error."""


OPENED: Final = Stage.OPENED
RESTED: Final = Stage.RESTED


class Progress:
    """The stage that a run has reached, and those who wait for a later one. It is mostly there when somebody asks."""

    __slots__ = ("_waiters", "stage")

    def __init__(self) -> None:
        self.stage = Stage.BEGUN
        self._waiters: dict[asyncio.Future[None], Stage] = {}

    def reach(self, stage: Stage) -> None:
        if stage <= self.stage:
            return
        self.stage = stage
        for waiter, wanted in self._waiters.items():
            if wanted <= stage and not waiter.done():
                waiter.set_result(None)

    async def until(self, stage: Stage) -> None:
        if self.stage >= stage:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = stage
        try:
            await waiter
        finally:
            del self._waiters[waiter]
