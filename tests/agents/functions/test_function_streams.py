"""Generator functions as agents: the events for the values that they yield."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from apcore_a2a.agent import Call
from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.agents.content import agent_message
from apcore_a2a.agents.functions.agent import ask
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import ArtifactUpdate, Message, StatusUpdate, TaskState, TaskStatus
from tests.conversations import content_of, contents, make_call, talk_to, text_of

Content = str | bytes | dict[str, int] | None


async def test_pieces_of_text_append_to_one_artifact_and_none_is_held_back_or_empty() -> None:
    async def count(text: str) -> AsyncIterator[str]:
        for piece in ("one", " two", " three"):
            yield piece

    async with talk_to(count) as user:
        events = await user.stream("Count")
    updates = [event for event in events if isinstance(event, ArtifactUpdate)]
    assert [(update.artifact.parts[0].text, update.append, update.last_chunk) for update in updates] == [
        ("one", False, False),
        (" two", True, False),
        (" three", True, False),
    ]
    assert len({update.artifact.artifact_id for update in updates}) == 1
    assert isinstance(events[-1], StatusUpdate) and events[-1].status.state is TaskState.COMPLETED


async def test_a_piece_is_sent_before_the_next_one_is_produced() -> None:
    gate = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "first"
        await gate.wait()
        yield "second"

    async with talk_to(slowly) as user:
        task = await user.task("?", now=True)
        async with asyncio.timeout(5), aclosing(user.watch(task)) as tasks:
            task = await anext(task async for task in tasks if task.artifacts)
        assert contents(task) == [["first"]]
        gate.set()
        task = await user.until(task, TaskState.COMPLETED)
    assert contents(task) == [["firstsecond"]]


async def test_any_other_value_is_a_whole_artifact_of_its_own() -> None:
    async def report() -> AsyncIterator[Content]:
        yield "See "
        yield {"rows": 3}
        yield b"png"
        yield "above"
        yield None
        yield ""

    async with talk_to(report) as user:
        events = await user.stream("?")
    updates = [event for event in events if isinstance(event, ArtifactUpdate)]
    assert [(content_of(update.artifact.parts[0]), update.append, update.last_chunk) for update in updates] == [
        ("See ", False, False),
        ({"rows": 3}, False, True),
        (b"png", False, True),
        ("above", True, False),
    ]
    assert len({update.artifact.artifact_id for update in updates}) == 3


async def test_an_object_that_changes_after_its_yield_is_kept_as_yielded() -> None:
    async def progress() -> AsyncIterator[dict[str, int]]:
        state = {"percent": 0}
        yield state
        state["percent"] = 100
        yield state

    async with talk_to(progress) as user:
        task = await user.task("?")
    assert contents(task) == [[{"percent": 0}], [{"percent": 100}]]


async def test_a_generator_can_yield_messages_and_events() -> None:
    async def work() -> AsyncIterator[Message | StatusUpdate | str]:
        yield agent_message("Looking it up")
        yield StatusUpdate(status=TaskStatus(state=TaskState.WORKING, message=agent_message("Still looking")))
        yield "result"
        yield StatusUpdate(status=TaskStatus(state=TaskState.REJECTED, message=agent_message("Changed my mind")))

    async with talk_to(work) as user:
        events = await user.stream("?")
    told = [(event.status.state, text_of(event.status.message)) for event in events if isinstance(event, StatusUpdate)]
    assert told[-3:] == [
        (TaskState.WORKING, "Looking it up"),
        (TaskState.WORKING, "Still looking"),
        (TaskState.REJECTED, "Changed my mind"),
    ]
    updates = [event.last_chunk for event in events if isinstance(event, ArtifactUpdate)]
    assert updates == [False]  # the end of the task ends its text


async def test_a_generator_that_asks_is_not_completed() -> None:
    async def plan(call: Call) -> AsyncIterator[str | StatusUpdate]:
        yield "draft"
        if not call.resumed:
            yield ask("Good?")

    async with talk_to(plan) as user:
        task = await user.task("?")
        assert (task.status.state, contents(task)) == (TaskState.INPUT_REQUIRED, [["draft"]])
        task = await user.task("Yes", task=task)
    assert (task.status.state, contents(task)) == (TaskState.COMPLETED, [["draft"], ["draft"]])


async def test_a_message_after_a_question_leaves_the_task_waiting() -> None:
    async def plan() -> AsyncIterator[Message | StatusUpdate]:
        yield ask("Good?")
        yield agent_message("Take your time")

    async with talk_to(plan) as user:
        task = await user.task("?")
    assert (task.status.state, text_of(task)) == (TaskState.INPUT_REQUIRED, "Take your time")


async def test_a_generator_that_fails_keeps_its_artifacts() -> None:
    async def breaks() -> AsyncIterator[str]:
        yield "half"
        raise AgentError("Out of paper")

    async with talk_to(breaks) as user:
        task = await user.task("?")
    assert (task.status.state, text_of(task), contents(task)) == (TaskState.FAILED, "Out of paper", [["half"]])


async def test_a_cancelled_generator_is_closed() -> None:
    started, closed = asyncio.Event(), asyncio.Event()

    async def endless() -> AsyncIterator[str]:
        try:
            started.set()
            await asyncio.Event().wait()
            yield "never"
        finally:
            closed.set()

    async with talk_to(endless) as user:
        task = await user.task("?", now=True)
        await asyncio.wait_for(started.wait(), 5)
        assert (await user.cancel(task)).status.state is TaskState.CANCELED
    assert closed.is_set()


async def test_a_generator_of_messages_does_not_reply_with_the_first() -> None:
    async def talk() -> AsyncIterator[Message]:
        yield agent_message("one")
        yield agent_message("two")

    async with talk_to(talk) as user:
        task = await user.task("?")
    assert [text_of(message) for message in task.history[1:]] == ["one", "two"]


async def test_a_generator_is_closed_with_its_run() -> None:
    closed = asyncio.Event()

    async def count() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.set()

    events = as_agent(count).run(make_call())
    await anext(events)
    await events.aclose()
    assert closed.is_set()
