"""What a function returns or yields, told as the events of its task.

Rule: a function knows nothing of tasks; what it gives is sent when it is there.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from apcore_a2a.agent import AgentEvent, Remember
from apcore_a2a.agents.content import to_parts
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Message, Part, StatusUpdate, Task, TaskState, TaskStatus


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
