"""What an agent says, as the events of its task."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from apcore_a2a import Call, ModelUsage, Question, ToolCalled, ToolDone
from apcore_a2a.agent import ShowTools
from apcore_a2a.agents.content import MAX_RESULT
from apcore_a2a.agents.functions.agent import TaskOutput
from apcore_a2a.protocol.lifecycle import PROGRESS
from apcore_a2a.protocol.model import ArtifactUpdate, StatusUpdate, TaskState
from apcore_a2a.protocol.questions import questions_of
from tests.conversations import talk_to

CALLED = ToolCalled(id="c-1", name="pay", arguments={"to": "Ada"})
DONE = ToolDone(id="c-1", name="pay", result="paid")
FAILED = ToolDone(id="c-1", name="pay", result="no money", failed=True)


def shown(said: Any, show: ShowTools) -> tuple[str, Any] | None:
    """Return the text and the data by which clients see a tool, or None if they do not see it."""
    events = list(TaskOutput(show_tools=show).add(said))
    if not events:
        return None
    (event,) = events
    assert isinstance(event, StatusUpdate)
    assert event.status.state is TaskState.WORKING
    assert event.status.message is not None
    assert event.status.message.metadata == {PROGRESS: None}  # it is not kept in the history
    return event.status.message.parts[0].text, event.status.message.parts[1].data  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("said", "show", "seen"),
    [
        (CALLED, "no", None),
        (CALLED, "names", ("pay", {"id": "c-1", "name": "pay"})),
        (CALLED, "arguments", ("pay(to='Ada')", {"id": "c-1", "name": "pay", "args": {"to": "Ada"}})),
        (CALLED, "results", ("pay(to='Ada')", {"id": "c-1", "name": "pay", "args": {"to": "Ada"}})),
        (DONE, "no", None),
        (DONE, "names", ("pay done", {"id": "c-1", "name": "pay"})),
        (DONE, "arguments", ("pay done", {"id": "c-1", "name": "pay"})),
        (DONE, "results", ("pay done", {"id": "c-1", "name": "pay", "response": {"result": "paid"}})),
        (FAILED, "names", ("pay failed", {"id": "c-1", "name": "pay", "response": {"error": "failed"}})),
        (FAILED, "results", ("pay failed", {"id": "c-1", "name": "pay", "response": {"error": "no money"}})),
    ],
)
def test_a_tool_is_shown_as_far_as_its_owner_allows(said: Any, show: ShowTools, seen: Any) -> None:
    assert shown(said, show) == seen


def test_a_status_of_a_tool_is_small_and_has_a_json_form() -> None:
    large = shown(ToolDone(id="1", name="read", result=["x" * MAX_RESULT] * 9), "results")
    odd = shown(ToolDone(id="1", name="read", result=object), "results")
    assert large is not None and odd is not None
    assert len(str(large[1])) < 2 * MAX_RESULT
    assert odd[1]["response"] == {"result": "<class 'object'>"}


def test_text_after_a_tool_is_another_artifact() -> None:
    output = TaskOutput(show_tools="no")
    events = [event for said in ("one", " text", CALLED, DONE, "another") for event in output.add(said)]
    assert all(isinstance(event, ArtifactUpdate) for event in events)
    first, second, third = [event.artifact.artifact_id for event in events if isinstance(event, ArtifactUpdate)]
    assert first == second != third


async def test_a_function_says_what_it_does() -> None:
    async def clerk(text: str) -> AsyncIterator[str | ToolCalled | ToolDone | ModelUsage]:
        yield CALLED
        yield ModelUsage(requests=1, input_tokens=10)
        yield DONE
        yield "Done"
        yield ModelUsage(requests=1, input_tokens=5, output_tokens=2)

    async with talk_to(clerk) as user:
        events = await user.stream("go")
        said = [event.status.text for event in events if isinstance(event, StatusUpdate)]
        assert said == ["", "pay(to='Ada')", "pay done", ""]
        task = await user.task("go")
    assert task.text == "Done"
    assert task.metadata == {"apcore.usage": {"requests": 2, "inputTokens": 15, "outputTokens": 2}}


async def test_a_function_asks_by_yielding_a_question() -> None:
    question = Question(id="q", text="Which?", schema={"enum": ["a", "b"]})

    async def clerk(text: str, call: Call) -> AsyncIterator[Any]:
        yield text if call.resumed else question

    async with talk_to(clerk) as user:
        task = await user.task("go")
        assert questions_of(task.status.message) == [question]
        task = await user.task("a", task=task)
    assert (task.status.state, task.text) == (TaskState.COMPLETED, "a")
