"""`AgentLifespan`, which opens and closes an agent that has a `lifespan`.

Invariant: one asyncio task enters and leaves the context manager, because those of other libraries (anyio) require it.
An application may be opened by its first request, and closed by its server.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

logger = logging.getLogger(__name__)

Lifespan = Callable[[], AbstractAsyncContextManager[object]]
CLOSE_TIME: Final = 10.0  # seconds for the agent to close


class AgentLifespan:
    """The lifespan of one agent."""

    def __init__(self, begin: Lifespan) -> None:
        self._begin = begin
        self._stop = asyncio.Event()
        self._is_open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Enter the lifespan. Raises what the agent raises."""
        self._task = asyncio.create_task(self._run(), name="agent lifespan")
        opened = asyncio.create_task(self._is_open.wait())
        try:
            await asyncio.wait({self._task, opened}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        finally:
            opened.cancel()
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Leave the lifespan, if it was entered. An agent that does not close in time is cancelled."""
        task = self._task
        if task is None or task.done():
            return
        self._stop.set()
        await asyncio.wait({task}, timeout=CLOSE_TIME)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_TIME)
            logger.warning("agent did not close in time")
        elif not task.cancelled() and task.exception() is not None:
            logger.error("agent did not close", exc_info=task.exception())

    async def _run(self) -> None:
        async with self._begin():
            self._is_open.set()
            await self._stop.wait()
