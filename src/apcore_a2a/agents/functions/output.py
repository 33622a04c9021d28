"""What a function yields or returns as events of a task, and what it may ask of the engine while it runs."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

from apcore_a2a.agent import AgentEvent, Remember
from apcore_a2a.agents.content import agent_message, to_parts
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.lifecycle import AT_REST, PROGRESS, is_progress
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Message, Part, StatusUpdate, Task, TaskState, TaskStatus

logger = logging.getLogger(__name__)

# What a function returns or yields, told as the events of its task.
#
# Rule: a function knows nothing of tasks; what it gives is sent when it is there.


class FunctionOutput:
    """What a function has given so far, told as events.

    Pieces of text make one artifact, each sent when it is there. That a piece was the last is known only later, so an
    empty one says it: clients show the pieces as they come, and joined they are the same text. Anything else is an
    artifact of its own.
    """

    def __init__(self, may_reply: bool, known_ids: Sequence[str] = ()) -> None:
        self.artifact_ids: list[str] = []
        """Of the artifacts so far. A run that repeats another is given those of the other, and replaces them."""
        self._known_ids = known_ids
        self._may_reply = may_reply
        self._text_id = ""  # the artifact that pieces of text are appended to, once there is one
        self._state = TaskState.WORKING  # as the function itself has said, if it has

    def add(self, chunk: Any) -> Iterator[AgentEvent]:
        """The events for one of several things that a function yields."""
        match chunk:
            case None | "":
                return
            case str():
                is_first = not self._text_id
                if is_first:
                    self._text_id = self._next_id()
                yield _update([Part(text=chunk)], self._text_id, append=not is_first)
            case StatusUpdate() | Task():
                self._state = chunk.status.state
                if self._state in AT_REST:  # the text must be complete before the task is
                    yield from self._close_text()
                yield chunk
            case Message():
                # As a status, because an agent that may reply ends its task with a message: another function of it may.
                yield StatusUpdate(status=TaskStatus(state=self._state, message=chunk))
            case ArtifactUpdate() | Remember():
                yield chunk
            case _:
                yield _update(to_parts(chunk), self._next_id(), last=True)

    def add_whole(self, result: Any) -> Iterator[AgentEvent]:
        """The events for all that a function returns at once."""
        match result:
            case str():
                yield _update([Part(text=result)], self._next_id(), last=True)
            case Message():
                self._state = TaskState.COMPLETED
                if self._may_reply:
                    yield result
                else:  # the function did not say that it may, so the task is there already
                    yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED, message=result))
            case _:
                yield from self.add(result)

    def end(self) -> Iterator[AgentEvent]:
        if self._state not in AT_REST:
            yield from self._close_text()
            yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))

    def _next_id(self) -> str:
        number = len(self.artifact_ids)
        if number < len(self._known_ids):
            artifact_id = self._known_ids[number]
        else:
            artifact_id = new_id()
        self.artifact_ids.append(artifact_id)
        return artifact_id

    def _close_text(self) -> Iterator[AgentEvent]:
        if self._text_id:
            yield _update([Part(text="")], self._text_id, append=True, last=True)
            self._text_id = ""


def _update(parts: list[Part], artifact_id: str, *, append: bool = False, last: bool = False) -> ArtifactUpdate:
    return ArtifactUpdate(artifact=Artifact(artifact_id=artifact_id, parts=parts), append=append, last_chunk=last)


# ---- function controls ----------------------------------------------------------------------------------------------
# A function that can speak while it runs: `Call.progress` and `Call.ask`.
#
# What such a function gives passes a relay, on its way from the function's own asyncio task to the run's. So a status
# can be told while the function is busy, on the loop or on a thread.
#
# Rule: the run owns the function's task. When the engine lets go of the run, the task has ended, or was cancelled and
# had its time to unwind.

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
