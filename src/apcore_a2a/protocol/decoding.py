"""JSON in: one strict way from bytes to values, with errors that name the wrong field.

Rule: nesting over 64, NaN, broken UTF-8 and lone surrogates are refused before anything is built; of duplicate keys
the last one counts, everywhere. No text of the JSON library reaches a client.
"""

import re
from array import array
from itertools import accumulate, filterfalse
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from apcore_a2a.errors import InvalidParamsError, InvalidRequestError, ParseError, Violation

MAX_DEPTH: Final = 64

T = TypeVar("T")

_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # one level up, one level down
_LEVELS: Final = frozenset(range(MAX_DEPTH))
_UNMARKED: Final = bytes(set(range(256)) - set(b'[{]}"'))
_SNAKE_KEY: Final = re.compile(rb'_[a-z0-9]++"\s*+:')
_MISSING: Final = re.compile(r"^Object missing required field `(.+)`$")
_MESSAGES: Final = (  # the JSON library's words, and ours
    (re.compile(r"^Expected `(.+)`, got `(.+)`$"), r"expected \1, got \2"),
    (re.compile(r"^Expected `(?:array|object|str)` of length >= 1$"), "must not be empty"),
    (re.compile(r"^Expected `(array|object|str)` of length <= (\d+)$"), r"\1 longer than \2"),
    (re.compile(r"^Expected `int` >= (.+)$"), r"must be at least \1"),
    (re.compile(r"^Expected `int` <= (.+)$"), r"must be at most \1"),
    (re.compile(r"^Invalid enum value "), "unknown value"),
    (re.compile(r"^Invalid base64 "), "invalid base64"),
    (re.compile(r"^(?:Integer value|Number) out of range$"), "number out of range"),
    (re.compile(r"^(a part has exactly one of .*)$"), r"\1"),
)
_JSON: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "bytes": "base64 string"}
_PYTHON: Final = re.compile(rf"\b({'|'.join(_JSON)})\b")


def check(body: bytes) -> None:
    """What every body must be, whatever it says: UTF-8, and not nested too deeply."""
    try:
        _ = body.isascii() or str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise ParseError from error
    check_depth(body)


def check_depth(body: bytes) -> None:
    """Refuse deep nesting without building it. Two counts settle the usual request; the rest is a few passes in C."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = unescaped.translate(_STEPS, _UNMARKED).replace(b'""', b"")  # every other stretch between quotes is a string
    steps = b"".join(marks.split(b'"')[::2]).replace(b"\x01\xff", b"")  # the innermost level is most of it: count to 63
    if next(filterfalse(_LEVELS.__contains__, accumulate(array("b", steps))), 0) > 0:  # below 0 it is not JSON at all
        raise InvalidRequestError(f"JSON nested deeper than {MAX_DEPTH} levels")


def decode(body: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode checked bytes into a value.

    Raises:
        ParseError: not JSON.
        InvalidParamsError: JSON of the wrong shape; its violations name the fields.
    """
    try:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as error:
            _SYNTAX.decode(body)  # the decoder stops at the first wrong value; what follows may not even be JSON
            raise invalid_params(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError from error


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """The same for a value that is decoded already; one that is not strict may have texts for numbers and booleans."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise invalid_params(error) from error


def decode_loosely(body: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T], shape: inspect.Type) -> T:
    """Decode as ProtoJSON allows: snake_case names too, and null for "not given"."""
    if not _SNAKE_KEY.search(body):
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if b"null" not in bytes(body):
                return decode(body, decoder)  # for the error it raises
    value = decode(body, _ANY)
    return convert(_loosen({} if value is None else value, shape), decoder.type)


_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)
_SYNTAX: Final = msgspec.json.Decoder(msgspec.Raw)


def _loosen(value: Any, shape: inspect.Type) -> Any:
    match value, shape:
        case dict(), inspect.StructType():
            fields = {field.encode_name: field.type for field in shape.fields}
            named = {camel(name): item for name, item in value.items()}
            return {
                name: _loosen(item, fields[name])
                for name, item in named.items()
                if name in fields and (item is not None or name == "data")  # the one field where null is a value
            }
        case list(), inspect.ListType() | inspect.VarTupleType():
            return [_loosen(item, shape.item_type) for item in value]
        case _, inspect.UnionType():
            structs = [kind for kind in shape.types if isinstance(kind, inspect.StructType)]
            return _loosen(value, structs[0]) if structs else value
    return value


def camel(name: str) -> str:
    """A name in snake_case as the wire spells it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def invalid_params(error: msgspec.ValidationError) -> InvalidParamsError:
    """Say in our words, and by field, what the JSON library found."""
    text, found, path = str(error).rpartition(" - at `$")  # the last one: client text may stand before it
    if not found:
        text, path = path, ""
    path = path.rstrip("`").replace("[...]", ".*").lstrip(".")
    if missing := _MISSING.match(text):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidParamsError(f"Missing required parameter: {path}", [Violation(path, "is required", "required")])
    said = next((match.expand(ours) for theirs, ours in _MESSAGES if (match := theirs.match(text))), "invalid value")
    said = _PYTHON.sub(lambda word: _JSON[word[0]], said.replace(" | null", ""))
    if (path, said) == ("message.parts", "must not be empty"):
        return InvalidParamsError("Message must contain at least one Part", [Violation(path, said, "required")])
    return InvalidParamsError(f"Invalid parameter {path or '(all)'}: {said}", [Violation(path, said)])
