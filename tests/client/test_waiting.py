"""The end of a stream, and waiting for the end of a task."""

import asyncio
from contextlib import aclosing

import pytest

from apcore_a2a.client import streaming
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import StatusUpdate, Task, TaskState
from tests.client.conftest import Connect
from tests.client.logged_agent import LoggedAgent, counting
from tests.client.scripted import (
    CARD,
    STREAM_END,
    STREAM_HEAD,
    Answer,
    Request,
    ScriptedServer,
    artifact,
    card,
    error,
    event,
    hang,
    reset,
    respond,
    result,
    status,
    stream,
    task,
)
from tests.requirements import requirement

FIRST = {"task": task("WORKING")}


async def cut(request: Request, writer: asyncio.StreamWriter) -> None:
    reset(writer)


@requirement("FR-CLI-004")
async def test_a_stream_ends_with_its_task_even_if_the_agent_keeps_it_open(
    server: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, FIRST) + event(request, status("COMPLETED")))
        await hang(request, writer)

    monkeypatch.setattr(streaming, "CLOSE_WAIT", 0.05)
    server.on("/", write)

    async with asyncio.timeout(5):
        assert len([one async for one in connect().stream_message("hi")]) == 2


async def test_the_connection_of_an_ended_stream_is_reused(connect: Connect) -> None:
    seen = asyncio.Event()

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, FIRST) + event(request, status("COMPLETED")))
        await seen.wait()  # the end comes after the last event, in a separate packet
        writer.write(STREAM_END)

    async with asyncio.timeout(5), ScriptedServer(keep_alive=True) as server:
        server.on(CARD, respond(card(server.url))).on("/", write)
        client = connect(server.url)
        for _ in range(5):
            seen.clear()
            async for one in client.stream_message("hi"):
                if isinstance(one, StatusUpdate):
                    seen.set()

        assert server.connections == 2  # the card's response said "close"


async def test_closing_a_stream_closes_its_connection(server: ScriptedServer, connect: Connect) -> None:
    gone = asyncio.Event()

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, FIRST))
        with pytest.raises(ConnectionError):
            while True:
                writer.write(event(request, artifact("x" * 65536)))
                await writer.drain()
        gone.set()

    server.on("/", write)
    async with asyncio.timeout(5):
        async with aclosing(connect().stream_message("hi")) as events:
            await anext(events)
        await gone.wait()


async def test_waiting_for_a_task_survives_broken_connections(server: ScriptedServer, connect: Connect) -> None:
    agent = LoggedAgent(v1, counting(9), cuts=[1, 1, 1], missed=1)
    agent.position = 1
    for _ in range(100):
        agent.seen()
    server.on("/", agent)

    async with asyncio.timeout(5):
        assert await connect().wait("t-1") == agent.task()
    assert agent.task().status.state is TaskState.COMPLETED


@pytest.mark.parametrize("refusal", [error(-32004), error(-32602), cut, stream()])
async def test_a_task_without_a_stream_is_polled_until_it_rests(
    server: ScriptedServer, connect: Connect, refusal: Answer
) -> None:
    seen = {"n": 0}

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.json["method"] == "SubscribeToTask":
            await refusal(request, writer)  # type: ignore[operator]  # all of them are functions
            return
        seen["n"] += 1
        state = "WORKING" if seen["n"] < 3 else "INPUT_REQUIRED"
        await result(task(state))(request, writer)

    server.on("/", answer)

    async with asyncio.timeout(5):
        assert (await connect().wait("t-1")).status.state is TaskState.INPUT_REQUIRED


async def test_a_task_is_not_polled_more_often_than_poll_interval(
    server: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    answers = [result(task("WORKING")) for _ in range(4)]
    server.on(CARD, respond(card(server.url, capabilities={"streaming": False})))
    server.on("/", *answers, result(task("COMPLETED")))
    monkeypatch.setattr(asyncio, "sleep", note)

    await connect(poll_interval=30.0).wait("t-1")

    assert pauses == [30.0] * 4


async def test_within_bounds_the_wait(server: ScriptedServer, connect: Connect) -> None:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, FIRST))
        await hang(request, writer)

    server.on("/", write)

    with pytest.raises(TimeoutError):
        await connect().wait("t-1", within=0.05)


async def test_a_task_at_rest_is_not_waited_for(connect: Connect) -> None:
    ended = v1.decode_event(v1.encode_event(counting(0)[0]))
    assert isinstance(ended, Task)
    ended.status = counting(0)[-1].status  # type: ignore[union-attr]  # it is a StatusUpdate

    assert await connect("http://127.0.0.1:1").wait(ended) is ended
