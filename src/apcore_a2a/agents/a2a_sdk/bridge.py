"""Serves executors written for a2a-sdk, 1.x or 0.3.x, without changes to them.

Invariant: the bridge only converts values. `ExecutorAgent` manages the runs, and the two codecs hold the differences
between the generations.
"""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from a2a import types
from a2a.auth.user import User
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from msgspec.structs import replace

from apcore_a2a.agent import Admission, AgentEvent, Call, Caller
from apcore_a2a.agents import executors
from apcore_a2a.agents.executor_agent import ExecutorAgent
from apcore_a2a.errors import AgentError, InvalidParamsError
from apcore_a2a.protocol import model


class Codec(Protocol):
    """Converts the model to the types of one a2a-sdk generation, and back. Any: only one set of types is installed."""

    @property
    def ERRORS(self) -> tuple[type[Exception], ...]:  # a module's constant
        """The exceptions of executors whose texts are meant for clients."""

    def to_request(self, request: model.SendMessage) -> Any:
        """Convert a request. Raises ValueError for values that those types cannot hold."""

    def to_task(self, task: model.Task) -> Any: ...

    def error_text(self, error: Any) -> str: ...

    def make_queue(self, queue: executors.EventQueue) -> Any:
        """Return an EventQueue of a2a-sdk that publishes to ours."""


def choose_codec() -> Codec:
    """Return the codec of the installed a2a-sdk."""
    # Imported here, because each codec can be imported only if its generation is installed.
    if hasattr(types, "MessageSendParams"):  # a type of 0.3
        from apcore_a2a.agents.a2a_sdk import codec03

        return codec03
    from apcore_a2a.agents.a2a_sdk import codec as codec_module

    return codec_module


class SDKAgent:
    """Adapts an AgentExecutor of a2a-sdk to an Agent.

    `builder` is an optional RequestContextBuilder of a2a-sdk, which builds the RequestContext.
    """

    may_reply = True

    def __init__(self, executor: AgentExecutor, *, retry_safe: bool = False, builder: Any = None) -> None:
        self._codec = choose_codec()
        self._agent = ExecutorAgent(_TranslatingExecutor(executor, self._codec, builder), retry_safe=retry_safe)

    async def admit(self, call: Call) -> Admission:
        try:
            self._codec.to_request(call.request)  # now, while the message can still be rejected
        except ValueError as error:
            raise InvalidParamsError(str(error)) from error
        return await self._agent.admit(call)

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        return self._agent.run(call)

    def cancel(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        return self._agent.cancel(call)


class _TranslatingExecutor:
    """Adapts an executor of a2a-sdk to our AgentExecutor: converts its context, and converts its events back."""

    def __init__(self, executor: AgentExecutor, codec: Codec, builder: Any) -> None:
        self._executor = executor
        self._codec = codec
        self._builder = builder

    async def execute(self, context: executors.RequestContext, event_queue: executors.EventQueue) -> None:
        codec = self._codec
        try:
            request = await self._make_context(context)
            await self._executor.execute(request, codec.make_queue(event_queue))
        except codec.ERRORS as error:  # its text is meant for clients
            raise AgentError(codec.error_text(error), kind=type(error).__name__) from error

    async def _make_context(self, context: executors.RequestContext) -> RequestContext:
        codec = self._codec
        call = context.call
        request = codec.to_request(call.request)
        task = None
        if call.resumed:  # None for a new task: many executors decide by it what to publish first
            task = codec.to_task(_as_it_waited(call))
        if self._builder is not None:
            built: RequestContext = await self._builder.build(
                params=request,
                task_id=context.task_id,
                context_id=context.context_id,
                task=task,
                context=_call_context(call),
            )
            return built
        return RequestContext(
            call_context=_call_context(call),
            request=request,
            task_id=context.task_id,
            context_id=context.context_id,
            task=task,
            related_tasks=[codec.to_task(task) for task in call.references],
        )

    async def cancel(self, context: executors.RequestContext, event_queue: executors.EventQueue) -> None:
        codec = self._codec
        call = context.call
        request = RequestContext(
            call_context=_call_context(call),
            task_id=context.task_id,
            context_id=context.context_id,
            task=codec.to_task(call.task),
        )
        await self._executor.cancel(request, codec.make_queue(event_queue))


def _as_it_waited(call: Call) -> model.Task:
    """Return the task in the state in which it waited, which executors of a2a-sdk check. By now it is WORKING."""
    if call.waited_in is None:
        return call.task
    return replace(call.task, status=replace(call.task.status, state=call.waited_in))


class _User(User):
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def is_authenticated(self) -> bool:
        return self._caller.is_authenticated

    @property
    def user_name(self) -> str:
        if not self._caller.is_authenticated:
            return ""
        return self._caller.id


def _call_context(call: Call) -> ServerCallContext:
    """Return the context that a2a-sdk's own server builds: all headers in lower case, and the requested extensions."""
    headers: dict[str, str] = {}
    for name, value in call.raw_headers.items():
        headers[name.decode("latin-1")] = value.decode("latin-1")
    return ServerCallContext(
        user=_User(call.caller),
        tenant=call.caller.tenant,
        state={"headers": headers},
        requested_extensions=set(call.extensions),
    )
