"""Agents made of functions: `FunctionAgent` serves one, `SkillAgent` several, and the message names the skill.

`TaskOutput` converts what an agent says to events. `FunctionControls` implements `Call.progress` and `Call.ask`.
"""

import asyncio
import hashlib
import inspect
import io
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, nullcontext, suppress
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from apcore_a2a.agent import (
    Admission,
    AgentEvent,
    Call,
    Caller,
    ModelUsage,
    Remember,
    ShowTools,
    ToolCalled,
    ToolDone,
)
from apcore_a2a.agents.checker import Checker, quota_key_of
from apcore_a2a.agents.content import (
    agent_message,
    ask_questions,
    questions_message,
    read_file,
    to_parts,
    tool_status,
)
from apcore_a2a.agents.functions.signature import docstring_of, may_be_message, name_of
from apcore_a2a.agents.functions.skill import (
    Arguments,
    AskedQuestion,
    FunctionSkill,
    PausedRun,
    describe,
    paused_run,
    user_messages,
)
from apcore_a2a.agents.input_cost import off_loop_if_large, texts_of
from apcore_a2a.agents.questions import approval_required, read_approval, read_reply, rejected
from apcore_a2a.agents.skills import first_skill_id, missing_skill, named_skill
from apcore_a2a.agents.threads import Threads, Worker
from apcore_a2a.errors import ContentTypeNotSupportedError, SkillNotFoundError, list_names
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.card import advise
from apcore_a2a.protocol.lifecycle import AT_REST, PROGRESS, is_progress
from apcore_a2a.protocol.model import (
    Artifact,
    ArtifactUpdate,
    Message,
    Metadata,
    Part,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
)
from apcore_a2a.protocol.questions import Question

logger = logging.getLogger(__name__)

# ---- the output of a run --------------------------------------------------------------------------------------------
# What an agent says becomes the events of its task. Functions and the adapters of frameworks say it in the same words:
# a `str` is a piece of text, `ToolCalled` and `ToolDone` name a tool, a `Question` asks the user, `ModelUsage` counts,
# and any other value is a result.

USAGE: Final = "apcore.usage"
"""The key in the metadata of a task for what its runs have used, as `ModelUsage` counts it."""


class TaskOutput:
    """Converts the output of one run to events, each as soon as it is available.

    Pieces of text form one artifact, until something else is said. Which piece is the last is not known before, so none
    is marked: `lastChunk` is optional, and the end of the task ends its artifacts. Other values are one artifact each.

    Args:
        may_reply: Whether a returned Message is the whole reply, instead of a task.
        known_ids: The ids of the artifacts of an earlier run, which this run replaces.
        show_tools: What clients see of the tools that the agent calls.
        earlier_usage: What the earlier runs of the task have used.
    """

    def __init__(
        self,
        may_reply: bool = False,
        known_ids: Sequence[str] = (),
        *,
        show_tools: ShowTools = "results",
        earlier_usage: Mapping[str, int] | None = None,
    ) -> None:
        self.artifact_ids: list[str] = []
        """The ids of the artifacts so far. A repeated run uses those of the earlier run, to replace its artifacts."""
        self._known_ids = known_ids
        self._may_reply = may_reply
        self._show_tools = show_tools
        self._usage = earlier_usage
        self._text_id = ""  # the artifact to which pieces of text are appended. Empty before the first one.
        self._state = TaskState.WORKING  # the latest state that the agent has published

    def add(self, said: Any) -> Iterator[AgentEvent]:
        """Return the events for one thing that the agent says."""
        match said:
            case None | "":
                return
            case str():
                is_first = not self._text_id
                if is_first:
                    self._text_id = self._next_id()
                yield _update([Part(text=said)], self._text_id, append=not is_first)
            case StatusUpdate() | Task():
                self._state = said.status.state
                if self._state in AT_REST:
                    self.end_text()  # text after the answer of the user is another artifact
                yield said
            case Message():
                # As a status: a Message would end the task if another function of the agent may reply with messages.
                yield StatusUpdate(status=TaskStatus(state=self._state, message=said))
            case ArtifactUpdate() | Remember():
                yield said
            case ToolCalled() | ToolDone() | ModelUsage() | Question():
                yield from self._add_action(said)
            case _:
                yield _update(to_parts(said), self._next_id(), last=True)

    def _add_action(self, said: ToolCalled | ToolDone | ModelUsage | Question) -> Iterator[AgentEvent]:
        match said:
            case ModelUsage():
                self._count(said)
            case Question():
                yield from self.ask([said])
            case _:
                self.end_text()
                if self._show_tools != "no":
                    yield tool_status(said, self._show_tools)

    def add_whole(self, result: Any) -> Iterator[AgentEvent]:
        """Return the events for the value that a function returns."""
        match result:
            case str():
                yield _update([Part(text=result)], self._next_id(), last=True)
            case Message():
                self._state = TaskState.COMPLETED
                if self._may_reply:
                    yield result
                else:  # not annotated as a reply, so the task exists already
                    yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED, message=result))
            case _:
                yield from self.add(result)

    def end_text(self) -> None:
        """End the present text. The next piece begins another artifact."""
        self._text_id = ""

    def ask(self, questions: Sequence[Question], problems: Sequence[str] = ()) -> Iterator[AgentEvent]:
        """Return the events that ask the user, and let the task wait."""
        self.end_text()
        self._state = TaskState.INPUT_REQUIRED
        asked = ask_questions(questions, problems)
        yield StatusUpdate(status=asked.status, metadata=self._usage_metadata())

    def end(self) -> Iterator[AgentEvent]:
        """Return the events that complete the task, unless it rests already."""
        if self._state not in AT_REST:
            yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED), metadata=self._usage_metadata())

    def _count(self, used: ModelUsage) -> None:
        counts = dict(self._usage or {})
        for name, count in msgspec.to_builtins(used).items():
            counts[name] = counts.get(name, 0) + count
        self._usage = counts

    def _usage_metadata(self) -> Metadata | None:
        if not self._usage:
            return None
        return {USAGE: self._usage}

    def _next_id(self) -> str:
        number = len(self.artifact_ids)
        if number < len(self._known_ids):
            artifact_id = self._known_ids[number]
        else:
            artifact_id = new_id()
        self.artifact_ids.append(artifact_id)
        return artifact_id


def _update(parts: list[Part], artifact_id: str, *, append: bool = False, last: bool = False) -> ArtifactUpdate:
    return ArtifactUpdate(artifact=Artifact(artifact_id=artifact_id, parts=parts), append=append, last_chunk=last)


# ---- function controls ----------------------------------------------------------------------------------------------
# Events of a function while it runs: `Call.progress` and `Call.ask`.
#
# The function runs in an asyncio task of its own, and a relay passes its events to the run. So a status can be
# published while the function is busy, on the event loop or on a thread.
#
# Invariant: the run owns the function's asyncio task. When the run ends, that task has ended, or it was cancelled and
# had UNWIND_TIME to clean up.

_CANONICAL: Final = msgspec.json.Encoder(order="sorted")

UNWIND_TIME: Final = 4.0  # seconds for a cancelled function. After five the engine ends the run in any case.


class InputRequired(BaseException):
    """Ends a run that waits for its user. A BaseException, so that `except Exception` does not catch it."""

    def __init__(self, question: Any, digest: str) -> None:
        super().__init__("Call.ask ends the run here; the function is called again with the answer")
        self.question = question
        self.digest = digest


def digest_of(question: Any) -> str:
    """Return a digest of the content of a question, the same in each run and each process.

    Raises:
        InvalidAgentResponseError: The question has no JSON form.
    """
    message = agent_message(question)
    return hashlib.sha256(_CANONICAL.encode((message.parts, message.metadata))).hexdigest()


def find_question(ended: "InputRequired | BaseExceptionGroup[BaseException]") -> InputRequired:
    """Return the question of a run that ended with these exceptions. In a group, the first question counts.

    Raises:
        BaseExceptionGroup: The group, if it contains other errors.
    """
    if isinstance(ended, InputRequired):
        return ended
    asked, errors = ended.split(InputRequired)
    if asked is None or errors is not None:
        raise ended
    return find_question(asked.exceptions[0])


class FunctionControls:
    """The progress and the questions of one run of a function.

    Args:
        asked: The questions of the earlier runs of the task.
        messages: The user's messages, with the answers to these questions.
    """

    def __init__(self, asked: Sequence[AskedQuestion], messages: Sequence[Message]) -> None:
        self.answered: list[AskedQuestion] = []
        """The questions that this run has asked again, with unchanged content."""
        self._asked = asked
        self._messages = messages
        self._unclear = 0  # answers of this run to which `ask_all` asks again
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: deque[AgentEvent] = deque()  # at most one event of the function and one progress update
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    # ---- called by the function --------------------------------------------------------------------------------------

    def progress(self, done: float | None, text: str) -> None:
        if done is not None and not 0 <= done <= 1:
            raise ValueError(f"progress is a fraction from 0 to 1, not {done}")
        if not text:
            text = "Working" if done is None else f"{done:.0%}"
        message = agent_message(text, metadata={PROGRESS: done})
        update = StatusUpdate(status=TaskStatus(state=TaskState.WORKING, message=message))
        if threading.get_ident() == self._thread:
            self._publish(update)
            return
        with suppress(RuntimeError):  # the loop is closed, so the run is over
            self._loop.call_soon_threadsafe(self._publish, update)

    def ask(self, question: Any) -> Message:
        digest = digest_of(question)
        given = self._find_answer(digest)
        if given is None:
            raise InputRequired(question, digest)
        self.answered.append(given)
        return self._messages[given.answer]

    def ask_all(self, questions: Sequence[Question]) -> dict[str, Any]:
        message = questions_message(questions)
        digest = digest_of(message)
        given = self._find_answer(digest)
        if given is None:
            raise InputRequired(message, digest)
        reply = read_reply(self._messages[given.answer], questions)
        if len(reply.answers) < len(questions):
            self._unclear = 1
            raise InputRequired(questions_message(questions, reply.problems), digest)
        self.answered.append(given)
        return {name: each.value if each.approved is None else each.approved for name, each in reply.answers.items()}

    def _find_answer(self, digest: str) -> AskedQuestion | None:
        """Return the next question of the earlier runs, if it has this digest and was answered."""
        position = len(self.answered)
        if position == len(self._asked):
            return None
        asked = self._asked[position]
        if asked.digest != digest or asked.answer >= len(self._messages):
            return None
        return asked

    @property
    def dropped(self) -> int:
        """The number of answers that this run has not used, without the one that was unclear."""
        given = [asked for asked in self._asked if asked.answer < len(self._messages)]
        return len(given) - len(self.answered) - self._unclear

    # ---- the relay ---------------------------------------------------------------------------------------------------

    async def relay(self, events: AsyncGenerator[AgentEvent, None]) -> AsyncGenerator[AgentEvent, None]:
        """Yield the events of a function and its progress in between. Raises the exception that the function raises."""
        function = asyncio.create_task(self._pump(events))
        function.add_done_callback(lambda _: self._news.set())
        try:
            while self._waiting or not function.done():
                await self._news.wait()
                self._news.clear()
                while self._waiting:
                    event = self._waiting.popleft()
                    self._room.set()
                    yield event
        finally:
            await _stop(function)
        if function.cancelled():
            raise RuntimeError("the function cancelled itself")
        function.result()

    async def _pump(self, events: AsyncGenerator[AgentEvent, None]) -> None:
        """Run the function, at most one event ahead of the reader."""
        try:
            async with aclosing(events):
                async for event in events:
                    while self._waiting:
                        self._room.clear()
                        await self._room.wait()
                    self._publish(event)
        except (SystemExit, KeyboardInterrupt) as error:  # raised in an asyncio task, they end the event loop
            raise RuntimeError(f"the function raised {type(error).__name__}") from error

    def _publish(self, event: AgentEvent) -> None:
        if self._waiting and _is_progress(event) and _is_progress(self._waiting[-1]):
            self._waiting.pop()  # not read yet, and outdated by the new one
        self._waiting.append(event)
        self._news.set()


async def _stop(function: asyncio.Task[None]) -> None:
    """Cancel a function whose run is over, and wait at most UNWIND_TIME for it."""
    if function.done():
        return
    function.cancel()
    await asyncio.wait({function}, timeout=UNWIND_TIME)
    if not function.done():
        logger.warning("function goes on although its run has ended")
    elif not function.cancelled() and function.exception() is not None:
        logger.warning("function failed while its run ended", exc_info=function.exception())


def _is_progress(event: AgentEvent) -> bool:
    if not isinstance(event, StatusUpdate) or event.status.message is None:
        return False
    return is_progress(event.status.message)


# ---- one function ---------------------------------------------------------------------------------------------------
# A message becomes the arguments of the function. Coroutine functions run on the event loop, all others on a thread.

# The types of most results, which are neither files nor iterators. To ask the abstract classes takes 2 % of a message.
_JSON_TYPES: Final = frozenset({str, dict, list, int, float, bool, type(None)})
_END: Final = object()  # marks the end of an iterator. None may be one of its items.


def ask(question: Any) -> StatusUpdate:
    """Return the status that asks the user a question. A function returns or yields it.

    The answer arrives as the next message of the same task.

    Example:
        >>> ask("Which city?").status.state
        <TaskState.INPUT_REQUIRED: 'TASK_STATE_INPUT_REQUIRED'>
    """
    return StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=agent_message(question)))


RunOutput = Callable[[TaskOutput], AsyncGenerator[AgentEvent, None]]


async def run_with_controls(
    call: Call, paused: PausedRun, run: RunOutput, may_reply: bool = False
) -> AsyncGenerator[AgentEvent, None]:
    """Run what may report progress and ask the user by `call.controls`.

    If it asks what the user has not answered, the run ends, and the task waits. With the answer it runs again from its
    start: the answers are known then, and its artifacts replace the earlier ones.
    """
    messages = user_messages(call)
    controls = FunctionControls(paused.questions, messages)
    call.controls = controls
    output = TaskOutput(may_reply, paused.artifact_ids)
    try:
        async with aclosing(controls.relay(run(output))) as events:
            async for event in events:
                yield event
    except (InputRequired, BaseExceptionGroup) as ended:
        asked = find_question(ended)
        if controls.dropped:
            extra = {"task_id": call.task.id, "skill": call.skill, "dropped_answers": controls.dropped}
            logger.warning("question changed since it was answered, so it is asked again", extra=extra)
        questions = [*controls.answered, AskedQuestion(asked.digest, answer=len(messages))]
        yield Remember(replace(paused, questions=questions, artifact_ids=output.artifact_ids))
        for event in output.add(ask(asked.question)):
            yield event


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
        checker: Checker | None = None,
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
        self._checker = checker or Checker()

    @property
    def stuck_threads(self) -> int:
        """The number of threads on which the function continues after its run has ended."""
        return self._threads.stuck

    @property
    def thread_capacity(self) -> int:
        """How many calls can run at once, given the stuck threads. With 0, messages are rejected."""
        return self._threads.capacity

    async def admit(self, call: Call) -> Admission:
        if self._blocks:
            self._threads.check_room(self.__name__)
        if self._needs_text and not self.skill.has_text(call):
            raise ContentTypeNotSupportedError(f"Skill {self.skill.id} takes text, and the message has none")
        if self.skill.signature.inputs:
            call.prepared = await self._read_arguments(call)
        return self._admission

    async def _read_arguments(self, call: Call) -> Arguments:
        """Return the arguments of a call. Inputs that take long to read or to check block no other caller."""
        if not self.skill.signature.inputs:
            return self.skill.read_arguments(call)  # nothing is decoded or checked
        cost = self.skill.cost
        parts = self.skill.input_message(call).parts
        if cost.patterns:
            inputs = await off_loop_if_large(parts, self.skill.shown_inputs, call)
            if cost.has_slow_patterns(inputs):
                await self._checker.try_patterns(cost.patterns, texts_of(inputs), quota_key_of(call))
        return await off_loop_if_large(parts, self.skill.read_arguments, call)

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        call.skill = self.skill.id
        call.stream_final = self.skill.stream_final
        if self._requires_approval:
            return self._run_if_approved(call)
        if self.skill.signature.takes_call:
            paused = paused_run(call) or PausedRun()
            return run_with_controls(call, paused, partial(self._run, call), self.may_reply)
        return self._run(call, TaskOutput(self.may_reply))

    async def _run_if_approved(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Run a function that requires approval: ask the caller first. The answer decides about this call only."""
        paused = paused_run(call)
        approved = None
        if paused is None:
            paused = PausedRun(approval_id=new_id())
        elif paused.approval_id:
            approved = read_approval(call.message, paused.approval_id)
        if paused.approval_id:
            if approved is None:
                yield Remember(paused)
                yield await self._ask_approval(call, paused.approval_id)
                return
            if not approved:
                yield rejected(f"Skill {self.skill.id} was not run: rejected by the caller")
                return
        paused = replace(paused, approval_id="")
        async with aclosing(run_with_controls(call, paused, partial(self._run, call), self.may_reply)) as events:
            async for event in events:
                yield event

    async def _ask_approval(self, call: Call, approval_id: str) -> StatusUpdate:
        skill_id = self.skill.id
        parts = self.skill.input_message(call).parts
        inputs = await off_loop_if_large(parts, self.skill.shown_inputs, call)
        return approval_required(f"skill {skill_id}", skill_id=skill_id, approval_id=approval_id, inputs=inputs)

    async def _run(self, call: Call, output: TaskOutput) -> AsyncGenerator[AgentEvent, None]:
        result = await self._call(call)
        if type(result) not in _JSON_TYPES and isinstance(result, AsyncIterable):
            async with _closing(result):
                async for chunk in result:
                    for event in output.add(await self._loaded(chunk, call)):
                        yield event
        else:
            for event in output.add_whole(await self._loaded(result, call)):
                yield event
        for event in output.end():
            yield event

    async def _call(self, call: Call) -> Any:
        """Call the function, on a thread if it may block."""
        arguments, named = call.prepared or await self._read_arguments(call)
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
                    return _iterate(result, worker, during_the_call.pop_all())
        if inspect.isawaitable(result):  # a plain function, such as a lambda, that returns a coroutine
            return await result
        return result

    async def _loaded(self, result: Any, call: Call) -> Any:
        """Return a result, or the content of an open file as a part. Reading may block, so a thread does it."""
        if type(result) in _JSON_TYPES or not isinstance(result, io.IOBase):
            return result
        async with self._threads.worker(self.__name__, call.cancel) as worker:
            return await worker.call(read_file, result)


async def _iterate(iterator: Iterator[Any], worker: Worker, thread: AsyncExitStack) -> AsyncGenerator[Any, None]:
    """Yield the items of an iterator that may block before each item, then release the thread."""
    async with thread:
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
