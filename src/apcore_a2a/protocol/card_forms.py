"""The forms of a card that are signed: the one of A2A 1.0 §8.4.1, and those of other implementations.

Each form determines the card, so a signature of any form is a signature of that card. The exception is
`unaddressed_payload`.
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
# Values that a2a-sdk 0.3 omits from a card, because they are its defaults.
_DEFAULTS_OF_SDK_03: Final = {"protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}


# ---- signing -----------------------------------------------------------------------------------------------------


def payloads_1(card: AgentCard) -> list[bytes]:
    """Return the payloads to sign for a card of 1.0: the standard one, and the one of a2a-sdk if it differs.

    Raises:
        ValueError: the card has no canonical form.
    """
    standard = standard_form(card)
    return _distinct(canonicalize(standard), canonicalize(without_empty(standard)))


def unaddressed_payload(card: AgentCard) -> bytes:
    """Return the payload of a card of 1.0 without its addresses, which a gateway may have to change.

    It is not a card, because a card has addresses. So a signature of it is not that of a card.

    Raises:
        ValueError: the card has no canonical form.
    """
    form = standard_form(card)
    del form["supportedInterfaces"]
    return canonicalize(form)


def payloads_03(card: AgentCard) -> list[bytes]:
    """Return the payloads to sign for a card of 0.3, which only specifies "JCS": the card as sent, and a2a-sdk's form.

    Raises:
        ValueError: the card has no canonical form.
    """
    body: Json = msgspec.json.decode(encode(card_module.to_json(replace(card, signatures=()))))
    as_sent = canonicalize(body)
    for name, value in _DEFAULTS_OF_SDK_03.items():
        if body.get(name) == value:
            del body[name]
    for scheme in body.get("securitySchemes", {}).values():
        scheme.pop("type", None)  # a2a-sdk omits it: in each of its classes, `type` has a default
    # Despite its name this is not JCS: characters outside of ASCII are escaped.
    of_the_sdk = json.dumps(without_empty(body), separators=(",", ":"), sort_keys=True).encode()
    return _distinct(as_sent, of_the_sdk)


def _distinct(*payloads: bytes) -> list[bytes]:
    return list(dict.fromkeys(payloads))


# ---- verifying ---------------------------------------------------------------------------------------------------


def forms_to_check(card: AgentCard, body: Mapping[str, Any]) -> Iterator[object]:
    """Yield the forms that signers use. `body` is the received card, decoded."""
    standard = standard_form(card)
    received = dict(body)
    received.pop("signatures", None)
    yield standard
    yield without_empty(standard)  # a2a-sdk omits empty REQUIRED fields too
    yield received  # a card of 0.3, or of a version newer than this one
    yield without_empty(received)


# ---- the forms ---------------------------------------------------------------------------------------------------


def standard_form(card: AgentCard) -> Json:
    """Return the form of §8.4.1, which is the model's JSON: REQUIRED and set optional fields stay, defaults do not."""
    standard: Json = msgspec.json.decode(encode(replace(card, signatures=())))
    # Security is free-form in the model, so its defaults are removed here.
    for holder in (standard, *standard["skills"]):
        for name in _FREE_FORM:
            if name in holder:
                holder[name] = _without_defaults(holder[name])
    return standard


def _without_defaults(value: Any) -> Any:
    """Return the value without the empty fields, at any depth, that §8.4.1 omits."""
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
    """Return the value without empty strings, lists and objects at any depth, or None if nothing is left."""
    # false and 0 stay, because a2a-sdk signs them.
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
# RFC 8785, the JSON Canonicalization Scheme: each value has one spelling, which can be signed.

LARGEST_DOUBLE: Final = float.fromhex("0x1.fffffffffffffp+1023")


def canonicalize(value: Any) -> bytes:  # Any: decoded JSON
    r"""Return the canonical bytes of a JSON value.

    Raises:
        ValueError: the value has no canonical form: NaN, an integer that no double holds, a lone surrogate.

    Example:
        >>> canonicalize({"b": 1.0, "a": "é"})
        b'{"a":"\xc3\xa9","b":1}'
    """
    return _text(value).encode()  # a lone surrogate fails here: UnicodeEncodeError is a ValueError


def _text(value: Any) -> str:
    match value:
        case None | bool() | str():  # bool before int, its base class
            return json.dumps(value, ensure_ascii=False)  # escapes exactly as §3.2.2.2 asks
        case int() | float():
            return _number(value)
        case list():
            items = [_text(item) for item in value]
            return "[" + ",".join(items) + "]"
        case dict():
            return _object(value)
    raise ValueError(f"{type(value).__name__} is not a JSON value")


def _object(value: dict[str, Any]) -> str:
    # §3.2.3: by UTF-16 code unit. Python compares code points, whose order differs above U+FFFF.
    ordered = sorted(value, key=lambda name: name.encode("utf-16-be"))
    members = [f"{_text(name)}:{_text(value[name])}" for name in ordered]
    return "{" + ",".join(members) + "}"


def _number(value: float) -> str:
    """Format a number as ECMAScript's Number::toString, from Python's shortest digits, which are the same."""
    # In this form it also rejects NaN, for which every comparison is false.
    if not abs(value) <= LARGEST_DOUBLE:
        raise ValueError("a number that no finite double holds has no canonical form")
    sign, digits, exponent = Decimal(repr(float(value))).normalize().as_tuple()
    assert isinstance(exponent, int)  # the number is finite
    text = "".join(map(str, digits))
    point = len(text) + exponent  # the position of the decimal point
    if value == 0:
        written = "0"  # also -0.0
    else:
        written = "-" * sign + _place_point(text, point)
    if isinstance(value, int) and written != str(value):
        raise ValueError("an integer that no double holds has no canonical form")
    return written


def _place_point(text: str, point: int) -> str:
    # The bounds of ECMAScript: up to 21 digits before the point, up to five zeros after it, else an exponent.
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
