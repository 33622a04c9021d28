"""Streams over both bindings and both versions: events, order, subscribers and end."""

import asyncio
from pathlib import Path

import pytest

from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, StatusUpdate, Task, TaskState
from tests.fakes import ASKS, COMPLETED, PATIENCE, WORKING, Gate, ScriptedAgent, chunk, says, status
from tests.interaction.conftest import Connect
from tests.interaction.wire_client import Refused, Stream, WireClient
from tests.requirements import requirement

TASK_NOT_FOUND, UNSUPPORTED = -32001, -32004


def shape(event: Event) -> object:
    """Return an event as one word: a state, or the text of a chunk."""
    match event:
        case Task():
            return ("task", event.status.state.removeprefix("TASK_STATE_").lower())
        case StatusUpdate():
            return event.status.state.removeprefix("TASK_STATE_").lower()
        case ArtifactUpdate():
            return str(event.artifact.parts[0].text)
        case Message():
            return ("message", str(event.parts[0].text))


async def rest_of(stream: Stream) -> list[object]:
    async with asyncio.timeout(PATIENCE):
        return [shape(event) for event in await stream.rest()]


async def begin(client: WireClient, gate: Gate) -> Task:
    """Begin a task whose run waits at the gate."""
    task = await client.send("hi", return_immediately=True)
    await gate.reached()
    return task


# ---- a message and its stream ------------------------------------------------------------------------------------


@requirement("FR-MSG-002")
async def test_a_stream_begins_with_the_task_before_the_agent_runs(connect: Connect) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}))
    async with client.stream("hi") as stream:
        assert stream.headers["content-type"] == client.stream_media
        assert shape(await stream.next()) == ("task", "submitted")
        assert shape(await stream.next()) == "working"
        gate.open()
        assert await rest_of(stream) == ["completed"]


@requirement("FR-MSG-002")
async def test_a_stream_sends_all_events_in_order_and_ends(connect: Connect) -> None:
    script = (chunk("a"), chunk("b", append=True), WORKING, chunk("c", append=True, last=True), COMPLETED)
    client = await connect(ScriptedAgent({"hi": script}))
    async with client.stream("hi") as stream:
        received = [(one.id, one.event) async for one in stream]
    assert [shape(event) for _, event in received] == [("task", "submitted"), "working", "a", "b", "c", "completed"]
    chunks = [event for _, event in received if isinstance(event, ArtifactUpdate)]
    assert [(one.append, one.last_chunk) for one in chunks] == [(False, False), (True, False), (True, True)]
    if client.has_event_ids:
        ids = [int(id) for id, _ in received]
        assert ids == list(range(ids[0], ids[0] + len(ids)))


async def test_every_event_of_a_stream_names_its_task(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (chunk("a"), COMPLETED)}))
    async with client.stream("hi", context_id="talk") as stream:
        task, *updates = await stream.rest()
    assert isinstance(task, Task) and task.context_id == "talk"
    for update in updates:
        assert isinstance(update, StatusUpdate | ArtifactUpdate)
        assert (update.task_id, update.context_id) == (task.id, "talk")


async def test_a_failure_is_the_last_event(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (chunk("a"), AgentError("No paper"))}))
    async with client.stream("hi") as stream:
        *_, last = await stream.rest()
    assert isinstance(last, StatusUpdate) and last.status.state is TaskState.FAILED
    assert last.status.message is not None and last.status.message.parts[0].text == "No paper"


async def test_a_stream_ends_when_the_user_is_asked(connect: Connect) -> None:
    client = await connect(ScriptedAgent(default=(ASKS,)))
    async with client.stream("hi") as stream:
        assert (await rest_of(stream))[-1] == "input_required"


async def test_a_stream_continues_while_the_task_waits_for_credentials(connect: Connect) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (status(TaskState.AUTH_REQUIRED), gate, WORKING, COMPLETED)}))
    async with client.stream("hi") as stream:
        assert [shape(await stream.next()) for _ in range(3)][-1] == "auth_required"
        await gate.reached()
        gate.open()
        assert await rest_of(stream) == ["working", "completed"]


async def test_a_reply_without_a_task_is_the_only_event(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (says("hello"),)}, may_reply=True))
    async with client.stream("hi") as stream:
        assert await rest_of(stream) == [("message", "hello")]


async def test_the_stream_of_a_later_turn_begins_with_the_task(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (chunk("a"), ASKS), "more": (chunk("b", append=True), COMPLETED)}))
    task = await client.send("hi")
    async with client.stream("more", task_id=task.id) as stream:
        first = await stream.next()
        assert isinstance(first, Task) and first.status.state is TaskState.WORKING
        assert [part.text for part in first.artifacts[0].parts] == ["a"]
        assert first.history[-1].parts[0].text == "more"
        assert await rest_of(stream) == ["b", "completed"]


async def test_a_rejected_message_opens_no_stream(connect: Connect) -> None:
    client = await connect(ScriptedAgent())
    with pytest.raises(Refused) as refused:
        async with client.stream("hi", task_id="unknown") as stream:
            await stream.next()
    assert refused.value.code == TASK_NOT_FOUND


# ---- subscribing -------------------------------------------------------------------------------------------------


@requirement("FR-MSG-006")
async def test_a_subscriber_gets_the_current_task_and_then_its_events(connect: Connect) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (chunk("a"), gate, chunk("b", append=True), COMPLETED)}))
    task = await begin(client, gate)
    async with client.subscribe(task.id) as stream:
        snapshot = await stream.next()
        assert isinstance(snapshot, Task) and snapshot.status.state is TaskState.WORKING
        assert [part.text for part in snapshot.artifacts[0].parts] == ["a"]
        gate.open()
        assert await rest_of(stream) == ["b", "completed"]


async def test_all_subscribers_get_the_same_events(connect: Connect) -> None:
    first, second = Gate(), Gate()
    client = await connect(ScriptedAgent({"hi": (first, chunk("a"), second, chunk("b", append=True), COMPLETED)}))
    async with client.stream("hi") as one:
        task = await one.next()
        assert isinstance(task, Task)
        await first.reached()
        async with client.subscribe(task.id) as two:
            await two.next()
            first.open()
            await second.reached()
            second.open()
            received = [(item.id, shape(item.event)) async for item in one]
            assert [(item.id, shape(item.event)) async for item in two] == received[-3:]


async def test_a_disconnected_subscriber_does_not_affect_the_others(connect: Connect) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (gate, chunk("a"), COMPLETED)}))
    task = await begin(client, gate)
    async with client.subscribe(task.id) as stays:
        await stays.next()
        async with client.subscribe(task.id) as leaves:
            await leaves.next()
        gate.open()
        assert await rest_of(stays) == ["a", "completed"]


async def test_a_subscriber_to_a_waiting_task_gets_the_events_of_its_next_turn(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (ASKS,)}))
    task = await client.send("hi")
    async with client.subscribe(task.id) as stream:
        assert shape(await stream.next()) == ("task", "input_required")
        await client.send("more", task_id=task.id)
        assert await rest_of(stream) == ["working", "completed"]


async def test_a_cancel_is_the_last_event_of_a_stream(connect: Connect) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}))
    async with client.stream("hi") as stream:
        task = await stream.next()
        assert isinstance(task, Task)
        await gate.reached()
        await client.cancel(task.id)
        assert (await rest_of(stream))[-1] == "canceled"


@requirement("FR-MSG-006")
async def test_subscribing_to_an_ended_task_returns_one_event_in_0_3_and_an_error_in_1_0(connect: Connect) -> None:
    client = await connect(ScriptedAgent())
    task = await client.send("hi")
    if client.version == "0.3":
        async with client.subscribe(task.id) as stream:
            assert await rest_of(stream) == ["completed"]
        return
    with pytest.raises(Refused) as refused:
        async with client.subscribe(task.id):
            pass
    assert refused.value.code == UNSUPPORTED


@requirement("FR-MSG-006")
async def test_subscribing_to_an_unknown_task_is_rejected(connect: Connect) -> None:
    client = await connect(ScriptedAgent())
    with pytest.raises(Refused) as refused:
        async with client.subscribe("unknown") as stream:
            await stream.next()
    assert refused.value.code == TASK_NOT_FOUND


async def test_with_last_event_id_0_3_replays_missed_events_and_1_0_sends_a_snapshot(connect: Connect) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (chunk("a"), chunk("b", append=True), gate, COMPLETED)}))
    async with client.stream("hi") as stream:
        events = aiter(stream)
        first, _, a = [await anext(events) for _ in range(3)]
        assert isinstance(first.event, Task) and shape(a.event) == "a"
        await gate.reached()
        async with client.subscribe(first.event.id, Last_Event_ID=a.id or "3") as again:  # gRPC has no ids
            first_again = shape(await again.next())
            gate.open()
            assert [first_again, *await rest_of(again)] == (
                ["b", "completed"] if client.version == "0.3" else [("task", "working"), "completed"]
            )


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_with_last_event_id_0_3_replays_the_missed_events_of_an_ended_task(
    connect: Connect, tmp_path: Path, store: str
) -> None:
    options = {"store": f"sqlite:///{tmp_path}/tasks.db"} if store == "sqlite" else {}
    client = await connect(ScriptedAgent({"hi": (chunk("a"), chunk("b", append=True), COMPLETED)}), **options)
    async with client.stream("hi") as stream:
        received = [(one.id, shape(one.event)) async for one in stream]
    task_id = (await client.list()).tasks[0].id
    if client.version == "1.0":
        with pytest.raises(Refused):
            async with client.subscribe(task_id, Last_Event_ID=received[2][0]):
                pass
        return
    async with client.subscribe(task_id, Last_Event_ID=received[2][0] or "3") as again:  # gRPC has no ids
        missed = [(one.id, shape(one.event)) async for one in again]
    # The memory store keeps an ended task without its events. The missed events are part of the task.
    assert missed == (received[3:] if store == "sqlite" else [(received[-1][0], ("task", "completed"))])
