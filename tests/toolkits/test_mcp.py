"""`apcore-a2a mcp`: an A2A agent as an MCP server, called by the client of the MCP SDK in both of its protocol eras."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from apcore_a2a.protocol.model import Part, TaskState
from apcore_a2a.protocol.questions import Question
from apcore_a2a.toolkits import open_tools
from apcore_a2a.toolkits.mcp import read_form, to_form, to_mcp, to_result
from apcore_a2a.toolkits.tools import ToolOutcome
from tests.fakes import PATIENCE
from tests.toolkits.desk import PNG
from tests.toolkits.test_tools import states

ERAS = ("auto", "legacy")
VALUES = {"boolean": True, "integer": 3, "string": "Rome"}


class User:
    """Fills in forms, and remembers them."""

    def __init__(self, action: str = "accept", **values: Any) -> None:
        self.action = action
        self.values = values
        self.messages: list[str] = []
        self.forms: list[dict[str, Any]] = []

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.messages.append(params.message)
        fields = params.requested_schema["properties"]
        self.forms.append(fields)
        if self.action != "accept":
            return types.ElicitResult.model_validate({"action": self.action})
        content = {name: self.values.get(name, VALUES[field["type"]]) for name, field in fields.items()}
        return types.ElicitResult(action="accept", content=content)


@asynccontextmanager
async def over_stdio(url: str, era: Any, user: User | None) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "apcore_a2a", "mcp", url], env=dict(os.environ)
    )
    async with asyncio.timeout(3 * PATIENCE):
        async with Client(stdio_client(parameters), mode=era, elicitation_callback=user) as client:
            yield client


@asynccontextmanager
async def inside(url: str, era: Any, user: User | None) -> AsyncIterator[Client]:
    """Call the server without a transport."""
    async with asyncio.timeout(PATIENCE), open_tools(url) as tools:
        async with Client(to_mcp(tools), mode=era, elicitation_callback=user) as client:
            yield client


@contextmanager
def over_http(url: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run `mcp --http` in a process, and yield its address and the process."""
    command = [sys.executable, "-m", "apcore_a2a", "mcp", url, "--http", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://127\.0\.0\.1:\d+/mcp", process.stderr.readline())
            assert found is not None
            yield found[0], process
        finally:
            process.kill()


def text_of(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


@pytest.mark.parametrize("era", ERAS)
async def test_a_program_talks_to_the_agent_over_standard_input_and_output(url: str, era: str) -> None:
    user = User()
    reports: list[tuple[float, str | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, message))

    async with over_stdio(url, era, user) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        added = await client.call_tool("add", {"a": 2, "b": 3})
        toured = await client.call_tool("tour", {"text": "go"})
        booked = await client.call_tool("trip_book", {"seats": 2}, progress_callback=progress)
    add = listed["add"]
    assert add.title == "Add"
    assert add.input_schema["required"] == ["a", "b"]
    assert set(add.input_schema["properties"]) == {"a", "b"}
    assert add.annotations is not None and add.annotations.read_only_hint is True
    assert (text_of(added), added.structured_content) == ("5", {"result": 5})
    assert text_of(toured) == "3 days in Rome"
    assert text_of(booked) == "2 seats in Rome"
    assert (0.5, "Looking") in reports
    assert user.messages[0] == "Which city?"
    assert user.forms[1] == {"days": {"type": "integer", "minimum": 1, "description": "How many days?"}}
    assert set(await states(url)) == {TaskState.COMPLETED}
    assert len(await states(url)) == 3


@pytest.mark.parametrize("era", ERAS)
async def test_the_user_approves_a_call(url: str, era: str) -> None:
    user = User(approve=True)
    async with inside(url, era, user) as client:
        paid = await client.call_tool("pay", {"amount": 5})
    assert user.messages == ['Approval required for skill pay. Reply "approve" or "reject".\npay {"amount":5}']
    assert list(user.forms[0]) == ["approve"]
    assert paid.structured_content == {"paid": 5}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("user", [User(approve=False), User("decline")])
async def test_the_user_rejects_a_call(url: str, era: str, user: User) -> None:
    async with inside(url, era, user) as client:
        rejected = await client.call_tool("pay", {"amount": 5})
    assert rejected.is_error
    assert await states(url) == [TaskState.REJECTED]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_declined_question_cancels_the_task(url: str, era: str, action: str) -> None:
    async with inside(url, era, User(action)) as client:
        declined = await client.call_tool("tour", {"text": "go"})
    assert (declined.is_error, text_of(declined)) == (True, "The user declined to answer")
    assert await states(url) == [TaskState.CANCELED]


@pytest.mark.parametrize("era", ERAS)
async def test_files_and_failures(url: str, era: str) -> None:
    async with inside(url, era, None) as client:
        (picture,) = (await client.call_tool("draw", {"text": "x"})).content
        refused = await client.call_tool("refuse", {"text": "no"})
        wrong = await client.call_tool("add", {"a": "x"})
        with pytest.raises(MCPError, match="Unknown tool: nothing"):
            await client.call_tool("nothing", {})
    assert isinstance(picture, types.ImageContent)
    assert (picture.mime_type, picture.data) == ("image/png", "iVBORw0KGgox")
    assert (refused.is_error, text_of(refused)) == (True, "The remote task ended as FAILED: Refused: no")
    assert wrong.is_error and "a: Expected" in text_of(wrong)


@pytest.mark.parametrize("era", ERAS)
async def test_a_model_answers_for_a_client_without_forms_but_approves_nothing(url: str, era: str) -> None:
    async with inside(url, era, None) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"a2a_task_id", "a2a_answer"} <= listed["trip_book"].input_schema["properties"].keys()
        asked = text_of(await client.call_tool("trip_book", {"seats": 2}))
        task_id = re.search(r'"a2a_task_id": "([^"]+)"', asked)
        assert asked.startswith("The remote agent asks its user: Which city?") and task_id is not None
        answer = {"seats": 2, "a2a_task_id": task_id[1], "a2a_answer": "Rome"}
        assert text_of(await client.call_tool("trip_book", answer)) == "2 seats in Rome"
        asked = text_of(await client.call_tool("pay", {"amount": 5}))
        task_id = re.search(r"--task-id (\S+)\)?", asked)
        assert task_id is not None
        answer = {"amount": 5, "a2a_task_id": task_id[1], "a2a_answer": "approve"}
        assert (await client.call_tool("pay", answer)).is_error
    assert sorted(await states(url)) == [TaskState.COMPLETED, TaskState.INPUT_REQUIRED]


async def test_an_answer_survives_the_death_of_the_server(url: str) -> None:
    """Of the MCP server, which keeps nothing: the state that it gives its client names the task."""
    async with asyncio.timeout(3 * PATIENCE):
        with over_http(url) as (address, process):
            async with Client(address, elicitation_callback=User()) as client:
                asked = await client.session.call_tool("tour", {"text": "go"}, allow_input_required=True)
            process.kill()
        assert isinstance(asked, types.InputRequiredResult)
        given: Any = {"question": types.ElicitResult(action="accept", content={"answer": "Oslo"})}
        with over_http(url) as (address, _):
            async with Client(address, elicitation_callback=User()) as client:

                async def answer(responses: Any, state: str | None) -> Any:
                    return await client.session.call_tool(
                        "tour",
                        {"text": "go"},
                        allow_input_required=True,
                        input_responses=responses,
                        request_state=state,
                    )

                second = await answer(given, asked.request_state)
                repeated = await answer(given, asked.request_state)
                assert repeated == second  # "Oslo" answers only the first question
                days: Any = {"question": types.ElicitResult(action="accept", content={"days": 2})}
                done = await answer(days, second.request_state)
                with pytest.raises(MCPError, match="The requestState is not from this server"):
                    await answer(days, "something else")
    assert text_of(done) == "2 days in Oslo"
    assert await states(url) == [TaskState.COMPLETED]


async def test_an_earlier_client_is_asked_over_http(url: str) -> None:
    async with asyncio.timeout(3 * PATIENCE), AsyncExitStack() as stack:
        address, _ = stack.enter_context(over_http(url))
        client = await stack.enter_async_context(Client(address, mode="legacy", elicitation_callback=User()))
        assert text_of(await client.call_tool("trip_book", {"seats": 2})) == "2 seats in Rome"


@pytest.mark.parametrize("era", ERAS)
async def test_a_cancelled_call_of_a_client_cancels_the_task(url: str, era: str) -> None:
    has_begun = asyncio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        has_begun.set()

    async with inside(url, era, None) as client:
        call = asyncio.create_task(client.call_tool("wait", {"text": "x"}, progress_callback=progress))
        await has_begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await states(url) == [TaskState.CANCELED]


def test_an_agent_that_cannot_be_reached_ends_the_command() -> None:
    command = [sys.executable, "-m", "apcore_a2a", "mcp", "http://127.0.0.1:9"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert ended.returncode != 0
    assert ended.stdout == ""  # which belongs to MCP
    assert "127.0.0.1:9" in ended.stderr


# ---- forms and results ----------------------------------------------------------------------------------------------


def test_a_form_has_a_field_for_each_question() -> None:
    questions = [
        Question(id="1", text="Pay?", kind="approval", tool="pay"),
        Question(id="2", text="Look?", kind="approval", tool="look"),
        Question(id="when", text="When?", schema={"type": "string", "format": "date", "pattern": "(a+)+"}),
        Question(id="to", text="To?", schema={"type": "object"}, optional=True),
    ]
    form = to_form(questions)
    assert form["properties"] == {
        "approve": {"type": "boolean", "title": "Approve", "description": "Pay?"},
        "approve_2": {"type": "boolean", "title": "Approve", "description": "Look?"},
        "when": {"type": "string", "format": "date", "description": "When?"},
        "to": {"type": "string", "description": "To? (JSON)"},
    }
    assert form["required"] == ["approve", "approve_2", "when"]
    content = {"approve": True, "approve_2": False, "when": "2026-01-01", "to": '{"a": 1}'}
    assert read_form(content, questions) == {"1": True, "2": False, "when": "2026-01-01", "to": {"a": 1}}
    assert read_form({"to": "Ada"}, questions) == {"to": "Ada"}


def test_each_kind_of_file_has_its_block() -> None:
    files = (
        Part(raw=PNG, media_type="image/png"),
        Part(raw=b"1", media_type="audio/wav"),
        Part(raw=b"a,b", filename="table.csv", media_type="text/csv"),
        Part(url="https://example.com/far.txt", filename="far.txt"),
    )
    result = to_result(ToolOutcome(data=[1], files=files, task_id="t-1"))
    assert [block.type for block in result.content] == ["text", "image", "audio", "resource", "resource_link"]
    assert result.structured_content == {"result": [1]}
