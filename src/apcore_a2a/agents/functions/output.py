"""Converts the results of a function to events of its task, and implements `Call.progress` and `Call.ask`."""

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


class FunctionOutput:
    """Converts the results of one run of a function to events, each as soon as it is available.

    Pieces of text form one artifact. Which piece is the last is known only at the end, so an empty piece marks the
    end: clients show the pieces as they arrive, and the joined text is unchanged. Other values are one artifact each.
    """

    def __init__(self, may_reply: bool, known_ids: Sequence[str] = ()) -> None:
        self.artifact_ids: list[str] = []
        """The ids of the artifacts so far. A repeated run uses those of the earlier run, to replace its artifacts."""
        self._known_ids = known_ids
        self._may_reply = may_reply
        self._text_id = ""  # the artifact to which pieces of text are appended. Empty before the first one.
        self._state = TaskState.WORKING  # the latest state that the function has published

    def add(self, chunk: Any) -> Iterator[AgentEvent]:
        """Return the events for one value that a function yields."""
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
                # As a status: a Message would end the task if another function of the agent may reply with messages.
                yield StatusUpdate(status=TaskStatus(state=self._state, message=chunk))
            case ArtifactUpdate() | Remember():
                yield chunk
            case _:
                yield _update(to_parts(chunk), self._next_id(), last=True)

    def add_whole(self, result: Any) -> Iterator[AgentEvent]:
        """Return the events for the value that a function returns."""
        match result:
            case str():
                yield _update([Part(text=result)], self._next_id(), last=True)
            case Message():
                self._state = TaskState.COMPLETED
                if self._may_reply:
                    yield result
                else:  # not annotated as a reply, so the task exists already
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
# Events of a function while it runs: `Call.progress` and `Call.ask`.
#
# The function runs in an asyncio task of its own, and a relay passes its events to the run. So a status can be
# published while the function is busy, on the event loop or on a thread.
#
# Invariant: the run owns the function's asyncio task. When the run ends, that task has ended, or it was cancelled and
# had UNWIND_TIME to clean up.

UNWIND_TIME: Final = 4.0  # seconds for a cancelled function. After five the engine ends the run in any case.


class InputRequired(BaseException):
    """Ends a run that waits for its user. A BaseException, so that `except Exception` does not catch it."""

    def __init__(self, question: Any) -> None:
        super().__init__("Call.ask ends the run here; the function is called again with the answer")
        self.question = question


def find_question(ended: "InputRequired | BaseExceptionGroup[BaseException]") -> Any:
    """Return the question of a run that ended with these exceptions. In a group, the first question counts.

    Raises:
        BaseExceptionGroup: The group, if it contains other errors.
    """
    if isinstance(ended, InputRequired):
        return ended.question
    asked, errors = ended.split(InputRequired)
    if asked is None or errors is not None:
        raise ended
    return find_question(asked.exceptions[0])


class FunctionControls:
    """The progress and the questions of one run of a function, with the answers of the user."""

    def __init__(self, answers: list[Message]) -> None:
        self._answers = deque(answers)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: deque[AgentEvent] = deque()  # at most one event of the function and one progress update
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    # ---- called by the function --------------------------------------------------------------------------------------

    def progress(self, done: float | None, text: str) -> None:
        if done is not None and not 0 <= done <= 1:
            raise ValueError(f"progress is a fraction from 0 to 1, not {done}")
        if not text:
            text = "Working" if done is None else f"{done:.0%}"
        message = agent_message(text, metadata={PROGRESS: done})
        update = StatusUpdate(status=TaskStatus(state=TaskState.WORKING, message=message))
        if threading.get_ident() == self._thread:
            self._publish(update)
            return
        with suppress(RuntimeError):  # the loop is closed, so the run is over
            self._loop.call_soon_threadsafe(self._publish, update)

    def ask(self, question: Any) -> Message:
        if not self._answers:
            raise InputRequired(question)
        return self._answers.popleft()

    # ---- the relay ---------------------------------------------------------------------------------------------------

    async def relay(self, events: AsyncGenerator[AgentEvent, None]) -> AsyncGenerator[AgentEvent, None]:
        """Yield the events of a function and its progress in between. Raises the exception that the function raises."""
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
        """Run the function, at most one event ahead of the reader."""
        try:
            async with aclosing(events):
                async for event in events:
                    while self._waiting:
                        self._room.clear()
                        await self._room.wait()
                    self._publish(event)
        except (SystemExit, KeyboardInterrupt) as error:  # raised in an asyncio task, they end the event loop
            raise RuntimeError(f"the function raised {type(error).__name__}") from error

    def _publish(self, event: AgentEvent) -> None:
        if self._waiting and _is_progress(event) and _is_progress(self._waiting[-1]):
            self._waiting.pop()  # not read yet, and outdated by the new one
        self._waiting.append(event)
        self._news.set()


async def _stop(function: asyncio.Task[None]) -> None:
    """Cancel a function whose run is over, and wait at most UNWIND_TIME for it."""
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
