"""Plain functions as agents: the events for the values that they return."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from apcore_a2a.agent import Call
from apcore_a2a.agents.content import agent_message
from apcore_a2a.agents.functions.agent import ask
from apcore_a2a.errors import AgentError
from apcore_a2a.protocol.model import ArtifactUpdate, Message, Part, Role, StatusUpdate, Task, TaskState, TaskStatus
from tests.conversations import contents, talk_to, text_of


async def test_a_returned_string_becomes_an_artifact_of_a_completed_task() -> None:
    async def echo(message: Message) -> str:
        return str(message.parts[0].text)

    async with talk_to(echo) as user:
        task = await user.task("Hello")
    assert task.status.state is TaskState.COMPLETED
    assert contents(task) == [["Hello"]]


async def test_the_stream_begins_before_the_function_runs() -> None:
    gate = asyncio.Event()

    async def wait(message: Message) -> str:
        await gate.wait()
        return "done"

    async with talk_to(wait) as user:
        task = await user.task("Go", now=True)
        assert task.status.state in (TaskState.SUBMITTED, TaskState.WORKING)
        gate.set()
        await user.until(task, TaskState.COMPLETED)


async def test_a_returned_text_is_one_whole_artifact_event() -> None:
    async def answer() -> str:
        return "42"

    async with talk_to(answer) as user:
        updates = [event for event in await user.stream("?") if isinstance(event, ArtifactUpdate)]
    assert [(update.append, update.last_chunk) for update in updates] == [(False, True)]


@dataclass
class Point:
    x: int
    y: int


class Model(pydantic.BaseModel):
    x: int


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"n": 2**70}, [[{"n": 2**70}]]),
        (["a", "b"], [[["a", "b"]]]),
        (7, [[7]]),
        (False, [[False]]),
        (b"\x00\xff", [[b"\x00\xff"]]),
        (bytearray(b"x"), [[b"x"]]),
        (Part(url="https://example.com/x.png"), [["https://example.com/x.png"]]),
        ([Part(text="a"), {"n": 1}, "b"], [["a", {"n": 1}, "b"]]),
        (Point(1, 2), [[{"x": 1, "y": 2}]]),
        (Model(x=1), [[{"x": 1}]]),
        ([Model(x=1)], [[[{"x": 1}]]]),
        ({1: "one"}, [[{"1": "one"}]]),
        ("", []),
        (None, []),
    ],
)
async def test_a_result_becomes_parts(result: Any, expected: list[list[object]]) -> None:
    async def give() -> Any:
        return result

    async with talk_to(give) as user:
        task = await user.task("?")
    assert (task.status.state, contents(task)) == (TaskState.COMPLETED, expected)


@pytest.mark.parametrize("result", [object(), {"x": float("nan")}, [float("inf")], {"deep": {1, object()}}])
async def test_a_value_without_a_json_form_fails_the_task_with_a_clear_text(result: object) -> None:
    async def give() -> object:
        return result

    async with talk_to(give) as user:
        task = await user.task("?")
    assert task.status.state is TaskState.FAILED
    assert text_of(task) == f"The agent's output has no JSON form: {type(result).__name__}"


async def test_a_function_annotated_with_message_replies_without_a_task() -> None:
    async def reply(message: Message) -> Message:
        return agent_message("Hello to you")

    async with talk_to(reply) as user:
        answer = await user.ask("Hello")
    assert isinstance(answer, Message)
    assert (text_of(answer), answer.role) == ("Hello to you", Role.AGENT)


async def test_a_function_that_may_return_a_message_can_return_another_value() -> None:
    async def maybe(text: str) -> Message | str:
        return agent_message("hi") if text == "message" else "artifact"

    async with talk_to(maybe) as user:
        assert isinstance(await user.ask("message"), Message)
        assert contents(await user.task("text")) == [["artifact"]]


async def test_a_message_without_an_annotation_completes_the_task() -> None:
    async def reply(message: Message):  # type: ignore[no-untyped-def]  # the point: no return annotation
        return agent_message("Hello to you")

    async with talk_to(reply) as user:
        task = await user.task("Hello")
    assert (task.status.state, text_of(task), task.artifacts) == (TaskState.COMPLETED, "Hello to you", [])


async def test_an_a2a_error_fails_the_task_with_its_text() -> None:
    async def fail() -> str:
        raise AgentError("No such city")

    async with talk_to(fail) as user:
        task = await user.task("?")
    assert (task.status.state, text_of(task)) == (TaskState.FAILED, "No such city")


@pytest.mark.parametrize(
    "error",
    [
        AgentError("No file caf\udce9"),
        AgentError("No file caf", kind="NoCaf\udce9"),
        AgentError("No file caf", file="\udce9"),
    ],
    ids=["text", "kind", "metadata"],
)
async def test_an_error_with_an_invalid_file_name_in_its_text_fails_the_task(error: AgentError) -> None:
    async def fail() -> str:
        raise error  # `os.listdir` returns such names: a byte that is not UTF-8 becomes a lone surrogate

    async with talk_to(fail) as user:
        task = await user.task("?")
    assert (task.status.state, text_of(task)) == (TaskState.FAILED, "No file caf")


async def test_any_other_error_fails_the_task_and_its_text_is_not_sent() -> None:
    async def fail() -> str:
        raise ValueError("secret")

    async with talk_to(fail) as user:
        task = await user.task("?")
    assert task.status.state is TaskState.FAILED
    assert "secret" not in text_of(task)


async def test_a_function_that_asks_is_called_again_with_the_answer() -> None:
    async def greet(text: str, call: Call) -> str | StatusUpdate:
        return f"Hello, {text}" if call.resumed else ask("Your name?")

    async with talk_to(greet) as user:
        task = await user.task("Hi")
        assert (task.status.state, text_of(task)) == (TaskState.INPUT_REQUIRED, "Your name?")
        task = await user.task("Ada", task=task)
    assert (task.status.state, contents(task)) == (TaskState.COMPLETED, [["Hello, Ada"]])


async def test_a_returned_task_is_stored_unchanged() -> None:
    async def reject(call: Call) -> Task:
        status = TaskStatus(state=TaskState.REJECTED, message=agent_message("Not for me"))
        return Task(id=call.task.id, context_id=call.task.context_id, status=status)

    async with talk_to(reject) as user:
        task = await user.task("?")
    assert (task.status.state, text_of(task)) == (TaskState.REJECTED, "Not for me")
