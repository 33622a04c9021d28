"""A2A 0.3: what goes out is official, and nothing gets lost on the way out and back in."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apcore_a2a.protocol import model
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.lifecycle import AT_REST
from apcore_a2a.protocol.model import SHAPES, Document, Operation, Part, Role, TaskState
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.protocol import strategies
from tests.requirements import requirement

ANSWERED = [operation for operation in Operation if not SHAPES[operation].streams]


def exact(value: Any) -> bytes:
    """Bytes that tell 1 from 1.0 and 0.0 from -0.0, which Python's `==` does not."""
    return msgspec.json.encode(value, order="deterministic")


def written(value: model.Event) -> Any:
    return msgspec.json.decode(v03.encode_event(value))


@pytest.mark.parametrize("operation", Operation)
@settings(max_examples=40)
@given(data=st.data())
def test_every_request_survives_the_wire(operation: Operation, data: st.DataObject) -> None:
    request = data.draw(strategies.requests[operation])
    returned = v03.decode_request(operation, v03.encode_request(operation, request))
    assert returned == request
    assert exact(returned) == exact(request)


@given(strategies.events())
def test_every_event_survives_the_wire(event: model.Event) -> None:
    returned = v03.decode_event(v03.encode_event(event))
    assert returned == event
    assert exact(returned) == exact(event)


@pytest.mark.parametrize("operation", [one for one in ANSWERED if one is not Operation.EXTENDED_CARD])
@settings(max_examples=40)
@given(data=st.data())
def test_every_answer_survives_the_wire(operation: Operation, data: st.DataObject) -> None:
    answer = data.draw(strategies.results(operation))
    returned = v03.decode_result(operation, v03.encode_result(operation, answer))
    assert returned == answer
    assert exact(returned) == exact(answer)


@given(strategies.cards_of("0.3"))
def test_a_card_survives_the_wire(card: AgentCard) -> None:
    assert v03.decode_result(Operation.EXTENDED_CARD, v03.encode_result(Operation.EXTENDED_CARD, card)) == card


@given(strategies.cards)
def test_a_hybrid_card_says_all_that_the_1_0_card_says(card: AgentCard) -> None:
    assert v03.decode_card(v03.encode_hybrid_card(card)) == card
    assert v03.decode_card(model.encode(card)) == card


@given(strategies.tasks())
def test_a_stored_document_is_written_like_its_task(task: model.Task) -> None:
    document = Document(model.encode(task))
    assert v03.encode_result(Operation.GET, document) == v03.encode_result(Operation.GET, task)


def test_writing_leaves_the_task_as_it_was() -> None:
    part = Part(data=[1], filename="a.json", media_type="application/json", metadata={"deep": {"list": [1]}})
    task = model.Task(
        id="t",
        status=model.TaskStatus(state=TaskState.WORKING),
        artifacts=[model.Artifact(artifact_id="a", parts=[part])],
    )
    before = exact(task)
    v03.encode_result(Operation.GET, task)
    assert exact(task) == before


# ---- out: official shapes ----------------------------------------------------------------------------------------


@requirement("NFR-CMP-001")
def test_every_operation_has_a_method_of_its_own() -> None:
    assert set(v03.NAMES) == set(Operation)
    assert {v03.METHODS[name] for name in v03.NAMES.values()} == set(Operation)
    assert v03.METHODS["agentCard/get"] is Operation.EXTENDED_CARD


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Part(text="hi"), {"kind": "text", "text": "hi"}),
        (Part(data={"n": 1}), {"kind": "data", "data": {"n": 1}}),
        (
            Part(raw=b"\x00\xff", filename="a.bin", media_type="x/y"),
            {"kind": "file", "file": {"bytes": "AP8=", "name": "a.bin", "mimeType": "x/y"}},
        ),
        (Part(url="https://e.com/a"), {"kind": "file", "file": {"uri": "https://e.com/a"}}),
        (
            Part(text="# hi", media_type="text/markdown", filename="hi.md", metadata={"lang": "en"}),
            {
                "kind": "text",
                "text": "# hi",
                "metadata": {"lang": "en", "mediaType": "text/markdown", "filename": "hi.md"},
            },
        ),
        (
            Part(data=[1, 2]),
            {"kind": "data", "data": {"value": [1, 2]}, "metadata": {"data_part_compat": True}},
        ),
        (
            Part(data=None, media_type="application/json"),
            {
                "kind": "data",
                "data": {"value": None},
                "metadata": {"data_part_compat": True, "mediaType": "application/json"},
            },
        ),
    ],
)
def test_a_part_is_written_in_the_official_form(part: Part, expected: dict[str, Any]) -> None:
    body = written(model.Message(message_id="m", role=Role.USER, parts=(part,)))
    assert body == {"kind": "message", "messageId": "m", "role": "user", "parts": [expected]}


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (TaskState.UNSPECIFIED, "unknown"),
        (TaskState.SUBMITTED, "submitted"),
        (TaskState.WORKING, "working"),
        (TaskState.COMPLETED, "completed"),
        (TaskState.FAILED, "failed"),
        (TaskState.CANCELED, "canceled"),
        (TaskState.REJECTED, "rejected"),
        (TaskState.INPUT_REQUIRED, "input-required"),
        (TaskState.AUTH_REQUIRED, "auth-required"),
    ],
)
def test_a_status_update_is_final_at_terminal_and_interrupted_states(state: TaskState, name: str) -> None:
    body = written(model.StatusUpdate(task_id="t", context_id="c", status=model.TaskStatus(state=state)))
    assert body == {
        "kind": "status-update",
        "taskId": "t",
        "contextId": "c",
        "status": {"state": name},
        "final": state in AT_REST,
    }


def test_required_ids_are_written_even_when_empty() -> None:
    status = model.TaskStatus(state=TaskState.WORKING)
    artifact = model.Artifact(artifact_id="a", parts=[])
    assert written(model.Task(id="t", status=status))["contextId"] == ""
    for update in (model.StatusUpdate(status=status), model.ArtifactUpdate(artifact=artifact)):
        assert (written(update)["taskId"], written(update)["contextId"]) == ("", "")


def test_an_artifact_without_parts_keeps_its_empty_list() -> None:
    update = model.ArtifactUpdate(task_id="t", context_id="c", artifact=model.Artifact(artifact_id="a", parts=[]))
    assert written(update) == {
        "kind": "artifact-update",
        "taskId": "t",
        "contextId": "c",
        "artifact": {"artifactId": "a", "parts": []},
    }


def test_a_webhook_receives_the_whole_task() -> None:
    status = model.TaskStatus(state=TaskState.WORKING)
    task = model.Task(id="t", context_id="c", status=status)
    event = model.StatusUpdate(task_id="t", context_id="c", status=status)
    assert v03.encode_push(event, task) == v03.encode_event(task)


def test_deleting_a_push_config_answers_null() -> None:
    assert v03.encode_result(Operation.DELETE_PUSH, None) == b"null"


def test_push_configs_are_a_bare_array_of_nested_configs() -> None:
    config = model.PushConfig(
        url="https://e.com",
        id="p",
        task_id="t",
        token="secret",
        authentication=model.AuthenticationInfo(scheme="Bearer", credentials="x"),
    )
    assert msgspec.json.decode(v03.encode_result(Operation.LIST_PUSH, model.PushConfigPage(configs=(config,)))) == [
        {
            "taskId": "t",
            "pushNotificationConfig": {
                "url": "https://e.com",
                "id": "p",
                "token": "secret",
                "authentication": {"schemes": ["Bearer"], "credentials": "x"},
            },
        }
    ]


def test_what_0_3_has_no_field_for_stays_behind() -> None:
    push = model.PushConfig(
        url="https://e.com", task_id="t", tenant="x", authentication=model.AuthenticationInfo(scheme="")
    )
    message = model.Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),))
    configuration = model.SendConfiguration(task_push_notification_config=push)
    request = model.SendMessage(message=message, configuration=configuration, tenant="x")
    body = msgspec.json.decode(v03.encode_request(Operation.SEND, request))
    assert body.keys() == {"message", "configuration"}
    assert body["configuration"] == {
        "blocking": True,
        "pushNotificationConfig": {"url": "https://e.com", "authentication": {"schemes": []}},
    }


@pytest.mark.parametrize(("token", "cursor"), [("next", {"nextCursor": "next"}), ("", {})])
def test_a_page_of_tasks_names_its_cursor_both_ways(token: str, cursor: dict[str, str]) -> None:
    page = model.TaskPage(tasks=(), next_page_token=token, page_size=50, total_size=0)
    body = msgspec.json.decode(v03.encode_result(Operation.LIST, page))
    assert body == {"tasks": [], "nextPageToken": token, "pageSize": 50, "totalSize": 0, **cursor}
    assert v03.decode_result(Operation.LIST, model.encode({"tasks": [], **cursor})).next_page_token == token
