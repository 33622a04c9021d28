"""Answers with unreadable parts: the rest is read, and the missing parts are reported."""

import asyncio
from typing import Any, NamedTuple

import pytest

from apcore_a2a.client import A2AClient
from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol.model import ArtifactUpdate, Role, Task, TaskState
from tests.client.conftest import Connect
from tests.client.scripted import (
    CARD,
    Request,
    ScriptedServer,
    artifact,
    card,
    card_03,
    respond,
    result,
    status,
    stream,
    task,
)

LEFT_OUT = "apcore.leftOut"


class Speech(NamedTuple):
    """The spelling of these answers in one version and binding."""

    version: str
    binding: str
    completed: str
    agent: str
    parts: str
    """The name of the field with a message's parts."""
    text: dict[str, Any]
    unknown: dict[str, Any]
    """A part of an unknown kind."""
    kinds: bool = False

    def tagged(self, kind: str, value: dict[str, Any]) -> dict[str, Any]:
        return value | {"kind": kind} if self.kinds else value

    def message(self, id: str, **changes: Any) -> dict[str, Any]:
        said = {"messageId": id, "role": self.agent, self.parts: [self.text]} | changes
        return self.tagged("message", said)

    def task(self, **changes: Any) -> dict[str, Any]:
        whole = {"id": "t-1", "contextId": "c-1", "status": {"state": self.completed}} | changes
        return self.tagged("task", whole)

    def answer(self, task: dict[str, Any]) -> dict[str, Any]:
        return task if self.kinds else {"task": task}

    def card(self, url: str) -> dict[str, Any]:
        if self.version == "0.3":
            return card_03(url, preferredTransport=self.binding)
        interface = {"url": f"{url}/", "protocolBinding": self.binding, "protocolVersion": "1.0"}
        return card(url, supportedInterfaces=[interface])


TEXT = {"text": "hi"}
VIDEO = {"video": {"x": 1}}
SPEECHES = [
    Speech("1.0", "JSONRPC", "TASK_STATE_COMPLETED", "ROLE_AGENT", "parts", TEXT, VIDEO),
    Speech("1.0", "HTTP+JSON", "TASK_STATE_COMPLETED", "ROLE_AGENT", "parts", TEXT, VIDEO),
    Speech(
        *("0.3", "JSONRPC", "completed", "agent", "parts"),
        text={"kind": "text", "text": "hi"},
        unknown={"kind": "video", "video": {"x": 1}},
        kinds=True,
    ),
    Speech("0.3", "HTTP+JSON", "TASK_STATE_COMPLETED", "ROLE_AGENT", "content", TEXT, VIDEO),
]


@pytest.fixture(params=SPEECHES, ids=lambda speech: f"{speech.version} {speech.binding}")
def speech(request: pytest.FixtureRequest) -> Speech:
    spoken: Speech = request.param
    return spoken


def answering(server: ScriptedServer, connect: Connect, speech: Speech, task: dict[str, Any]) -> A2AClient:
    """Return a client of an agent that answers every request with this task."""
    server.on(CARD, respond(speech.card(server.url)))
    prefix = "/v1" if speech.version == "0.3" else ""
    server.on("/", result(speech.answer(task)))
    server.on(f"{prefix}/message:send", respond(speech.answer(task)))
    server.on(f"{prefix}/tasks/t-1", respond(task))
    return connect()


async def test_a_history_message_without_parts_is_left_out_and_the_rest_is_read(
    server: ScriptedServer, connect: Connect, speech: Speech, caplog: pytest.LogCaptureFixture
) -> None:
    history = [speech.message("m-1"), speech.message("m-2", **{speech.parts: []}), speech.message("m-3")]
    client = answering(server, connect, speech, speech.task(history=history, metadata={"own": 1}))

    task = await client.send_message("hi")

    assert isinstance(task, Task)
    assert [message.message_id for message in task.history] == ["m-1", "m-3"]
    assert (task.metadata or {})["own"] == 1
    (said,) = (task.metadata or {})[LEFT_OUT]
    assert said.endswith("history[1]: parts must not be empty")
    (logged,) = [record for record in caplog.records if hasattr(record, "left_out")]
    assert logged.levelname == "WARNING"


async def test_a_part_of_an_unknown_kind_is_left_out_of_its_artifact(
    server: ScriptedServer, connect: Connect, speech: Speech
) -> None:
    artifacts = [
        {"artifactId": "a-1", "parts": [speech.text, speech.unknown]},
        {"artifactId": "a-2", "parts": [speech.unknown]},
        {"parts": [speech.text]},
    ]
    client = answering(server, connect, speech, speech.task(artifacts=artifacts))

    task = await client.send_message("hi")

    assert isinstance(task, Task)
    assert [(one.artifact_id, [part.text for part in one.parts]) for one in task.artifacts] == [
        ("a-1", ["hi"]),
        ("a-2", []),
    ]
    places = " ".join((task.metadata or {})[LEFT_OUT])
    assert "artifacts[0].parts[1]" in places
    assert "artifacts[1].parts[0]" in places
    assert "artifacts[2]: artifactId is required" in places


async def test_an_invalid_optional_value_is_left_out(server: ScriptedServer, connect: Connect, speech: Speech) -> None:
    odd = {
        "status": {"state": speech.completed, "timestamp": 1700000000, "message": {"role": "unknown"}},
        "history": "none",
        "artifacts": [{"artifactId": "a-1", "parts": [speech.text | {"metadata": "text"}], "name": 5}],
    }
    client = answering(server, connect, speech, speech.task(**odd))

    task = await client.send_message("hi")

    assert isinstance(task, Task)
    assert (task.status.state, task.status.message, task.history) == (TaskState.COMPLETED, None, [])
    assert task.artifacts[0].parts[0].text == "hi"
    assert len((task.metadata or {})[LEFT_OUT]) == 5


async def test_an_invalid_required_value_is_an_error_with_its_name(
    server: ScriptedServer, connect: Connect, speech: Speech
) -> None:
    client = answering(server, connect, speech, speech.task(status={"state": "resting"}))

    with pytest.raises(InvalidAgentResponseError, match=r"status\.state:? unknown value"):
        await client.send_message("hi")


async def test_a_valid_answer_is_not_marked(server: ScriptedServer, connect: Connect, speech: Speech) -> None:
    client = answering(server, connect, speech, speech.task(history=[speech.message("m-1")]))

    task = await client.send_message("hi")

    assert isinstance(task, Task)
    assert task.metadata is None
    assert task.history[0].role is Role.AGENT


async def test_an_unreadable_task_is_left_out_of_its_page(
    server: ScriptedServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    whole = {"id": "t-1", "status": {"state": "TASK_STATE_COMPLETED"}}
    server.on("/", result({"tasks": [{"id": "t-0"}, whole], "nextPageToken": "", "pageSize": 50, "totalSize": 2}))

    page = await connect().list_tasks()

    assert [task.id for task in page.tasks] == ["t-1"]
    (logged,) = [record for record in caplog.records if hasattr(record, "left_out")]
    assert logged.left_out == ["tasks[0]: status is required"]


async def test_unreadable_parts_are_left_out_of_a_stream_event(server: ScriptedServer, connect: Connect) -> None:
    piece = {"artifactId": "a-1", "parts": [{"video": 1}, {"text": "hi"}]}
    update = {"artifactUpdate": {"taskId": "t-1", "contextId": "c-1", "artifact": piece}}
    server.on("/", stream(update, status("COMPLETED")))

    events = [event async for event in connect().stream_message("hi")]

    assert isinstance(events[0], ArtifactUpdate)
    assert [part.text for part in events[0].artifact.parts] == ["hi"]
    assert (events[0].metadata or {})[LEFT_OUT]


async def test_the_list_of_unreadable_parts_is_truncated(server: ScriptedServer, connect: Connect) -> None:
    artifact = {"artifactId": "a-1", "parts": [{"video": 1}] * 1000 + [{"text": "hi"}]}
    task = {"id": "t-1", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [artifact]}
    server.on("/", result({"task": task}))

    answer = await connect().send_message("hi")

    assert isinstance(answer, Task)
    assert len(answer.artifacts[0].parts) == 1
    assert len((answer.metadata or {})[LEFT_OUT]) == 20


@pytest.mark.parametrize("odd", [{"progressUpdate": {"done": 0.5}}, {"statusUpdate": {"taskId": "t-1"}}, [1]])
async def test_an_unreadable_event_is_replaced_by_the_task(
    server: ScriptedServer, connect: Connect, odd: object
) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.json["method"] == "GetTask":
            await result(task("COMPLETED"))(request, writer)
            return
        await stream({"task": task("WORKING")}, odd, artifact("never read"), status("COMPLETED"))(request, writer)

    server.on("/", answer)

    events = [event async for event in connect().stream_message("hi")]

    assert [type(event) for event in events] == [Task, Task]
    assert [event.status.state for event in events if isinstance(event, Task)] == [
        TaskState.WORKING,
        TaskState.COMPLETED,
    ]


async def test_a_stream_with_an_unreadable_first_event_is_an_error(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", stream({"progressUpdate": {}}, status("COMPLETED")))

    with pytest.raises(InvalidAgentResponseError, match="none of task, message"):
        _ = [event async for event in connect().stream_message("hi")]
