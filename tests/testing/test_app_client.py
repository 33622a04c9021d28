"""The client of an app without a socket: streams, disconnects, and errors."""

import asyncio
from contextlib import aclosing
from importlib.metadata import entry_points
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from apcore_a2a.app.serve import async_serve
from apcore_a2a.client import A2AClient
from apcore_a2a.client.transport import HttpRequest
from apcore_a2a.errors import (
    A2AConnectionError,
    InvalidAgentResponseError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.model import ArtifactUpdate, Message, StatusUpdate, Task, TaskState
from apcore_a2a.testing import AppTransport, Gate, ScriptedAgent, app_client, chunk, says, status
from apcore_a2a.testing.app_client import BUFFER

GET = HttpRequest("GET", "http://agent.test/a%20b?x=1", {"X-One": "1"})


async def test_a_function_is_called_as_if_it_were_served() -> None:
    async def shout(message: str) -> str:
        return message.upper()

    async with app_client(shout, name="shouter") as client:
        task = await client.send_message("hello")
        card = await client.agent_card

    assert isinstance(task, Task)
    assert task.artifacts[0].parts[0].text == "HELLO"
    assert card.name == "shouter"


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_an_event_arrives_while_the_agent_still_works(binding: Any) -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": (chunk("a"), gate, chunk("b", append=True), "COMPLETED")})
    async with app_client(agent, client={"binding": binding}) as client, asyncio.timeout(5):
        events = client.stream_message("slow")
        async for event in events:
            if isinstance(event, ArtifactUpdate):
                break  # the gate is closed: a transport that waits for the end of the stream would not get here
        await gate.reached()
        gate.open()
        rest = [event async for event in events]

    assert isinstance(rest[-1], StatusUpdate)
    assert rest[-1].status.state is TaskState.COMPLETED


async def test_the_agent_keeps_running_when_its_client_disconnects() -> None:
    gate = Gate()
    agent = ScriptedAgent({"slow": ("WORKING", gate, "COMPLETED")})
    async with app_client(agent) as client, asyncio.timeout(5):
        async with aclosing(client.stream_message("slow")) as events:
            task = await anext(events)
        assert isinstance(task, Task)
        await gate.reached()
        gate.open()
        assert (await client.wait(task.id)).status.state is TaskState.COMPLETED


async def test_every_operation_goes_through() -> None:
    async with app_client(ScriptedAgent({"ask": (status("INPUT_REQUIRED", "Which?"),)})) as client:
        asking = await client.send_message("ask")
        assert isinstance(asking, Task)
        assert (await client.send_message("this", task_id=asking.id)).to_dict()["id"] == asking.id
        assert (await client.list_tasks()).total_size == 1
        with pytest.raises(TaskNotFoundError):
            await client.get_task("unknown")


async def test_an_app_below_a_mount_path_is_called() -> None:
    app = Starlette(routes=[Mount("/sub", app=await async_serve(ScriptedAgent()))])
    async with A2AClient("http://agent.test/sub", http=AppTransport(app)) as client:
        task = await client.send_message("hi")

    assert isinstance(task, Task)


async def test_an_app_is_started_up_and_shut_down() -> None:
    seen: list[str] = []
    app = await async_serve(
        ScriptedAgent(), on_startup=[lambda: seen.append("up")], on_shutdown=[lambda: seen.append("down")]
    )
    async with app_client(app):
        assert seen == ["up"]
    assert seen == ["up", "down"]


async def test_a_failed_startup_is_raised_with_its_reason() -> None:
    def broken() -> None:
        raise ValueError("no disk")

    with pytest.raises(RuntimeError, match="no disk"):
        async with app_client(ScriptedAgent(), on_startup=[broken]):
            pass


async def test_an_exception_of_the_app_is_raised_in_the_caller() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await AppTransport(app).request(GET, 100)


async def test_an_app_without_a_response_is_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    with pytest.raises(A2AConnectionError):
        await AppTransport(app).request(GET, 100)


async def test_a_request_arrives_as_it_was_sent() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([scope, await receive()])
        await send({"type": "http.response.start", "status": 201, "headers": [(b"X-Two", b"2")]})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        await send({"type": "http.response.body", "body": b"def"})

    response = await AppTransport(app).request(GET, 6)

    assert (response.status, response.headers["x-two"], response.body) == (201, "2", b"abcdef")
    assert (seen[0]["path"], seen[0]["query_string"], seen[0]["method"]) == ("/a b", b"x=1", "GET")
    assert (b"x-one", b"1") in seen[0]["headers"]
    with pytest.raises(InvalidAgentResponseError):
        await AppTransport(app).request(GET, 5)


async def test_a_header_of_the_client_is_sent_once() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value for name, value in scope["headers"] if name == b"host")
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    response = await AppTransport(app).request(HttpRequest("GET", "http://agent.test/", {"Host": "mine"}), 1)

    assert (seen, response.headers) == ([b"mine"], {})


async def test_an_endless_response_stops_when_its_client_disconnects() -> None:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0)
        ended.set()

    async with asyncio.timeout(5), AppTransport(app).stream(GET, 1) as response:
        assert await anext(response.chunks) == b"x"
    assert ended.is_set()


async def test_an_app_cannot_run_far_ahead_of_its_reader() -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(10 * BUFFER):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            sent += 1

    async with asyncio.timeout(5), AppTransport(app).stream(GET, 1) as response:
        await anext(response.chunks)
        for _ in range(20 * BUFFER):
            await asyncio.sleep(0)  # give the app every chance to run ahead
        assert sent <= BUFFER + 2


async def test_a_script_may_reject_fail_and_reply() -> None:
    refusing = ScriptedAgent(
        {"no": UnsupportedOperationError("not that"), "break": (ValueError("inner"),), "hi": (says("Hello!"),)},
        may_reply=True,
    )
    async with app_client(refusing) as client:
        with pytest.raises(UnsupportedOperationError, match="not that"):
            await client.send_message("no")
        broken = await client.send_message("break")
        reply = await client.send_message("hi")

    assert isinstance(broken, Task) and broken.status.state is TaskState.FAILED
    assert isinstance(reply, Message) and reply.parts[0].text == "Hello!"
    assert [str(call.message.parts[0].text) for call in refusing.calls] == ["break", "hi"]


async def test_the_plugin_offers_the_client(a2a_app_client: Any) -> None:
    async with a2a_app_client(ScriptedAgent()) as client:
        assert isinstance(await client.send_message("hi"), Task)


def test_pytest_finds_the_plugin_by_itself() -> None:
    assert [point.value for point in entry_points(group="pytest11", name="apcore_a2a")] == ["apcore_a2a.pytest_plugin"]
