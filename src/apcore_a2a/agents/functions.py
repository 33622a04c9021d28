"""Plain functions as agents: what a function returns or yields becomes the events of its task.

Rule: a function knows nothing of tasks. Coroutines run on the loop, everything else on a thread of its own.
"""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, nullcontext
from functools import partial
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints
from uuid import uuid4

from apcore_a2a.agent import Admission, AgentEvent, Call, Remember
from apcore_a2a.agents.content import agent_message, text_of, to_parts
from apcore_a2a.agents.threads import Threads, Worker
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate, Message, Part, StatusUpdate, Task, TaskState, TaskStatus

MAX_THREADS: Final = 64  # of one agent, at once

Input = Callable[[Call], object]

# What a parameter gets, by its annotation.
INPUTS: Final[dict[object, Input]] = {
    Message: lambda call: call.message,
    Call: lambda call: call,
    str: lambda call: text_of(call.message),
}
_END: Final = object()


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
        hints = _hints(function)
        self.may_reply = _may_be_message(hints.get("return"))
        self._function, self._inputs = function, _inputs(function, hints)
        self.__name__, self.__doc__ = _name(function), function.__doc__  # what a card says of it
        self._blocks = not _is_async(function)
        self._admission = Admission(retry_safe=retry_safe)
        self._threads = Threads(MAX_THREADS)

    async def admit(self, call: Call) -> Admission:
        return self._admission

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        account = Account(self.may_reply)
        async with AsyncExitStack() as stack:
            result = await self._call(call, stack)
            if isinstance(result, AsyncIterable):
                async with _closing(result):
                    async for chunk in result:
                        for event in account.add(chunk):
                            yield event
            else:
                for event in account.add_whole(result):
                    yield event
        for event in account.end():
            yield event

    async def _call(self, call: Call, stack: AsyncExitStack) -> Any:
        arguments = [read(call) for read in self._inputs]
        if self._blocks:
            async with AsyncExitStack() as briefly:
                worker = await briefly.enter_async_context(self._threads.worker(self.__name__))
                result = await worker.call(self._function, *arguments)
                if isinstance(result, Iterator):
                    await stack.enter_async_context(briefly.pop_all())  # the thread is needed for the whole run
                    return _iterate(result, worker)
        else:
            result = self._function(*arguments)
        return await result if inspect.isawaitable(result) else result


async def _iterate(iterator: Iterator[Any], worker: Worker) -> AsyncGenerator[Any, None]:
    try:
        while (chunk := await worker.call(next, iterator, _END)) is not _END:
            yield chunk
    finally:
        if (close := getattr(iterator, "close", None)) is not None:
            worker.later(close)


def _closing(chunks: AsyncIterable[Any]) -> AbstractAsyncContextManager[object]:
    return aclosing(chunks) if isinstance(chunks, AsyncGenerator) else nullcontext()


class Account:
    """What a function has given so far, told as events.

    Pieces of text make one artifact, each sent when it is there. That a piece was the last is known only later, so an
    empty one says it: clients show the pieces as they come, and joined they are the same text. Anything else is an
    artifact of its own.
    """

    def __init__(self, may_reply: bool) -> None:
        self._may_reply = may_reply
        self._text = ""  # the id of the artifact that pieces of text are appended to
        self._rests = False

    def add(self, chunk: Any) -> Iterator[AgentEvent]:
        match chunk:
            case None | "":
                return
            case str():
                append, self._text = bool(self._text), self._text or str(uuid4())
                yield _update([Part(text=chunk)], self._text, append=append)
            case StatusUpdate() | Task():
                self._rests = chunk.status.state in AT_REST
                if self._rests:
                    yield from self._close()
                yield chunk
            case Message() | ArtifactUpdate() | Remember():
                yield chunk
            case _:
                yield _update(to_parts(chunk), str(uuid4()), last=True)

    def add_whole(self, result: Any) -> Iterator[AgentEvent]:
        """The same for all that a function returns at once."""
        match result:
            case str():
                yield _update([Part(text=result)], str(uuid4()), last=True)
            case Message():
                self._rests = True
                completed = TaskStatus(state=TaskState.COMPLETED, message=result)
                yield result if self._may_reply else StatusUpdate(status=completed)
            case _:
                yield from self.add(result)

    def end(self) -> Iterator[AgentEvent]:
        if not self._rests:
            yield from self._close()
            yield StatusUpdate(status=TaskStatus(state=TaskState.COMPLETED))

    def _close(self) -> Iterator[AgentEvent]:
        if self._text:
            yield _update([Part(text="")], self._text, append=True, last=True)
            self._text = ""


def _update(parts: list[Part], artifact_id: str, *, append: bool = False, last: bool = False) -> ArtifactUpdate:
    return ArtifactUpdate(artifact=Artifact(artifact_id=artifact_id, parts=parts), append=append, last_chunk=last)


# ---- how a function is called ----------------------------------------------------------------------------------------


def _inputs(function: Callable[..., Any], hints: dict[str, Any]) -> tuple[Input, ...]:
    """What to call the function with: a parameter's annotation says it, else its place; a default stays as it is."""
    name = _name(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:  # some functions written in C
        raise TypeError(f"{name} cannot be served: its parameters are unknown") from error
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    owed = [each for each in parameters if each.default is each.empty and each.kind not in variadic]
    if len(owed) > 2 or any(each.kind is each.KEYWORD_ONLY for each in owed):
        raise TypeError(f"{name} cannot be served: it may ask for (message), (message, call) or (call), and no more")
    inputs = []
    for place, each in enumerate(owed):
        hint = hints.get(each.name, Any)
        read = INPUTS.get((Call if place == 1 or each.name == "call" else Message) if hint is Any else hint)
        if read is None:
            raise TypeError(f"{name} cannot be served: {each.name} may be a Message, a Call or a str, nothing else")
        inputs.append(read)
    return tuple(inputs)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations; none if they name what only a type checker can see: then the place decides."""
    target = function.func if isinstance(function, partial) else function
    try:
        return get_type_hints(target if inspect.isroutine(target) else type(target).__call__)
    except NameError:
        return {}


def _may_be_message(answer: Any) -> bool:
    return answer is Message or (get_origin(answer) in (Union, UnionType) and Message in get_args(answer))


def _is_async(function: Callable[..., Any]) -> bool:
    targets = (function, getattr(function, "__call__", None))  # noqa: B004  # for objects with an async __call__
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in targets)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
