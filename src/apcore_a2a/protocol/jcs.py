"""RFC 8785, the JSON Canonicalization Scheme: one spelling for one value, so that it can be signed."""

import json
from decimal import Decimal
from typing import Any, Final

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
