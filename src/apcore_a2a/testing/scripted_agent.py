"""An agent that yields the events of a script. With gates, a test controls when they are yielded.

    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), gate, chunk("b", append=True), "COMPLETED")})

The script of a message is selected by its text. Nothing here depends on the clock.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

from msgspec import UNSET

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.errors import A2AError
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Message, Part, Role, StatusUpdate, TaskState, TaskStatus

PATIENCE: Final = 5.0  # seconds: a test that waits in vain fails instead of hanging


class Gate:
    """A point in a script at which a run waits until the test opens it. An opened gate stays open.

    Example:
        >>> gate = Gate()
        >>> agent = ScriptedAgent({"slow": (gate, "COMPLETED")})
        >>> # send "slow", then: await gate.reached(); look around; gate.open()
    """

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def reached(self, timeout: float = PATIENCE) -> None:
        """Wait until a run arrives."""
        async with asyncio.timeout(timeout):
            await self._reached.wait()

    def open(self) -> None:
        """Let all waiting and later runs pass."""
        self._opened.set()

    async def wait(self) -> None:
        """Wait until the gate is open. A run calls this when its script reaches the gate."""
        self._reached.set()
        # Without a timeout, because the test controls the duration. Cancelling the run ends the wait.
        await self._opened.wait()


Step = AgentEvent | Gate | BaseException | str
"""An event to yield, a gate to wait at, an exception to raise, or the name of a state."""


def says(text: str, *, role: Role = Role.AGENT) -> Message:
    """Return a message with one text.

    Example:
        >>> says("Which one?").parts[0].text
        'Which one?'
    """
    return Message(message_id=new_id(), role=role, parts=(Part(text=text),))


def status(state: TaskState | str, text: str = "") -> StatusUpdate:
    """Return a change of state, with an optional text of the agent.

    Example:
        >>> status("INPUT_REQUIRED", "Which one?").status.state
        <TaskState.INPUT_REQUIRED: 'TASK_STATE_INPUT_REQUIRED'>
    """
    if not isinstance(state, TaskState):
        state = TaskState[state]
    message = None
    if text:
        message = says(text)
    return StatusUpdate(status=TaskStatus(state=state, message=message))


def chunk(text: str, *, append: bool = False, last: bool = False, artifact_id: str = "out") -> ArtifactUpdate:
    """Return a chunk of an artifact.

    Example:
        >>> chunk("more", append=True).artifact.parts[0].text
        'more'
    """
    artifact = Artifact(artifact_id=artifact_id, parts=[Part(text=text)])
    return ArtifactUpdate(artifact=artifact, append=append, last_chunk=last)


class ScriptedAgent:
    """Plays the script for the text of a message, or `default`. `calls` records all calls in order.

    A script that is only an `A2AError` rejects its message before a task exists.

    Args:
        scripts: The scripts by message text.
        default: The script for any other message.
        may_reply: Whether a run may answer with a `Message` instead of a task.

    Example:
        >>> import asyncio
        >>> from apcore_a2a.testing import ScriptedAgent, app_client, chunk
        >>> agent = ScriptedAgent({"hi": (chunk("Hello!"), "COMPLETED")})
        >>> async def main():
        ...     async with app_client(agent) as client:
        ...         return (await client.send_message("hi")).status.state.name
        >>> asyncio.run(main())
        'COMPLETED'
    """

    def __init__(
        self,
        scripts: Mapping[str, Sequence[Step] | A2AError] | None = None,
        *,
        default: Sequence[Step] = ("COMPLETED",),
        may_reply: bool = False,
    ) -> None:
        self.scripts = dict(scripts or {})
        self.default = default
        self.may_reply = may_reply
        self.calls: list[Call] = []

    async def admit(self, call: Call) -> Admission:
        """Reject messages whose script is an error."""
        script = self._script(call)
        if isinstance(script, A2AError):
            raise script
        return Admission()

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Play the script."""
        self.calls.append(call)
        script = self._script(call)
        if isinstance(script, A2AError):
            # `admit` rejects the message first, but a direct call of `run` must not return a completed task.
            raise script
        for step in script:
            match step:
                case Gate():
                    await step.wait()
                case BaseException():
                    raise step
                case str():
                    yield status(step)
                case _:
                    yield step

    def _script(self, call: Call) -> Sequence[Step] | A2AError:
        for part in call.message.parts:
            if part.text is not UNSET:
                return self.scripts.get(str(part.text), self.default)
        # A message of only files and data has the empty text.
        return self.scripts.get("", self.default)
