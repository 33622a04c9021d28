"""Every operation with a single response, over both bindings and both versions."""

import re

import pytest

from apcore_a2a.errors import AgentError, InvalidParamsError
from apcore_a2a.ids_and_time import utc_now
from apcore_a2a.protocol.model import TaskState
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk, says
from tests.interaction.conftest import Connect
from tests.interaction.wire_client import Refused
from tests.requirements import requirement

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TASK_NOT_FOUND, NOT_CANCELABLE, PUSH_NOT_SUPPORTED, UNSUPPORTED = -32001, -32002, -32003, -32004
INVALID_PARAMS, NO_EXTENDED_CARD = -32602, -32007


# ---- send --------------------------------------------------------------------------------------------------------


@requirement("FR-MSG-001", "FR-TSK-002")
async def test_a_send_waits_for_the_end_and_returns_the_result(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (chunk("done", last=True), COMPLETED)}))
    task = await client.send("hi")
    assert task.status.state is TaskState.COMPLETED
    assert [part.text for part in task.artifacts[0].parts] == ["done"]
    assert [message.parts[0].text for message in task.history] == ["hi"]
    assert UUID4.fullmatch(task.id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", task.status.timestamp)


@requirement("FR-MSG-001")
async def test_an_error_of_the_agent_fails_the_task_with_its_reason(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (chunk("half"), AgentError("No paper"))}))
    task = await client.send("hi")
    assert task.status.state is TaskState.FAILED
    assert task.status.message is not None and task.status.message.parts[0].text == "No paper"
    assert task.artifacts[0].parts[0].text == "half"


async def test_a_send_that_does_not_wait_answers_while_the_agent_works(connect: Connect) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}))
    task = await client.send("hi", return_immediately=True)
    assert task.status.state in (TaskState.SUBMITTED, TaskState.WORKING)
    await gate.reached()
    assert (await client.get(task.id)).status.state is TaskState.WORKING
    async with client.subscribe(task.id) as stream:
        gate.open()
        await stream.rest()
    assert (await client.get(task.id)).status.state is TaskState.COMPLETED


async def test_an_agent_may_answer_with_a_message_and_no_task(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (says("hello"),)}, may_reply=True))
    answer = await client.ask("hi", context_id="talk")
    assert answer.parts[0].text == "hello"
    assert (answer.context_id, answer.task_id) == ("talk", "")
    assert (await client.list()).tasks == ()


async def test_a_message_that_the_agent_rejects_creates_no_task(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": InvalidParamsError("Not this")}))
    with pytest.raises(Refused, match="Not this") as refused:
        await client.send("hi")
    assert refused.value.code == INVALID_PARAMS
    assert (await client.list()).tasks == ()


async def test_the_history_has_the_requested_length(connect: Connect) -> None:
    client = await connect(ScriptedAgent(default=(ASKS,)))
    task = await client.send("one")
    for text in ("two", "three"):
        task = await client.send(text, task_id=task.id, history_length=1)
        assert task.history[-1].parts[0].text == text and len(task.history) == 1
    said = [message.parts[0].text for message in (await client.get(task.id)).history]
    assert [text for text in said if text != "What next?"] == ["one", "two", "three"]
    assert len((await client.get(task.id, history_length=2)).history) == 2
    history = (await client.get(task.id, history_length=0)).history
    # In the protocol buffers of 0.3 the field is not optional, and 0 means everything.
    assert bool(history) == (client.version == "0.3" and client.is_grpc)


# ---- conversations -----------------------------------------------------------------------------------------------


@requirement("FR-CTX-001")
async def test_a_task_keeps_the_given_context_id_or_gets_a_new_one(connect: Connect) -> None:
    client = await connect(ScriptedAgent())
    assert UUID4.fullmatch((await client.send("hi")).context_id)
    assert (await client.send("hi", context_id="talk")).context_id == "talk"


async def test_a_task_id_alone_continues_a_task_as_often_as_it_asks(connect: Connect) -> None:
    agent = ScriptedAgent({"enough": (COMPLETED,)}, default=(ASKS,))
    client = await connect(agent)
    first = await client.send("one")
    assert first.status.state is TaskState.INPUT_REQUIRED
    for text in ("two", "three"):
        assert (await client.send(text, task_id=first.id)).status.state is TaskState.INPUT_REQUIRED
    last = await client.send("enough", task_id=first.id)
    assert (last.id, last.context_id, last.status.state) == (first.id, first.context_id, TaskState.COMPLETED)
    assert [call.resumed for call in agent.calls] == [False, True, True, True]


@requirement("FR-CTX-001")
async def test_an_agent_receives_the_earlier_messages_of_the_context(connect: Connect) -> None:
    agent = ScriptedAgent()
    client = await connect(agent)
    await client.send("one", context_id="talk")
    await client.send("elsewhere", context_id="other")
    await client.send("two", context_id="talk")
    assert [message.parts[0].text for message in agent.calls[-1].history] == ["one"]


@requirement("FR-CTX-003")
async def test_a_context_id_alone_continues_a_waiting_task_only_in_0_3(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"one": (ASKS,)}))
    first = await client.send("one", context_id="talk")
    second = await client.send("two", context_id="talk")
    assert second.status.state is TaskState.COMPLETED
    assert (second.id == first.id) is (client.version == "0.3")
    listed = await client.list(context_id="talk")
    assert {task.id for task in listed.tasks} == {first.id, second.id}


async def test_a_message_to_a_task_that_has_ended_is_refused(connect: Connect) -> None:
    client = await connect(ScriptedAgent())
    task = await client.send("hi")
    with pytest.raises(Refused, match="has ended") as refused:
        await client.send("more", task_id=task.id)
    assert refused.value.code == UNSUPPORTED


async def test_a_message_to_an_unknown_task_is_refused(connect: Connect) -> None:
    client = await connect(ScriptedAgent())
    with pytest.raises(Refused, match="Task not found: unknown") as refused:
        await client.send("hi", task_id="unknown")
    assert refused.value.code == TASK_NOT_FOUND


async def test_a_context_that_is_not_the_tasks_is_refused(connect: Connect) -> None:
    client = await connect(ScriptedAgent(default=(ASKS,)))
    task = await client.send("hi", context_id="talk")
    with pytest.raises(Refused, match="contextId does not match") as refused:
        await client.send("more", task_id=task.id, context_id="other")
    assert refused.value.code == INVALID_PARAMS


# ---- get, list, cancel -------------------------------------------------------------------------------------------


@requirement("FR-TSK-004")
async def test_get_returns_the_same_task_as_send(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (chunk("done"), COMPLETED)}))
    task = await client.send("hi")
    assert await client.get(task.id) == task


@requirement("FR-TSK-004", "FR-TSK-005")
@pytest.mark.parametrize("operation", ["get", "cancel"])
async def test_an_unknown_task_is_not_found(connect: Connect, operation: str) -> None:
    client = await connect(ScriptedAgent())
    with pytest.raises(Refused) as refused:
        await getattr(client, operation)("unknown")
    assert (refused.value.code, refused.value.message) == (TASK_NOT_FOUND, "Task not found: unknown")
    assert refused.value.status == (404 if client.rest else 200)


@requirement("FR-TSK-006")
async def test_tasks_are_listed_page_by_page_newest_first(connect: Connect) -> None:
    client = await connect(ScriptedAgent())
    ids = [(await client.send(f"{n}", context_id="talk")).id for n in range(5)]
    await client.send("elsewhere")
    listed, token = [], ""
    while True:
        page = await client.list(context_id="talk", page_size=2, page_token=token)
        assert len(page.tasks) <= 2
        listed += [task.id for task in page.tasks]
        token = page.next_page_token
        if not token:
            break
    assert listed == ids[::-1]
    assert len((await client.list()).tasks) == 6


@requirement("FR-TSK-006")
async def test_0_3_lists_by_creation_and_1_0_by_the_last_change(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"ask": (ASKS,)}))
    older = await client.send("ask")
    newer = await client.send("hi")
    while utc_now() == newer.status.timestamp:  # for a millisecond at most, the resolution of A2A timestamps
        pass
    await client.send("more", task_id=older.id)
    listed = [task.id for task in (await client.list()).tasks]
    assert listed == ([older.id, newer.id] if client.version == "1.0" else [newer.id, older.id])


async def test_a_list_can_be_filtered_by_state(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"ask": (ASKS,)}))
    await client.send("hi")
    waiting = await client.send("ask")
    page = await client.list(status=TaskState.INPUT_REQUIRED)
    assert [task.id for task in page.tasks] == [waiting.id]


async def test_lists_contain_artifacts_on_request(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (chunk("done"), COMPLETED)}))
    await client.send("hi")
    assert (await client.list(include_artifacts=True)).tasks[0].artifacts[0].parts[0].text == "done"
    assert (await client.list()).tasks[0].artifacts == []


@requirement("FR-TSK-005")
async def test_cancel_ends_a_running_task_and_notifies_the_agent(connect: Connect) -> None:
    gate, agent = Gate(), ScriptedAgent()
    agent.default = (gate, COMPLETED)
    client = await connect(agent)
    task = await client.send("hi", return_immediately=True)
    await gate.reached()
    canceled = await client.cancel(task.id)
    assert canceled.status.state is TaskState.CANCELED
    assert canceled.status.message is not None and canceled.status.message.parts[0].text == "Canceled by client"
    assert agent.calls[0].cancel.is_cancelled
    assert (await client.get(task.id)).status.state is TaskState.CANCELED


@requirement("FR-TSK-005")
async def test_cancel_ends_a_task_that_waits_for_its_user(connect: Connect) -> None:
    client = await connect(ScriptedAgent(default=(ASKS,)))
    task = await client.send("hi")
    assert (await client.cancel(task.id)).status.state is TaskState.CANCELED


@requirement("FR-TSK-005")
async def test_a_task_that_has_ended_cannot_be_canceled(connect: Connect) -> None:
    client = await connect(ScriptedAgent())
    task = await client.send("hi")
    with pytest.raises(Refused) as refused:
        await client.cancel(task.id)
    assert refused.value.code == NOT_CANCELABLE
    assert refused.value.message == "Task is not cancelable: current state is completed"


# ---- the rest ----------------------------------------------------------------------------------------------------


async def test_without_authentication_there_is_no_extended_card(connect: Connect) -> None:
    client = await connect(ScriptedAgent())
    if client.version == "0.3" and client.is_grpc:
        assert (await client.extended_card()).name == "scripted"  # its GetAgentCard returns the public card
        return
    with pytest.raises(Refused) as refused:
        await client.extended_card()
    assert refused.value.code == (UNSUPPORTED if client.version == "1.0" else NO_EXTENDED_CARD)
