"""Agents that answer a message before its task is done: `send_message` waits for the task."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apcore_a2a.client import A2AClient, Retry, streaming
from apcore_a2a.errors import A2AConnectionError
from apcore_a2a.protocol.model import SendConfiguration, Task, TaskState
from tests.client.conftest import Connect
from tests.client.scripted import (
    CARD,
    STREAM_HEAD,
    Answer,
    Request,
    ScriptedServer,
    card,
    card_03,
    error,
    event,
    hang,
    respond,
    result,
    status,
    stream,
    task,
)

EARLY = {"task": task("SUBMITTED")}
DONE = task("COMPLETED", artifacts=[{"artifactId": "a-1", "parts": [{"text": "done"}]}])


class EarlyAgent:
    """Answers each message with a working task. It is completed after `looks` polls."""

    def __init__(self, subscribe: Answer, *, looks: int = 0) -> None:
        self.methods: list[str] = []
        self.last: dict[str, Any] = {}
        self._subscribe = subscribe
        self._looks = looks

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        method = request.json["method"]
        self.methods.append(method)
        self.last = request.json["params"]
        match method:
            case "SendMessage":
                await result(EARLY)(request, writer)
            case "SubscribeToTask":
                assert not isinstance(self._subscribe, bytes)
                await self._subscribe(request, writer)
            case _:
                self._looks -= 1
                await result(DONE if self._looks < 0 else task("WORKING"))(request, writer)


async def silence(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD)
    await hang(request, writer)


async def working(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD + event(request, {"task": task("WORKING")}))
    await hang(request, writer)


@pytest.mark.parametrize(
    ("subscribe", "looks"),
    [
        (stream({"task": task("WORKING")}, status("COMPLETED")), 0),
        (error(-32004), 3),
        (error(-32601), 2),
        (silence, 1),
    ],
    ids=["streams", "does not stream", "does not know how", "says nothing"],
)
async def test_a_message_is_answered_with_its_task_at_rest(
    server: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, subscribe: Answer, looks: int
) -> None:
    monkeypatch.setattr(streaming, "SNAPSHOT_WAIT", 0.05)
    agent = EarlyAgent(subscribe, looks=looks)
    server.on("/", agent)

    answer = await connect().send_message("hi", configuration=SendConfiguration(history_length=3))

    assert isinstance(answer, Task)
    assert answer.status.state is TaskState.COMPLETED
    assert answer.artifacts[0].parts[0].text == "done"
    assert agent.methods[:2] == ["SendMessage", "SubscribeToTask"]
    assert agent.last["historyLength"] == 3


async def test_wait_false_returns_the_first_answer(server: ScriptedServer, connect: Connect) -> None:
    agent = EarlyAgent(hang)
    server.on("/", agent)

    at_once = await connect().send_message("hi", configuration=SendConfiguration(return_immediately=True))
    first = await connect().send_message("hi", wait=False)

    assert isinstance(at_once, Task)
    assert isinstance(first, Task)
    assert at_once.status.state is first.status.state is TaskState.SUBMITTED
    assert agent.methods == ["SendMessage", "SendMessage"]


@pytest.mark.parametrize("subscribe", [working, hang, error(-32004)])
async def test_the_timeout_bounds_the_wait_and_the_error_names_the_task(
    server: ScriptedServer, connect: Connect, subscribe: Answer
) -> None:
    server.on("/", EarlyAgent(subscribe, looks=10**9))

    async with asyncio.timeout(5):
        with pytest.raises(A2AConnectionError, match=r"Task t-1 is still running after 0\.2 seconds"):
            await connect(poll_interval=0.01).send_message("hi", timeout=0.2)


@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_token_providers_timeout_while_waiting_is_not_reported_as_the_clients(
    server: ScriptedServer, connect: Connect, timeout: float | None
) -> None:
    asked = 0

    async def provide() -> str:
        nonlocal asked
        asked += 1
        if asked > 2:  # the card and the message still have a token
            raise TimeoutError("the vault is slow")
        return "t0k"

    server.on("/", EarlyAgent(working))

    with pytest.raises(TimeoutError, match="the vault is slow"):
        await connect(auth=provide, timeout=timeout).send_message("hi")


@pytest.fixture
async def old(connect: Connect) -> AsyncIterator[tuple[ScriptedServer, A2AClient]]:
    """A 0.3 agent with REST, and a client of it."""
    async with ScriptedServer() as server:
        server.on(CARD, respond(card_03(server.url, preferredTransport="HTTP+JSON", capabilities={})))
        yield server, connect(server.url)


async def test_the_task_of_an_early_answer_is_waited_for_over_rest_of_0_3(
    old: tuple[ScriptedServer, A2AClient],
) -> None:
    server, client = old
    server.on("/v1/message:send", respond({"task": task("SUBMITTED")}))
    server.on("/v1/tasks/t-1", respond(task("WORKING")), respond(task("WORKING")), respond(DONE))

    answer = await client.send_message("hi")

    assert isinstance(answer, Task)
    assert answer.status.state is TaskState.COMPLETED


async def test_the_task_of_an_early_answer_is_waited_for_over_rest_of_1_0(
    server: ScriptedServer, connect: Connect
) -> None:
    interface = {"url": server.url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
    server.on(CARD, respond(card(server.url, supportedInterfaces=[interface], capabilities={"streaming": False})))
    server.on("/message:send", respond(EARLY))
    server.on("/tasks/t-1", respond(task("WORKING")), respond(DONE))

    answer = await connect().send_message("hi")

    assert isinstance(answer, Task)
    assert answer.status.state is TaskState.COMPLETED


async def test_the_error_names_the_task_when_the_agent_is_lost_while_waiting(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on("/", result({"task": task("WORKING")}), respond(b"", 302, {"Location": "/login"}))

    with pytest.raises(A2AConnectionError, match=r"lost, but task t-1 may still be running\. .*redirects") as caught:
        await connect(retry=Retry(attempts=1)).send_message("hi")
    assert caught.value.sent
