"""A2A 0.3 in: what is wrong is refused, by the name of the field, in our words."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apcore_a2a.errors import InvalidAgentResponseError, InvalidParamsError, Violation
from apcore_a2a.protocol import model
from apcore_a2a.protocol.model import Operation
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.protocol import strategies
from tests.requirements import requirement

TEXT = {"kind": "text", "text": "hi"}


def refused(operation: Operation, params: object) -> InvalidParamsError:
    with pytest.raises(InvalidParamsError) as caught:
        v03.decode_request(operation, model.encode(params))
    return caught.value


OFFICIAL: dict[str, Any] = {"kind": "message", "messageId": "m", "role": "user", "parts": [TEXT]}


def test_a_message_that_says_its_kind_needs_an_id() -> None:
    error = refused(Operation.SEND, {"message": {"kind": "message", "role": "user", "parts": [TEXT]}})
    assert str(error) == "Missing required parameter: message.messageId"
    assert error.violations == (Violation("message.messageId", "is required", "required"),)


def test_two_contexts_that_differ_are_refused() -> None:
    error = refused(Operation.SEND, {"message": {"role": "user", "parts": [TEXT], "contextId": "a"}, "contextId": "b"})
    assert str(error) == "Invalid parameter contextId: differs from message.contextId"
    assert error.violations == (Violation("contextId", "differs from message.contextId"),)


@pytest.mark.parametrize(
    ("params", "text", "field"),
    [
        ({}, "Missing required parameter: message", "message"),
        ({"": "x"}, "Missing required parameter: message", "message"),
        ({"message": {"kind": "message"}}, "Missing required parameter: message.role", "message.role"),
        (
            {"message": {"parts": "invalid"}},
            "Invalid parameter message.parts: expected array, got string",
            "message.parts",
        ),
        ({"message": {**OFFICIAL, "parts": []}}, "Message must contain at least one Part", "message.parts"),
        ({"message": {**OFFICIAL, "parts": None}}, "Missing required parameter: message.parts", "message.parts"),
        ({"message": {**OFFICIAL, "role": "robot"}}, "Invalid parameter message.role: unknown value", "message.role"),
        ({"message": {**OFFICIAL, "kind": "task"}}, "Invalid parameter message.kind: unknown value", "message.kind"),
        (
            {"message": {**OFFICIAL, "messageId": "m" * 257}},
            "Invalid parameter message.messageId: string longer than 256",
            "message.messageId",
        ),
        (
            {"message": {**OFFICIAL, "parts": [TEXT] * 1001}},
            "Invalid parameter message.parts: array longer than 1000",
            "message.parts",
        ),
        (
            {"message": {**OFFICIAL, "parts": [TEXT, {"kind": "video"}]}},
            "Invalid parameter message.parts[1].kind: unknown value",
            "message.parts[1].kind",
        ),
        (
            {"message": {**OFFICIAL, "parts": [{"type": "unsupported_type", "text": "x"}]}},
            "Invalid parameter message.parts[0].type: unknown value",
            "message.parts[0].type",
        ),
        (
            {"message": {**OFFICIAL, "parts": [{}]}},
            "Invalid parameter message.parts[0]: a part has exactly one of text, file and data",
            "message.parts[0]",
        ),
        (
            {"message": {**OFFICIAL, "parts": [{"kind": "text"}]}},
            "Missing required parameter: message.parts[0].text",
            "message.parts[0].text",
        ),
        (
            {"message": {**OFFICIAL, "parts": [{"kind": "data", "text": "x"}]}},
            "Missing required parameter: message.parts[0].data",
            "message.parts[0].data",
        ),
        (
            {"message": {**OFFICIAL, "parts": [{"kind": "file"}]}},
            "Missing required parameter: message.parts[0].file",
            "message.parts[0].file",
        ),
        (
            {"message": {**OFFICIAL, "parts": [{"kind": "file", "file": {"name": "x"}}]}},
            "Missing required parameter: message.parts[0].file.uri",
            "message.parts[0].file.uri",
        ),
        (
            {"message": {**OFFICIAL, "parts": [{"kind": "file", "file": {"bytes": "%%%"}}]}},
            "Invalid parameter message.parts[0].file.bytes: invalid base64",
            "message.parts[0].file.bytes",
        ),
        (
            {"message": OFFICIAL, "configuration": {"historyLength": -1}},
            "Invalid parameter configuration.historyLength: must be at least 0",
            "configuration.historyLength",
        ),
        (
            {"message": OFFICIAL, "configuration": {"pushNotificationConfig": {"id": "p"}}},
            "Missing required parameter: configuration.pushNotificationConfig.url",
            "configuration.pushNotificationConfig.url",
        ),
    ],
)
@requirement("FR-MSG-003")
def test_a_wrong_message_is_refused_by_the_name_of_the_field(params: dict[str, Any], text: str, field: str) -> None:
    error = refused(Operation.SEND, params)
    assert (str(error), error.violations[0].field) == (text, field)
    assert v03.encode_error(error).code == -32602


@pytest.mark.parametrize(
    ("operation", "params", "text"),
    [
        (Operation.GET, {}, "Missing required parameter: id"),
        (Operation.GET, {"id": 5}, "Invalid parameter id: expected string, got integer"),
        (Operation.GET, {"id": ""}, "Invalid parameter id: must not be empty"),
        (Operation.GET, {"id": "t", "historyLength": -1}, "Invalid parameter historyLength: must be at least 0"),
        (Operation.GET, [], "Invalid parameter (all): expected object, got array"),
        (Operation.CANCEL, {"invalid": "params"}, "Missing required parameter: id"),
        (Operation.SUBSCRIBE, {}, "Missing required parameter: id"),
        (Operation.LIST, {"limit": 0}, "Invalid parameter limit: must be at least 1"),
        (Operation.LIST, {"status": "sleeping"}, "Invalid parameter status: unknown value"),
        (Operation.CREATE_PUSH, {"taskId": "t"}, "Missing required parameter: pushNotificationConfig.url"),
        (Operation.CREATE_PUSH, {"url": "https://e.com"}, "Missing required parameter: taskId"),
        (Operation.CREATE_PUSH, {"taskId": "t", "url": ""}, "Invalid parameter url: must not be empty"),
        (Operation.GET_PUSH, {}, "Missing required parameter: id"),
        (Operation.LIST_PUSH, {}, "Missing required parameter: id"),
        (Operation.DELETE_PUSH, {"id": None}, "Missing required parameter: id"),
    ],
)
def test_a_wrong_request_is_refused_by_the_name_of_the_field(operation: Operation, params: object, text: str) -> None:
    assert str(refused(operation, params)) == text


@pytest.mark.parametrize("event", [{"kind": "surprise"}, {"kind": ""}])
def test_an_event_of_no_known_kind_is_an_invalid_answer(event: dict[str, str]) -> None:
    with pytest.raises(InvalidAgentResponseError):
        v03.decode_event(model.encode(event))


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({}, "Missing required parameter: kind"),
        ({"kind": "task", "id": "t"}, "Missing required parameter: status"),
        (
            {"kind": "task", "id": "t", "status": {"state": "done"}},
            "Invalid parameter status.state: unknown value",
        ),
        (
            {"kind": "artifact-update", "artifact": {"artifactId": "a", "parts": [{"kind": "text"}]}},
            "Missing required parameter: artifact.parts[0].text",
        ),
    ],
)
def test_a_wrong_event_is_refused_by_the_name_of_the_field(event: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        v03.decode_event(model.encode(event))
    assert str(caught.value) == text


LIBRARY_WORDS = ("`", "$", "Object missing", "Traceback", "msgspec", "0x")


@pytest.mark.parametrize("operation", Operation)
@settings(max_examples=40)
@given(data=st.data())
def test_whatever_comes_in_is_read_or_refused_in_our_words(operation: Operation, data: st.DataObject) -> None:
    body = msgspec.json.decode(v03.encode_request(operation, data.draw(strategies.requests[operation])))
    damaged = data.draw(damage(body))
    try:
        v03.decode_request(operation, model.encode(damaged))
    except InvalidParamsError as error:
        said = " ".join((str(error), *(violation.message for violation in error.violations)))
        assert not any(word in said.replace(error.violations[0].field, "") for word in LIBRARY_WORDS)


@st.composite
def damage(draw: st.DrawFn, value: Any) -> Any:
    """The value with one thing in it removed or replaced."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value)))
        rest = {name: item for name, item in value.items() if name != key}
        return rest if draw(st.integers(0, 3)) == 0 else {**rest, key: draw(damage(value[key]))}
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        index = draw(st.integers(0, len(value) - 1))
        return [*value[:index], draw(damage(value[index])), *value[index + 1 :]]
    return draw(strategies.json_values)
