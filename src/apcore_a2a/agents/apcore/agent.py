"""apcore modules as an agent: its runs, its card, its skills."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final

import apcore
import msgspec
from msgspec import Struct

from apcore_a2a import __version__
from apcore_a2a.agent import Admission, AgentEvent, Call, Caller
from apcore_a2a.agents.apcore import approvals, failures
from apcore_a2a.agents.apcore.approvals import Approval, Asking, PendingCall
from apcore_a2a.agents.apcore.call import copy_output, make_context, output_parts, to_identity, to_inputs
from apcore_a2a.agents.apcore.modules import ModuleInfo, Modules
from apcore_a2a.agents.content import read_answer
from apcore_a2a.agents.functions.agent import MAX_THREADS, OUT_OF_THREADS, RETRY_AFTER
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
from apcore_a2a.agents.threads import Threads
from apcore_a2a.errors import A2AError, OverloadedError, SkillNotFoundError
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentSkill, advise
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Part, StatusUpdate, TaskState, TaskStatus, encode

# The agent that runs apcore modules: which module a message is for, whether it may run, and how its run is told.
#
# Rule: whatever can be refused is refused in `admit`, before a task exists. A run goes through apcore's whole pipeline.

ARTIFACT_ID: Final = "result"  # a task has one; what an earlier run of it left is replaced
MAX_SHOWN: Final = 64  # characters of a skill id that we repeat to its sender


class ModuleCall(Struct, frozen=True):
    """One call of a module."""

    module: ModuleInfo
    inputs: Any
    rest: tuple[Part, ...] = ()
    """The parts of the message that are not the inputs."""
    approval: Approval | None = None
    """What became of the approval this call has waited for."""


class ModuleAgent:
    """Runs modules.

    Args:
        default_skill: Whom a message is for that names no skill; else the only skill there is, if it is the only one.
        approvals_by_caller: Whether the caller who asked may also approve, given an approval handler that takes
            answers.
    """

    may_reply = False

    def __init__(self, modules: Modules, *, default_skill: str = "", approvals_by_caller: bool = True) -> None:
        self._modules = modules
        self._default_skill = default_skill
        self._approvals_by_caller = approvals_by_caller
        self._threads: Threads | None = getattr(modules.executor, "threads", None)

    @property
    def stuck_threads(self) -> int:
        """Threads on which modules go on although their runs have ended; those of a `ServedExecutor`."""
        if self._threads is None:
            return 0
        return self._threads.stuck

    @property
    def thread_capacity(self) -> int:
        """How many blocking modules can run at once, as things stand; with 0, messages for them are refused."""
        if self._threads is None:
            return MAX_THREADS
        return self._threads.capacity

    async def admit(self, call: Call) -> Admission:
        if call.memo is not None:  # a reply to a task that waits: its call was checked when it was first asked for
            return Admission(retry_safe=self._resume(call).module.is_repeatable)
        asked = self._read(call)
        if asked.module.blocks and not self.thread_capacity:
            raise OverloadedError(OUT_OF_THREADS, retry_after=RETRY_AFTER)

        def context() -> Any:
            return make_context(call, self._modules.executor, asked.rest)

        failed = await self._modules.find_failed_checks(asked.module, asked.inputs, context)
        if failed:
            raise failures.refuse(failed, asked.module, asked.inputs, call.caller)
        return Admission(retry_safe=asked.module.is_repeatable)

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        if call.memo is None:
            asked = self._read(call)
        else:
            asked = self._resume(call)
        skill = asked.module.id
        try:
            async with aclosing(self._execute(asked, call)) as events:
                async for event in events:
                    yield event
        except Exception as error:  # the end of a run: all that a module can raise ends here
            code = getattr(error, "code", None)
            if code == "APPROVAL_PENDING":
                for event in approvals.wait_for_handler(error, skill, asked.inputs):
                    yield event
            elif code == "APPROVAL_DENIED":
                yield approvals.denied(error, skill)
            else:
                raise failures.explain(error, skill, call.caller, task_id=call.task.id) from error

    def skill_of(self, call: Call) -> str:
        """The id of the skill that a message is for, whether there is such a skill or not."""
        if call.memo is not None:
            return msgspec.convert(call.memo, PendingCall).skill
        return self._route(call)

    # ---- what a message asks for -------------------------------------------------------------------------------------

    def _read(self, call: Call) -> ModuleCall:
        """The call that a message asks for.

        Raises:
            A2AError: nothing that can be done; to a caller whom the ACL refuses the skill, "Task not found".
        """
        skill = self._route(call)
        try:
            module = self._modules.find(skill)
            if module is None:
                raise SkillNotFoundError(skill[:MAX_SHOWN], advise(self._skills_for(call.caller), skill))
            inputs, rest = to_inputs(call.message.parts, module)
        except A2AError as error:
            # Whoever may not call the skill must not learn from the error whether it exists, or what it takes.
            if self._modules.denies(skill, lambda: make_context(call, self._modules.executor)):
                raise failures.mask(skill, call.caller, error) from error
            raise
        call.skill = module.id
        return ModuleCall(module, inputs, rest)

    def _route(self, call: Call) -> str:
        """The id of the skill that a message is for."""
        named = named_skill(call) or self._default_skill
        if named:
            return named
        skills: list[str] = []
        for module in self._modules:
            if module.is_skill:
                skills.append(module.id)
            if len(skills) > 1:  # there may be thousands more; two are too many
                break
        if len(skills) != 1:
            raise missing_skill(self._skills_for(call.caller))
        return skills[0]

    def _skills_for(self, caller: Caller) -> Iterator[str]:
        """The skills that a caller may know of."""
        for module in self._modules:
            if module.is_skill and is_open(module, self._modules, caller):
                yield module.id

    def _resume(self, call: Call) -> ModuleCall:
        """The call that a task has waited for: the one that was kept, whatever the reply says besides yes and no."""
        pending = msgspec.convert(call.memo, PendingCall)
        module = self._modules.find(pending.skill)
        if module is None:
            raise SkillNotFoundError(pending.skill)
        call.skill = module.id
        inputs = dict(pending.inputs)
        if pending.approval_id and self._has_gate(module):
            inputs[approvals.TOKEN] = pending.approval_id
        approval = Approval(pending.approval_id, read_answer(call.message), call.caller.id)
        return ModuleCall(module, inputs, approval=approval)

    def _has_gate(self, module: ModuleInfo) -> bool:
        """Whether it was apcore that asked. If it was the module itself, an old apcore would hand it the token."""
        asking = approvals.find_asking(self._modules.executor)
        if asking is Asking.UNKNOWN:
            # An older executor does not tell its handler. That apcore asked for this module is then the likelier case.
            return module.requires_approval
        return asking is Asking.HANDLER

    async def _decide(self, asked: ModuleCall) -> Iterable[AgentEvent] | None:
        """What is said instead of making a call that needs approval; None if it is to be made."""
        approval = asked.approval
        executor = self._modules.executor
        if approval is not None:
            if self._approvals_by_caller:
                await approvals.tell_handler(approvals.find_approval_handler(executor), approval)
            if approval.approved is False:
                return [approvals.rejected_by_caller(asked.module.id)]
        if not asked.module.requires_approval or approvals.find_asking(executor) is not Asking.NOBODY:
            return None
        if approval is not None and approval.approved and self._approvals_by_caller:
            return None
        return approvals.wait_for_caller(asked.module.id, asked.inputs, approval)

    # ---- the run -----------------------------------------------------------------------------------------------------

    async def _execute(self, asked: ModuleCall, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Run a module, with whatever exceptions it raises; or say why it is not run."""
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
        if stream is None or not module.streams:  # `stream` would do for all modules, but it ignores RetryMiddleware
            result = copy_output(await self._modules.call(module.id, asked.inputs, context))
        else:
            result = {}
            append = False
            async with aclosing(stream(module.id, asked.inputs, context)) as chunks:
                async for chunk in chunks:
                    copied = copy_output(chunk)  # at once: apcore goes on changing what it has yielded
                    yield _update(module, copied, append=append)
                    _merge(result, copied)
                    append = True
            _check_streamed_output(module, result, call)
        yield _update(module, result, last_chunk=True)
        yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))


def _check_streamed_output(module: ModuleInfo, result: Any, call: Call) -> None:
    # apcore checks it as well, but when a streamed output is wrong, it writes that to its log and nowhere else.
    schema = getattr(module.source, "output_schema", None)
    wrong = failures.find_wrong_output(schema, msgspec.to_builtins(result))
    if wrong:
        raise failures.invalid_output(module.id, wrong, task_id=call.task.id)


def _merge(result: dict[str, Any], chunk: dict[str, Any]) -> None:
    """As apcore merges chunks: objects into each other, anything else by replacing. No object is shared."""
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
# The agent card, as far as it follows from the modules.
#
# Rule: what the ACL keeps from strangers is on no card for strangers. Where there is an extended card, what needs an
# approval is on that one only; where there is none, it is on the public card, or nobody would find it.

STRANGER: Final = Caller()


def build_card(modules: Modules, *, show: Callable[[ModuleInfo], bool] | None = None) -> AgentCard:
    """The card of the modules as they are now. The server adds where it is reached, and what it can do besides.

    Args:
        show: Which of the skills to show; all when None.
    """
    skills: list[AgentSkill] = []
    described: dict[str, Any] = {}  # what A2A has no field for, by skill
    for module in modules:
        if module.is_skill and (show is None or show(module)):
            skills.append(to_skill(module))
            described[module.id] = to_params(module)
    about = describe_skills(described)
    return AgentCard(
        name=_read_project(modules, "name") or "apcore-agent",
        description=_read_project(modules, "description") or _count(skills),
        version=_read_project(modules, "version") or __version__,
        supported_interfaces=(),
        capabilities=AgentCapabilities(streaming=hasattr(modules.executor, "stream"), extensions=(about,)),
        default_input_modes=(JSON,),
        default_output_modes=(JSON,),
        skills=tuple(skills),
    )


def _read_project(modules: Modules, field: str) -> str:
    """What apcore's configuration says of the project; empty where it says nothing."""
    if modules.config is None:
        return ""
    return str(modules.config.get(f"project.{field}") or "")


def _count(skills: list[AgentSkill]) -> str:
    if len(skills) == 1:
        return "apcore agent with 1 skill"
    return f"apcore agent with {len(skills)} skills"


def is_open(module: ModuleInfo, modules: Modules, caller: Caller = STRANGER) -> bool:
    """Whether the ACL lets this caller call the module; anybody, if none is named."""

    def make_context() -> Any:  # Any: apcore is untyped
        return apcore.Context.create(identity=to_identity(caller))

    return not modules.would_deny(module.id, make_context)


# ---- skills ---------------------------------------------------------------------------------------------------------
# A module as a skill of the agent card. Rule: the id is the module's; `display` may override what people read.


def to_skill(module: ModuleInfo) -> AgentSkill:
    """What others read about a module: `display.a2a` before `display` before the module's own words."""
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
    """What a client that knows apcore is told besides: enough to build a form and to judge the risk."""
    params = describe_call(module.input_schema, module.output_schema, module.examples, module.annotations)
    if module.streams:
        params["streaming"] = True
    if module.version:
        params["version"] = module.version
    return params
