"""Agents made of functions: `FunctionAgent` serves one, `SkillAgent` several, and the message names the skill."""

import inspect
import io
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, nullcontext
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from apcore_a2a.agent import Admission, AgentEvent, Call, Caller, Remember
from apcore_a2a.agents.content import agent_message, approval_required, read_answer, read_file, rejected
from apcore_a2a.agents.functions.output import FunctionControls, FunctionOutput, InputRequired, find_question
from apcore_a2a.agents.functions.signature import docstring_of, may_be_message, name_of
from apcore_a2a.agents.functions.skill import FunctionSkill, PausedRun, describe, paused_run, user_messages
from apcore_a2a.agents.skills import first_skill_id, missing_skill, named_skill
from apcore_a2a.agents.threads import OUT_OF_THREADS, RETRY_AFTER, Threads, Worker
from apcore_a2a.errors import ContentTypeNotSupportedError, OverloadedError, SkillNotFoundError, list_names
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.card import advise
from apcore_a2a.protocol.model import Message, StatusUpdate, TaskState, TaskStatus

# ---- one function ---------------------------------------------------------------------------------------------------
# A message becomes the arguments of the function, and its results become the events of a task.
#
# Invariant: coroutine functions run on the event loop, all others on a thread of their own.


_END: Final = object()  # marks the end of an iterator. None may be one of its items.


def ask(question: Any) -> StatusUpdate:
    """Return the status that asks the user a question. A function returns or yields it.

    The answer arrives as the next message of the same task.

    Example:
        >>> ask("Which city?").status.state
        <TaskState.INPUT_REQUIRED: 'TASK_STATE_INPUT_REQUIRED'>
    """
    return StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=agent_message(question)))


class FunctionAgent:
    """Adapts one function to an Agent. docs/agents.md lists the supported parameters and results.

    Example:
        >>> async def echo(text: str) -> str:
        ...     return text
        >>> FunctionAgent(echo).may_reply
        False
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        skill_id: str = "",
        retry_safe: bool = False,
        threads: Threads | None = None,
    ) -> None:
        self.skill = describe(function, skill_id=skill_id)
        self.may_reply = may_be_message(self.skill.signature.return_type)
        self._function = function
        # The agent card is built from these two, as it is for a function.
        self.__name__ = name_of(function)
        self.__doc__ = docstring_of(function)
        self._blocks = not _is_async(function)
        self._needs_text = self.skill.signature.takes_only_text
        self._requires_approval = self.skill.requires_approval
        self._admission = Admission(retry_safe=retry_safe or self.skill.is_repeatable)
        self._threads = threads or Threads()

    @property
    def stuck_threads(self) -> int:
        """The number of threads on which the function continues after its run has ended."""
        return self._threads.stuck

    @property
    def thread_capacity(self) -> int:
        """How many calls can run at once, given the stuck threads. With 0, messages are rejected."""
        return self._threads.capacity

    async def admit(self, call: Call) -> Admission:
        if self._blocks and not self.thread_capacity:
            raise OverloadedError(OUT_OF_THREADS, retry_after=RETRY_AFTER)
        if self._needs_text and not self.skill.has_text(call):
            raise ContentTypeNotSupportedError(f"Skill {self.skill.id} takes text, and the message has none")
        if self.skill.signature.inputs:
            call.prepared = self.skill.read_arguments(call)
        return self._admission

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        call.skill = self.skill.id
        if self._requires_approval:
            return self._run_if_approved(call)
        if self.skill.signature.takes_call:
            return self._run_with_controls(call, paused_run(call))
        return self._run(call, FunctionOutput(self.may_reply))

    async def _run_if_approved(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Run a function that requires approval: ask the caller first. The answer decides about this call only."""
        paused = paused_run(call)
        approved = None
        if paused is None:
            paused = PausedRun(approval_id=new_id())
        elif paused.approval_id:
            approved = read_answer(call.message)
            paused = replace(paused, approval_messages=paused.approval_messages + 1)
        if paused.approval_id:
            if approved is None:
                yield Remember(paused)
                what = f"skill {self.skill.id}"
                yield approval_required(what, skill_id=self.skill.id, approval_id=paused.approval_id)
                return
            if not approved:
                yield rejected(f"Skill {self.skill.id} was not run: rejected by the caller")
                return
        paused = replace(paused, approval_id="")
        async with aclosing(self._run_with_controls(call, paused)) as events:
            async for event in events:
                yield event

    async def _run_with_controls(self, call: Call, paused: PausedRun | None) -> AsyncGenerator[AgentEvent, None]:
        """Run a function that may report progress and ask the user."""
        answers: list[Message] = []
        if paused is None:
            paused = PausedRun()
        else:  # a repeated call: its answers are known, and its artifacts replace the earlier ones
            answers = user_messages(call)[1 + paused.approval_messages :]
        controls = FunctionControls(answers)
        call.controls = controls
        output = FunctionOutput(self.may_reply, paused.artifact_ids)
        try:
            async with aclosing(controls.relay(self._run(call, output))) as events:
                async for event in events:
                    yield event
        except (InputRequired, BaseExceptionGroup) as ended:
            question = find_question(ended)
            yield Remember(replace(paused, artifact_ids=output.artifact_ids))
            for event in output.add(ask(question)):
                yield event

    async def _run(self, call: Call, output: FunctionOutput) -> AsyncGenerator[AgentEvent, None]:
        async with AsyncExitStack() as stack:
            result = await self._call(call, stack)
            if isinstance(result, AsyncIterable):
                async with _closing(result):
                    async for chunk in result:
                        for event in output.add(await self._loaded(chunk, call)):
                            yield event
            else:
                for event in output.add_whole(await self._loaded(result, call)):
                    yield event
        for event in output.end():
            yield event

    async def _call(self, call: Call, stack: AsyncExitStack) -> Any:
        """Call the function, on a thread if it may block. The stack holds what the whole run needs."""
        arguments, named = call.prepared or self.skill.read_arguments(call)
        if not self._blocks:
            result = self._function(*arguments, **named)
        else:
            async with AsyncExitStack() as during_the_call:
                thread = self._threads.worker(self.__name__, call.cancel)
                worker = await during_the_call.enter_async_context(thread)
                result = await worker.call(partial(self._function, *arguments, **named))
                if isinstance(result, io.IOBase):
                    return await worker.call(read_file, result)
                if isinstance(result, Iterator):
                    # The body of a generator has not run yet. All of it runs on this thread, so the thread is kept.
                    await stack.enter_async_context(during_the_call.pop_all())
                    return _iterate(result, worker)
        if inspect.isawaitable(result):  # a plain function, such as a lambda, that returns a coroutine
            return await result
        return result

    async def _loaded(self, result: Any, call: Call) -> Any:
        """Return a result, or the content of an open file as a part. Reading may block, so a thread does it."""
        if not isinstance(result, io.IOBase):
            return result
        async with self._threads.worker(self.__name__, call.cancel) as worker:
            return await worker.call(read_file, result)


async def _iterate(iterator: Iterator[Any], worker: Worker) -> AsyncGenerator[Any, None]:
    """Yield the items of an iterator that may block before each item."""
    try:
        while True:
            chunk = await worker.call(next, iterator, _END)
            if chunk is _END:
                break
            if isinstance(chunk, io.IOBase):
                chunk = await worker.call(read_file, chunk)
            yield chunk
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            worker.call_last(close)  # without waiting: the generator may be blocked, and its run is over


def _closing(chunks: AsyncIterable[Any]) -> AbstractAsyncContextManager[object]:
    if isinstance(chunks, AsyncGenerator):
        return aclosing(chunks)
    return nullcontext()


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether the function, or its `__call__`, is a coroutine function or an async generator function."""
    for target in (function, getattr(function, "__call__", None)):  # noqa: B004  # for objects with an async __call__
        if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
            return True
    return False


# ---- several functions ----------------------------------------------------------------------------------------------
# Each function is a skill, and a message names the skill that it is for.
#
# Invariant: a task stays with the skill that it began with. The skill id of a reply is ignored.

IsVisible = Callable[[Caller, FunctionSkill], bool]


class SkillAgent:
    """Serves several functions as the skills of one agent.

    Args:
        agents: One agent per function.
        default_skill: The id of the skill for messages without a skill id. A single skill is its own default.
        is_visible: Whether an error may list a skill to a caller. None allows all skills for all callers.

    Raises:
        ValueError: There is no skill `default_skill`.
    """

    def __init__(
        self, agents: Sequence[FunctionAgent], *, default_skill: str = "", is_visible: IsVisible | None = None
    ) -> None:
        self._agents = {agent.skill.id: agent for agent in agents}
        self._any_agent = agents[0]  # all agents share their threads
        self._default_skill = default_skill
        self._is_visible = is_visible
        if len(self._agents) == 1:
            self._default_skill = next(iter(self._agents))
        if default_skill and default_skill not in self._agents:
            raise ValueError(f"default_skill {default_skill!r} is none of the skills: {list_names(self._agents)}")
        self.may_reply = any(agent.may_reply for agent in agents)

    def with_visibility(self, is_visible: IsVisible) -> "SkillAgent":
        """Return this agent with errors that list only the skills visible to the caller."""
        return SkillAgent(list(self._agents.values()), default_skill=self._default_skill, is_visible=is_visible)

    @property
    def skills(self) -> tuple[FunctionSkill, ...]:
        return tuple(agent.skill for agent in self._agents.values())

    @property
    def stuck_threads(self) -> int:
        """The number of threads on which functions continue after their runs have ended."""
        return self._any_agent.stuck_threads

    @property
    def thread_capacity(self) -> int:
        """How many calls of blocking functions can run at once, given the stuck threads."""
        return self._any_agent.thread_capacity

    async def admit(self, call: Call) -> Admission:
        return await self._find(call).admit(call)

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        agent = self._find(call)
        if self.may_reply and not agent.may_reply:
            return self._run_with_task(agent, call)
        return agent.run(call)

    async def _run_with_task(self, agent: FunctionAgent, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Run a function, and create its task at the start.

        Another function may reply with a Message instead of a task (`may_reply`), so the engine creates no task before
        the first event of a run. This function never does, so its first event is published before it is called.
        """
        yield StatusUpdate(status=TaskStatus(state=TaskState.WORKING))
        async with aclosing(agent.run(call)) as events:
            async for event in events:
                yield event

    def skill_of(self, call: Call) -> str:
        """Return the id of the skill that a message is for. The skill need not exist."""
        skill_id = named_skill(call)
        if call.resumed:
            # The metadata of the first request are those of the task.
            skill_id = first_skill_id(user_messages(call)[0].metadata, call.task.metadata)
        skill_id = skill_id or self._default_skill
        if not skill_id:
            raise missing_skill(self._visible_to(call.caller))
        return skill_id

    def _find(self, call: Call) -> FunctionAgent:
        skill_id = self.skill_of(call)
        agent = self._agents.get(skill_id)
        if agent is None:
            raise SkillNotFoundError(skill_id, advise(self._visible_to(call.caller), skill_id))
        return agent

    def _visible_to(self, caller: Caller) -> list[str]:
        if self._is_visible is None:
            return list(self._agents)
        return [skill.id for skill in self.skills if self._is_visible(caller, skill)]
