"""Agents that follow a script of the test, and gates that stop them at a defined point.

    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), gate, chunk("b", append=True), COMPLETED)})

The text of a message selects its script. A run that reaches a gate waits until the test opens it:
`await gate.reached()`, assert, `gate.open()`. No wait here depends on the clock.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from apcore_a2a.agent import Admission, AgentEvent, Call, Caller
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Message, Part, Role, StatusUpdate, TaskState, TaskStatus

PATIENCE: Final = 20.0  # seconds: the time limit of all waits in tests, which only a hang reaches


class Gate:
    """A point in a script at which a run waits until the test opens the gate. An opened gate stays open.

    A run at a deaf gate ignores its first cancellation, the one of the engine. A second cancellation ends it: it comes
    from a test that failed before it opened the gate.
    """

    def __init__(self, *, deaf: bool = False) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()
        self._deaf = deaf

    async def reached(self) -> None:
        """Wait until a run has reached the gate."""
        async with asyncio.timeout(PATIENCE):
            await self._reached.wait()

    def open(self) -> None:
        self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    async def wait(self) -> None:
        self._reached.set()
        if self._opened.is_set():
            await asyncio.sleep(0)  # an open gate also lets other tasks run
        while not self._opened.is_set():
            try:
                await self._opened.wait()
            except asyncio.CancelledError:
                if not self._deaf:
                    raise
                self._deaf = False


Step = AgentEvent | Gate | BaseException  # an exception is raised


def pause() -> Gate:
    """Return an open gate, which separates the events before it from those after it into two batches."""
    gate = Gate()
    gate.open()
    return gate


def says(text: str, role: Role = Role.AGENT, *, message_id: str = "") -> Message:
    return Message(message_id=message_id, role=role, parts=(Part(text=text),))


def status(state: TaskState, text: str = "") -> StatusUpdate:
    return StatusUpdate(status=TaskStatus(state=state, message=says(text) if text else None))


def chunk(text: str, *, append: bool = False, last: bool = False, artifact_id: str = "out") -> ArtifactUpdate:
    artifact = Artifact(artifact_id=artifact_id, parts=[Part(text=text)])
    return ArtifactUpdate(artifact=artifact, append=append, last_chunk=last)


WORKING: Final = status(TaskState.WORKING)
COMPLETED: Final = status(TaskState.COMPLETED)
ASKS: Final = status(TaskState.INPUT_REQUIRED, "What next?")


class Keys:
    """An authenticator: `X-API-Key: key of ada` authenticates the caller ada."""

    def authenticate(self, headers: dict[str, str]) -> Caller | None:
        claim, of, name = headers.get("x-api-key", "").partition(" of ")
        return Caller(id=name, type="user") if (claim, of) == ("key", " of ") else None

    def security_schemes(self) -> list[dict[str, Any]]:
        return [{"type": "apiKey", "in": "header", "name": "X-API-Key"}]


class ScriptedAgent:
    """Runs the script for the text of a message, or `default`. `calls` records its calls in order.

    An A2AError in place of a script rejects the message before a task exists.
    """

    def __init__(
        self,
        scripts: Mapping[str, Sequence[Step] | A2AError] = {},
        *,
        default: Sequence[Step] = (COMPLETED,),
        may_reply: bool = False,
        retry_safe: bool = False,
    ) -> None:
        self.scripts = scripts
        self.default = default
        self.may_reply = may_reply
        self.retry_safe = retry_safe
        self.calls: list[Call] = []

    def _script(self, call: Call) -> Sequence[Step] | A2AError:
        return self.scripts.get(str(call.message.parts[0].text), self.default)

    async def admit(self, call: Call) -> Admission:
        script = self._script(call)
        if isinstance(script, A2AError):
            raise script
        return Admission(retry_safe=self.retry_safe)

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        self.calls.append(call)
        script = self._script(call)
        assert not isinstance(script, A2AError)  # otherwise it was rejected
        for step in script:
            match step:
                case Gate():
                    await step.wait()
                case BaseException():
                    raise step
                case _:
                    yield step
