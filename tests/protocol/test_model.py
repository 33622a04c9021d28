"""The model: values that do not change, limits on what comes in, and JSON that says what must be said and no more."""

import json

import msgspec
import pytest
from hypothesis import given

from apcore_a2a.protocol import model
from apcore_a2a.protocol.model import (
    MAX_ID,
    MAX_PARTS,
    Artifact,
    Document,
    Message,
    Part,
    PushConfig,
    Role,
    StatusUpdate,
    Task,
    TaskPage,
    TaskState,
    TaskStatus,
    Value,
    decode_task,
    encode,
)
from tests.protocol import strategies
from tests.requirements import requirement

VALUES = [cls for cls in vars(model).values() if isinstance(cls, type) and issubclass(cls, Value) and cls is not Value]


@pytest.mark.parametrize(
    "given", [{}, {"text": "a", "url": "b"}, {"raw": b"", "data": None}, {"text": "", "data": None}]
)
def test_a_part_has_exactly_one_content(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="exactly one of text, raw, url and data"):
        Part(**given)  # type: ignore[arg-type]  # any of its members


@pytest.mark.parametrize(
    ("part", "wire"),
    [
        (Part(text=""), b'{"text":""}'),
        (Part(raw=b"\x00\xff"), b'{"raw":"AP8="}'),
        (Part(url="u", filename="f", media_type="x/y"), b'{"url":"u","filename":"f","mediaType":"x/y"}'),
        (Part(data=None), b'{"data":null}'),
        (Part(data={"a_b": [1, 1.0]}, metadata={}), b'{"data":{"a_b":[1,1.0]},"metadata":{}}'),
    ],
)
def test_a_part_says_its_content_and_no_defaults(part: Part, wire: bytes) -> None:
    assert encode(part) == wire
    assert msgspec.json.decode(wire, type=Part) == part


@pytest.mark.parametrize("cls", VALUES)
def test_a_value_does_not_change_and_is_not_watched_by_the_garbage_collector(cls: type[Value]) -> None:
    assert cls.__struct_config__.frozen
    assert not cls.__struct_config__.gc


@pytest.mark.parametrize("cls", [*VALUES, Task])
def test_every_name_on_the_wire_is_in_camel_case_and_unknown_ones_are_ignored(cls: type[Value]) -> None:
    assert [name for name in cls.__struct_encode_fields__ if "_" in name] == []
    assert not cls.__struct_config__.forbid_unknown_fields


def test_ids_and_parts_are_limited_when_they_come_in() -> None:
    def read(id: str, parts: int) -> Message:
        body = {"messageId": id, "role": "ROLE_USER", "parts": [{"text": ""}] * parts}
        return msgspec.convert(body, Message)

    assert len(read("x" * MAX_ID, MAX_PARTS).parts) == MAX_PARTS
    for id, parts in (("x" * (MAX_ID + 1), 1), ("", 1), ("x", 0), ("x", MAX_PARTS + 1)):
        with pytest.raises(msgspec.ValidationError):
            read(id, parts)


def test_an_address_for_webhooks_is_limited() -> None:
    assert len(msgspec.convert({"url": "x" * 2048}, PushConfig).url) == 2048
    for url in ("", "x" * 2049):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"url": url}, PushConfig)


def test_a_task_says_its_id_and_status_always_and_the_rest_if_there_is_some() -> None:
    task = Task(id="t", status=TaskStatus(state=TaskState.SUBMITTED))
    assert encode(task) == b'{"id":"t","status":{"state":"TASK_STATE_SUBMITTED"}}'
    assert task.to_dict() == json.loads(encode(task))


def test_a_required_field_is_said_when_empty_and_not_missed_when_left_out() -> None:
    assert json.loads(encode(TaskPage())) == {"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0}
    assert msgspec.json.decode(b"{}", type=TaskPage) == TaskPage()
    update = StatusUpdate(status=TaskStatus(state=TaskState.WORKING))
    assert json.loads(encode(update)) == {"taskId": "", "contextId": "", "status": {"state": "TASK_STATE_WORKING"}}
    assert json.loads(encode(Artifact(artifact_id="a"))) == {"artifactId": "a", "parts": []}


def test_two_values_that_leave_a_list_out_do_not_share_one() -> None:
    one, other = Artifact(artifact_id="a"), Artifact(artifact_id="a")
    one.parts.append(Part(text=""))
    assert other.parts == []


def test_a_task_knows_where_its_artifacts_are_without_saying_so() -> None:
    task = Task(
        id="t",
        status=TaskStatus(state=TaskState.WORKING),
        artifacts=[Artifact(artifact_id=id) for id in ("a", "b", "a")],
    )
    assert task.positions == {"a": 2, "b": 1}
    assert b"positions" not in encode(task)
    assert task == decode_task(encode(task))


@given(strategies.tasks())
def test_a_document_is_a_task_in_bytes(task: Task) -> None:
    stored = Document(encode(task))
    assert stored.task() == task
    assert Document(b"not read", task).task() is task
    assert not Document.__struct_config__.gc


@given(strategies.messages)
def test_to_dict_is_the_json_of_a_value(message: Message) -> None:
    assert message.to_dict() == json.loads(encode(message))


def test_a_state_is_found_in_a_table_by_its_text() -> None:
    assert {TaskState.WORKING: 1}["TASK_STATE_WORKING"] == 1  # type: ignore[index]  # equal, so it must hash alike


@requirement("FR-TSK-001")
def test_the_states_are_the_six_of_the_requirements_and_those_that_1_0_adds() -> None:
    names = {state.removeprefix("TASK_STATE_").lower() for state in TaskState}
    assert names == {
        *("submitted", "working", "completed", "failed", "canceled", "input_required"),
        *("rejected", "auth_required", "unspecified"),
    }
    assert {role.value for role in Role} == {"ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT"}
