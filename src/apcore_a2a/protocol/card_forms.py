"""The forms of a card that are signed: what A2A 1.0 §8.4.1 asks for, and what is found in the wild.

Each form determines the card, so a signature over any of them is a signature over that card.
"""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import encode
from apcore_a2a.protocol.v03 import card as card_module

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
    body: Json = msgspec.json.decode(encode(card_module.to_json(replace(card, signatures=()))))
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


# ---- jcs ------------------------------------------------------------------------------------------------------------
# RFC 8785, the JSON Canonicalization Scheme: one spelling for one value, so that it can be signed.

LARGEST_DOUBLE: Final = float.fromhex("0x1.fffffffffffffp+1023")


def canonicalize(value: Any) -> bytes:  # Any: decoded JSON
    r"""The canonical bytes of a JSON value.

    Raises:
        ValueError: the value has no canonical form: NaN, an integer that is no double, a lone surrogate.

    Example:
        >>> canonicalize({"b": 1.0, "a": "é"})
        b'{"a":"\xc3\xa9","b":1}'
    """
    return _text(value).encode()  # a lone surrogate fails here: UnicodeEncodeError is a ValueError


def _text(value: Any) -> str:
    match value:
        case None | bool() | str():  # bool before int, which it is as well
            return json.dumps(value, ensure_ascii=False)  # escapes just what §3.2.2.2 asks for, and as it asks
        case int() | float():
            return _number(value)
        case list():
            items = [_text(item) for item in value]
            return "[" + ",".join(items) + "]"
        case dict():
            return _object(value)
    raise ValueError(f"{type(value).__name__} is not a JSON value")


def _object(value: dict[str, Any]) -> str:
    # §3.2.3: by UTF-16 code unit. Python compares code points, which is another order above U+FFFF.
    ordered = sorted(value, key=lambda name: name.encode("utf-16-be"))
    members = [f"{_text(name)}:{_text(value[name])}" for name in ordered]
    return "{" + ",".join(members) + "}"


def _number(value: float) -> str:
    """ECMAScript's Number::toString, by way of Python's shortest digits, which are the same."""
    # Written so that NaN, for which every comparison is false, is refused as well.
    if not abs(value) <= LARGEST_DOUBLE:
        raise ValueError("a number that is no finite double has no canonical form")
    sign, digits, exponent = Decimal(repr(float(value))).normalize().as_tuple()
    assert isinstance(exponent, int)  # it is finite
    text = "".join(map(str, digits))
    point = len(text) + exponent  # where the decimal point stands in the digits
    if value == 0:
        written = "0"  # and -0.0, too
    else:
        written = "-" * sign + _place_point(text, point)
    if isinstance(value, int) and written != str(value):
        raise ValueError("an integer that is no double has no canonical form")
    return written


def _place_point(text: str, point: int) -> str:
    # The bounds are those of ECMAScript: up to 21 digits before the point, up to five zeros after it, else an exponent.
    if len(text) <= point <= 21:
        return text + "0" * (point - len(text))
    if 0 < point <= 21:
        return f"{text[:point]}.{text[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{text}"
    mantissa = text[0]
    if len(text) > 1:
        mantissa += f".{text[1:]}"
    return f"{mantissa}e{point - 1:+d}"
