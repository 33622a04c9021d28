"""Who owns the background work of an engine.

asyncio.TaskGroup cannot leave: it waits for ever for a child that ignores its cancellation, and one child's exception
cancels its siblings. An agent may do both. This owner logs the exception, spares the siblings, and bounds its own exit.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class BackgroundWork:
    """A set of asyncio tasks with one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        # Nobody waits for these any more. They are held because asyncio alone would let them be collected half-way.
        self._abandoned: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._abandoned.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            logger.error("background work failed", exc_info=error, extra={"work": task.get_name()})

    def abandon(self, task: "asyncio.Task[None]") -> None:
        """Wait for it no longer: it ignored its cancellation. It may still end by itself."""
        if not task.done():
            self._tasks.discard(task)
            self._abandoned.add(task)

    async def join(self, seconds: float) -> bool:
        """Wait for all tasks, at most so long. Whether all have ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
        return not self._tasks

    async def cancel_all(self, seconds: float) -> None:
        """Cancel every task once and wait a bounded time; what is left then is named in the log."""
        for task in set(self._tasks):
            task.cancel()
        await self.join(seconds)
        left = self._tasks | self._abandoned
        if left:
            logger.warning("work ignored its cancellation", extra={"work": [task.get_name() for task in left]})
