"""`ModuleAgent`, which runs apcore modules, and the agent card of these modules.

Invariant: everything that can be rejected is rejected in `admit`, before a task exists. A run passes apcore's whole
pipeline.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final

import apcore
import msgspec
from msgspec import Struct

from apcore_a2a import __version__
from apcore_a2a.agent import Admission, AgentEvent, Call, Caller
from apcore_a2a.agents.apcore import approvals, failures
from apcore_a2a.agents.apcore.approvals import Approval, Approver, PendingCall
from apcore_a2a.agents.apcore.call import copy_output, make_context, output_parts, to_identity, to_inputs
from apcore_a2a.agents.apcore.modules import ModuleInfo, Modules
from apcore_a2a.agents.checker import quota_key_of
from apcore_a2a.agents.input_cost import off_loop_if_large
from apcore_a2a.agents.questions import read_approval
from apcore_a2a.agents.skills import (
    JSON,
    MAX_EXAMPLES,
    describe_call,
    describe_skills,
    missing_skill,
    modes,
    named_skill,
    to_title,
)
from apcore_a2a.agents.threads import MAX_THREADS, Threads
from apcore_a2a.errors import A2AError, SkillNotFoundError
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentSkill, advise
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, StatusUpdate, TaskState, TaskStatus, encode

ARTIFACT_ID: Final = "result"  # a task has one artifact, and a repeated run replaces it
DEFAULT_NAME: Final = "apcore-agent"  # of a card, if neither the configuration nor the settings have a name
MAX_SHOWN: Final = 64  # characters of an unknown skill id that an error repeats


class ModuleCall(Struct, frozen=True):
    """One call of a module."""

    module: ModuleInfo
    inputs: Any
    rest: tuple[Part, ...] = ()
    """The parts of the message that are not the inputs."""
    approval: Approval | None = None
    """The approval that this call has waited for, with its result."""


class ModuleAgent:
    """Adapts apcore modules to an Agent.

    Args:
        default_skill: The id of the skill for messages without a skill id. A single skill is its own default.
        approvals_by_caller: Whether the caller of a module may also approve the call, if the approval handler accepts
            decisions.
    """

    may_reply = False

    def __init__(self, modules: Modules, *, default_skill: str = "", approvals_by_caller: bool = True) -> None:
        self._modules = modules
        self._default_skill = default_skill
        self._approvals_by_caller = approvals_by_caller
        self._threads: Threads | None = getattr(modules.executor, "threads", None)

    @property
    def stuck_threads(self) -> int:
        """The number of threads of a `ServedExecutor` on which modules continue after their runs have ended."""
        if self._threads is None:
            return 0
        return self._threads.stuck

    @property
    def thread_capacity(self) -> int:
        """How many blocking modules can run at once, given the stuck threads. With 0, their messages are rejected."""
        if self._threads is None:
            return MAX_THREADS
        return self._threads.capacity

    async def admit(self, call: Call) -> Admission:
        if call.memo is not None:  # a reply to a waiting task, whose call was checked when it was first requested
            return Admission(retry_safe=self._resume(call).module.is_repeatable)
        asked = await self._read(call)
        if asked.module.blocks and self._threads is not None:
            self._threads.check_room(f"module {asked.module.id}")

        def context() -> Any:
            return make_context(call, self._modules.executor, asked.rest)

        await self._check_slow_inputs(asked, call)
        failed = await self._modules.find_failed_checks(asked.module, asked.inputs, context)
        if failed:
            raise failures.refuse(failed, asked.module, asked.inputs, call.caller)
        return Admission(retry_safe=asked.module.is_repeatable)

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        if call.memo is None:
            asked = await self._read(call)
        else:
            asked = self._resume(call)
        await self._check_slow_inputs(asked, call)  # again only if another process admitted the message
        skill = asked.module.id
        try:
            async with aclosing(self._execute(asked, call)) as events:
                async for event in events:
                    yield event
        except Exception as error:  # the end of a run: every exception of a module is translated here
            code = getattr(error, "code", None)
            if code == "APPROVAL_PENDING":
                for event in approvals.wait_for_handler(error, skill, asked.inputs):
                    yield event
            elif code == "APPROVAL_DENIED":
                yield approvals.denied(error, skill)
            else:
                raise failures.translate(error, skill, call.caller, task_id=call.task.id) from error

    def skill_of(self, call: Call) -> str:
        """Return the id of the skill that a message is for. The skill need not exist."""
        if call.memo is not None:
            return msgspec.convert(call.memo, PendingCall).skill
        return self._route(call)

    # ---- finding the call --------------------------------------------------------------------------------------------

    async def _check_slow_inputs(self, asked: ModuleCall, call: Call) -> None:
        """Raise A2AError for inputs that are invalid, and whose validation may block the event loop."""
        module = asked.module
        inputs = asked.inputs
        if isinstance(inputs, dict):
            inputs = {name: value for name, value in inputs.items() if name != approvals.TOKEN}
        if not self._modules.may_be_slow(module, inputs):
            return
        # First, as in apcore: a caller without access must not learn the inputs.
        if self._modules.denies(module.id, lambda: make_context(call, self._modules.executor, asked.rest)):
            raise failures.mask(module.id, call.caller, "the ACL denies the call")
        failed = await self._modules.check_slow_inputs(module, inputs, quota_key_of(call))
        if failed:
            raise failures.refuse(failed, module, inputs, call.caller)

    async def _read(self, call: Call) -> ModuleCall:
        """Return the call that a message requests.

        Raises:
            A2AError: The call is impossible. "Task not found" if the ACL denies the skill to the caller.
        """
        skill = self._route(call)
        try:
            module = self._modules.find(skill)
            if module is None:
                raise SkillNotFoundError(skill[:MAX_SHOWN], advise(self._skills_for(call.caller), skill))
            parts = call.message.parts
            inputs, rest = await off_loop_if_large(parts, to_inputs, parts, module)
        except A2AError as error:
            # A caller who may not call the skill must not learn from the error whether it exists, or its inputs.
            if self._modules.denies(skill, lambda: make_context(call, self._modules.executor)):
                raise failures.mask(skill, call.caller, error) from error
            raise
        call.skill = module.id
        return ModuleCall(module, inputs, rest)

    def _route(self, call: Call) -> str:
        """Return the id of the skill that a message is for."""
        named = named_skill(call) or self._default_skill
        if named:
            return named
        skills: list[str] = []
        for module in self._modules:
            if module.is_skill:
                skills.append(module.id)
            if len(skills) > 1:  # there may be thousands, and two are enough for the error
                break
        if len(skills) != 1:
            raise missing_skill(self._skills_for(call.caller))
        return skills[0]

    def _skills_for(self, caller: Caller) -> Iterator[str]:
        """Yield the ids of the skills that a caller may see."""
        for module in self._modules:
            if module.is_skill and is_open(module, self._modules, caller):
                yield module.id

    def _resume(self, call: Call) -> ModuleCall:
        """Return the stored call of a waiting task. The reply only approves or rejects it."""
        pending = msgspec.convert(call.memo, PendingCall)
        module = self._modules.find(pending.skill)
        if module is None:
            raise SkillNotFoundError(pending.skill)
        call.skill = module.id
        inputs = dict(pending.inputs)
        if pending.approval_id and self._has_gate(module):
            inputs[approvals.TOKEN] = pending.approval_id
        approval = Approval(pending.approval_id, read_approval(call.message, pending.approval_id), call.caller.id)
        return ModuleCall(module, inputs, approval=approval)

    def _has_gate(self, module: ModuleInfo) -> bool:
        """Whether apcore asked for the approval, not the module itself, to which an old apcore would pass the token."""
        approver = approvals.find_approver(self._modules.executor)
        if approver is Approver.UNKNOWN:
            # An older executor does not expose its handler. The annotation of the module is then the best guess.
            return module.requires_approval
        return approver is Approver.HANDLER

    async def _decide(self, asked: ModuleCall) -> Iterable[AgentEvent] | None:
        """Return the events to publish instead of a call that requires approval. None if the call can proceed."""
        approval = asked.approval
        executor = self._modules.executor
        if approval is not None:
            if self._approvals_by_caller:
                await approvals.notify_handler(approvals.find_approval_handler(executor), approval)
            if approval.approved is False:
                return [approvals.rejected_by_caller(asked.module.id)]
        if not asked.module.requires_approval or approvals.find_approver(executor) is not Approver.NONE:
            return None
        if approval is not None and approval.approved and self._approvals_by_caller:
            return None
        return approvals.wait_for_caller(asked.module.id, asked.inputs, approval)

    # ---- the run -----------------------------------------------------------------------------------------------------

    async def _execute(self, asked: ModuleCall, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Run a module, or publish why it does not run. Exceptions of the module propagate."""
        module = asked.module
        if module.requires_approval or asked.approval is not None:
            instead = await self._decide(asked)
            if instead is not None:
                for event in instead:
                    yield event
                return
        yield StatusUpdate(status=TaskStatus(state=TaskState.WORKING))
        context = make_context(call, self._modules.executor, asked.rest, asked.approval)
        stream = self._modules.stream
        if stream is None or not module.streams:  # `stream` also runs other modules, but ignores RetryMiddleware
            result = copy_output(await self._modules.call(module.id, asked.inputs, context))
        else:
            result = {}
            append = False
            async with aclosing(stream(module.id, asked.inputs, context)) as chunks:
                async for chunk in chunks:
                    copied = copy_output(chunk)  # immediately, because apcore continues to change the yielded object
                    yield _update(module, copied, append=append)
                    _merge(result, copied)
                    append = True
            _check_streamed_output(module, result, call)
        yield _update(module, result, last_chunk=True)
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


def _check_streamed_output(module: ModuleInfo, result: Any, call: Call) -> None:
    # apcore checks streamed output as well, but only logs a mismatch.
    schema = getattr(module.source, "output_schema", None)
    wrong = failures.find_wrong_output(schema, msgspec.to_builtins(result))
    if wrong:
        raise failures.invalid_output(module.id, wrong, task_id=call.task.id)


def _merge(result: dict[str, Any], chunk: dict[str, Any]) -> None:
    """Merge a chunk as apcore does: objects recursively, other values by replacement. No object is shared."""
    for name, value in chunk.items():
        if not isinstance(value, dict):
            result[name] = value
            continue
        inner = result.get(name)
        if not isinstance(inner, dict):
            inner = {}
            result[name] = inner
        _merge(inner, value)


def _update(module: ModuleInfo, output: Any, *, append: bool = False, last_chunk: bool = False) -> ArtifactUpdate:
    artifact = Artifact(artifact_id=ARTIFACT_ID, name=module.id, parts=output_parts(output))
    return ArtifactUpdate(artifact=artifact, append=append, last_chunk=last_chunk)


# ---- agent card -----------------------------------------------------------------------------------------------------
# The part of the agent card that follows from the modules.
#
# Invariant: the public card lists no module that the ACL denies to anonymous callers. Modules that require approval are
# on the extended card only. Without an extended card they are on the public one, where clients can find them.

ANONYMOUS: Final = Caller()


def build_card(modules: Modules, *, show: Callable[[ModuleInfo], bool] | None = None) -> AgentCard:
    """Return the card of the current modules. The server adds its interfaces and further capabilities.

    Args:
        show: Whether to show a skill. None shows all.
    """
    skills: list[AgentSkill] = []
    described: dict[str, Any] = {}  # the entries of the card extension, by skill id
    for module in modules:
        if module.is_skill and (show is None or show(module)):
            skills.append(to_skill(module))
            described[module.id] = to_params(module)
    about = describe_skills(described)
    return AgentCard(
        name=_read_project(modules, "name") or DEFAULT_NAME,
        description=_read_project(modules, "description") or _count(skills),
        version=_read_project(modules, "version") or __version__,
        supported_interfaces=(),
        capabilities=AgentCapabilities(streaming=hasattr(modules.executor, "stream"), extensions=(about,)),
        default_input_modes=(JSON,),
        default_output_modes=(JSON,),
        skills=tuple(skills),
    )


def _read_project(modules: Modules, field: str) -> str:
    """Return a field of the project in apcore's configuration. Empty if it is not set."""
    if modules.config is None:
        return ""
    return str(modules.config.get(f"project.{field}") or "")


def _count(skills: list[AgentSkill]) -> str:
    if len(skills) == 1:
        return "apcore agent with 1 skill"
    return f"apcore agent with {len(skills)} skills"


def is_open(module: ModuleInfo, modules: Modules, caller: Caller = ANONYMOUS) -> bool:
    """Whether the ACL allows this caller to call the module. The default is an anonymous caller."""

    def make_context() -> Any:  # Any: apcore is untyped
        return apcore.Context.create(identity=to_identity(caller))

    return not modules.would_deny(module.id, make_context)


# ---- skills ---------------------------------------------------------------------------------------------------------
# A module as a skill of the agent card. The skill id is the module id. `display` may override the texts.


def to_skill(module: ModuleInfo) -> AgentSkill:
    """Return the card skill of a module. `display.a2a` overrides `display`, which overrides the module's own texts."""
    display = {**module.display, **(module.display.get("a2a") or {})}
    description = display.get("description") or module.description
    if display.get("guidance"):
        description += f"\n\nGuidance: {display['guidance']}"  # as apcore's other adapters write it
    return AgentSkill(
        id=module.id,
        name=display.get("alias") or to_title(module.id),
        description=description,
        tags=tuple(display.get("tags") or module.tags),
        examples=tuple(encode(example.inputs).decode() for example in module.examples[:MAX_EXAMPLES]),
        input_modes=modes(module.input_schema),
        output_modes=modes(module.output_schema),
    )


def to_params(module: ModuleInfo) -> dict[str, Any]:
    """Return the entry of a module in the card extension."""
    params = describe_call(module.input_schema, module.output_schema, module.examples, module.annotations)
    if module.streams:
        params["streaming"] = True
    if module.version:
        params["version"] = module.version
    return params
