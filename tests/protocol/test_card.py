"""The agent card: its required fields, and the few requirements for the card of another agent."""

import json

import pytest
from hypothesis import given

from apcore_a2a.errors import InvalidParamsError, ParseError
from apcore_a2a.protocol import card as card_module
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from apcore_a2a.protocol.model import Value
from tests.protocol import strategies

INTERFACE = AgentInterface(url="https://a", protocol_binding="JSONRPC", protocol_version="1.0")
VALUES = [
    cls for cls in vars(card_module).values() if isinstance(cls, type) and issubclass(cls, Value) and cls is not Value
]


def test_an_empty_card_says_all_that_is_required_and_nothing_else() -> None:
    assert json.loads(v1.encode_card(AgentCard(supported_interfaces=(INTERFACE,)))) == {
        "name": "",
        "description": "",
        "version": "",
        "supportedInterfaces": [{"url": "https://a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {},
        "defaultInputModes": [],
        "defaultOutputModes": [],
        "skills": [],
    }


def test_a_card_is_read_if_it_says_where_to_call() -> None:
    read = v1.decode_card(b'{"supportedInterfaces":[{"url":"u","protocolBinding":"JSONRPC"}],"skills":[{"id":"s"}]}')
    assert read == AgentCard(
        supported_interfaces=(AgentInterface(url="u", protocol_binding="JSONRPC"),), skills=(AgentSkill(id="s"),)
    )
    assert read.capabilities == AgentCapabilities()


def test_what_a_capability_does_not_say_is_not_the_same_as_no() -> None:
    said, unsaid = AgentCapabilities(streaming=False), AgentCapabilities()
    assert (said.to_dict(), unsaid.to_dict()) == ({"streaming": False}, {})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", "supportedInterfaces"),
        (b'{"detail":"Not Found"}', "supportedInterfaces"),
        (b'{"supportedInterfaces":[{"protocolBinding":"JSONRPC"}]}', "supportedInterfaces[0].url"),
        (b'{"supportedInterfaces":[],"skills":[{"name":"x"}]}', "skills[0].id"),
        (b'{"supportedInterfaces":[],"securitySchemes":[]}', "securitySchemes"),
        (b'{"supportedInterfaces":[],"capabilities":{"streaming":"yes"}}', "capabilities.streaming"),
        (b"[]", ""),
    ],
)
def test_what_is_not_a_card_is_refused_by_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        v1.decode_card(body)
    assert refused.value.violations[0].field == field


def test_a_page_that_is_not_json_is_no_card() -> None:
    with pytest.raises(ParseError):
        v1.decode_card(b"<html>")


@given(strategies.cards)
def test_a_card_with_members_of_another_version_is_read_as_ours(agent: AgentCard) -> None:
    body = json.loads(v1.encode_card(agent)) | {
        "url": "https://a",
        "preferredTransport": "JSONRPC",
        "protocolVersion": "0.3.0",
    }
    assert v1.decode_card(json.dumps(body).encode()) == agent


@pytest.mark.parametrize("cls", VALUES)
def test_a_card_does_not_change(cls: type[Value]) -> None:
    assert cls.__struct_config__.frozen


def test_scopes_that_a2a_go_writes_as_a_bare_list_are_read() -> None:
    bare = [{"schemes": {"oauth": ["read"], "key": []}}, {"schemes": {"odd": {"list": ["kept"]}}}]
    body = {
        "supportedInterfaces": [],
        "securityRequirements": bare,
        "skills": [{"id": "s", "securityRequirements": bare}],
    }
    card = v1.decode_card(json.dumps(body).encode())
    read = ({"schemes": {"oauth": {"list": ["read"]}, "key": {"list": []}}}, {"schemes": {"odd": {"list": ["kept"]}}})
    assert card.security_requirements == card.skills[0].security_requirements == read


@pytest.mark.parametrize(
    "wrong", [[{"schemes": {"key": [1]}}], [{"schemes": {"key": "all"}}], [{"schemes": 1}], [[]], 1]
)
def test_requirements_that_are_none_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidParamsError, match="securityRequirements"):
        v1.decode_card(json.dumps({"supportedInterfaces": [], "securityRequirements": wrong}).encode())
