"""A function that can speak while it runs: `Call.progress` and `Call.ask`.

What such a function gives passes a relay, on its way from the function's own asyncio task to the run's. So a status can
be told while the function is busy, on the loop or on a thread.

Rule: the run owns the function's task. When the engine lets go of the run, the task has ended, or was cancelled and had
its time to unwind.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final

from apcore_a2a.agent import AgentEvent
from apcore_a2a.agents.content import agent_message
from apcore_a2a.protocol.lifecycle import PROGRESS, is_progress
from apcore_a2a.protocol.model import Message, StatusUpdate, TaskState, TaskStatus

logger = logging.getLogger(__name__)

UNWIND_TIME: Final = 4.0  # seconds for a cancelled function; the engine ends its run after five, with or without it


class Asked(BaseException):
    """Ends a run that waits for its user. No Exception: a function that handles its errors shall not handle this."""

    def __init__(self, question: Any) -> None:
        super().__init__("the run ends here, and goes on with the user's answer")
        self.question = question


def find_question(ended: "Asked | BaseExceptionGroup[BaseException]") -> Any:
    """What a run asks that has ended so: itself, or in a task group, where the first of several questions counts.

    Raises:
        BaseExceptionGroup: the same, if there are other errors in it.
    """
    if isinstance(ended, Asked):
        return ended.question
    asked, errors = ended.split(Asked)
    if asked is None or errors is not None:
        raise ended
    return find_question(asked.exceptions[0])


class FunctionControls:
    """What one run of a function says besides its answer, and what it was answered."""

    def __init__(self, answers: list[Message]) -> None:
        self._answers = deque(answers)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: deque[AgentEvent] = deque()  # at most one of the function's events, with a progress before it
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    # ---- called by the function --------------------------------------------------------------------------------------

    def progress(self, done: float | None, text: str) -> None:
        if done is not None and not 0 <= done <= 1:
            raise ValueError(f"progress is a share from 0 to 1, not {done}")
        if not text:
            text = "Working" if done is None else f"{done:.0%}"
        message = agent_message(text, metadata={PROGRESS: done})
        update = StatusUpdate(status=TaskStatus(state=TaskState.WORKING, message=message))
        if threading.get_ident() == self._thread:
            self._tell(update)
            return
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._tell, update)

    def ask(self, question: Any) -> Message:
        if not self._answers:
            raise Asked(question)
        return self._answers.popleft()

    # ---- the relay ---------------------------------------------------------------------------------------------------

    async def relay(self, events: AsyncGenerator[AgentEvent, None]) -> AsyncGenerator[AgentEvent, None]:
        """The events of a function, with what it says in between. Fails as the function fails."""
        function = asyncio.create_task(self._pump(events))
        function.add_done_callback(lambda _: self._news.set())
        try:
            while self._waiting or not function.done():
                await self._news.wait()
                self._news.clear()
                while self._waiting:
                    event = self._waiting.popleft()
                    self._room.set()
                    yield event
        finally:
            await _stop(function)
        if function.cancelled():
            raise RuntimeError("the function cancelled itself")
        function.result()

    async def _pump(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        """Run the function, one event ahead of whoever takes them."""
        try:
            async with aclosing(events):
                async for event in events:
                    while self._waiting:
                        self._room.clear()
                        await self._room.wait()
                    self._tell(event)
        except (SystemExit, KeyboardInterrupt) as error:  # would end the loop, from a task of its own
            raise RuntimeError(f"the function raised {type(error).__name__}") from error

    def _tell(self, event: AgentEvent) -> None:
        if self._waiting and _is_progress(event) and _is_progress(self._waiting[-1]):
            self._waiting.pop()  # nobody has seen it yet, and it is out of date
        self._waiting.append(event)
        self._news.set()


async def _stop(function: asyncio.Task[None]) -> None:
    """End a function whose run is over, within its time."""
    if function.done():
        return
    function.cancel()
    await asyncio.wait({function}, timeout=UNWIND_TIME)
    if not function.done():
        logger.warning("function goes on although its run has ended")
    elif not function.cancelled() and function.exception() is not None:
        logger.warning("function failed while its run ended", exc_info=function.exception())


def _is_progress(event: AgentEvent) -> bool:
    if not isinstance(event, StatusUpdate) or event.status.message is None:
        return False
    return is_progress(event.status.message)
