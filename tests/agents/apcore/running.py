"""Real apcore modules, and a small driver that runs agents without an engine."""

import asyncio
from collections.abc import Mapping
from typing import Any

import apcore
import pytest
from msgspec import json
from msgspec.structs import replace
from pydantic import BaseModel

from apcore_a2a.agent import Agent, AgentEvent, Call, Caller, CancelToken, Remember
from apcore_a2a.agents.apcore.agent import ModuleAgent
from apcore_a2a.agents.apcore.executor import ServedExecutor, open_modules
from apcore_a2a.agents.apcore.modules import Modules
from apcore_a2a.protocol.lifecycle import TRANSITIONS, fold
from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Message,
    Part,
    Role,
    SendMessage,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    encode,
)

Data = dict[str, Any]  # Any: inputs and outputs of modules are JSON
Events = list[AgentEvent]

needs_approvals = pytest.mark.skipif(not hasattr(apcore, "ApprovalPendingError"), reason="apcore 0.7.0 and newer")
needs_pipeline = pytest.mark.skipif(not hasattr(apcore, "PipelineEngine"), reason="apcore 0.18 and newer")
needs_preview = pytest.mark.skipif(not hasattr(apcore, "PreviewResult"), reason="apcore 0.21 and newer")

# Executors: a ServedExecutor, and a custom one. The effect of an ACL or an approval handler must be the same with both,
# if this version of apcore exposes them.
EXECUTORS = [
    pytest.param(ServedExecutor, id="ours"),
    pytest.param(apcore.Executor, id="the user's", marks=needs_pipeline),
]


class Pair(BaseModel):
    a: int
    b: int


class Total(BaseModel):
    total: int


class Add:
    """Adds two integers."""

    description = "Add two integers"
    input_schema = Pair
    output_schema = Total
    tags = ("math",)
    annotations = apcore.ModuleAnnotations(readonly=True)
    calls = 0

    async def execute(self, inputs: Data, context: Any) -> Data:
        self.calls += 1
        return {"total": inputs["a"] + inputs["b"]}


class Returns:
    """Returns a value. Has no schemas."""

    description = "Return a value"

    def __init__(self, value: Any, **attributes: Any) -> None:
        self.value = value
        vars(self).update(attributes)

    async def execute(self, inputs: Data, context: Any) -> Any:
        return self.value


class Echo:
    """Returns a copy of its inputs, and changes the original."""

    description = "Echo"

    def __init__(self, schema: Any) -> None:
        self.input_schema = self.output_schema = schema

    async def execute(self, inputs: Data, context: Any) -> Data:
        copy = {**inputs}
        inputs.clear()
        return copy


class Raises:
    """Raises an exception. Has no schemas."""

    description = "Raise an exception"

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def execute(self, inputs: Data, context: Any) -> Data:
        raise self.error


class Spy:
    """Records its inputs. Has no schemas."""

    description = "Look around"

    def __init__(self) -> None:
        self.inputs: Data = {}
        self.context: Any = None
        self.seen: Data = {}

    async def execute(self, inputs: Data, context: Any) -> Data:
        self.inputs, self.context, self.seen = inputs, context, dict(context.data)
        return {}


class Counts:
    """Streams chunks."""

    description = "Count aloud"

    def __init__(self, *chunks: Any, then: Exception | None = None, **attributes: Any) -> None:
        self.chunks, self.then = chunks, then
        vars(self).update(attributes)

    async def execute(self, inputs: Data, context: Any) -> Data:
        return {"streamed": False}

    async def stream(self, inputs: Data, context: Any) -> Any:
        for chunk in self.chunks:
            yield chunk
            await asyncio.sleep(0)
        if self.then is not None:
            raise self.then


def registry_of(**modules: Any) -> apcore.Registry:
    """Return a registry of modules. A double underscore in a keyword stands for a dot in the id."""
    registry = apcore.Registry()
    for name, module in modules.items():
        registry.register(name.replace("__", "."), module)
    return registry


def modules_of(**modules: Any) -> Modules:
    return open_modules(registry_of(**modules))


def agent_of(source: Any = None, *, default_skill: str = "", by_caller: bool = True, **modules: Any) -> ModuleAgent:
    opened = open_modules(registry_of(**modules) if source is None else source)
    return ModuleAgent(opened, default_skill=default_skill, approvals_by_caller=by_caller)


def call_of(*contents: Any, skill: Any = None, caller: Caller = Caller(), **fields: Any) -> Call:  # noqa: B008  # frozen
    """Return a call with a message: text for a string, a part as it is, data for any other value."""
    parts = tuple(
        content if isinstance(content, Part) else Part(text=content) if isinstance(content, str) else Part(data=content)
        for content in contents
    )
    metadata = None if skill is None else {"skillId": skill}
    message = Message(message_id="m-1", role=Role.USER, parts=parts, metadata=metadata)
    task = Task(id="t-1", context_id="c-1", status=TaskStatus(state=TaskState.SUBMITTED), history=[message])
    request = SendMessage(message=message, metadata=fields.pop("request_metadata", None))
    return Call(request=request, task=task, caller=caller, cancel=fields.pop("cancel", CancelToken()), **fields)


class Outcome:
    """The result of a run: its events, and the resulting task."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.events: Events = []
        self.task = call.task
        self.memo: Any = call.memo

    @property
    def state(self) -> TaskState:
        return self.task.status.state

    @property
    def text(self) -> str:
        message = self.task.status.message
        return str(message.parts[0].text) if message else ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        message = self.task.status.message
        return (message.metadata or {}) if message else {}

    @property
    def updates(self) -> list[ArtifactUpdate]:
        return [event for event in self.events if isinstance(event, ArtifactUpdate)]

    @property
    def states(self) -> list[TaskState]:
        return [event.status.state for event in self.events if isinstance(event, StatusUpdate)]

    @property
    def parts(self) -> list[Part]:
        """Return the parts of the only artifact."""
        (artifact,) = self.task.artifacts
        return artifact.parts

    @property
    def data(self) -> Any:
        """Return the data of the only part of the only artifact."""
        (part,) = self.parts
        return part.data


async def run(agent: Agent, call: Call) -> Outcome:
    """Admit and run a message, as the engine does: each event is encoded before it is folded."""
    async with asyncio.timeout(5):
        await agent.admit(call)
        outcome = Outcome(call)
        async for event in agent.run(call):
            take(outcome, event)
    return outcome


def take(outcome: Outcome, event: AgentEvent) -> None:
    if isinstance(event, Remember):
        outcome.memo = json.decode(encode(event.memo))
        return
    outcome.events.append(event)
    encode(event)
    if isinstance(event, StatusUpdate) and event.status.state not in TRANSITIONS[outcome.state]:
        fold(outcome.task, StatusUpdate(status=TaskStatus(state=TaskState.WORKING)))
    fold(outcome.task, event)


async def reply(agent: Agent, outcome: Outcome, *contents: Any, **fields: Any) -> Outcome:
    """Send another message to a waiting task."""
    call = call_of(*contents, memo=outcome.memo, **fields)
    return await run(agent, replace(call, task=outcome.task))
