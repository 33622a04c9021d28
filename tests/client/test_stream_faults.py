"""Streams of agents that cannot resume, send invalid data, or hang."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from apcore_a2a.client import Retry, streaming
from apcore_a2a.errors import (
    A2AConnectionError,
    A2AError,
    A2AServerError,
    InvalidAgentResponseError,
    InvalidParamsError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import Event, StatusUpdate, Task
from tests.client.conftest import Connect
from tests.client.scripted import (
    CARD,
    STREAM_END,
    STREAM_HEAD,
    Answer,
    Request,
    ScriptedServer,
    card,
    card_03,
    chunk,
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

FIRST = {"task": task("WORKING")}
OLD_TASK = {"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "working"}}
OLD_STATUS = {"kind": "status-update", "taskId": "t-1", "contextId": "c-1", "final": False}


async def collect(events: AsyncGenerator[Event]) -> list[Event]:
    async with asyncio.timeout(5), aclosing(events):
        return [event async for event in events]


def states(events: list[Event]) -> list[str]:
    return [one.status.state.removeprefix("TASK_STATE_") for one in events if isinstance(one, Task | StatusUpdate)]


def methods(server: ScriptedServer) -> list[str]:
    return [request.json["method"] for request in server.asked("/")]


# ---- agents that cannot resume -----------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [error(-32004), error(-32601), error(-32602), error(-32001)])
async def test_a_task_that_ended_during_a_break_is_polled(
    server: ScriptedServer, connect: Connect, refusal: Answer
) -> None:
    server.on("/", stream(FIRST), refusal, result(task("COMPLETED")))

    assert states(await collect(connect().stream_message("hi"))) == ["WORKING", "COMPLETED"]
    assert methods(server) == ["SendStreamingMessage", "SubscribeToTask", "GetTask"]


async def test_an_agent_that_resumes_with_a_gap_is_polled(server: ScriptedServer, connect: Connect) -> None:
    middle = OLD_STATUS | {"status": {"state": "working"}}
    old = OLD_TASK | {
        "status": {"state": "completed"},
        "artifacts": [{"artifactId": "a-1", "parts": [{"text": "all"}]}],
    }
    server.on(CARD, respond(card_03(server.url)))
    server.on("/", stream(OLD_TASK), stream(middle), result(OLD_TASK), result(OLD_TASK), result(old))

    got = await collect(connect().stream_message("hi"))

    assert states(got) == ["WORKING", "WORKING", "COMPLETED"]  # an unchanged task is not yielded again
    assert all(isinstance(one, Task) for one in got)
    assert methods(server)[1:] == ["tasks/resubscribe", *["tasks/get"] * 3]


@pytest.mark.parametrize("ids", [(7, 7), (7, 3), (7, 9), (7, None), ("uuid-1", "uuid-2")])
async def test_a_replay_without_the_next_number_is_not_accepted(
    server: ScriptedServer, connect: Connect, ids: tuple[int | str, int | str | None]
) -> None:
    def numbered(value: object, id: int | str | None) -> Answer:
        async def write(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(STREAM_HEAD + event(request, value, id) + STREAM_END)

        return write

    server.on(CARD, respond(card_03(server.url)))
    middle = OLD_STATUS | {"status": {"state": "working"}}
    ended = result(OLD_TASK | {"status": {"state": "completed"}})
    server.on("/", numbered(OLD_TASK, ids[0]), numbered(middle, ids[1]), ended)

    assert states(await collect(connect().stream_message("hi"))) == ["WORKING", "COMPLETED"]
    asked_from = "7" if ids[0] == 7 else None
    assert server.asked("/")[1].headers.get("last-event-id") == asked_from


async def test_an_agent_that_drops_every_connection_is_polled(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", stream(FIRST), stream(FIRST), stream(FIRST), result(task("COMPLETED")))

    got = await collect(connect().stream_message("hi"))

    assert states(got) == ["WORKING", "COMPLETED"]  # an equal snapshot is not yielded again
    assert methods(server) == ["SendStreamingMessage", *["SubscribeToTask"] * 2, "GetTask"]


async def test_an_agent_that_sends_no_snapshot_is_polled(
    server: ScriptedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def open_and_hang(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        await hang(request, writer)

    monkeypatch.setattr(streaming, "SNAPSHOT_WAIT", 0.05)
    server.on("/", stream(FIRST), open_and_hang, result(task("COMPLETED")))

    assert states(await collect(connect().stream_message("hi"))) == ["WORKING", "COMPLETED"]


async def test_a_lost_task_is_an_error(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", stream(FIRST), error(-32001, "Task not found: t-1"))

    with pytest.raises(TaskNotFoundError):
        await collect(connect().stream_message("hi"))


async def test_a_stream_retries_while_a_proxy_cannot_reach_the_agent(server: ScriptedServer, connect: Connect) -> None:
    away = [respond(b"", 502), respond(b"", 503, {"Retry-After": "0"}), respond(b"", 504)]
    server.on("/", stream(FIRST), *away, stream({"task": task("COMPLETED")}))

    assert states(await collect(connect().stream_message("hi"))) == ["WORKING", "COMPLETED"]


# ---- before the first event --------------------------------------------------------------------------------------


async def cut(request: Request, writer: asyncio.StreamWriter) -> None:
    reset(writer)


@pytest.mark.parametrize("first", [cut, stream()], ids=["cut", "empty"])
async def test_a_message_that_may_have_arrived_is_not_sent_again(
    server: ScriptedServer, connect: Connect, first: Answer
) -> None:
    server.on("/", first)

    with pytest.raises(A2AConnectionError):
        await collect(connect().stream_message("hi"))
    assert len(server.asked("/")) == 1


async def test_a_message_with_an_idempotency_key_is_sent_again(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", cut, stream({"task": task()}))

    await collect(connect(retry=Retry(base=0.0, sends=True)).stream_message("hi"))

    keys = [request.headers["idempotency-key"] for request in server.asked("/")]
    assert (len(keys), len(set(keys))) == (2, 1)


async def test_a_message_is_not_sent_again_if_no_event_has_a_task_id(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", stream(status("WORKING", taskId="")))

    with pytest.raises(A2AConnectionError, match="ended the stream before"):
        await collect(connect(retry=Retry(base=0.0, sends=True)).stream_message("hi"))
    assert len(server.asked("/")) == 1


async def test_a_subscription_without_a_first_event_is_given_up(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", hang)

    client = connect()
    await client.agent_card  # without that limit, because a busy machine may need longer for it

    with pytest.raises(A2AConnectionError, match=r"within 0\.05 seconds"):
        await collect(client.resubscribe("t-1", timeout=0.05))
    assert len(server.asked("/")) == 1


async def test_the_timeout_bounds_a_stream_without_a_first_event(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", hang)

    with pytest.raises(A2AConnectionError, match=r"within 0\.05 seconds"):
        await collect(connect(timeout=0.05).stream_message("hi"))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(-32602, "bad"), InvalidParamsError),
        (error(-32004, "no"), UnsupportedOperationError),
        (error(-32602, "bad", status=400), InvalidParamsError),
        (respond(b"", 401), UnauthenticatedError),
        (respond(b"<html>", 500), A2AServerError),
        (respond(b"", 401, {"Content-Type": "text/event-stream"}), UnauthenticatedError),
        (respond(b"", 302, {"Location": "http://169.254.169.254/"}), A2AConnectionError),
        (stream({"nothing": 1}), InvalidAgentResponseError),
    ],
)
async def test_an_error_instead_of_a_stream_is_raised_with_its_class(
    server: ScriptedServer, connect: Connect, answer: Answer, kind: type[A2AError]
) -> None:
    server.on("/", answer)

    with pytest.raises(kind):
        await collect(connect().stream_message("hi"))
    assert len(server.asked("/")) == 1


async def test_an_answer_without_a_stream_is_its_only_event(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result({"task": task()}))

    assert states(await collect(connect().stream_message("hi"))) == ["COMPLETED"]


async def test_no_stream_is_requested_from_an_agent_that_does_not_stream(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on(CARD, respond(card(server.url, capabilities={"streaming": False})))

    with pytest.raises(UnsupportedOperationError, match=r"does not stream\. Use send_message"):
        await collect(connect().stream_message("hi"))
    assert server.asked("/") == []


# ---- invalid data ------------------------------------------------------------------------------------------------


def frames(*data: bytes) -> Answer:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(request, FIRST) + b"".join(chunk(one) for one in data) + STREAM_END)

    return write


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'data: {"jsonrpc":\n\n', "cannot be read"),
        (b"data: hello\n\n", "cannot be read"),
        (b'data: {"jsonrpc":"2.0","id":"another","result":{}}\n\n', "its JSON-RPC id is unknown"),
        (b'data: {"jsonrpc":"2.0"}\n\n', "its JSON-RPC id is unknown"),
        (b"data: " + b"x" * 5000, "too large"),
    ],
)
async def test_an_invalid_event_is_an_invalid_agent_response_error(
    server: ScriptedServer, connect: Connect, data: bytes, said: str
) -> None:
    server.on("/", frames(data))

    with pytest.raises(InvalidAgentResponseError, match=said):
        await collect(connect(max_response=4096).stream_message("hi"))
    # The message is not sent again, but the task is polled, because it might be readable.
    methods = [request.json["method"] for request in server.asked("/")]
    assert methods in (["SendStreamingMessage", "GetTask"], ["SendStreamingMessage"])


async def test_an_error_in_the_stream_is_raised(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", frames(b'data: {"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"it broke"}}\n\n'))

    with pytest.raises(A2AServerError, match="it broke"):
        await collect(connect().stream_message("hi"))


@pytest.mark.parametrize("name", [b"event: error\n", b""])
async def test_an_error_in_a_rest_stream_is_raised(server: ScriptedServer, connect: Connect, name: bytes) -> None:
    told = v1.encode_rest_error(TaskNotFoundError("t-1"), 404)
    interfaces = [{"url": server.url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}]
    server.on(CARD, respond(card(server.url, supportedInterfaces=interfaces)))
    body = b"%bdata: %b\n\n" % (name, told)
    server.on("/tasks/t-1:subscribe", respond(body, headers={"Content-Type": "text/event-stream"}))

    with pytest.raises(TaskNotFoundError, match="t-1"):
        await collect(connect().resubscribe("t-1"))


async def test_comments_and_empty_events_are_skipped(server: ScriptedServer, connect: Connect) -> None:
    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        noise = chunk(b": keep-alive\n\ndata:\n\nretry: 10\n\nevent: ping\n\n")
        writer.write(STREAM_HEAD + noise + event(request, FIRST) + noise + event(request, status("COMPLETED")))
        writer.write(STREAM_END)

    server.on("/", write)

    assert states(await collect(connect().stream_message("hi"))) == ["WORKING", "COMPLETED"]
