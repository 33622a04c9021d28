"""The agent that runs apcore modules: which module a message is for, whether it may run, and how its run is told.

Rule: whatever can be refused is refused in `admit`, before a task exists. A run goes through apcore's whole pipeline.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.agents.apcore import failures
from apcore_a2a.agents.apcore.context import make_context
from apcore_a2a.agents.apcore.parts import Parts, to_inputs, to_parts, to_plain
from apcore_a2a.agents.apcore.registry import ModuleInfo, Modules
from apcore_a2a.errors import A2AError, InvalidParamsError, SkillNotFoundError, Violation
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, StatusUpdate, TaskState, TaskStatus

ARTIFACT_ID: Final = "result"  # a task has one; what an earlier run of it left is replaced
MAX_SHOWN: Final = 64  # characters of a skill id that we repeat to its sender


class Job(NamedTuple):
    """One call of a module."""

    module: ModuleInfo
    inputs: Any
    rest: Parts = ()
    approval: Any = None
    """What became of the approval this call has waited for."""


class ModuleAgent:
    """Runs modules. A message that names none is for `default_skill`, or for the only skill there is."""

    may_reply = False

    def __init__(self, modules: Modules, *, default_skill: str = "") -> None:
        self.modules, self._default_skill = modules, default_skill

    async def admit(self, call: Call) -> Admission:
        job = self.read(call)
        context = partial(make_context, call, self.modules.executor, job.rest)
        if failed := await self.modules.preflight(job.module, job.inputs, context):
            raise failures.refuse(failed, job.module, job.inputs)
        return Admission(retry_safe=job.module.is_repeatable)

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        job = self.read(call)
        try:
            async with aclosing(self.perform(job, call)) as events:
                async for event in events:
                    yield event
        except Exception as error:  # the end of a run: all that a module can raise ends here
            raise failures.explain(error, job.module.id) from error

    def read(self, call: Call) -> Job:
        """What a message asks for.

        Raises:
            A2AError: nothing that can be done; to a caller whom the ACL refuses the skill, "Task not found".
        """
        skill = self._route(call)
        try:
            module = self.modules.find(skill)
            if module is None:
                raise SkillNotFoundError(skill[:MAX_SHOWN])
            return Job(module, *to_inputs(call.message.parts, module))
        except A2AError as error:
            if self.modules.denies(skill, partial(make_context, call, self.modules.executor)):
                raise failures.mask(skill, error) from error
            raise

    def _route(self, call: Call) -> str:
        for metadata in (call.message.metadata, call.request.metadata):
            skill = (metadata or {}).get("skillId")
            if isinstance(skill, str) and skill:
                return skill
        only = list(islice((module.id for module in self.modules if module.is_skill), 2))
        if not self._default_skill and len(only) != 1:
            text = "Missing required parameter: metadata.skillId"
            raise InvalidParamsError(text, [Violation("metadata.skillId", text, "required")])
        return self._default_skill or only[0]

    async def perform(self, job: Job, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Run a module, with whatever exceptions it raises."""
        yield StatusUpdate(status=TaskStatus(state=TaskState.WORKING))
        module, executor = job.module, self.modules.executor
        context = make_context(call, executor, job.rest, job.approval)
        if not module.streams:  # `stream` would ignore RetryMiddleware
            result = to_plain(await executor.call_async(module.id, job.inputs, context))
        else:
            result, append = {}, False
            async with aclosing(executor.stream(module.id, job.inputs, context)) as chunks:
                async for chunk in chunks:
                    plain = to_plain(chunk)  # at once: apcore goes on changing what it has yielded
                    yield _update(module, plain, append=append)
                    _merge(result, plain)
                    append = True
            schema = getattr(module.source, "output_schema", None)  # a streamed output apcore only logs if it is wrong
            if wrong := failures.validate(schema, msgspec.to_builtins(result), strict=False):
                raise failures.invalid_output(module.id, wrong)
        yield _update(module, result, last_chunk=True)
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


def _merge(result: dict[str, Any], chunk: dict[str, Any]) -> None:
    """As apcore merges chunks: objects into each other, anything else by replacing. No object is shared."""
    for name, value in chunk.items():
        if isinstance(value, dict):
            inner = result.get(name)
            result[name] = inner if isinstance(inner, dict) else {}
            _merge(result[name], value)
        else:
            result[name] = value


def _update(module: ModuleInfo, plain: Any, *, append: bool = False, last_chunk: bool = False) -> ArtifactUpdate:
    artifact = Artifact(artifact_id=ARTIFACT_ID, name=module.id, parts=to_parts(plain))
    return ArtifactUpdate(artifact=artifact, append=append, last_chunk=last_chunk)
