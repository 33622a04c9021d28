"""Calls that wait for a human: the task asks, keeps the call it asked for, and goes on once that is decided.

Rule: what is resumed is the call that was stored. A reply can decide about it, never change it.
"""

import inspect
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import Struct

from apcore_a2a.agent import Admission, AgentEvent, Call, Remember
from apcore_a2a.agents.apcore.failures import explain, public
from apcore_a2a.agents.apcore.module_agent import Job, ModuleAgent
from apcore_a2a.agents.apcore.parts import APPROVAL_TOKEN
from apcore_a2a.errors import SkillNotFoundError
from apcore_a2a.protocol.model import Message, Part, Role, StatusUpdate, TaskState, TaskStatus

ANSWERS: Final = {"approve": True, "approved": True, "yes": True, "reject": False, "rejected": False, "no": False}


class Pending(Struct, frozen=True):
    """A call that waits, as it is kept with its task."""

    skill: str
    inputs: Any
    approval_id: str | None


class Approval(Struct, frozen=True):
    """What a resumed module finds in its context: which approval, and what was answered, by whom."""

    id: str | None
    approved: bool | None
    """None if the reply only asks to look again."""
    by: str


class Approvals:
    """A ModuleAgent whose modules may have to wait for approval.

    Args:
        by_caller: Whether the caller who asked may also approve, given an approval handler that takes answers.
    """

    may_reply = False

    def __init__(self, agent: ModuleAgent, *, by_caller: bool = True) -> None:
        self._agent, self._by_caller = agent, by_caller

    @property
    def _handler(self) -> Any:
        return getattr(self._agent.modules.executor, "_approval_handler", None)

    async def admit(self, call: Call) -> Admission:
        if call.memo is None:
            return await self._agent.admit(call)
        return Admission(retry_safe=self._resume(call).module.is_repeatable)

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        job = self._agent.read(call) if call.memo is None else self._resume(call)
        try:
            if job.approval is not None:
                await self._pass_on(job.approval)
                if job.approval.approved is False:
                    yield _status(TaskState.REJECTED, f"Module {job.module.id} was not run: rejected by the caller")
                    return
            async with aclosing(self._agent.perform(job, call)) as events:
                async for event in events:
                    yield event
        except Exception as error:  # the end of a run: all that a module can raise ends here
            for event in _ending(error, job):
                yield event

    def _resume(self, call: Call) -> Job:
        pending = msgspec.convert(call.memo, Pending)
        module = self._agent.modules.find(pending.skill)
        if module is None:
            raise SkillNotFoundError(pending.skill)
        # Without a handler there is no gate to show the token to: the module itself has asked.
        token = {APPROVAL_TOKEN: pending.approval_id} if pending.approval_id and self._handler else {}
        approval = Approval(pending.approval_id, _answer(call.message), call.caller.id)
        return Job(module, {**pending.inputs, **token}, approval=approval)

    async def _pass_on(self, approval: Approval) -> None:
        """Tell the approval handler what the caller decided, if it wants to know."""
        store = getattr(self._handler, "_store", None)  # where apcore-mcp's handler takes its answers
        resolve = getattr(self._handler, "resolve", None) or getattr(store, "resolve", None)
        if self._by_caller and resolve is not None and approval.id and approval.approved is not None:
            told = resolve(approval.id, approved=approval.approved, reason=f"Decided by {approval.by}")
            if inspect.isawaitable(told):
                await told


def _answer(message: Message) -> bool | None:
    for part in message.parts:
        if isinstance(part.data, dict) and isinstance(part.data.get("approved"), bool):
            return bool(part.data["approved"])
        if isinstance(part.text, str) and (word := part.text.strip().lower()) in ANSWERS:
            return ANSWERS[word]
    return None


def _ending(error: Exception, job: Job) -> Iterator[AgentEvent]:
    skill, code = job.module.id, getattr(error, "code", None)
    reason = public(getattr(error, "reason", None))
    why = f" ({reason})" if reason else ""
    if code == "APPROVAL_PENDING":
        inputs = {name: value for name, value in job.inputs.items() if name != APPROVAL_TOKEN}
        approval_id = getattr(error, "approval_id", None)
        yield Remember(Pending(skill, inputs, approval_id))
        text = f'Approval required for module {skill}{why}. Reply "approve" or "reject".'
        yield _status(TaskState.INPUT_REQUIRED, text, approvalId=approval_id, skillId=skill)
    elif code == "APPROVAL_DENIED":  # not FAILED: nothing was run, and trying again will not help
        yield _status(TaskState.REJECTED, f"Approval denied for module {skill}{why}")
    else:
        raise explain(error, skill) from error


def _status(state: TaskState, text: str, **metadata: Any) -> StatusUpdate:
    message = Message(message_id="", role=Role.AGENT, parts=(Part(text=text),), metadata=metadata or None)
    return StatusUpdate(status=TaskStatus(state=state, message=message))
