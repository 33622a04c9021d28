"""What an executor of a2a-sdk is told, and what becomes of what it does wrong."""

import sys

import pytest
from a2a.helpers import get_data_parts, new_data_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import UnsupportedOperationError
from msgspec import UNSET

from apcore_a2a.agent import Caller
from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.engine.call_context import CallContext
from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol.model import Message, Part, Role, SendMessage, Task, TaskState
from tests.agents.a2a_sdk.test_contract import Scripted, updater_for
from tests.conversations import contents, make_call, talk_to, text_of


async def test_an_executor_is_told_who_asks_and_what_came_with_the_message() -> None:
    seen: list[RequestContext] = []

    async def look(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        seen.append(context)
        await updater.complete()

    message = Message(message_id="m", role=Role.USER, parts=(Part(text="Go"),), extensions=("urn:x",))
    request = SendMessage(message=message, metadata={"n": 1})
    async with talk_to(Scripted(look)) as user:
        caller = Caller(id="ada", type="user", issuer="https://example.com", tenant="acme")
        origin = CallContext(caller=caller, headers={"traceparent": "00-1"})
        await user.engine.send_message(request, origin)
    context = seen[0]
    assert context.message is not None and context.message.message_id == "m"
    assert (context.message.task_id, context.message.context_id) == (context.task_id, context.context_id)
    assert (context.metadata, context.tenant, context.requested_extensions) == ({"n": 1}, "acme", {"urn:x"})
    user_of_sdk = context.call_context.user
    assert (user_of_sdk.is_authenticated, user_of_sdk.user_name) == (True, "ada")
    assert context.call_context.state["headers"] == {"traceparent": "00-1"}
    assert context.configuration is not None and not context.configuration.return_immediately


async def test_nobody_is_nobody_to_an_executor_too() -> None:
    seen: list[RequestContext] = []

    async def look(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        seen.append(context)
        await updater.complete()

    async with talk_to(Scripted(look)) as user:
        await user.task("Go")
    assert (seen[0].call_context.user.is_authenticated, seen[0].call_context.user.user_name) == (False, "")


async def test_an_executor_gets_the_tasks_that_the_message_refers_to() -> None:
    seen: list[list[str]] = []

    async def look(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        seen.append([task.id for task in context.related_tasks])
        await updater.complete()

    async with talk_to(Scripted(look)) as user:
        first = await user.task("one")
        await user.task(
            Message(message_id="m", role=Role.USER, parts=(Part(text="two"),), reference_task_ids=(first.id,))
        )
    assert seen == [[], [first.id]]


async def test_integers_cross_the_bridge_both_ways_as_integers() -> None:
    async def double(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        assert context.message is not None
        (data,) = get_data_parts(context.message.parts)
        await updater.add_artifact([new_data_part({"n": data["n"] * 2})])
        await updater.complete()

    async with talk_to(Scripted(double)) as user:
        task = await user.task(Part(data={"n": 21}))
    data = task.artifacts[0].parts[0].data
    assert data is not UNSET and (data, type(data["n"])) == ({"n": 42}, int)


async def test_a_message_that_protobuf_would_change_is_refused_before_a_task_exists() -> None:
    async def never(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        raise AssertionError

    async with talk_to(Scripted(never)) as user:
        with pytest.raises(InvalidParamsError, match="send a larger one as a string"):
            await user.ask(Part(data={"id": 2**53 + 1}))


async def test_an_error_of_the_sdk_fails_the_task_with_its_text() -> None:
    async def refuse(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        raise UnsupportedOperationError("Only text, please")

    async with talk_to(Scripted(refuse)) as user:
        task = await user.task("Go")
    assert (task.status.state, text_of(task)) == (TaskState.FAILED, "Only text, please")


async def test_an_event_of_another_task_fails_this_one() -> None:
    async def wrong(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        await TaskUpdater(queue, "other", context.context_id or "").complete()

    async with talk_to(Scripted(wrong)) as user:
        task = await user.task("Go")
    assert (task.status.state, text_of(task)) == (TaskState.FAILED, "The agent published an event of another task")


async def test_a_whole_task_published_at_once_is_taken_as_it_is() -> None:
    async def whole(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        task = pb.Task(id=context.task_id, context_id=context.context_id)
        task.status.state = pb.TaskState.TASK_STATE_COMPLETED
        task.artifacts.add(artifact_id="a", parts=[pb.Part(raw=b"\x00", media_type="image/png")])
        await queue.enqueue_event(task)

    async with talk_to(Scripted(whole)) as user:
        task = await user.task("Go")
    assert isinstance(task, Task)
    assert (task.status.state, contents(task)) == (TaskState.COMPLETED, [[b"\x00"]])


class Safe(AgentExecutor):
    retry_safe = True

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await updater_for(context, event_queue).complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None: ...


async def test_an_executor_may_say_that_its_runs_are_safe_to_repeat() -> None:
    assert (await as_agent(Safe()).admit(make_call())).retry_safe
    assert not (await as_agent(Safe(), retry_safe=False).admit(make_call())).retry_safe


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "apcore_a2a.agents.a2a_sdk.bridge", raising=False)
    monkeypatch.setitem(sys.modules, "a2a.server.context", None)  # as if it were not there
    with pytest.raises(ImportError, match=r"needs a2a-sdk 1\.x: pip install 'apcore-a2a\[sdk\]'"):
        as_agent(Safe())
