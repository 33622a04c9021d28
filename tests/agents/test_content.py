"""Python values as parts and messages."""

from apcore_a2a.agents.content import agent_message, text_of, to_parts
from apcore_a2a.protocol.model import Message, Part, Role


def test_none_becomes_no_parts() -> None:
    assert to_parts(None) == []
    assert to_parts([Part(text="a"), None]) == [Part(text="a")]


def test_a_message_is_returned_unchanged() -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="a"),))
    assert agent_message(message) is message


def test_a_message_of_the_agent_has_an_id_of_its_own() -> None:
    first, second = agent_message("a", metadata={"n": 1}), agent_message("a")
    assert first.message_id != second.message_id
    assert (first.role, first.metadata, text_of(first)) == (Role.AGENT, {"n": 1}, "a")


def test_data_is_copied() -> None:
    data = {"list": [1]}
    (part,) = to_parts(data)
    data["list"].append(2)
    assert part.data == {"list": [1]}


def test_keys_of_data_become_strings() -> None:
    assert to_parts({1: "one"}) == [Part(data={"1": "one"})]
