"""`open_tools`: the calls, questions, repeated calls and failures of the tools of a remote agent."""

import asyncio
import json
from typing import Any

import pytest

from apcore_a2a import A2AClient
from apcore_a2a.client import Retry
from apcore_a2a.errors import A2AError, AgentError, InvalidParamsError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.toolkits import open_tools
from apcore_a2a.toolkits.tools import to_question, to_tool_name
from tests.client.scripted import CARD, ScriptedServer, card, respond, result, stream, task
from tests.fakes import PATIENCE
from tests.toolkits.desk import PNG


def words(text: str) -> dict[str, Any]:
    return {"messageId": "m-1", "role": "ROLE_AGENT", "parts": [{"text": text}]}


async def states(url: str) -> list[TaskState]:
    async with A2AClient(url) as client:
        return [task.status.state async for task in client.iter_tasks()]


async def test_a_tool_is_typed_from_the_card(url: str) -> None:
    async with open_tools(url) as tools:
        add = tools["add"]
        assert [tool.name for tool in tools] == [
            "add", "trip_book", "tour", "pay", "refuse", "crash", "draw", "wait",
        ]  # fmt: skip
        assert len(tools) == 8
        assert add.description == "Add two numbers."
        assert add.input_schema["required"] == ["a", "b"]
        assert add.input_schema["properties"]["a"] == {"type": "integer", "description": "The first number."}
        assert add.annotations["readonly"] is True
        assert [tool.requires_approval for tool in (add, tools["pay"])] == [False, True]
        assert tools["trip.book"] is tools["trip_book"]
        with pytest.raises(KeyError, match=r"no tool 'ad'.*add, trip_book"):
            tools["ad"]


async def test_a_call_returns_the_result(url: str) -> None:
    async with open_tools(url) as tools:
        outcome = await tools["add"].call({"a": 2, "b": 3})
        picture = await tools["draw"].call({})
    assert (outcome.data, outcome.content, outcome.is_waiting) == (5, "5", False)
    assert picture.files[0].raw == PNG
    assert picture.content == "[file: picture.png]"


def test_tools_work_without_an_event_loop(url: str) -> None:
    with open_tools(url) as tools:
        assert tools["add"].call_sync({"a": 2, "b": 3}).data == 5
        asked = tools["trip_book"].call_sync({"seats": 2})
        assert tools["trip_book"].reply_sync(asked.task_id, "Rome").text == "2 seats in Rome"


async def test_a_question_waits_for_its_answer(url: str) -> None:
    async with open_tools(url) as tools:
        asked = await tools["trip_book"].call({"seats": 2})
        assert (asked.is_waiting, asked.text) == (True, "Which city?")
        assert json.dumps(to_question(asked))
        booked = await tools["trip_book"].reply(asked.task_id, "Rome", asked=asked.asked)
    assert (booked.is_waiting, booked.text) == (False, "2 seats in Rome")
    assert await states(url) == [TaskState.COMPLETED]


async def test_an_answer_to_an_earlier_question_is_not_sent(url: str) -> None:
    async with open_tools(url) as tools:
        tour = tools["tour"]
        first = await tour.call({})
        second = await tour.reply(first.task_id, "Rome", asked=first.asked)
        assert [each.id for each in second.questions] == ["days"]
        again = await tour.reply(first.task_id, "7", asked=first.asked)
        assert again == second
        done = await tour.reply(first.task_id, 3, asked=second.asked)
        after = await tour.reply(first.task_id, 4, asked=second.asked)
    assert done.text == after.text == "3 days in Rome"


@pytest.mark.parametrize(("answer", "state"), [(True, TaskState.COMPLETED), (False, TaskState.REJECTED)])
async def test_a_boolean_decides_about_an_approval(url: str, answer: bool, state: TaskState) -> None:
    async with open_tools(url) as tools:
        asked = await tools["pay"].call({"amount": 5})
        (question,) = asked.questions
        assert (question.kind, question.tool, question.arguments) == ("approval", "pay", {"amount": 5})
        if answer:
            assert (await tools["pay"].reply(asked.task_id, True)).data == {"paid": 5}
        else:
            with pytest.raises(AgentError, match="REJECTED"):
                await tools["pay"].reply(asked.task_id, False)
    assert await states(url) == [state]


@pytest.mark.parametrize("is_new_process", [False, True])
async def test_a_repeated_call_finds_the_task_of_the_first(url: str, is_new_process: bool) -> None:
    """As a framework repeats it: each time with all answers so far. A new process remembers no task."""
    answers: list[Any] = ["Rome", 3]
    async with open_tools(url) as tools:
        for given in range(3):
            if is_new_process and given:
                tools.close()
                tools = open_tools(url).open()
            outcome = await tools["tour"].call({}, key="call-1")
            for number, answer in enumerate(answers[:given]):
                outcome = await tools["tour"].reply(outcome.task_id, answer, key=f"call-1/{number}")
        other = await tools["tour"].call({}, key="call-2")
        tools.close()
    assert (outcome.is_waiting, outcome.text) == (False, "3 days in Rome")
    assert other.task_id != outcome.task_id
    assert sorted(await states(url)) == [TaskState.COMPLETED, TaskState.INPUT_REQUIRED]


async def test_a_cancelled_call_cancels_its_task(url: str) -> None:
    has_begun = asyncio.Event()

    async def progress(done: float | None, text: str) -> None:
        has_begun.set()

    async with asyncio.timeout(PATIENCE), open_tools(url) as tools:
        call = asyncio.create_task(tools["wait"].call({}, progress=progress))
        await has_begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    # The end of the block has awaited the cancellation of the task.
    assert await states(url) == [TaskState.CANCELED]


async def test_a_call_that_lasts_too_long_cancels_its_task(url: str) -> None:
    async with open_tools(url, timeout=2) as tools:
        with pytest.raises(AgentError, match="did not answer in time"):
            await tools["wait"].call({})
    assert await states(url) == [TaskState.CANCELED]


async def test_a_waiting_task_can_be_cancelled(url: str) -> None:
    async with open_tools(url) as tools:
        asked = await tools["tour"].call({})
        await tools["tour"].cancel(asked.task_id)
        await tools["tour"].cancel(asked.task_id)
    assert await states(url) == [TaskState.CANCELED]


async def test_a_model_reads_what_is_wrong_and_no_secrets(url: str) -> None:
    async with open_tools(url) as tools:
        with pytest.raises(InvalidParamsError) as wrong:
            await tools["add"].call({"a": "x", "b": 3})
        assert [each.field for each in wrong.value.violations] == ["a"]
        with pytest.raises(AgentError, match="FAILED: Refused: no"):
            await tools["refuse"].call({"text": "no"})
        with pytest.raises(AgentError) as crashed:
            await tools["crash"].call({})
        with pytest.raises(AgentError, match="no longer has the task"):
            await tools["add"].look("unknown")
    assert "secret" not in str(crashed.value)
    with pytest.raises(AgentError, match="The tools are closed"):
        await tools["add"].call({"a": 1, "b": 2})


async def test_an_agent_that_is_gone_has_no_address_in_the_error() -> None:
    async with ScriptedServer() as server:
        server.on(CARD, respond(card(server.url)))
        tools = open_tools(server.url)
        await asyncio.to_thread(tools.open)
    tool = next(iter(tools))
    with pytest.raises(AgentError) as gone:
        await tool.call({"text": "x"})
    assert str(gone.value) == "The remote agent is not available or returns errors"
    await asyncio.to_thread(tools.close)


async def test_progress_arrives_in_the_loop_of_the_caller(url: str) -> None:
    reports: list[tuple[float | None, str]] = []
    loop = asyncio.get_running_loop()

    async def progress(done: float | None, text: str) -> None:
        assert asyncio.get_running_loop() is loop
        reports.append((done, text))

    async with open_tools(url) as tools:
        await tools["trip_book"].call({"seats": 2}, progress=progress)
    assert (0.5, "Looking") in reports


async def test_text_of_the_agent_is_sanitized() -> None:
    evil = task(status={"state": "TASK_STATE_FAILED", "message": words("go\x1b[31m on\u202e")})
    async with asyncio.timeout(PATIENCE), ScriptedServer() as server:
        server.on(CARD, respond(card(server.url))).on("/", stream({"task": evil}), result(evil))
        async with open_tools(server.url) as tools:
            with pytest.raises(AgentError) as failed:
                await next(iter(tools)).call({"text": "x"})
    assert str(failed.value) == "The remote task ended as FAILED: go on"


@pytest.mark.parametrize(
    ("skill_id", "name"),
    [("math.add", "math_add"), ("9 lives", "skill_9_lives"), ("", "skill"), ("ü", "skill"), ("x" * 99, "x" * 60)],
)
def test_names_suit_every_model_provider(skill_id: str, name: str) -> None:
    assert to_tool_name(skill_id) == name


async def test_an_agent_without_skills_is_one_tool() -> None:
    async with asyncio.timeout(PATIENCE), ScriptedServer() as server:
        server.on(CARD, respond(card(server.url, name="Clerk", description="Pays.", skills=[])))
        server.on("/", stream({"task": task()}), result(task()))
        async with open_tools(server.url) as tools:
            (tool,) = tools
            await tool.call({"text": "hello"})
        sent = server.asked("/")[0].json["params"]["message"]
    assert (tool.name, tool.description, tool.input_schema["required"]) == ("Clerk", "Pays.", ["text"])
    assert sent["parts"] == [{"text": "hello"}]
    assert "metadata" not in sent


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_positive(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be positive"):
        open_tools("https://agent.example.com", timeout=timeout)


def test_closed_tools_are_not_iterable() -> None:
    with pytest.raises(RuntimeError, match="not open"):
        list(open_tools("https://agent.example.com"))


def test_an_agent_that_cannot_be_reached_is_an_error_at_once() -> None:
    with pytest.raises(A2AError), open_tools("http://127.0.0.1:9", retry=Retry(attempts=1)):
        pass
