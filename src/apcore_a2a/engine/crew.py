"""Who owns the background work of an engine.

asyncio.TaskGroup cannot leave: it waits for a child that ignores its cancellation for ever, and one child's exception
cancels its siblings. A crew logs the exception, spares the siblings, and bounds its own exit.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Crew:
    """A set of tasks with one owner."""

    def __init__(self) -> None:
        self._members: set[asyncio.Task[None]] = set()
        self._disowned: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._members)

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        member = asyncio.get_running_loop().create_task(work, name=name)
        self._members.add(member)
        member.add_done_callback(self._left)
        return member

    def _left(self, member: "asyncio.Task[None]") -> None:
        self._members.discard(member)
        self._disowned.discard(member)
        if not member.cancelled() and (error := member.exception()) is not None:
            logger.error("background work failed", exc_info=error, extra={"work": member.get_name()})

    def disown(self, member: "asyncio.Task[None]") -> None:
        """Wait for it no longer: it ignored its cancellation. It is still held, so that it can end by itself."""
        if not member.done():
            self._members.discard(member)
            self._disowned.add(member)

    async def join(self, seconds: float) -> bool:
        """Wait for every member, at most so long. Whether all have left."""
        if self._members:
            await asyncio.wait(set(self._members), timeout=seconds)
        return not self._members

    async def dismiss(self, seconds: float) -> None:
        """Cancel every member once and wait a bounded time; what is left then is named in the log."""
        for member in set(self._members):
            member.cancel()
        await self.join(seconds)
        if left := self._members | self._disowned:
            logger.warning("work ignored its cancellation", extra={"work": [member.get_name() for member in left]})
