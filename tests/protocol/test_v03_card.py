"""Agent cards in A2A 0.3, and the hybrid that both generations read."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol import model
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.requirements import requirement

NEW = AgentInterface(url="https://e.com/", protocol_binding="JSONRPC", protocol_version="1.0")
OLD = AgentInterface(url="https://e.com/", protocol_binding="JSONRPC", protocol_version="0.3")
OLD_REST = AgentInterface(url="https://e.com/rest", protocol_binding="HTTP+JSON", protocol_version="0.3")
CARD = AgentCard(
    name="n",
    description="d",
    version="1",
    supported_interfaces=(NEW, OLD, OLD_REST),
    capabilities=AgentCapabilities(streaming=True, extended_agent_card=True),
    default_input_modes=("text/plain",),
    default_output_modes=("text/plain",),
    skills=(
        AgentSkill(
            id="s", name="s", description="s", tags=(), security_requirements=({"schemes": {"key": {"list": []}}},)
        ),
    ),
    security_schemes={
        "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
        "jwt": {"httpAuthSecurityScheme": {"scheme": "bearer"}},
    },
    security_requirements=({"schemes": {"jwt": {"list": ["read"]}}},),
)
COMMON = {
    "name": "n",
    "description": "d",
    "version": "1",
    "protocolVersion": "0.3.0",
    "url": "https://e.com/",
    "preferredTransport": "JSONRPC",
    "additionalInterfaces": [
        {"url": "https://e.com/", "transport": "JSONRPC"},
        {"url": "https://e.com/rest", "transport": "HTTP+JSON"},
    ],
    "supportsAuthenticatedExtendedCard": True,
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "security": [{"jwt": ["read"]}],
}


def read(card: dict[str, Any]) -> AgentCard:
    return v03.decode_card(model.encode(card))


@requirement("FR-AGC-003", "FR-SKL-002")
def test_the_0_3_card_has_the_fields_of_0_3_and_no_others() -> None:
    assert msgspec.json.decode(v03.encode_card(CARD)) == COMMON | {
        "capabilities": {"streaming": True, "stateTransitionHistory": False},
        "skills": [{"id": "s", "name": "s", "description": "s", "tags": [], "examples": [], "security": [{"key": []}]}],
        "securitySchemes": {
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            "jwt": {"type": "http", "scheme": "bearer"},
        },
    }


@requirement("FR-AGC-003")
def test_the_hybrid_card_has_the_fields_of_both_versions() -> None:
    key = {"location": "header", "name": "X-API-Key"}
    assert msgspec.json.decode(v03.encode_hybrid_card(CARD)) == COMMON | {
        "supportedInterfaces": [msgspec.to_builtins(one) for one in CARD.supported_interfaces],
        "capabilities": {"streaming": True, "extendedAgentCard": True, "stateTransitionHistory": False},
        "skills": [
            {
                "id": "s",
                "name": "s",
                "description": "s",
                "tags": [],
                "security": [{"key": []}],
                "securityRequirements": [{"schemes": {"key": {"list": []}}}],
            }
        ],
        "securityRequirements": [{"schemes": {"jwt": {"list": ["read"]}}}],
        "securitySchemes": {
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "apiKeySecurityScheme": key},
            "jwt": {"type": "http", "scheme": "bearer", "httpAuthSecurityScheme": {"scheme": "bearer"}},
        },
    }


def test_an_agent_that_lists_no_0_3_interface_is_found_at_its_first() -> None:
    body = msgspec.json.decode(v03.encode_card(replace(CARD, supported_interfaces=(NEW,))))
    assert (body["url"], body["preferredTransport"]) == (NEW.url, NEW.protocol_binding)


def test_a_card_without_interfaces_is_still_written() -> None:
    body = msgspec.json.decode(v03.encode_card(replace(CARD, supported_interfaces=())))
    assert (body["url"], body["additionalInterfaces"]) == ("", [])


def test_the_main_interface_comes_first_and_once() -> None:
    interfaces = [{"url": "b", "transport": "GRPC"}, {"url": "a", "transport": "JSONRPC"}]
    card = read(COMMON | {"capabilities": {}, "skills": [], "url": "a", "additionalInterfaces": interfaces})
    assert [(one.url, one.protocol_binding, one.protocol_version) for one in card.supported_interfaces] == [
        ("a", "JSONRPC", "0.3"),
        ("b", "GRPC", "0.3"),
    ]


def test_a_card_that_does_not_say_its_transport_speaks_json_rpc_0_3() -> None:
    body = {"name": "n", "description": "d", "version": "1", "url": "a", "capabilities": {}, "skills": []}
    card = read(body | {"defaultInputModes": [], "defaultOutputModes": []})
    assert card.supported_interfaces == (AgentInterface(url="a", protocol_binding="JSONRPC", protocol_version="0.3"),)


def test_where_a_hybrid_says_a_thing_twice_1_0_counts() -> None:
    body = msgspec.json.decode(v03.encode_hybrid_card(CARD))
    body["security"], body["url"], body["supportsAuthenticatedExtendedCard"] = [{"other": []}], "https://old", False
    body["securitySchemes"]["jwt"]["scheme"] = "basic"
    body["skills"][0]["security"] = [{"other": []}]
    assert read(body) == CARD


def test_a_security_scheme_of_an_unknown_kind_is_left_out() -> None:
    body = msgspec.json.decode(v03.encode_card(CARD))
    body["securitySchemes"] |= {"odd": {"type": "telepathy"}, "odder": {"type": []}, "oddest": {}}
    schemes = read(body).security_schemes
    assert schemes is not None
    assert schemes.keys() == {"key", "jwt"}


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        ({"skills": "many"}, "skills"),
        ({"skills": [{"id": 5}]}, "skills[0].id"),
        ({"securitySchemes": []}, "securitySchemes"),
        ({"security": {"jwt": []}}, "security"),
        ({"additionalInterfaces": [{"url": "a"}]}, "additionalInterfaces[0].transport"),
        ({"capabilities": "all"}, "capabilities"),
    ],
)
def test_a_wrong_card_is_refused_by_the_name_of_the_field(damage: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        read(msgspec.json.decode(v03.encode_card(CARD)) | damage)
    assert caught.value.violations[0].field == field
