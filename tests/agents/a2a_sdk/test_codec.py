"""Conversion of the model to a2a-sdk's protobuf messages and back: no value is lost or rounded."""

import math
from typing import Any, TypeVar, cast

import msgspec
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf import json_format
from google.protobuf.message import Message as Proto
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from apcore_a2a.agents.a2a_sdk import codec
from apcore_a2a.agents.a2a_sdk.codec import from_value, to_value
from apcore_a2a.errors import InvalidAgentResponseError
from apcore_a2a.protocol import model
from apcore_a2a.protocol.model import Message, Part, Role, StatusUpdate, TaskState, TaskStatus
from tests.protocol import strategies

T = TypeVar("T")


def officially(value: msgspec.Struct, kind: Proto) -> Proto:
    """Return the message that protobuf's own parser reads from the 1.0 JSON of a value."""
    return json_format.Parse(msgspec.json.encode(value), kind)


def exact(value: T) -> T:
    """Return a value with strings in place of numbers that protobuf would round."""
    return msgspec.convert(_exact(msgspec.to_builtins(value, builtin_types=(bytes,))), type(value))


def _exact(value: Any) -> Any:
    match value:
        case dict():
            return {name: _exact(item) for name, item in value.items()}
        case list() | tuple():
            return [_exact(item) for item in value]
        case int() if abs(value) > 2**53:
            return str(value)
        case _:
            return value


KINDS: dict[type, type[Proto]] = {
    model.Task: pb.Task,
    model.Message: pb.Message,
    model.StatusUpdate: pb.TaskStatusUpdateEvent,
    model.ArtifactUpdate: pb.TaskArtifactUpdateEvent,
}


@given(strategies.events().map(exact))
def test_an_event_is_read_as_protobuf_writes_it(event: model.Event) -> None:
    assert codec.from_event(cast(codec.ProtoEvent, officially(event, KINDS[type(event)]()))) == event


@given(strategies.tasks().map(exact))
def test_a_task_is_what_protobuf_reads_from_its_json(task: model.Task) -> None:
    assert codec.to_task(task) == officially(task, pb.Task())


@given(strategies.sends.map(exact))
def test_a_request_is_what_protobuf_reads_from_its_json(request: model.SendMessage) -> None:
    assert codec.to_request(request) == officially(request, pb.SendMessageRequest())


@given(st.integers(-(2**53), 2**53))
def test_whole_numbers_up_to_two_to_the_53_stay_integers(number: int) -> None:
    came_back = from_value(to_value({"n": [number]}))
    assert came_back == {"n": [number]}
    assert type(came_back["n"][0]) is int


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 10**400, 2**64 - 1])
def test_a_number_that_protobuf_would_round_is_rejected(number: int) -> None:
    with pytest.raises(ValueError, match=r"exactly up to 2\^53 only: send a larger one as a string"):
        to_value({"n": [number]})


def test_beyond_two_to_the_53_the_value_is_kept_but_not_its_type() -> None:
    came_back = from_value(to_value(2**60))
    assert (came_back, type(came_back)) == (2**60, float)


@pytest.mark.parametrize("number", [0.5, 1e300, -0.1])
def test_fractions_stay_as_they_are(number: float) -> None:
    assert from_value(to_value(number)) == number


def test_values_without_a_json_form_are_converted() -> None:
    assert math.isnan(from_value(to_value(float("nan"))))


def test_values_that_msgspec_converts_are_converted() -> None:
    assert from_value(to_value({"state": TaskState.WORKING, "raw": b"x"})) == {
        "state": "TASK_STATE_WORKING",
        "raw": "eA==",
    }


def test_true_is_not_converted_to_one() -> None:
    assert from_value(to_value([True, 1, None])) == [True, 1, None]
    assert type(from_value(to_value(True))) is bool


def test_null_is_data() -> None:
    part = Part(data=None)
    message = Message(message_id="m", role=Role.USER, parts=(part,))
    came_back = codec.from_message(codec.to_message(message)).parts[0]
    assert came_back.data is None and came_back.text is UNSET


def test_an_event_is_copied_when_it_is_published() -> None:
    event = pb.TaskArtifactUpdateEvent(artifact=pb.Artifact(artifact_id="a", parts=[pb.Part(text="before")]))
    update = codec.from_event(event)
    event.artifact.parts[0].text = "after"
    assert isinstance(update, model.ArtifactUpdate) and update.artifact.parts[0].text == "before"


def test_times_have_milliseconds() -> None:
    event = pb.TaskStatusUpdateEvent(status=pb.TaskStatus(state=pb.TaskState.TASK_STATE_WORKING))
    event.status.timestamp.FromJsonString("2025-01-02T03:04:05.678901Z")
    update = codec.from_event(event)
    assert isinstance(update, StatusUpdate) and update.status.timestamp == "2025-01-02T03:04:05.678Z"


def test_a_message_without_a_role_has_the_role_of_the_agent() -> None:
    assert codec.from_message(pb.Message(parts=[pb.Part(text="x")])).role is Role.AGENT


def test_an_unknown_state_is_unspecified() -> None:
    event = pb.TaskStatusUpdateEvent(status=pb.TaskStatus(state=99))  # type: ignore[arg-type]  # the point
    update = codec.from_event(event)
    assert isinstance(update, StatusUpdate) and update.status == TaskStatus(state=TaskState.UNSPECIFIED)


def test_a_part_without_content_is_rejected() -> None:
    with pytest.raises(InvalidAgentResponseError, match="a part without content"):
        codec.from_event(pb.Message(parts=[pb.Part()]))


def test_a_value_that_is_not_an_event_is_rejected() -> None:
    event: Any = pb.AgentCard()
    with pytest.raises(InvalidAgentResponseError, match="published a AgentCard, which is not an event"):
        codec.from_event(event)
