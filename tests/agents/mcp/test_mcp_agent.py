"""MCP servers as agents: their tools as skills, progress, files, elicitations as questions, cancellation."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import uvicorn
from mcp import StdioServerParameters
from mcp.server.lowlevel import Server

from apcore_a2a import A2AClient, StatusUpdate, Task
from apcore_a2a.agents.as_agent import as_agent
from apcore_a2a.agents.mcp.agent import MCPAgent, to_output
from apcore_a2a.agents.mcp.sessions import MAX_BUSY, MCPSessions
from apcore_a2a.agents.mcp.targets import MCPServerURL
from apcore_a2a.client.skills import read_skills
from apcore_a2a.errors import InvalidParamsError, LimitExceededError, OverloadedError
from apcore_a2a.protocol.lifecycle import PROGRESS
from apcore_a2a.protocol.model import Part, TaskState
from apcore_a2a.protocol.questions import questions_of
from apcore_a2a.testing import app_client
from tests.agents.mcp import toolbox
from tests.fakes import PATIENCE
from tests.sources import ROOT


@asynccontextmanager
async def connected(server: Any, **options: Any) -> AsyncIterator[A2AClient]:
    async with asyncio.timeout(3 * PATIENCE), app_client(server, **options) as client:
        yield client


def program(effects: Path | None = None) -> StdioServerParameters:
    env = {"EFFECTS": str(effects)} if effects is not None else None
    return StdioServerParameters(command=sys.executable, args=[toolbox.__file__], env=env, cwd=str(ROOT))


async def call(client: A2AClient, skill: str, inputs: Any, **options: Any) -> Task:
    task = await client.send_message(inputs, skill=skill, **options)
    assert isinstance(task, Task)
    return task


async def answer(client: A2AClient, task: Task, given: Any) -> Task:
    answered = await client.send_message(given, task_id=task.id, context_id=task.context_id)
    assert isinstance(answered, Task)
    return answered


async def test_tools_are_typed_skills() -> None:
    async with connected(toolbox.server) as client:
        card = await client.agent_card
        skills = {skill.id: skill for skill in read_skills(card, str)}
    assert (card.name, card.description, card.version) == ("toolbox", "Tools of all kinds.", "3")
    assert skills["forecast"].name == "Weather"
    assert skills["forecast"].input_schema["required"] == ["city"]
    assert skills["forecast"].output_schema["properties"]["days"]["type"] == "integer"
    assert skills["forecast"].annotations["readonly"] is True
    assert skills["add"].annotations["destructive"] is True  # the default of MCP


@pytest.mark.parametrize("server", [toolbox.server, program()], ids=["in-process", "program"])
async def test_a_tool_is_called(server: Any) -> None:
    async with connected(server) as client:
        added = await call(client, "add", {"a": 2.0, "b": 3})  # official clients send numbers as floats
        weather = await call(client, "forecast", {"city": "Rome", "days": 3})
        from_text = await call(client, "forecast", "Rome")
        picture = await call(client, "draw", {})
        failed = await call(client, "fail", {})
    assert added.data == 5
    assert weather.data == {"city": "Rome", "days": 3}
    assert from_text.data == {"city": "Rome", "days": 1}
    assert [(file.raw, file.media_type) for file in picture.files] == [(toolbox.PNG, "image/png")]
    assert failed.status.state is TaskState.FAILED
    assert "no such thing" in failed.status.text


async def test_wrong_inputs_create_no_task() -> None:
    async with connected(toolbox.server) as client:
        with pytest.raises(InvalidParamsError) as wrong:
            await call(client, "add", {"a": "x"})
        with pytest.raises(InvalidParamsError, match="Skill not found: ad"):
            await call(client, "ad", {"a": 1, "b": 2})
        with pytest.raises(InvalidParamsError, match=r"metadata\.skillId"):
            await client.send_message({"a": 1, "b": 2})
        assert (await client.list_tasks()).tasks == ()
    assert {each.field for each in wrong.value.violations} == {"a", "b"}


async def test_progress_is_the_status_of_the_task() -> None:
    seen: list[float] = []
    async with connected(toolbox.server) as client:
        task_id = ""
        async for event in client.stream_message({}, skill="slow"):
            if isinstance(event, Task):
                task_id = event.id
            if isinstance(event, StatusUpdate) and event.status.message is not None:
                seen.append((event.status.message.metadata or {})[PROGRESS])
                if len(seen) == 3:
                    break
        await client.cancel_task(task_id)
    assert seen == sorted(seen)
    assert seen[-1] > 0


async def test_a_cancelled_task_ends_the_tool(tmp_path: Path) -> None:
    effects = tmp_path / "effects.txt"
    async with connected(program(effects)) as client:
        async for event in client.stream_message({}, skill="slow"):
            if isinstance(event, StatusUpdate) and event.status.message is not None:
                break
        (task,) = (await client.list_tasks()).tasks
        canceled = await client.cancel_task(task.id)
    assert canceled.status.state is TaskState.CANCELED
    assert effects.read_text() == "cancelled\n"


@pytest.mark.parametrize("server", [toolbox.server, program()], ids=["in-process", "program"])
async def test_an_elicitation_is_a_question_with_a_schema(server: Any) -> None:
    async with connected(server) as client:
        asked = await call(client, "book", {"city": "Rome"})
        (question,) = questions_of(asked.status.message)
        assert asked.status.state is TaskState.INPUT_REQUIRED
        assert (question.text, question.optional) == ("How many seats?", True)
        assert question.schema is not None and question.schema["required"] == ["seats"]
        again = await answer(client, asked, {"seats": "many"})
        assert "does not fit" in again.status.text
        sure = await answer(client, asked, {"seats": 2, "window": True})
        assert questions_of(sure.status.message)[0].text == "Book 2 seats to Rome?"
        done = await answer(client, asked, "yes")
    assert done.text == "2 seats to Rome, window True"


async def test_a_server_at_a_url_is_served() -> None:
    """Streamable HTTP: progress, and questions that are answered in a later session."""
    application = toolbox.server.streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="on"))
    listening = socket.create_server(("127.0.0.1", 0))  # requests wait in its backlog until the server has started
    async with asyncio.timeout(3 * PATIENCE):
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        async with connected(MCPServerURL(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")) as client:
            added = await call(client, "add", {"a": 2, "b": 3})
            asked = await call(client, "book", {"city": "Rome"})
            asked = await answer(client, asked, {"seats": 2})
            done = await answer(client, asked, "yes")
        server.should_exit = True
        await serving
    assert added.data == 5
    assert done.text == "2 seats to Rome, window False"


async def test_a_declined_elicitation_is_declined() -> None:
    async with connected(toolbox.server) as client:
        asked = await call(client, "book", {"city": "Rome"})
        done = await answer(client, asked, "decline")
    assert done.text == "not booked: decline"


async def test_an_answer_survives_a_restart(tmp_path: Path) -> None:
    """A new server with the same store, and a new process of the MCP server, for each answer."""
    effects = tmp_path / "effects.txt"
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with connected(program(effects), store=store) as client:
        asked = await call(client, "book", {"city": "Rome"})
    async with connected(program(effects), store=store) as client:
        asked = await answer(client, asked, {"seats": 2})
    async with connected(program(effects), store=store) as client:
        done = await answer(client, asked, {"sure": True})
    assert done.text == "2 seats to Rome, window False"
    assert effects.read_text() == "booked\n"


async def test_calls_of_one_owner_share_a_session() -> None:
    async with connected(program()) as client:
        first = await call(client, "process", {})
        second = await call(client, "process", {})
        asked = await call(client, "book", {"city": "Rome"})  # its session is closed: the tool waits in it
        third = await call(client, "process", {})
    assert asked.status.state is TaskState.INPUT_REQUIRED
    assert first.data == second.data != third.data


async def test_a_server_that_has_died_is_started_again(tmp_path: Path) -> None:
    async with connected(program()) as client:
        first = await call(client, "process", {})
        os.kill(first.data, signal.SIGKILL)
        added = await call(client, "add", {"a": 2, "b": 3})
    assert added.data == 5


async def test_a_program_that_is_not_an_mcp_server_is_an_error_at_the_start() -> None:
    silent = StdioServerParameters(command=sys.executable, args=["-c", "pass"])
    missing = StdioServerParameters(command="no-such-program")
    for server, reason in ((silent, "Connection closed"), (missing, "No such file")):
        with pytest.raises(RuntimeError, match=f"The MCP server does not answer: .*{reason}.*; check its command"):
            async with connected(server):
                pass


def test_calls_are_limited_in_total_and_for_each_owner() -> None:
    sessions = MCPSessions(toolbox.server)
    sessions.check_room("ada")
    sessions._busy["ada"] = MAX_BUSY // 2
    sessions.check_room("bob")
    with pytest.raises(LimitExceededError):
        sessions.check_room("ada")
    sessions._busy["bob"] = MAX_BUSY // 2
    with pytest.raises(OverloadedError):
        sessions.check_room("cyd")


async def test_owners_share_no_session() -> None:
    sessions = MCPSessions(toolbox.server)
    async with asyncio.timeout(PATIENCE):
        ada, connected = await sessions.take("ada")
        await sessions.put_back("ada", ada, connected)
        bob, bobs = await sessions.take("bob")
        again, _ = await sessions.take("ada")
        await sessions.drop("bob", bob)
        await sessions.put_back("ada", again, connected)
        await sessions.close()
    assert bob is not ada
    assert again is ada
    assert not sessions._busy
    assert bobs is not connected


async def test_a_tool_of_the_newer_protocol_keeps_its_state() -> None:
    """It returns its questions, and is called again with its own state instead of from its start."""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="trip", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: Any) -> Any:
        if params.request_state is None:
            schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
            form = types.ElicitRequestFormParams(message="Which city?", requested_schema=schema)
            requests: Any = {"where": types.ElicitRequest(params=form)}
            return types.InputRequiredResult(input_requests=requests, request_state="kept")
        city = params.input_responses["where"].content["city"]
        return types.CallToolResult(content=[types.TextContent(text=f"{params.request_state}: {city}")])

    server: Server[Any] = Server("trips", on_list_tools=list_tools, on_call_tool=call_tool)
    async with connected(MCPAgent(server, protocol="2026-07-28")) as client:
        asked = await call(client, "trip", {})
        assert asked.status.text.startswith("Which city?")
        done = await answer(client, asked, "Rome")
    assert done.text == "kept: Rome"


def test_results_become_parts() -> None:
    text = types.TextContent(text="5")
    image = types.ImageContent(data="MQ==", mime_type="image/png")
    link = types.ResourceLink(name="far.txt", uri="https://example.com/far.txt")
    assert to_output(types.CallToolResult(content=[text, link])) == [
        [Part(text="5"), Part(url="https://example.com/far.txt", filename="far.txt")]
    ]
    wrapped = types.CallToolResult(content=[text, image], structured_content={"result": 5})
    assert to_output(wrapped) == [[Part(data=5, media_type="application/json"), Part(raw=b"1", media_type="image/png")]]
    assert to_output(types.CallToolResult(content=[])) == []


def test_an_mcp_server_is_recognized() -> None:
    assert type(as_agent(toolbox.server)).__name__ == "MCPAgent"
    assert type(as_agent(program())).__name__ == "MCPAgent"
