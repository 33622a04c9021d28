"""Work that is done again and again beside the requests, by a task that its owner starts and ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)


class Repeating:
    """Calls `work` for ever; each call answers after how many seconds the next one comes.

    Never raises: work that fails is logged, and tried again after `pause` seconds.
    """

    def __init__(self, work: Callable[[], Awaitable[float]], *, name: str, pause: float) -> None:
        self._work = work
        self._name = name
        self._pause = pause
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun in this event loop."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._repeat(), name=self._name)

    async def stop(self) -> None:
        """End, and wait for the end."""
        task = self._task
        self._task = None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _repeat(self) -> None:
        while True:
            try:
                seconds = await self._work()
            except Exception:  # long-lived work ends with its owner and not with an error
                logger.exception("repeated work failed", extra={"work": self._name})
                seconds = self._pause
            await asyncio.sleep(seconds)
