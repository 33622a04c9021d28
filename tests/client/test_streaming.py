"""Streams: their events, their end, and their recovery from broken connections."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from itertools import chain, repeat
from typing import Any

import pytest

from apcore_a2a.client import Retry
from apcore_a2a.errors import A2AConnectionError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import ArtifactUpdate, Event, Message, StatusUpdate, Task, TaskState
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.client.conftest import Connect
from tests.client.logged_agent import LoggedAgent, counting, replayed
from tests.client.logged_agent import status as update
from tests.client.scripted import (
    CARD,
    STREAM_HEAD,
    Request,
    ScriptedServer,
    artifact,
    card,
    card_03,
    hang,
    respond,
    status,
    stream,
    task,
)
from tests.client.scripted import event as event_frame
from tests.requirements import requirement

MESSAGE = {"messageId": "m-2", "role": "ROLE_AGENT", "parts": [{"text": "hello"}]}


async def collect(events: AsyncGenerator[Event], agent: LoggedAgent | None = None) -> list[Event]:
    got: list[Event] = []
    async with asyncio.timeout(5), aclosing(events):
        async for event in events:
            got.append(event)
            if agent is not None:
                agent.seen()
    return got


@requirement("FR-CLI-004")
async def test_a_stream_yields_all_events_and_ends_with_the_task(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", stream({"task": task("SUBMITTED")}, status("WORKING"), artifact("a"), status("COMPLETED")))

    got = await collect(connect().stream_message("hi"))

    assert [type(event) for event in got] == [Task, StatusUpdate, ArtifactUpdate, StatusUpdate]
    assert server.asked("/")[0].json["method"] == "SendStreamingMessage"


@requirement("FR-CLI-004")
async def test_rest_events_have_no_json_rpc_envelope(server: ScriptedServer, connect: Connect) -> None:
    interfaces = [{"url": server.url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}]
    server.on(CARD, respond(card(server.url, supportedInterfaces=interfaces)))
    frames = [b"data: %b\n\n: keep-alive\n\n" % v1.encode_event(event) for event in counting(0)]
    server.on("/message:stream", respond(b"".join(frames), headers={"Content-Type": "text/event-stream"}))

    assert [type(event) for event in await collect(connect().stream_message("hi"))] == [
        Task,
        StatusUpdate,
        StatusUpdate,
    ]


async def test_a_message_is_a_whole_stream(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", stream({"message": MESSAGE}))

    (got,) = await collect(connect().stream_message("hi"))

    assert isinstance(got, Message)


async def test_a_task_that_waits_for_input_ends_its_stream(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", stream({"task": task("WORKING")}, status("INPUT_REQUIRED")))

    assert len(await collect(connect().stream_message("hi"))) == 2
    assert len(server.asked("/")) == 1


async def test_a_break_after_a_request_for_input_ends_the_stream(server: ScriptedServer, connect: Connect) -> None:
    waiting = [counting(0)[0], update(TaskState.INPUT_REQUIRED), update(TaskState.WORKING)]
    agent = LoggedAgent(v1, waiting, cuts=cut_after(2))
    server.on("/", agent)

    assert await collect(connect().stream_message("hi"), agent) == waiting[:2]
    assert agent.connections == 1


# ---- broken connections ------------------------------------------------------------------------------------------


def cut_after(*numbers: int) -> Iterable[int]:
    """Cut the connections after these numbers of events, and no later ones."""
    return chain(numbers, repeat(10_000))


async def test_a_stream_cut_twenty_times_delivers_every_event_exactly_once(
    server: ScriptedServer, connect: Connect
) -> None:
    agent = LoggedAgent(v03, counting(100), cuts=cut_after(*[3] * 20), missed=1)
    server.on(CARD, respond(card_03(server.url))).on("/", agent)

    got = await collect(connect().stream_message("hi"), agent)

    assert got == agent.events
    assert agent.connections == 21


async def test_events_missed_between_two_connections_are_replayed(server: ScriptedServer, connect: Connect) -> None:
    agent = LoggedAgent(v03, counting(40), cuts=cut_after(*[1] * 4), missed=7)
    server.on(CARD, respond(card_03(server.url))).on("/", agent)

    assert await collect(connect().stream_message("hi"), agent) == agent.events
    last_ids = [request.headers.get("last-event-id") for request in server.asked("/")]
    assert last_ids == [None, "1", "9", "17", "25"]


@pytest.mark.parametrize("missed", [1, 4])
async def test_a_stream_reset_at_every_event_resumes_from_snapshots(
    server: ScriptedServer, connect: Connect, missed: int
) -> None:
    agent = LoggedAgent(v1, counting(20), cuts=chain([1], repeat(0)), missed=missed)
    server.on("/", agent)

    got = await collect(connect().stream_message("hi"), agent)

    assert all(isinstance(event, Task) for event in got)
    assert replayed(got) == agent.task()
    assert agent.task().status.state is TaskState.COMPLETED
    assert [request.json["method"] for request in server.asked("/")[1:]] == ["SubscribeToTask"] * (len(got) - 1)
    assert not any("last-event-id" in request.headers for request in server.requests)  # 1.0 resumes with a snapshot


async def test_between_snapshots_each_event_is_yielded_once(server: ScriptedServer, connect: Connect) -> None:
    agent = LoggedAgent(v1, counting(30), cuts=cut_after(*[4] * 5), missed=2)
    server.on("/", agent)

    got = await collect(connect().stream_message("hi"), agent)

    assert replayed(got) == agent.task()
    updates = [event for event in got if not isinstance(event, Task)]
    assert len(updates) == len({repr(update) for update in updates})
    assert sum(isinstance(event, Task) for event in got) == 6


@pytest.mark.parametrize("dialect", [v1, v03], ids=["1.0", "0.3"])
async def test_a_stream_survives_a_restart_of_its_server(
    server: ScriptedServer, connect: Connect, dialect: Any
) -> None:
    agent = LoggedAgent(dialect, counting(10), cuts=cut_after(4), missed=2)
    shown = card_03(server.url) if dialect is v03 else card(server.url)
    server.on(CARD, respond(shown)).on("/", agent)
    events = connect(retry=Retry(base=0.01, cap=0.01, reconnects=200)).stream_message("hi")
    got: list[Event] = []

    async with asyncio.timeout(5), aclosing(events):
        for _ in range(4):
            got.append(await anext(events))
            if len(got) == 4:
                # Before the cut, so that the port is closed when the client reconnects.
                await server.__aexit__(None, None, None)
            agent.seen()
        following = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        async with ScriptedServer(server.port).on("/", agent):
            got.append(await following)
            agent.seen()
            async for event in events:
                got.append(event)
                agent.seen()

    assert replayed(got) == agent.task()
    assert agent.task().status.state is TaskState.COMPLETED
    if dialect is v03:
        assert got == agent.events


async def test_an_agent_that_stays_down_is_given_up(server: ScriptedServer, connect: Connect) -> None:
    agent = LoggedAgent(v1, counting(3), cuts=cut_after(1))
    server.on("/", agent)
    events = connect(retry=Retry(base=0.0, reconnects=4)).stream_message("hi")

    async with asyncio.timeout(5), aclosing(events):
        await anext(events)
        await server.__aexit__(None, None, None)
        agent.seen()
        with pytest.raises(A2AConnectionError, match="Cannot connect"):
            await anext(events)


async def test_silence_counts_as_a_break(server: ScriptedServer, connect: Connect) -> None:
    agent = LoggedAgent(v1, counting(2), cuts=cut_after(), missed=1)
    server.on("/", agent)
    events = connect(idle_timeout=0.05).stream_message("hi")
    got: list[Event] = []

    async with asyncio.timeout(5), aclosing(events):
        got.append(await anext(events))  # not confirmed: the agent falls silent
        got.append(await anext(events))
        agent.seen()
        agent.seen()
        async for event in events:
            got.append(event)
            agent.seen()

    assert replayed(got).status.state is TaskState.COMPLETED
    assert agent.connections > 1


async def test_a_stream_may_fall_silent_any_number_of_times(server: ScriptedServer, connect: Connect) -> None:
    async def quiet(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event_frame(request, {"task": task("WORKING")}))
        await hang(request, writer)

    server.on("/", *[quiet] * 8, stream({"task": task("COMPLETED")}))

    got = await collect(
        connect(idle_timeout=0.02, retry=Retry(base=0.0, attempts=2, reconnects=3)).stream_message("hi")
    )

    assert [one.status.state for one in got if isinstance(one, Task)] == [TaskState.WORKING, TaskState.COMPLETED]
    assert {request.json["method"] for request in server.asked("/")[1:]} == {"SubscribeToTask"}
