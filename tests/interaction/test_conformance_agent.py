"""The agent behind the scores of docs/conformance.md behaves as the official kits expect."""

from typing import Any

import pytest

from apcore_a2a.protocol.model import (
    ArtifactUpdate,
    Message,
    Operation,
    Part,
    Role,
    SendMessage,
    StatusUpdate,
    Task,
    TaskState,
)
from examples.conformance_agent import ConformanceAgent, Everyone, build_card
from tests.interaction.conftest import Connect
from tests.interaction.wire_client import Refused

OUTCOMES = [
    ("tck-complete-task-1", TaskState.COMPLETED, None),
    ("tck-input-required-1", TaskState.INPUT_REQUIRED, None),
    ("tck-reject-task-1", TaskState.REJECTED, None),
    ("tck-anything-1", TaskState.COMPLETED, None),
    ("tck-artifact-text-1", TaskState.COMPLETED, {"text": "Generated text content"}),
    ("tck-artifact-file-url-1", TaskState.COMPLETED, {"url": "https://example.com/output.txt"}),
    ("tck-artifact-file-1", TaskState.COMPLETED, {"raw": b"output"}),
    ("tck-artifact-data-1", TaskState.COMPLETED, {"data": {"key": "value", "count": 42}}),
    ("msg-1", TaskState.INPUT_REQUIRED, None),
    ("test-state-message-id-1", TaskState.INPUT_REQUIRED, None),
]


@pytest.mark.parametrize(("id", "state", "part"), OUTCOMES, ids=[id for id, *_ in OUTCOMES])
async def test_the_message_id_determines_the_outcome_of_the_task(
    connect: Connect, id: str, state: TaskState, part: dict[str, Any] | None
) -> None:
    client = await connect(ConformanceAgent(), card=build_card("http://127.0.0.1"))
    task = await client.send("hi", id=id)
    assert task.status.state is state
    found = [part for artifact in task.artifacts for part in artifact.parts]
    expected = {} if part is None else part
    assert [{name: getattr(one, name) for name in expected} for one in found] == ([] if part is None else [part])
    assert all(one.filename == "output.txt" for one in found if "file" in id)


async def test_a_message_may_be_the_answer(connect: Connect) -> None:
    client = await connect(ConformanceAgent())
    answer = await client.ask("hi", id="tck-message-response-1")
    assert answer.parts[0].text == "Direct message response"


@pytest.mark.parametrize("id", ["tck-stream-001-1", "tck-stream-003-1", "tck-stream-ordering-001-1"])
async def test_streams_go_from_working_over_an_artifact_to_completed(connect: Connect, id: str) -> None:
    client = await connect(ConformanceAgent())
    async with client.stream("hi", id=id) as stream:
        kinds = [type(event) for event in await stream.rest()]
    assert kinds == [Task, StatusUpdate, ArtifactUpdate, StatusUpdate]


async def test_a_media_type_that_the_card_does_not_list_is_rejected(connect: Connect) -> None:
    client = await connect(ConformanceAgent())
    part = Part(text="hi", media_type="application/x-unknown")
    message = Message(message_id="tck-send-003", role=Role.USER, parts=(part,))
    with pytest.raises(Refused, match="application/x-unknown is not among the input modes of the card") as refused:
        await client.call(Operation.SEND, SendMessage(message=message))
    assert refused.value.code == -32005


@pytest.mark.parametrize(
    ("options", "code"), [({"streaming": False}, -32004), ({"required": ("urn:a2a:tck:required-extension",)}, -32008)]
)
async def test_operations_that_the_card_excludes_are_rejected(
    connect: Connect, options: dict[str, Any], code: int
) -> None:
    client = await connect(ConformanceAgent(), card=build_card("http://127.0.0.1", **options))
    with pytest.raises(Refused) as refused:
        async with client.stream("hi", id="tck-complete-task-1") as stream:
            await stream.rest()
    assert refused.value.code == code


async def test_every_caller_gets_the_extended_card(connect: Connect) -> None:
    client = await connect(ConformanceAgent(), card=build_card("http://127.0.0.1"), auth=Everyone())
    assert (await client.extended_card()).name == "Conformance agent"
