"""Answers with unreadable parts: the rest is read, and the missing parts are reported."""

import asyncio
from typing import Any, NamedTuple

import pytest

from apcore_a2a.client import A2AClient
from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol.model import ArtifactUpdate, Message, Role, StatusUpdate, Task, TaskState
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


# ---- answers that mix the forms of 0.3 and 1.0 ----------------------------------------------------------------------

FLAT_STATUS = {"kind": "status-update", "taskId": "t-1", "contextId": "c-1", "final": False}
FLAT_ARTIFACT = {"kind": "artifact-update", "taskId": "t-1", "contextId": "c-1"}


def text_03(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": text}


@pytest.mark.parametrize(
    ("working", "completed", "agent"),
    [("TASK_STATE_WORKING", "TASK_STATE_COMPLETED", "ROLE_AGENT"), ("working", "completed", "agent")],
    ids=["names of 1.0", "names of 0.3"],
)
async def test_flat_events_of_a_1_0_agent_are_read(
    server: ScriptedServer,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    working: str,
    completed: str,
    agent: str,
) -> None:
    # LangGraph's server: the first event has the wrapper of 1.0, the other ones are flat.
    first = {"task": {"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_SUBMITTED"}}}
    said = {"kind": "message", "messageId": "m-1", "role": agent, "parts": [text_03("at it")]}
    file = {"kind": "file", "file": {"bytes": "aGk=", "name": "a.txt", "mimeType": "text/plain"}}
    events = [
        FLAT_STATUS | {"status": {"state": working, "message": said}},
        FLAT_ARTIFACT | {"artifact": {"artifactId": "a-1", "parts": [text_03("done"), file]}, "lastChunk": True},
        FLAT_STATUS | {"status": {"state": completed}, "final": True},
    ]
    server.on("/", stream(first, *events))

    task, status_update, artifact_update, end = [event async for event in connect().stream_message("hi")]

    assert isinstance(task, Task)
    assert isinstance(status_update, StatusUpdate)
    assert status_update.status.state is TaskState.WORKING
    assert status_update.status.message is not None
    assert status_update.status.message.role is Role.AGENT
    assert isinstance(artifact_update, ArtifactUpdate)
    text, attached = artifact_update.artifact.parts
    assert (text.text, attached.raw, attached.filename, attached.media_type) == ("done", b"hi", "a.txt", "text/plain")
    assert isinstance(end, StatusUpdate)
    assert end.status.state is TaskState.COMPLETED
    # One warning for the connection to the agent, not one for each event.
    (logged,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "offers A2A 1.0, but its answers do not have the form of that version" in logged.getMessage()


@pytest.mark.parametrize(
    "answer",
    [
        {"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "completed"}},
        {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}},
        {"task": {"id": "t-1", "contextId": "c-1", "status": {"state": "completed"}}},
    ],
    ids=["0.3", "1.0 without its wrapper", "0.3 in the wrapper of 1.0"],
)
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_task_is_read_in_the_form_of_either_version(
    server: ScriptedServer, connect: Connect, answer: dict[str, Any], version: str
) -> None:
    if version == "0.3":
        server.on(CARD, respond(card_03(server.url)))
    server.on("/", result(answer))
    client = connect()

    sent = await client.send_message("hi")
    fetched = await client.get_task("t-1")

    assert isinstance(sent, Task)
    assert (sent.id, sent.status.state) == ("t-1", TaskState.COMPLETED)
    assert fetched == sent


async def test_a_message_of_0_3_from_a_1_0_agent_is_read(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", result({"kind": "message", "messageId": "m-1", "role": "agent", "parts": [text_03("hi")]}))

    answer = await connect().send_message("hi")

    assert isinstance(answer, Message)
    assert (answer.role, answer.parts[0].text) == (Role.AGENT, "hi")


async def test_data_is_not_translated(server: ScriptedServer, connect: Connect) -> None:
    data = {"state": "working", "role": "user", "parts": [{"kind": "file", "file": {"name": "x"}}]}
    task = {
        "kind": "task",
        "id": "t-1",
        "status": {"state": "completed"},
        "metadata": data,
        "artifacts": [{"artifactId": "a-1", "parts": [{"kind": "data", "data": data}]}],
    }
    server.on("/", result(task))

    answer = await connect().send_message("hi")

    assert isinstance(answer, Task)
    assert answer.artifacts[0].parts[0].data == data
    assert answer.metadata == data


async def test_a_deeply_nested_answer_is_an_error(server: ScriptedServer, connect: Connect) -> None:
    deep = b'{"message":' * 900 + b"1" + b"}" * 900

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(respond(b'{"jsonrpc":"2.0","id":"%b","result":%b}' % (request.json["id"].encode(), deep)))

    server.on("/", answer)

    with pytest.raises(InvalidAgentResponseError):
        await connect().send_message("hi")
