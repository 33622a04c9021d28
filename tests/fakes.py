"""Agents that do exactly what a test wrote, when the test lets them.

    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), gate, chunk("b", append=True), COMPLETED)})

A message is answered with the script filed under its text. A run that comes to a gate stands there until the test opens
it: `await gate.reached()`, look, `gate.open()`. Nothing here waits by the clock.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from apcore_a2a.agent import Admission, AgentEvent, Call, Caller
from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Message, Part, Role, StatusUpdate, TaskState, TaskStatus

PATIENCE: Final = 20.0  # seconds that any test waits for anything: only what hangs waits that long


class Gate:
    """A place in a script where a run stands until the test lets it pass; an opened gate stays open.

    Whoever stands at a deaf gate does not hear that they are cancelled, as the engine cancels: once. The second time is
    a test that failed before it opened the gate, and wants to end.
    """

    def __init__(self, *, deaf: bool = False) -> None:
        self._reached, self._opened = asyncio.Event(), asyncio.Event()
        self._deaf = deaf

    async def reached(self) -> None:
        """Wait until a run stands here."""
        async with asyncio.timeout(PATIENCE):
            await self._reached.wait()

    def open(self) -> None:
        self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    async def stand(self) -> None:
        self._reached.set()
        if self._opened.is_set():
            await asyncio.sleep(0)  # even an open gate is a place where others pass
        while not self._opened.is_set():
            try:
                await self._opened.wait()
            except asyncio.CancelledError:
                if not self._deaf:
                    raise
                self._deaf = False


Step = AgentEvent | Gate | BaseException  # an exception is raised


def pause() -> Gate:
    """A gate that is open: what is yielded before it is not taken together with what comes after."""
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
    """An authenticator: whoever shows `X-API-Key: key of ada` is ada."""

    def authenticate(self, headers: dict[str, str]) -> Caller | None:
        claim, of, name = headers.get("x-api-key", "").partition(" of ")
        return Caller(id=name, type="user") if (claim, of) == ("key", " of ") else None

    def security_schemes(self) -> list[dict[str, Any]]:
        return [{"type": "apiKey", "in": "header", "name": "X-API-Key"}]


class ScriptedAgent:
    """Plays the script of a message's text, or `default`; `calls` keeps what it was called with, in order.

    An A2AError filed alone under a text refuses that message before there is a task.
    """

    def __init__(
        self,
        scripts: Mapping[str, Sequence[Step] | A2AError] = {},
        *,
        default: Sequence[Step] = (COMPLETED,),
        may_reply: bool = False,
        retry_safe: bool = False,
    ) -> None:
        self.scripts, self.default, self.may_reply = scripts, default, may_reply
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
        assert not isinstance(script, A2AError)  # it was refused
        for step in script:
            match step:
                case Gate():
                    await step.stand()
                case BaseException():
                    raise step
                case _:
                    yield step
