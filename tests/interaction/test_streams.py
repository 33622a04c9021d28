"""Streams over both bindings and both versions: events, order, subscribers and end."""

import asyncio
from pathlib import Path

import pytest

from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, StatusUpdate, Task, TaskState
from tests.fakes import ASKS, COMPLETED, PATIENCE, WORKING, Gate, ScriptedAgent, chunk, says, status
from tests.interaction.conftest import Speak
from tests.interaction.speaking import Refused, Speaker, Stream
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


async def heard(stream: Stream) -> list[object]:
    async with asyncio.timeout(PATIENCE):
        return [shape(event) for event in await stream.rest()]


async def begin(speaker: Speaker, gate: Gate) -> Task:
    """Begin a task whose run waits at the gate."""
    task = await speaker.send("hi", return_immediately=True)
    await gate.reached()
    return task


# ---- a message and its stream ------------------------------------------------------------------------------------


@requirement("FR-MSG-002")
async def test_a_stream_begins_with_the_task_before_the_agent_runs(speak: Speak) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (gate, COMPLETED)}))
    async with speaker.stream("hi") as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert shape(await stream.next()) == ("task", "submitted")
        assert shape(await stream.next()) == "working"
        gate.open()
        assert await heard(stream) == ["completed"]


@requirement("FR-MSG-002")
async def test_a_stream_sends_all_events_in_order_and_ends(speak: Speak) -> None:
    script = (chunk("a"), chunk("b", append=True), WORKING, chunk("c", append=True, last=True), COMPLETED)
    speaker = await speak(ScriptedAgent({"hi": script}))
    async with speaker.stream("hi") as stream:
        told = [(one.id, one.event) async for one in stream]
    assert [shape(event) for _, event in told] == [("task", "submitted"), "working", "a", "b", "c", "completed"]
    chunks = [event for _, event in told if isinstance(event, ArtifactUpdate)]
    assert [(one.append, one.last_chunk) for one in chunks] == [(False, False), (True, False), (True, True)]
    ids = [int(id) for id, _ in told]
    assert ids == list(range(ids[0], ids[0] + len(ids)))


async def test_every_event_of_a_stream_names_its_task(speak: Speak) -> None:
    speaker = await speak(ScriptedAgent({"hi": (chunk("a"), COMPLETED)}))
    async with speaker.stream("hi", context_id="talk") as stream:
        task, *updates = await stream.rest()
    assert isinstance(task, Task) and task.context_id == "talk"
    for update in updates:
        assert isinstance(update, StatusUpdate | ArtifactUpdate)
        assert (update.task_id, update.context_id) == (task.id, "talk")


async def test_a_failure_is_the_last_event(speak: Speak) -> None:
    speaker = await speak(ScriptedAgent({"hi": (chunk("a"), AgentError("No paper"))}))
    async with speaker.stream("hi") as stream:
        *_, last = await stream.rest()
    assert isinstance(last, StatusUpdate) and last.status.state is TaskState.FAILED
    assert last.status.message is not None and last.status.message.parts[0].text == "No paper"


async def test_a_stream_ends_when_the_user_is_asked(speak: Speak) -> None:
    speaker = await speak(ScriptedAgent(default=(ASKS,)))
    async with speaker.stream("hi") as stream:
        assert (await heard(stream))[-1] == "input_required"


async def test_a_stream_continues_while_the_task_waits_for_credentials(speak: Speak) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (status(TaskState.AUTH_REQUIRED), gate, WORKING, COMPLETED)}))
    async with speaker.stream("hi") as stream:
        assert [shape(await stream.next()) for _ in range(3)][-1] == "auth_required"
        await gate.reached()
        gate.open()
        assert await heard(stream) == ["working", "completed"]


async def test_a_reply_without_a_task_is_the_only_event(speak: Speak) -> None:
    speaker = await speak(ScriptedAgent({"hi": (says("hello"),)}, may_reply=True))
    async with speaker.stream("hi") as stream:
        assert await heard(stream) == [("message", "hello")]


async def test_the_stream_of_a_later_turn_begins_with_the_task(speak: Speak) -> None:
    speaker = await speak(ScriptedAgent({"hi": (chunk("a"), ASKS), "more": (chunk("b", append=True), COMPLETED)}))
    task = await speaker.send("hi")
    async with speaker.stream("more", task_id=task.id) as stream:
        first = await stream.next()
        assert isinstance(first, Task) and first.status.state is TaskState.WORKING
        assert [part.text for part in first.artifacts[0].parts] == ["a"]
        assert first.history[-1].parts[0].text == "more"
        assert await heard(stream) == ["b", "completed"]


async def test_a_rejected_message_opens_no_stream(speak: Speak) -> None:
    speaker = await speak(ScriptedAgent())
    with pytest.raises(Refused) as refused:
        async with speaker.stream("hi", task_id="unknown") as stream:
            await stream.next()
    assert refused.value.code == TASK_NOT_FOUND


# ---- subscribing -------------------------------------------------------------------------------------------------


@requirement("FR-MSG-006")
async def test_a_subscriber_gets_the_current_task_and_then_its_events(speak: Speak) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (chunk("a"), gate, chunk("b", append=True), COMPLETED)}))
    task = await begin(speaker, gate)
    async with speaker.subscribe(task.id) as stream:
        snapshot = await stream.next()
        assert isinstance(snapshot, Task) and snapshot.status.state is TaskState.WORKING
        assert [part.text for part in snapshot.artifacts[0].parts] == ["a"]
        gate.open()
        assert await heard(stream) == ["b", "completed"]


async def test_all_subscribers_get_the_same_events(speak: Speak) -> None:
    first, second = Gate(), Gate()
    speaker = await speak(ScriptedAgent({"hi": (first, chunk("a"), second, chunk("b", append=True), COMPLETED)}))
    async with speaker.stream("hi") as one:
        task = await one.next()
        assert isinstance(task, Task)
        await first.reached()
        async with speaker.subscribe(task.id) as two:
            await two.next()
            first.open()
            await second.reached()
            second.open()
            told = [(item.id, shape(item.event)) async for item in one]
            assert [(item.id, shape(item.event)) async for item in two] == told[-3:]


async def test_a_disconnected_subscriber_does_not_affect_the_others(speak: Speak) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (gate, chunk("a"), COMPLETED)}))
    task = await begin(speaker, gate)
    async with speaker.subscribe(task.id) as stays:
        await stays.next()
        async with speaker.subscribe(task.id) as leaves:
            await leaves.next()
        gate.open()
        assert await heard(stays) == ["a", "completed"]


async def test_a_subscriber_to_a_waiting_task_gets_the_events_of_its_next_turn(speak: Speak) -> None:
    speaker = await speak(ScriptedAgent({"hi": (ASKS,)}))
    task = await speaker.send("hi")
    async with speaker.subscribe(task.id) as stream:
        assert shape(await stream.next()) == ("task", "input_required")
        await speaker.send("more", task_id=task.id)
        assert await heard(stream) == ["working", "completed"]


async def test_a_cancel_is_the_last_event_of_a_stream(speak: Speak) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (gate, COMPLETED)}))
    async with speaker.stream("hi") as stream:
        task = await stream.next()
        assert isinstance(task, Task)
        await gate.reached()
        await speaker.cancel(task.id)
        assert (await heard(stream))[-1] == "canceled"


@requirement("FR-MSG-006")
async def test_subscribing_to_an_ended_task_returns_one_event_in_0_3_and_an_error_in_1_0(speak: Speak) -> None:
    speaker = await speak(ScriptedAgent())
    task = await speaker.send("hi")
    if speaker.version == "0.3":
        async with speaker.subscribe(task.id) as stream:
            assert await heard(stream) == ["completed"]
        return
    with pytest.raises(Refused) as refused:
        async with speaker.subscribe(task.id):
            pass
    assert refused.value.code == UNSUPPORTED


@requirement("FR-MSG-006")
async def test_subscribing_to_an_unknown_task_is_rejected(speak: Speak) -> None:
    speaker = await speak(ScriptedAgent())
    with pytest.raises(Refused) as refused:
        async with speaker.subscribe("unknown") as stream:
            await stream.next()
    assert refused.value.code == TASK_NOT_FOUND


async def test_with_last_event_id_0_3_replays_missed_events_and_1_0_sends_a_snapshot(speak: Speak) -> None:
    gate = Gate()
    speaker = await speak(ScriptedAgent({"hi": (chunk("a"), chunk("b", append=True), gate, COMPLETED)}))
    async with speaker.stream("hi") as stream:
        events = aiter(stream)
        first, _, a = [await anext(events) for _ in range(3)]
        assert isinstance(first.event, Task) and shape(a.event) == "a"
        await gate.reached()
        async with speaker.subscribe(first.event.id, Last_Event_ID=a.id) as again:
            told = shape(await again.next())
            gate.open()
            assert [told, *await heard(again)] == (
                ["b", "completed"] if speaker.version == "0.3" else [("task", "working"), "completed"]
            )


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_with_last_event_id_0_3_replays_the_missed_events_of_an_ended_task(
    speak: Speak, tmp_path: Path, store: str
) -> None:
    options = {"store": f"sqlite:///{tmp_path}/tasks.db"} if store == "sqlite" else {}
    speaker = await speak(ScriptedAgent({"hi": (chunk("a"), chunk("b", append=True), COMPLETED)}), **options)
    async with speaker.stream("hi") as stream:
        told = [(one.id, shape(one.event)) async for one in stream]
    task_id = (await speaker.list()).tasks[0].id
    if speaker.version == "1.0":
        with pytest.raises(Refused):
            async with speaker.subscribe(task_id, Last_Event_ID=told[2][0]):
                pass
        return
    async with speaker.subscribe(task_id, Last_Event_ID=told[2][0]) as again:
        missed = [(one.id, shape(one.event)) async for one in again]
    # The memory store keeps an ended task without its events. The missed events are part of the task.
    assert missed == (told[3:] if store == "sqlite" else [(told[-1][0], ("task", "completed"))])
