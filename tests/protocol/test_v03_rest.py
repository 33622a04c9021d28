"""A2A 0.3 over REST: what is written is ProtoJSON that the official library takes, and it is read back without loss."""

from typing import Any

import msgspec
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol import model
from apcore_a2a.protocol.model import (
    Event,
    Message,
    Operation,
    Part,
    PushConfig,
    Role,
    SendMessage,
    Task,
    TaskState,
    TaskStatus,
)
from apcore_a2a.protocol.v03 import rest as v03_rest
from tests.protocol import strategies


def without_references(event: Any) -> Any:
    """0.3's protocol buffers have no referenceTaskIds."""
    match event:
        case Message():
            return replace(event, reference_task_ids=())
        case Task():
            status, history = without_references(event.status), [without_references(one) for one in event.history]
            return replace(event, status=status, history=history)
        case TaskStatus(message=Message()):
            return replace(event, message=without_references(event.message))
        case model.StatusUpdate():
            return replace(event, status=without_references(event.status))
    return event


@given(strategies.events())
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    assert v03_rest.decode_event(v03_rest.encode_event(event)) == without_references(event)


@given(strategies.events(min_parts=1))
def test_the_official_library_takes_every_event(event: Event) -> None:
    ParseDict(msgspec.json.decode(v03_rest.encode_event(event)), pb.StreamResponse())


@given(strategies.tasks(min_parts=1), st.sampled_from([Operation.GET, Operation.CANCEL]))
def test_a_task_is_sent_bare_and_comes_back_as_it_was(task: Task, operation: Operation) -> None:
    body = v03_rest.encode_result(operation, task)
    ParseDict(msgspec.json.decode(body), pb.Task())
    assert v03_rest.decode_result(operation, body) == without_references(task)


@given(strategies.messages)
def test_a_send_comes_back_as_it_was(message: Message) -> None:
    sent = SendMessage(message=message)
    body = v03_rest.encode_request(Operation.SEND, sent)
    ParseDict(msgspec.json.decode(body), pb.SendMessageRequest())
    assert v03_rest.decode_request(Operation.SEND, body) == replace(sent, message=without_references(message))


def test_push_configs_are_named_by_their_path() -> None:
    push = PushConfig(url="https://example.com/hook", id="c", task_id="t", token="secret")
    body = v03_rest.encode_result(Operation.GET_PUSH, push)
    assert msgspec.json.decode(body)["name"] == "tasks/t/pushNotificationConfigs/c"
    ParseDict(msgspec.json.decode(body), pb.TaskPushNotificationConfig())
    assert v03_rest.decode_result(Operation.GET_PUSH, body) == push
    request = v03_rest.encode_request(Operation.CREATE_PUSH, push)
    ParseDict(msgspec.json.decode(request), pb.CreateTaskPushNotificationConfigRequest())
    assert v03_rest.decode_request(Operation.CREATE_PUSH, request) == push
    page = v03_rest.encode_result(Operation.LIST_PUSH, model.PushConfigPage(configs=(push,)))
    assert v03_rest.decode_result(Operation.LIST_PUSH, page).configs == (push,)
    assert v03_rest.encode_result(Operation.DELETE_PUSH, None) == b"{}"


def sent(**members: Any) -> SendMessage:
    body: dict[str, Any] = {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}} | members
    request = v03_rest.decode_request(Operation.SEND, msgspec.json.encode(body))
    assert isinstance(request, SendMessage)
    return request


def test_a_configuration_that_does_not_say_blocking_says_false() -> None:
    assert sent(configuration={}).configuration.return_immediately
    assert not sent(configuration={"blocking": True}).configuration.return_immediately
    assert not sent().configuration.return_immediately  # nothing said: our default


def test_a_history_length_of_zero_means_everything() -> None:
    assert sent(configuration={"historyLength": 0}).configuration.history_length is None
    assert sent(configuration={"history_length": 3}).configuration.history_length == 3


def test_names_in_snake_case_are_read() -> None:
    part = {"file": {"file_with_uri": "https://example.com/a", "mime_type": "text/plain"}}
    message = {"message_id": "m", "context_id": "c", "task_id": "t", "role": "ROLE_AGENT", "content": [part]}
    expected = Part(url="https://example.com/a", media_type="text/plain")
    assert sent(message=message).message == Message(
        message_id="m", context_id="c", task_id="t", role=Role.AGENT, parts=(expected,)
    )


def test_the_form_of_json_rpc_is_read_too() -> None:
    message = {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "data", "data": {"data": {}}}]}
    assert sent(message=message).message.parts == (Part(data={"data": {}}),)
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.CANCELED))
    bare = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "canceled"}}
    assert v03_rest.decode_event(msgspec.json.encode(bare)) == task
    assert v03_rest.decode_event(msgspec.json.encode({"task": bare})) == task


@pytest.mark.parametrize("content", [b"\x00\xff", b"", b"plain text", b"abcd"])
def test_a_file_is_read_as_the_official_library_writes_it(content: bytes) -> None:
    body = msgspec.json.decode(v03_rest.encode_request(Operation.SEND, SendMessage(message=says(Part(raw=content)))))
    official = MessageToDict(ParseDict(body, pb.SendMessageRequest()))
    assert sent(**official).message.parts == (Part(raw=content),)


def test_a_file_whose_content_is_base64_itself_is_not_decoded_again() -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"file": {"fileWithBytes": "aGVsbG8xMjM="}}]}
    assert sent(message=message).message.parts == (Part(raw=b"hello123"),)


@pytest.mark.parametrize("name", ["TaskState", "Role"])
def test_the_number_of_an_enum_is_read_as_its_name(name: str) -> None:
    for member, number in getattr(pb, name).items():
        if name == "Role":
            bodies = [{"messageId": "m", "role": role, "content": [{"text": "a"}]} for role in (member, number)]
            events = [{"message": body} for body in bodies]
        else:
            events = [{"task": {"id": "t", "contextId": "c", "status": {"state": state}}} for state in (member, number)]
        if member == "ROLE_UNSPECIFIED":
            continue
        one, other = (v03_rest.decode_event(msgspec.json.encode(event)) for event in events)
        assert one == other


@pytest.mark.parametrize("role", [1, "1"])
def test_a_message_may_say_the_number_of_its_role(role: object) -> None:
    message = {"messageId": "m", "role": role, "content": [{"text": "hi"}]}
    assert sent(message=message).message.role is Role.USER
    with pytest.raises(InvalidParamsError, match=r"message\.parts"):
        sent(message={"messageId": "m", "role": role})  # ProtoJSON leaves out an empty list


@pytest.mark.parametrize("role", [0, 3, "7", True, 1.5, None])
def test_a_number_of_no_role_is_refused(role: object) -> None:
    with pytest.raises(InvalidParamsError, match=r"message\.role"):
        sent(message={"messageId": "m", "role": role, "content": [{"text": "hi"}]})


@pytest.mark.parametrize(("given", "length"), [("5", 5), (5.0, 5), (0, None), ("0", None)])
def test_the_length_of_the_history_may_be_a_text(given: object, length: int | None) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}
    assert sent(message=message, configuration={"historyLength": given}).configuration.history_length == length


@pytest.mark.parametrize("status", ["completed", "TASK_STATE_COMPLETED", "3"])
def test_the_query_may_say_a_state_in_each_way(status: str) -> None:
    request = v03_rest.convert_request(Operation.LIST, {"status": status})
    assert request == v03_rest.convert_request(Operation.LIST, {"status": "completed"})


def says(part: Part) -> Message:
    return Message(message_id="m", role=Role.USER, parts=(part,))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "ROLE_USER", "content": [{"text": "hi"}]}, "Missing required parameter: message.messageId"),
        ({"messageId": "m", "content": [{"text": "hi"}]}, "Missing required parameter: message.role"),
        ({"messageId": "m", "role": "ROLE_USER", "content": []}, "Message must contain at least one Part"),
        ({"messageId": "m", "role": "ROLE_USER", "content": "hi"}, "Invalid parameter message.parts: "),
        ({"messageId": "m", "role": "ROLE_USER", "content": [{}]}, "Invalid parameter message.parts[0]: a part has"),
        ({"messageId": "m", "role": "ROLE_USER", "content": [{"file": {}}]}, "Missing required parameter: "),
        ({"messageId": "m", "role": ["ROLE_USER"], "content": [7]}, "Invalid parameter message."),
        ({"messageId": "m", "role": "ROLE_USER"}, "Missing required parameter: message.parts"),
        ([], "Invalid parameter message: "),
        (None, "Missing required parameter: message"),
    ],
)
def test_a_wrong_message_is_refused_by_name(message: object, text: str) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        sent(message=message)
    assert caught.value.message.startswith(text)


@given(strategies.json_values)
def test_whatever_comes_is_read_or_refused(body: Any) -> None:
    for operation in (Operation.SEND, Operation.CREATE_PUSH):
        with pytest.raises(InvalidParamsError):
            v03_rest.decode_request(operation, msgspec.json.encode({"message": body, "request": body, "config": body}))
