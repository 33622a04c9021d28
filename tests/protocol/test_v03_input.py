"""A2A 0.3 in: the official forms, the requirements' dialect, and the mistakes of the official examples all get in."""

from typing import Any

import pytest

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol import model
from apcore_a2a.protocol.model import Operation, Part, Role, TaskState
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.requirements import requirement

TEXT = {"kind": "text", "text": "hi"}


def send(message: dict[str, Any], **params: Any) -> model.SendMessage:
    request = v03.decode_request(Operation.SEND, model.encode({"message": message, **params}))
    assert isinstance(request, model.SendMessage)
    return request


def read_part(part: dict[str, Any]) -> Part:
    return send({"role": "user", "messageId": "m", "parts": [part]}).message.parts[0]


@pytest.mark.parametrize(
    ("given_part", "expected"),
    [
        ({"kind": "text", "text": "hi"}, Part(text="hi")),
        ({"type": "text", "text": "hi"}, Part(text="hi")),
        ({"text": "hi"}, Part(text="hi")),
        ({"text": ""}, Part(text="")),
        ({"kind": "data", "data": {"a": 1}}, Part(data={"a": 1})),
        (
            {"type": "data", "data": {"a": 1}, "mediaType": "application/json"},
            Part(data={"a": 1}, media_type="application/json"),
        ),
        ({"data": {"a": 1}}, Part(data={"a": 1})),
        ({"kind": "data", "data": [1]}, Part(data=[1])),
        ({"kind": "data", "data": None}, Part(data=None)),
        ({"kind": "data", "data": {"value": 7}, "metadata": {"data_part_compat": True}}, Part(data=7)),
        (
            {"kind": "data", "data": {"value": 7, "more": 8}, "metadata": {"data_part_compat": True}},
            Part(data={"value": 7, "more": 8}, metadata={"data_part_compat": True}),
        ),
        (
            {"kind": "file", "file": {"uri": "u", "name": "n", "mimeType": "m"}},
            Part(url="u", filename="n", media_type="m"),
        ),
        ({"kind": "file", "file": {"bytes": "AP8="}}, Part(raw=b"\x00\xff")),
        ({"kind": "file", "file": {"data": "AP8="}}, Part(raw=b"\x00\xff")),
        ({"kind": "file", "file": {"bytes": "AP8=", "uri": "u"}}, Part(raw=b"\x00\xff")),
        ({"kind": "file", "file": {"url": "u"}}, Part(url="u")),
        ({"type": "file", "uri": "u", "name": "n", "mimeType": "m"}, Part(url="u", filename="n", media_type="m")),
        ({"uri": "u"}, Part(url="u")),
        ({"type": "data", "data": {"a": 1}, "text": "ignored"}, Part(data={"a": 1})),
        ({"type": "file", "bytes": "AP8="}, Part(raw=b"\x00\xff")),
        ({"text": "hi", "metadata": {"mediaType": 5}}, Part(text="hi", metadata={"mediaType": 5})),
        ({"text": "hi", "metadata": {"filename": "f", "x": 1}}, Part(text="hi", metadata={"x": 1}, filename="f")),
        ({"kind": "text", "text": "hi", "data": None, "file": None, "sizeInBytes": 9}, Part(text="hi")),
        ({"kind": "file", "file": {"uri": "u", "mime_type": "m"}}, Part(url="u", media_type="m")),
    ],
)
def test_a_part_is_read_however_it_is_said(given_part: dict[str, Any], expected: Part) -> None:
    assert read_part(given_part) == expected


def test_a_message_of_the_requirements_needs_neither_kind_nor_id() -> None:
    request = send(
        {"role": "user", "parts": [{"type": "text", "text": "resize"}]}, metadata={"skillId": "image.resize"}
    )
    assert request == model.SendMessage(
        message=model.Message(message_id="", role=Role.USER, parts=(Part(text="resize"),)),
        metadata={"skillId": "image.resize"},
    )


def test_an_id_beside_the_message_is_the_messages_id() -> None:
    assert send({"role": "user", "parts": [TEXT]}, messageId="m-1").message.message_id == "m-1"
    assert send({"role": "user", "parts": [TEXT], "messageId": "m-2"}, messageId="m-1").message.message_id == "m-2"


@requirement("FR-CTX-001")
def test_a_context_beside_the_message_is_the_messages_context() -> None:
    message = {"role": "user", "parts": [TEXT]}
    assert send(message, contextId="c-1").message.context_id == "c-1"
    assert send({**message, "contextId": "c-1"}, contextId="c-1").message.context_id == "c-1"
    assert send({**message, "contextId": "c-1"}).message.context_id == "c-1"


@pytest.mark.parametrize(
    ("configuration", "immediately"), [({}, False), ({"blocking": True}, False), ({"blocking": False}, True)]
)
def test_blocking_is_the_opposite_of_returning_immediately(configuration: dict[str, bool], immediately: bool) -> None:
    request = send({"role": "user", "parts": [TEXT]}, configuration=configuration)
    assert request.configuration.return_immediately is immediately


def test_null_means_not_given() -> None:
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [TEXT]}
    nulls = {"taskId": None, "contextId": None, "metadata": None, "extensions": None}
    assert send({**message, **nulls}, configuration=None, metadata=None) == send(message)


def test_unknown_fields_are_ignored() -> None:
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{**TEXT, "x": 1}]}
    assert send({**message, "_debug_info": {"a": 1}}, other=1) == send({**message, "parts": [TEXT]})


@pytest.mark.parametrize(
    "params",
    [
        {"taskId": "t", "url": "https://e.com"},
        {"taskId": "t", "pushNotificationConfig": {"url": "https://e.com"}},
    ],
)
def test_a_push_config_may_be_flat_or_nested(params: dict[str, Any]) -> None:
    expected = model.PushConfig(url="https://e.com", task_id="t")
    assert v03.decode_request(Operation.CREATE_PUSH, model.encode(params)) == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"id": "t"}, model.PushConfigRef(task_id="t")),
        ({"taskId": "t"}, model.PushConfigRef(task_id="t")),
        ({"id": "t", "pushNotificationConfigId": "p"}, model.PushConfigRef(task_id="t", id="p")),
        ({"taskId": "t", "pushNotificationConfigId": "p"}, model.PushConfigRef(task_id="t", id="p")),
        ({"taskId": "t", "id": "p"}, model.PushConfigRef(task_id="t", id="p")),
    ],
)
@pytest.mark.parametrize("operation", [Operation.GET_PUSH, Operation.DELETE_PUSH])
def test_a_push_config_is_named_by_either_key(
    operation: Operation, params: dict[str, str], expected: model.PushConfigRef
) -> None:
    assert v03.decode_request(operation, model.encode(params)) == expected


@pytest.mark.parametrize("params", [{"id": "t"}, {"taskId": "t"}])
def test_push_configs_are_listed_by_either_key(params: dict[str, str]) -> None:
    assert v03.decode_request(Operation.LIST_PUSH, model.encode(params)) == model.ListPushConfigs(task_id="t")


@pytest.mark.parametrize(
    ("params", "size", "token"),
    [
        ({}, 50, ""),
        ({"limit": 7, "cursor": "c"}, 7, "c"),
        ({"pageSize": 7, "pageToken": "c"}, 7, "c"),
        ({"limit": 200}, 200, ""),
        ({"limit": 201}, 200, ""),
        ({"pageSize": 10**12}, 200, ""),
    ],
)
@requirement("FR-TSK-006")
def test_tasks_are_listed_by_cursor_and_limit(params: dict[str, Any], size: int, token: str) -> None:
    request = v03.decode_request(Operation.LIST, model.encode(params))
    assert request == model.ListTasks(page_size=size, page_token=token, include_artifacts=True)


@pytest.mark.parametrize("name", ["input-required", "input_required"])
def test_a_state_is_read_in_both_spellings(name: str) -> None:
    assert v03.decode_request(Operation.LIST, model.encode({"status": name})) == model.ListTasks(
        status=TaskState.INPUT_REQUIRED, include_artifacts=True
    )
    event = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": name}}
    task = v03.decode_event(model.encode(event))
    assert isinstance(task, model.Task)
    assert task.status.state is TaskState.INPUT_REQUIRED


@pytest.mark.parametrize("params", [b"{}", b"null", b'{"anything":1}'])
def test_the_extended_card_needs_no_parameters(params: bytes) -> None:
    assert v03.decode_request(Operation.EXTENDED_CARD, params) == model.GetExtendedCard()


def test_path_and_query_values_may_be_strings() -> None:
    task = v03.convert_request(Operation.GET, {"id": "t", "historyLength": "3"})
    assert task == model.GetTask(id="t", history_length=3)
    listed = v03.convert_request(Operation.LIST, {"limit": "300", "includeArtifacts": "false"})
    assert listed == model.ListTasks(page_size=200)
    with pytest.raises(InvalidParamsError, match=r"^Invalid parameter historyLength: expected integer"):
        v03.convert_request(Operation.GET, {"id": "t", "historyLength": "x"})
