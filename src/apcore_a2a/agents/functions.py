"""Plain functions as agents: what a function returns or yields becomes the events of its task.

Rule: a function knows nothing of tasks. Coroutines run on the loop, everything else on a thread of its own.
"""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, nullcontext
from functools import partial
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from apcore_a2a.agent import Admission, AgentEvent, Call, Remember
from apcore_a2a.agents.content import agent_message, text_of, to_parts
from apcore_a2a.agents.threads import Threads, Worker
from apcore_a2a.errors import OverloadedError
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Message, Part, StatusUpdate, Task, TaskState, TaskStatus

MAX_THREADS: Final = 64  # of one agent, at once
SPARE_THREADS: Final = 64  # as many again, for functions that go on after their runs have ended
OUT_OF_THREADS: Final = "Every thread of the agent is held by a function that does not return; try again later"
RETRY_AFTER: Final = 30  # seconds: such a function may return yet, but it has taken its time

ReadArgument = Callable[[Call], object]

# What a parameter gets, by its annotation.
ARGUMENTS: Final[dict[object, ReadArgument]] = {
    Message: lambda call: call.message,
    Call: lambda call: call,
    str: lambda call: text_of(call.message),
}
_END: Final = object()  # of an iterator; None may be one of its items


def ask(question: Any) -> StatusUpdate:
    """Return or yield this to wait for the user's answer, which comes as the next message of the same task.

    Example:
        >>> ask("Which city?").status.state
        <TaskState.INPUT_REQUIRED: 'TASK_STATE_INPUT_REQUIRED'>
    """
    return StatusUpdate(status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=agent_message(question)))


class FunctionAgent:
    """Serves one function; docs/agents.md says what it may take and give.

    Example:
        >>> async def echo(text: str) -> str:
        ...     return text
        >>> FunctionAgent(echo).may_reply
        False
    """

    def __init__(self, function: Callable[..., Any], *, retry_safe: bool = False) -> None:
        hints = _read_hints(function)
        self.may_reply = _may_be_message(hints.get("return"))
        self._function = function
        self._arguments = _read_arguments(function, hints)
        # What a card says of the agent, which is made from these two as if this were the function.
        self.__name__ = _name_of(function)
        self.__doc__ = function.__doc__
        self._blocks = not _is_async(function)
        self._admission = Admission(retry_safe=retry_safe)
        self._threads = Threads(MAX_THREADS, spare=SPARE_THREADS)

    @property
    def stuck_threads(self) -> int:
        """Threads on which the function goes on although its run has ended."""
        return self._threads.stuck

    @property
    def thread_capacity(self) -> int:
        """How many calls can run at once, as things stand; with 0, messages are refused."""
        return self._threads.capacity

    async def admit(self, call: Call) -> Admission:
        if self._blocks and not self.thread_capacity:
            raise OverloadedError(OUT_OF_THREADS, retry_after=RETRY_AFTER)
        return self._admission

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        call.skill = self.__name__
        output = FunctionOutput(self.may_reply)
        async with AsyncExitStack() as stack:
            result = await self._call(call, stack)
            if isinstance(result, AsyncIterable):
                async with _closing(result):
                    async for chunk in result:
                        for event in output.add(chunk):
                            yield event
            else:
                for event in output.add_whole(result):
                    yield event
        for event in output.end():
            yield event

    async def _call(self, call: Call, stack: AsyncExitStack) -> Any:
        """Call the function, on a thread if it may block. What is needed for the whole run is put on the stack."""
        arguments = [read(call) for read in self._arguments]
        if not self._blocks:
            result = self._function(*arguments)
        else:
            async with AsyncExitStack() as during_the_call:
                thread = self._threads.worker(self.__name__, call.cancel)
                worker = await during_the_call.enter_async_context(thread)
                result = await worker.call(self._function, *arguments)
                if isinstance(result, Iterator):
                    # The body of a generator has not run yet. It goes on where it began, so the thread is kept.
                    await stack.enter_async_context(during_the_call.pop_all())
                    return _iterate(result, worker)
        if inspect.isawaitable(result):  # of a function that returns a coroutine without being one: a lambda, say
            return await result
        return result


async def _iterate(iterator: Iterator[Any], worker: Worker) -> AsyncGenerator[Any, None]:
    """The items of an iterator that may block before each of them."""
    try:
        while True:
            chunk = await worker.call(next, iterator, _END)
            if chunk is _END:
                break
            yield chunk
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            worker.later(close)  # not waited for: the generator may be blocked, and its run is over


def _closing(chunks: AsyncIterable[Any]) -> AbstractAsyncContextManager[object]:
    if isinstance(chunks, AsyncGenerator):
        return aclosing(chunks)
    return nullcontext()


class FunctionOutput:
    """What a function has given so far, told as events.

    Pieces of text make one artifact, each sent when it is there. That a piece was the last is known only later, so an
    empty one says it: clients show the pieces as they come, and joined they are the same text. Anything else is an
    artifact of its own.
    """

    def __init__(self, may_reply: bool) -> None:
        self._may_reply = may_reply
        self._text_id = ""  # the artifact that pieces of text are appended to, once there is one
        self._is_at_rest = False  # whether the function itself has said that the task is over, or waits

    def add(self, chunk: Any) -> Iterator[AgentEvent]:
        """The events for one of several things that a function yields."""
        match chunk:
            case None | "":
                return
            case str():
                is_first = not self._text_id
                if is_first:
                    self._text_id = new_id()
                yield _update([Part(text=chunk)], self._text_id, append=not is_first)
            case StatusUpdate() | Task():
                self._is_at_rest = chunk.status.state in AT_REST
                if self._is_at_rest:  # the text must be complete before the task is
                    yield from self._close_text()
                yield chunk
            case Message() | ArtifactUpdate() | Remember():
                yield chunk
            case _:
                yield _update(to_parts(chunk), new_id(), last=True)

    def add_whole(self, result: Any) -> Iterator[AgentEvent]:
        """The events for all that a function returns at once."""
        match result:
            case str():
                yield _update([Part(text=result)], new_id(), last=True)
            case Message():
                self._is_at_rest = True
                if self._may_reply:
                    yield result
                else:  # the function did not say that it may, so the task is there already
                    yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED, message=result))
            case _:
                yield from self.add(result)

    def end(self) -> Iterator[AgentEvent]:
        if not self._is_at_rest:
            yield from self._close_text()
            yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))

    def _close_text(self) -> Iterator[AgentEvent]:
        if self._text_id:
            yield _update([Part(text="")], self._text_id, append=True, last=True)
            self._text_id = ""


def _update(parts: list[Part], artifact_id: str, *, append: bool = False, last: bool = False) -> ArtifactUpdate:
    return ArtifactUpdate(artifact=Artifact(artifact_id=artifact_id, parts=parts), append=append, last_chunk=last)


# ---- how a function is called ----------------------------------------------------------------------------------------


def _read_arguments(function: Callable[..., Any], hints: dict[str, Any]) -> tuple[ReadArgument, ...]:
    """What to call the function with. A parameter with a default is left to it."""
    name = _name_of(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:  # some functions written in C
        raise TypeError(f"{name} cannot be served: its parameters are unknown") from error
    required: list[inspect.Parameter] = []
    for parameter in parameters:
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_variadic or parameter.default is not parameter.empty:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise _asks_too_much(name)
        required.append(parameter)
    if len(required) > 2:
        raise _asks_too_much(name)
    arguments: list[ReadArgument] = []
    for place, parameter in enumerate(required):
        read = ARGUMENTS.get(_kind_of(parameter, place, hints))
        if read is None:
            text = f"{name} cannot be served: {parameter.name} may be a Message, a Call or a str, nothing else"
            raise TypeError(text)
        arguments.append(read)
    return tuple(arguments)


def _kind_of(parameter: inspect.Parameter, place: int, hints: dict[str, Any]) -> object:
    """What a parameter is to get: its annotation says it, else its name and place."""
    hint = hints.get(parameter.name, Any)
    if hint is not Any:
        return hint
    if place == 1 or parameter.name == "call":
        return Call
    return Message


def _asks_too_much(name: str) -> TypeError:
    return TypeError(f"{name} cannot be served: it may ask for (message), (message, call) or (call), and no more")


def _read_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations; none if they name what only a type checker can see: then the place decides."""
    target: Any = function
    if isinstance(function, partial):
        target = function.func
    if not inspect.isroutine(target):  # an object with `__call__`
        target = type(target).__call__
    try:
        return get_type_hints(target)
    except NameError:
        return {}


def _may_be_message(answer: Any) -> bool:
    return answer is Message or (get_origin(answer) in (Union, UnionType) and Message in get_args(answer))


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of the function cannot block."""
    for target in (function, getattr(function, "__call__", None)):  # noqa: B004  # for objects with an async __call__
        if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
            return True
    return False


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
