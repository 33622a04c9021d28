"""Strict decoding of JSON into values, with errors that name the wrong field.

Invariant: too many values, nesting over 64, NaN, invalid UTF-8 and lone surrogates are rejected before any value is
built. Of duplicate keys the last one counts. No text of the JSON library reaches a client (docs/decisions/0003).

A body is decoded in two steps. `check` examines the bytes before any parser: UTF-8, the number of values, and their
nesting. `decode` (or a `LooseDecoder`, which also accepts ProtoJSON) then builds the typed value.
"""

import re
from array import array
from collections.abc import Mapping
from enum import Enum
from itertools import accumulate, filterfalse
from types import UnionType
from typing import Annotated, Any, Final, Generic, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from apcore_a2a.errors import InvalidParamsError, InvalidRequestError, ParseError, Violation

MAX_DEPTH: Final = 64
# The limit of one request. A value of two bytes, `{}`, becomes an object of 64 bytes: ten megabytes of them took 230
# megabytes once decoded, and blocked the event loop for seconds. 100,000 values take 40 ms at worst. A message of text
# and files has a few dozen values, whatever its size. A table of 10,000 rows and nine columns just fits.
MAX_VALUES: Final = 100_000

T = TypeVar("T")

# For `_check_depth`: an opening bracket is +1, a closing one -1 (as signed bytes). Other bytes are removed.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_UNMARKED: Final = bytes(set(range(256)) - set(b"[{]}"))
_LEVELS: Final = frozenset(range(MAX_DEPTH))

# A key with an underscore, `"task_id":`. It may also match inside a text, which only makes decoding slower.
# Possessive quantifiers prevent backtracking.
_SNAKE_KEY: Final = re.compile(rb'_[a-z0-9]++"\s*+:')

_USUAL_ALPHABET: Final = str.maketrans("-_", "+/")
_DIGITS: Final = re.compile(r"-?[0-9]{1,18}")  # an integer written as a string

_AT: Final = " - at `$"  # between the JSON library's message and the path of the wrong field
_MISSING: Final = re.compile(r"^Object missing required field `(.+)`$")
_MESSAGES: Final = (  # messages of the JSON library, and ours
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
# Error texts name the types of JSON, not those of Python.
_JSON: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "bytes": "base64 string"}
_PYTHON: Final = re.compile(rf"\b({'|'.join(_JSON)})\b")


def check(body: bytes, *, max_values: int = MAX_VALUES) -> None:
    """Check the bytes of a body: valid UTF-8, the number of values, and their nesting."""
    if not body.isascii():  # true for nearly every request, and no str is built
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise ParseError from error
    check_tree(body, max_values=max_values)


def check_tree(body: bytes, *, max_values: int = MAX_VALUES) -> None:
    """Reject too many values and deep nesting without building values.

    A few counts suffice for the usual request. For others, the text outside of strings is examined in a few passes over
    the bytes, which run in C. A loop in Python would take longer than decoding the message.
    """
    openings = body.count(b"[") + body.count(b"{")
    if openings <= MAX_DEPTH:
        # Every value except the first has a comma or a bracket before it. A short body cannot have too many.
        if len(body) <= max_values or openings + body.count(b",") < max_values:
            return
    structure = _outside_strings(body, max_values)
    if _count_values(structure, max_values) > max_values:
        raise _too_many_values(max_values)
    _check_depth(structure)


def holds_more_values(body: bytes, limit: int) -> bool:
    """Whether JSON that this package wrote has more values than the limit. A file or a text counts as one."""
    if len(body) <= limit:
        return False
    try:
        return _count_values(_outside_strings(body, limit), limit) > limit
    except InvalidRequestError:  # there are too many strings
        return True


def _outside_strings(body: bytes, max_values: int) -> bytes:
    """Return the text outside of strings: numbers, brackets, commas."""
    if b"\\" in body:
        # Escapes are removed, so that every remaining quote begins or ends a string.
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # A value has at most two strings, its key and itself. More are not split, because the pieces need memory too.
    if body.count(b'"') > 4 * max_values:
        raise _too_many_values(max_values)
    # Every second piece between quotes is a string.
    return b"".join(body.split(b'"')[::2])


def _count_values(structure: bytes, enough: int) -> int:
    """Return the number of values, or any number above `enough`. An empty array or object counts as two."""
    count = 1 + structure.count(b",")
    for opening in (b"[", b"{"):
        if count <= enough:
            count += structure.count(opening)
    return count


def _too_many_values(limit: int) -> InvalidRequestError:
    text = f"JSON with more than {limit} values; send large data as a file (raw or url), or in several messages"
    return InvalidRequestError(text)


def _check_depth(structure: bytes) -> None:
    steps = structure.translate(_STEPS, _UNMARKED)
    # Most brackets are pairs on the innermost level. Without them little is left to add up, and the limit is 63.
    steps = steps.replace(b"\x01\xff", b"")
    levels = accumulate(array("b", steps))
    first_wrong = next(filterfalse(_LEVELS.__contains__, levels), 0)
    if first_wrong > 0:  # below 0 it is not JSON, which the decoder reports
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
            # The decoder stops at the first wrong value. The rest may not be JSON, and that error takes precedence.
            _SYNTAX.decode(body)
            raise invalid_params(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError from error


def check_and_decode(body: bytes, decoder: msgspec.json.Decoder[T], *, max_values: int = MAX_VALUES) -> T:
    """Check the bytes of a body, then decode them; raises what `check` and `decode` raise."""
    check(body, max_values=max_values)
    return decode(body, decoder)


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Convert a decoded value to a typed one. If not `strict`, strings may stand for numbers and booleans."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise invalid_params(error) from error


class LooseDecoder(Generic[T]):
    """Decodes one type of value with the tolerance of ProtoJSON.

    Names may be in snake_case, and null means absent. Bytes may be in either alphabet of base64, with or without
    padding. An integer may be a string or a whole float. An enum value may be a number.

    Strict JSON, the usual case, is decoded in one pass. Only a body with a key in snake_case, or one that strict
    decoding rejects, is decoded to plain objects, rewritten and converted.
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._shape = inspect.type_info(kind)

    def decode(self, body: bytes | msgspec.Raw, left_out: list[str] | None = None) -> T:
        """Decode checked bytes; raises what `decoding.decode` raises.

        Args:
            left_out: For results of agents. Unreadable optional values are omitted, and their paths are added here.
                Without this list, as for requests, every value must be valid.
        """
        has_snake_key = _SNAKE_KEY.search(body) is not None
        if not has_snake_key:
            try:
                return self._decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # invalid JSON is rejected below
        try:
            value = decode(body, _ANY)
        except InvalidParamsError:  # a number that no double can hold
            if has_snake_key:
                raise
            return decode(body, self._decoder)  # its error names the field
        if value is None:
            value = {}  # null for a whole message means an empty message
        value = _loosen(value, self._shape)
        if left_out is not None and _complaint(value, self.kind):
            value = _leave_out_unreadable(value, self.kind, "", left_out)
        return convert(value, self.kind)

    def convert(self, params: dict[str, Any]) -> T:
        """Convert path and query values, all of which may be strings."""
        return convert(_loosen(params, self._shape), self.kind, strict=False)


_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)
_SYNTAX: Final = msgspec.json.Decoder(msgspec.Raw)  # parses everything and builds nothing


def _loosen(value: Any, shape: inspect.Type) -> Any:
    """Rewrite ProtoJSON in the form that the strict decoder reads. Free-form JSON (metadata, data) stays unchanged."""
    match value, shape:
        case dict(), inspect.StructType():
            return _loosen_object(value, shape)
        case list(), inspect.ListType() | inspect.VarTupleType():
            return [_loosen(item, shape.item_type) for item in value]
        case _, inspect.UnionType():
            # Fields of the model have one type. The other members of a union mean absent.
            return _loosen(value, shape.types[0])
        case str(), inspect.BytesType():
            return to_standard_base64(value)
        case str() | float(), inspect.IntType():
            return _to_integer(value)
        case str() | int(), inspect.EnumType():
            return _to_enum_name(value, shape.cls)
    return value


def to_standard_base64(text: str) -> str:
    """Return base64 with the standard alphabet and padding. Invalid base64 stays invalid."""
    bare = text.translate(_USUAL_ALPHABET).rstrip("=")
    return bare + "=" * (-len(bare) % 4)


def _to_integer(value: str | float) -> object:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return int(value) if _DIGITS.fullmatch(value) else value


def _to_enum_name(value: str | int, cls: type[Enum]) -> object:
    """Return the name for a number. The members of the enums are in the order of their numbers."""
    names = list(cls)
    if isinstance(value, str):
        if not _DIGITS.fullmatch(value):
            return value
        value = int(value)
    if isinstance(value, bool) or not 0 <= value < len(names):
        return value
    return names[value].value


def _loosen_object(value: dict[str, Any], shape: inspect.StructType) -> dict[str, Any]:
    fields: dict[str, inspect.Type] = {}
    for field in shape.fields:
        fields[field.encode_name] = field.type
    named: dict[str, Any] = {}
    for name, item in value.items():
        named[camel(name)] = item  # of `taskId` and `task_id` the last one counts, as for duplicate keys
    loosened: dict[str, Any] = {}
    for name, item in named.items():
        is_given = item is not None or name == "data"  # the only field where null is a value
        if is_given and name in fields:
            loosened[name] = _loosen(item, fields[name])
    return loosened


def _leave_out_unreadable(value: Any, kind: Any, path: str, left_out: list[str]) -> Any:
    """Return the value without its unreadable list items and optional fields.

    It works from the inside out. A message that loses one of its parts is still a message. If it loses its only part,
    the task is left without that message. Required fields stay, and the decoder rejects them.
    """
    kind = _bare(kind)
    if isinstance(value, dict) and hasattr(kind, "__struct_fields__"):
        return _leave_out_fields(value, kind, path, left_out)
    if isinstance(value, list) and get_origin(kind) in (list, tuple):
        item_kind = get_args(kind)[0]
        items: list[Any] = []
        for index, item in enumerate(value):
            place = f"{path}[{index}]"
            item = _leave_out_unreadable(item, item_kind, place, left_out)
            if _is_readable(item, item_kind, place, left_out):
                items.append(item)
        return items
    return value


def _leave_out_fields(value: dict[str, Any], kind: Any, path: str, left_out: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name not in value:
            continue
        place = f"{path}.{name}" if path else name
        item = _leave_out_unreadable(value[name], field.type, place, left_out)
        if field.required or _is_readable(item, field.type, place, left_out):
            fields[name] = item
    return fields


def _is_readable(value: Any, kind: Any, path: str, left_out: list[str]) -> bool:
    complaint = _complaint(value, kind)
    if complaint:
        left_out.append(f"{path}: {complaint}")
    return not complaint


def _complaint(value: Any, kind: Any) -> str:
    """Return why the value cannot be converted to this type, or an empty string."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        violation = invalid_params(error).violations[0]
        return f"{violation.field} {violation.message}".strip()
    return ""


def _bare(kind: Any) -> Any:
    """Return a type without its limits, and without the members of its union that mean absent."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = get_args(kind)[0]
    return kind


def camel(name: str) -> str:
    """Return a snake_case name in camelCase."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def invalid_params(error: msgspec.ValidationError) -> InvalidParamsError:
    """Translate an error of the JSON library into an error that names the field."""
    complaint, path = _split(str(error))
    missing = _MISSING.match(complaint)
    if missing is not None:
        # The library's path ends at the object. The missing field is the next step.
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidParamsError(f"Missing required parameter: {path}", [Violation(path, "is required", "required")])
    text = _translate(complaint)
    if path == "message.parts" and text == "must not be empty":
        return InvalidParamsError("Message must contain at least one Part", [Violation(path, text, "required")])
    return InvalidParamsError(f"Invalid parameter {path or '(all)'}: {text}", [Violation(path, text)])


def _split(text: str) -> tuple[str, str]:
    """Split an error text of the JSON library into its message and the path of the field."""
    complaint, found, path = text.rpartition(_AT)  # the last match, because client text may come before it
    if not found:
        return text, ""
    return complaint, path.rstrip("`").replace("[...]", ".*").lstrip(".")


def _translate(complaint: str) -> str:
    for theirs, ours in _MESSAGES:
        match = theirs.match(complaint)
        if match is not None:
            text = match.expand(ours).replace(" | null", "")
            return _PYTHON.sub(lambda word: _JSON[word[0]], text)
    return "invalid value"  # an unknown text of the library is not sent to clients


# ---- tables ---------------------------------------------------------------------------------------------------------
# A table for both directions is written once and inverted here, so the directions cannot differ.

K = TypeVar("K")
V = TypeVar("V")


def inverted(table: Mapping[K, V]) -> dict[V, K]:
    """Return the keys of a table by their values. If several keys have one value, the last one counts."""
    return {value: key for key, value in table.items()}
