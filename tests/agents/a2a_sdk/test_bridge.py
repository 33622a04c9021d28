"""The context of an a2a-sdk executor, and the handling of its errors."""

import sys
from typing import Any

import httpx
import pytest
from a2a.helpers import get_data_parts, new_data_part, new_text_message
from a2a.server.agent_execution import (
    AgentExecutor,
    RequestContext,
    RequestContextBuilder,
    SimpleRequestContextBuilder,
)
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import UnsupportedOperationError
from msgspec import UNSET

from apcore_a2a import A2AClient
from apcore_a2a.agent import Caller
from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.engine.context import CallContext
from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol.model import Message, Part, Role, SendMessage, Task, TaskState
from tests.agents.a2a_sdk.test_contract import Scripted, updater_for
from tests.conversations import contents, make_call, talk_to, text_of
from tests.interaction.serving import serving


async def test_the_context_has_the_caller_and_the_data_of_the_request() -> None:
    seen: list[RequestContext] = []

    async def look(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        seen.append(context)
        await updater.complete()

    message = Message(message_id="m", role=Role.USER, parts=(Part(text="Go"),))
    request = SendMessage(message=message, metadata={"n": 1})
    async with talk_to(Scripted(look)) as user:
        caller = Caller(id="ada", type="user", issuer="https://example.com", tenant="acme")
        origin = CallContext(caller=caller, raw_headers={b"traceparent": b"00-1"}, extensions=frozenset({"urn:x"}))
        await user.engine.send_message(request, origin)
    context = seen[0]
    assert context.message is not None and context.message.message_id == "m"
    assert (context.message.task_id, context.message.context_id) == (context.task_id, context.context_id)
    assert (context.metadata, context.tenant, context.requested_extensions) == ({"n": 1}, "acme", {"urn:x"})
    user_of_sdk = context.call_context.user
    assert (user_of_sdk.is_authenticated, user_of_sdk.user_name) == (True, "ada")
    assert context.call_context.state["headers"] == {"traceparent": "00-1"}
    assert context.configuration is not None and not context.configuration.return_immediately


class Tells(AgentExecutor):
    """Answers with the request data in the context of a2a-sdk."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        headers = context.call_context.state["headers"]
        told = {"headers": headers, "extensions": sorted(context.requested_extensions)}
        updater = updater_for(context, event_queue)
        await updater.add_artifact([new_data_part(told)])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None: ...


@pytest.mark.parametrize(("version", "header"), [("1.0", "A2A-Extensions"), ("0.3", "X-A2A-Extensions")])
async def test_headers_reach_an_executor_as_in_a2a_sdks_server(version: str, header: str) -> None:
    given = {"X-Tenant": "acme", "Authorization": "Basic eDp5", header: "urn:x, urn:y", "A2A-Version": version}
    message = {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "Go"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    if version == "1.0":
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go"}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    async with serving(Tells(), card=None) as url, httpx.AsyncClient(base_url=url) as client:
        answer = (await client.post("/", json=body, headers=given)).json()["result"]
    told = answer.get("task", answer)["artifacts"][0]["parts"][0]["data"]
    for name, value in given.items():
        assert told["headers"][name.lower()] == value
    assert told["headers"]["content-type"] == "application/json"
    assert told["extensions"] == ["urn:x", "urn:y"]


class Builds(RequestContextBuilder):
    """Builds contexts that name their builder."""

    async def build(self, context: ServerCallContext, *given: Any, **named: Any) -> RequestContext:
        context.state["built"] = "by hand"
        built = await SimpleRequestContextBuilder().build(context, *given, **named)
        assert (built.task_id, built.context_id) == (named["task_id"], named["context_id"])
        return built


async def test_a_custom_builder_can_build_the_context_of_an_executor() -> None:
    class Looks(Tells):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            await updater_for(context, event_queue).complete(new_text_message(context.call_context.state["built"]))

    async with serving(Looks(), card=None, request_context_builder=Builds()) as url:
        async with A2AClient(url) as client:
            task = await client.send_message("Go")
    assert isinstance(task, Task)
    assert text_of(task) == "by hand"


async def test_an_anonymous_caller_is_anonymous_to_an_executor() -> None:
    seen: list[RequestContext] = []

    async def look(context: RequestContext, queue: EventQueue, updater: TaskUpdater) -> None:
        seen.append(context)
        await updater.complete()

    async with talk_to(Scripted(look)) as user:
        await user.task("Go")
    assert (seen[0].call_context.user.is_authenticated, seen[0].call_context.user.user_name) == (False, "")


async def test_an_executor_receives_the_tasks_that_the_message_refers_to() -> None:
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


async def test_a_message_that_protobuf_would_change_is_rejected_before_a_task_exists() -> None:
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


async def test_a_whole_published_task_is_stored_unchanged() -> None:
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


async def test_an_executor_can_declare_its_runs_safe_to_repeat() -> None:
    assert (await as_agent(Safe()).admit(make_call())).retry_safe
    assert not (await as_agent(Safe(), retry_safe=False).admit(make_call())).retry_safe


def test_without_the_extra_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "apcore_a2a.agents.a2a_sdk.bridge", raising=False)
    monkeypatch.setitem(sys.modules, "a2a.server.context", None)  # simulates a missing package
    with pytest.raises(ImportError, match=r"needs a2a-sdk: pip install 'apcore-a2a\[sdk\]'"):
        as_agent(Safe())
