"""The forms of a card that are signed: what A2A 1.0 §8.4.1 asks for, and what is found in the wild.

Each form determines the card, so a signature over any of them is a signature over that card.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.jcs import canonicalize
from apcore_a2a.protocol.model import encode
from apcore_a2a.protocol.v03 import agent_card

Json = dict[str, Any]  # Any: JSON

# Fields of security schemes and requirements that are neither REQUIRED nor `optional` in the protocol's own definition.
_IMPLICIT: Final = frozenset({"description", "bearerFormat", "oauth2MetadataUrl", "refreshUrl", "pkceRequired", "list"})
_FREE_FORM: Final = ("securitySchemes", "securityRequirements")
# What a2a-sdk 0.3 leaves out of a card, because it is what it would read if nothing stood there.
_DEFAULTS_OF_SDK_03: Final = {"protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}


# ---- to sign -----------------------------------------------------------------------------------------------------


def payloads_1(card: AgentCard) -> list[bytes]:
    """What is signed of a card of 1.0: what the standard asks for, and what a2a-sdk makes of it where that differs.

    Raises:
        ValueError: the card has no canonical form.
    """
    standard = standard_form(card)
    return _distinct(canonicalize(standard), canonicalize(without_empty(standard)))


def payloads_03(card: AgentCard) -> list[bytes]:
    """What is signed of a card of 0.3, which says no more of it than "JCS": the card as it is sent, and a2a-sdk's way.

    Raises:
        ValueError: the card has no canonical form.
    """
    body: Json = msgspec.json.decode(encode(agent_card.to_json(replace(card, signatures=()))))
    as_sent = canonicalize(body)
    for name, value in _DEFAULTS_OF_SDK_03.items():
        if body.get(name) == value:
            del body[name]
    for scheme in body.get("securitySchemes", {}).values():
        scheme.pop("type", None)  # each of its classes has it as a default
    # It is not JCS, in spite of its name: what is not ASCII is escaped.
    of_the_sdk = json.dumps(without_empty(body), separators=(",", ":"), sort_keys=True).encode()
    return _distinct(as_sent, of_the_sdk)


def _distinct(*payloads: bytes) -> list[bytes]:
    return list(dict.fromkeys(payloads))


# ---- to check ----------------------------------------------------------------------------------------------------


def forms_to_check(card: AgentCard, body: Mapping[str, Any]) -> Iterator[object]:
    """The forms that signers sign; `body` is the card as it came, decoded."""
    standard = standard_form(card)
    received = dict(body)
    received.pop("signatures", None)
    yield standard
    yield without_empty(standard)  # a2a-sdk leaves out empty REQUIRED fields as well
    yield received  # a card of 0.3, or of a version newer than this one
    yield without_empty(received)


# ---- the forms ---------------------------------------------------------------------------------------------------


def standard_form(card: AgentCard) -> Json:
    """The model's own JSON follows §8.4.1: REQUIRED fields stay, optional ones stay if they were set, defaults go."""
    standard: Json = msgspec.json.decode(encode(replace(card, signatures=())))
    # Security is free-form in the model, so there it is done by hand.
    for holder in (standard, *standard["skills"]):
        for name in _FREE_FORM:
            if name in holder:
                holder[name] = _without_defaults(holder[name])
    return standard


def _without_defaults(value: Any) -> Any:
    """The value without those of its fields, at any depth, that §8.4.1 leaves out when they are empty."""
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept: Json = {}
    for name, item in value.items():
        if item or name not in _IMPLICIT:
            kept[name] = _without_defaults(item)
    return kept


def without_empty(value: Any) -> Any:
    """The value without empty texts, lists and objects at any depth; None if that leaves nothing."""
    # false and 0 stay: they are values, and a2a-sdk signs them.
    if isinstance(value, list):
        return _without_empty_items(value) or None
    if isinstance(value, dict):
        return _without_empty_members(value) or None
    if value == "":
        return None
    return value


def _without_empty_items(items: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        cleaned = without_empty(item)
        if cleaned is not None:
            kept.append(cleaned)
    return kept


def _without_empty_members(members: Json) -> Json:
    kept: Json = {}
    for name, item in members.items():
        cleaned = without_empty(item)
        if cleaned is not None:
            kept[name] = cleaned
    return kept
