"""The values that can be sent as a message, and their conversion."""

import json
import math
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from apcore_a2a.client.messages import to_message
from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol.model import Message, Part, Role, encode


def convert(given: Any, **more: str | None) -> Message:
    return to_message(given, **{"skill": None, "context_id": None, "task_id": None} | more)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("hi", (Part(text="hi"),)),
        ("", (Part(text=""),)),
        ({"city": "Bern"}, (Part(data={"city": "Bern"}),)),
        ({}, (Part(data={}),)),
        (Part(url="https://example.com/a"), (Part(url="https://example.com/a"),)),
        ([Part(text="a"), Part(raw=b"b")], (Part(text="a"), Part(raw=b"b"))),
        ((Part(text="a"),), (Part(text="a"),)),
        ({"parts": [{"text": "1.0"}]}, (Part(text="1.0"),)),
        ({"role": "ROLE_USER", "parts": [{"data": 1}]}, (Part(data=1),)),
        ({"role": "user", "parts": [{"kind": "text", "text": "0.3"}]}, (Part(text="0.3"),)),
        ({"role": "user", "parts": [{"type": "text", "text": "SRS"}]}, (Part(text="SRS"),)),
        ({"parts": [{"type": "data", "data": {"n": 1}}]}, (Part(data={"n": 1}),)),
    ],
)
def test_texts_data_parts_and_dicts_become_messages_of_the_user(given: object, parts: tuple[Part, ...]) -> None:
    message = convert(given)

    assert (message.role, message.parts) == (Role.USER, parts)
    assert message.message_id
    assert convert(given).message_id != message.message_id


def test_a_message_is_sent_as_it_is() -> None:
    message = Message(message_id="m-1", role=Role.USER, parts=(Part(text="hi"),), metadata={"a": 1})

    assert convert(message) == message


def test_the_fields_of_a_message_dict_are_kept() -> None:
    said = {"messageId": "m-1", "contextId": "c-1", "taskId": "t-1", "metadata": {"a": 1}, "parts": [{"text": "hi"}]}

    message = convert(said)

    assert (message.message_id, message.context_id, message.task_id) == ("m-1", "c-1", "t-1")
    assert message.metadata == {"a": 1}


def test_a_skill_is_added_to_the_metadata() -> None:
    message = Message(message_id="m-1", role=Role.USER, parts=(Part(text="hi"),), metadata={"a": 1})

    assert convert(message, skill="obey").metadata == {"a": 1, "skillId": "obey"}
    assert message.metadata == {"a": 1}


def test_context_and_task_may_be_arguments() -> None:
    message = convert("hi", context_id="c-1", task_id="t-1")

    assert (message.context_id, message.task_id) == ("c-1", "t-1")


@pytest.mark.parametrize("name", ["context_id", "task_id"])
def test_different_ids_in_message_and_arguments_are_an_error(name: str) -> None:
    message = Message(message_id="m-1", role=Role.USER, parts=(Part(text="hi"),), context_id="one", task_id="one")

    with pytest.raises(ValueError, match=f"{name} is 'one' in the message, but 'two' in the argument"):
        convert(message, **{name: "two"})
    assert convert(message, **{name: "one"}) == message


@pytest.mark.parametrize("given", [None, 1, b"bytes", [], ["text"], [Part(text="a"), "b"], object()])
def test_anything_else_is_a_type_error(given: object) -> None:
    with pytest.raises(TypeError, match="A message is a str, dict, Part"):
        convert(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"parts": []}, "at least one Part"),
        ({"parts": "text"}, r"message\.parts"),
        ({"parts": [{}]}, r"message\.parts\[0\]|exactly one"),
        ({"parts": [{"text": "a"}], "role": "ROLE_KING"}, r"message\.role"),
        ({"role": "user", "parts": [{"kind": "song"}]}, r"message\.parts"),
    ],
)
def test_an_invalid_message_dict_is_rejected_with_the_field(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParamsError, match=said):
        convert(given)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
def test_nan_and_infinity_are_rejected_and_not_sent_as_null(number: float) -> None:
    for given in ({"celsius": number}, {"parts": [{"data": [number]}]}, Part(data={"deep": [{"er": number}]})):
        with pytest.raises(ValueError, match="neither NaN nor infinity"):
            convert(given)


def test_data_may_contain_values_with_a_json_form() -> None:
    given = {"when": datetime(2026, 1, 2, tzinfo=UTC), 3: UUID(int=1)}
    message = convert(given)
    assert json.loads(encode(message.parts[0].data)) == {"when": "2026-01-02T00:00:00Z", "3": str(UUID(int=1))}
