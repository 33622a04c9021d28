"""Executors written for a2a-sdk 1.x, served unchanged.

Rule: the bridge translates and nothing else; how a run lives and ends is `executors`' business.
"""

from collections.abc import AsyncGenerator

from a2a.auth.user import User
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.utils.errors import A2AError

from apcore_a2a.agent import Admission, AgentEvent, Call, Caller
from apcore_a2a.agents import executors
from apcore_a2a.agents.a2a_sdk import codec
from apcore_a2a.agents.executor_agent import ExecutorAgent
from apcore_a2a.errors import AgentError, InvalidParamsError


class SDKAgent:
    """Serves an a2a-sdk AgentExecutor."""

    may_reply = True

    def __init__(self, executor: AgentExecutor, *, retry_safe: bool = False) -> None:
        self._agent = ExecutorAgent(_TranslatingExecutor(executor), retry_safe=retry_safe)

    async def admit(self, call: Call) -> Admission:
        try:
            codec.to_request(call.request)  # now, while the message can still be refused
        except ValueError as error:
            raise InvalidParamsError(str(error)) from error
        return await self._agent.admit(call)

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        return self._agent.run(call)

    def cancel(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        return self._agent.cancel(call)


class _TranslatingExecutor:
    """An executor of a2a-sdk's as one of ours: what it gets is translated for it, and what it publishes, back."""

    def __init__(self, executor: AgentExecutor) -> None:
        self._executor = executor

    async def execute(self, context: executors.RequestContext, event_queue: executors.EventQueue) -> None:
        call = context.call
        task = None
        if call.resumed:  # of a new task a2a-sdk's executors know the id only; many decide by it what to publish first
            task = codec.to_task(call.task)
        request = RequestContext(
            _call_context(call),
            codec.to_request(call.request),
            task_id=context.task_id,
            context_id=context.context_id,
            task=task,
            related_tasks=[codec.to_task(task) for task in call.references],
        )
        try:
            await self._executor.execute(request, _EventQueue(event_queue))
        except A2AError as error:  # written for clients to read, so they read it
            raise AgentError(error.message, kind=type(error).__name__) from error

    async def cancel(self, context: executors.RequestContext, event_queue: executors.EventQueue) -> None:
        call = context.call
        request = RequestContext(
            _call_context(call),
            task_id=context.task_id,
            context_id=context.context_id,
            task=codec.to_task(call.task),
        )
        await self._executor.cancel(request, _EventQueue(event_queue))


class _EventQueue(EventQueue):
    """Where the executor publishes: a2a-sdk's interface has this one method."""

    def __init__(self, queue: executors.EventQueue) -> None:
        self._queue = queue

    async def enqueue_event(self, event: codec.ProtoEvent) -> None:
        await self._queue.enqueue_event(codec.from_event(event))


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
    return ServerCallContext(
        user=_User(call.caller),
        tenant=call.caller.tenant,
        state={"headers": dict(call.headers)},
        requested_extensions=set(call.message.extensions),
    )
