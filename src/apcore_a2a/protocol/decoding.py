"""JSON in: one strict way from bytes to values, with errors that name the wrong field.

Rule: too many values, nesting over 64, NaN, broken UTF-8 and lone surrogates are refused before anything is built; of
duplicate keys the last one counts, everywhere. No text of the JSON library reaches a client. Why: docs/decisions/0003.

A body passes through here in two steps. `check` looks at the bytes alone, before any parser: UTF-8, how many values
they hold, and how deeply these are nested. `decode` (or a `LooseDecoder`, which also reads what ProtoJSON allows) then
builds the typed value.
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
# Of one request. A value of two bytes, `{}`, becomes an object of 64: ten megabytes of them were 230 once decoded, and
# seconds of work that everybody waits for; 100,000 values are 40 ms at worst. A message of text and files has a few
# dozen, whatever its size; a table of 10,000 rows and nine columns just fits.
MAX_VALUES: Final = 100_000

T = TypeVar("T")

# For `_check_depth`: a bracket that opens is +1, one that closes -1 (as signed bytes); nothing else stays.
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_UNMARKED: Final = bytes(set(range(256)) - set(b"[{]}"))
_LEVELS: Final = frozenset(range(MAX_DEPTH))

# A key with an underscore, `"task_id":`. It may also match inside a text, which only costs the slower way.
# Possessive quantifiers: no run of letters makes the search go back.
_SNAKE_KEY: Final = re.compile(rb'_[a-z0-9]++"\s*+:')

_USUAL_ALPHABET: Final = str.maketrans("-_", "+/")
_DIGITS: Final = re.compile(r"-?[0-9]{1,18}")  # of an integer that is written as a text

_AT: Final = " - at `$"  # what stands between the JSON library's complaint and the path of the wrong field
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
# Whoever sends JSON knows its types, not Python's.
_JSON: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "bytes": "base64 string"}
_PYTHON: Final = re.compile(rf"\b({'|'.join(_JSON)})\b")


def check(body: bytes, *, max_values: int = MAX_VALUES) -> None:
    """What every body must be, whatever it says: UTF-8, with not too many values, and those not nested too deeply."""
    if not body.isascii():  # which settles nearly every request without building a text
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise ParseError from error
    check_tree(body, max_values=max_values)


def check_tree(body: bytes, *, max_values: int = MAX_VALUES) -> None:
    """Refuse too many values, and deep nesting, without building them.

    A few counts settle the usual request. For the others, what is outside of strings is looked at in a few passes over
    the bytes that run in C: a loop in Python would take longer than decoding the message does.
    """
    openings = body.count(b"[") + body.count(b"{")
    if openings <= MAX_DEPTH:
        # Every value but the first has a comma or a bracket before it. A short body cannot have too many of them.
        if len(body) <= max_values or openings + body.count(b",") < max_values:
            return
    structure = _outside_strings(body, max_values)
    if _count_values(structure, max_values) > max_values:
        raise _too_many_values(max_values)
    _check_depth(structure)


def holds_more_values(body: bytes, limit: int) -> bool:
    """Whether JSON of our own writing holds more values than that; a file or a text is one, whatever its size."""
    if len(body) <= limit:
        return False
    try:
        return _count_values(_outside_strings(body, limit), limit) > limit
    except InvalidRequestError:  # its strings alone are too many
        return True


def _outside_strings(body: bytes, max_values: int) -> bytes:
    """What stands outside of strings: numbers, brackets, commas."""
    if b"\\" in body:
        # Without its escapes, every quote of a body begins or ends a string.
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # A value has two strings at most, its name and itself. More are not taken apart: the pieces need memory, too.
    if body.count(b'"') > 4 * max_values:
        raise _too_many_values(max_values)
    # Every other stretch between quotes is a string.
    return b"".join(body.split(b'"')[::2])


def _count_values(structure: bytes, enough: int) -> int:
    """How many values there are, or any number above `enough`; an empty array or object counts for two."""
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
    # Most brackets are those of the innermost level. Without it there is little left to add up, and 63 is the limit.
    steps = steps.replace(b"\x01\xff", b"")
    levels = accumulate(array("b", steps))
    first_wrong = next(filterfalse(_LEVELS.__contains__, levels), 0)
    if first_wrong > 0:  # below 0 it is not JSON at all, as the decoder will say
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
            # The decoder stops at the first wrong value. What follows may not even be JSON, and that is said first.
            _SYNTAX.decode(body)
            raise invalid_params(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError from error


def check_and_decode(body: bytes, decoder: msgspec.json.Decoder[T], *, max_values: int = MAX_VALUES) -> T:
    """Check the bytes of a body, then decode them; raises what `check` and `decode` raise."""
    check(body, max_values=max_values)
    return decode(body, decoder)


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Make a typed value of one that is decoded already; not `strict`, texts may stand for numbers and booleans."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise invalid_params(error) from error


class LooseDecoder(Generic[T]):
    """Decodes one kind of value as ProtoJSON allows.

    Names may be in snake_case, and null stands for "not given"; bytes may be in either alphabet of base64, with or
    without padding; an integer may be a text or a whole float; of an enum there may be the number.

    What is written strictly, as nearly everything is, is decoded in one pass. Only a body with a key in snake_case, or
    one that is refused, is decoded to plain objects, rewritten and converted.
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._shape = inspect.type_info(kind)

    def decode(self, body: bytes | msgspec.Raw, left_out: list[str] | None = None) -> T:
        """Decode checked bytes; raises what `decoding.decode` raises.

        Args:
            left_out: For what an agent answered: what cannot be read and need not be there is left out of the value,
                and said here, by its path. Without this list, as for requests, all has to be right.
        """
        has_snake_key = _SNAKE_KEY.search(body) is not None
        if not has_snake_key:
            try:
                return self._decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # what is no JSON at all is refused below
        try:
            value = decode(body, _ANY)
        except InvalidParamsError:  # a number that no double holds
            if has_snake_key:
                raise
            return decode(body, self._decoder)  # which says where it stands
        if value is None:
            value = {}  # null for a whole message is a message with nothing in it
        value = _loosen(value, self._shape)
        if left_out is not None and _complaint(value, self.kind):
            value = _leave_out_unreadable(value, self.kind, "", left_out)
        return convert(value, self.kind)

    def convert(self, params: dict[str, Any]) -> T:
        """Make the value of path and query values, all of which may be texts."""
        return convert(_loosen(params, self._shape), self.kind, strict=False)


_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)
_SYNTAX: Final = msgspec.json.Decoder(msgspec.Raw)  # looks at everything and builds nothing


def _loosen(value: Any, shape: inspect.Type) -> Any:
    """Rewrite what ProtoJSON allows as the strict decoder wants it. Free-form JSON (metadata, data) stays as it is."""
    match value, shape:
        case dict(), inspect.StructType():
            return _loosen_object(value, shape)
        case list(), inspect.ListType() | inspect.VarTupleType():
            return [_loosen(item, shape.item_type) for item in value]
        case _, inspect.UnionType():
            # No field of ours may hold one of two: the others stand for "not given".
            return _loosen(value, shape.types[0])
        case str(), inspect.BytesType():
            return to_standard_base64(value)
        case str() | float(), inspect.IntType():
            return _to_integer(value)
        case str() | int(), inspect.EnumType():
            return _to_enum_name(value, shape.cls)
    return value


def to_standard_base64(text: str) -> str:
    """Base64 with the usual alphabet and its padding; what is no base64 stays so."""
    bare = text.translate(_USUAL_ALPHABET).rstrip("=")
    return bare + "=" * (-len(bare) % 4)


def _to_integer(value: str | float) -> object:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return int(value) if _DIGITS.fullmatch(value) else value


def _to_enum_name(value: str | int, cls: type[Enum]) -> object:
    """The name for a number; the members of our enums stand in the order of their numbers."""
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
        named[camel(name)] = item  # of `taskId` and `task_id` the last one counts, as of any key that is there twice
    loosened: dict[str, Any] = {}
    for name, item in named.items():
        is_given = item is not None or name == "data"  # the one field where null is a value
        if is_given and name in fields:
            loosened[name] = _loosen(item, fields[name])
    return loosened


def _leave_out_unreadable(value: Any, kind: Any, path: str, left_out: list[str]) -> Any:
    """The value without the items of its lists, and the fields that need not be there, that cannot be read.

    From the inside out: a message without one of its parts is a message; without its only part it is none, and the task
    goes without that message. What is required is left for the decoder to refuse.
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
    """Why the value cannot be made into one of this kind; empty if it can."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        violation = invalid_params(error).violations[0]
        return f"{violation.field} {violation.message}".strip()
    return ""


def _bare(kind: Any) -> Any:
    """A type without its limits, and without what stands for "not given"."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = get_args(kind)[0]
    return kind


def camel(name: str) -> str:
    """A name in snake_case as the wire spells it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def invalid_params(error: msgspec.ValidationError) -> InvalidParamsError:
    """Say in our words, and by field, what the JSON library found."""
    complaint, path = _split(str(error))
    missing = _MISSING.match(complaint)
    if missing is not None:
        # The library's path ends at the object; the field that is not there is the next step.
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidParamsError(f"Missing required parameter: {path}", [Violation(path, "is required", "required")])
    said = _in_our_words(complaint)
    if path == "message.parts" and said == "must not be empty":
        return InvalidParamsError("Message must contain at least one Part", [Violation(path, said, "required")])
    return InvalidParamsError(f"Invalid parameter {path or '(all)'}: {said}", [Violation(path, said)])


def _split(text: str) -> tuple[str, str]:
    """What the JSON library complains of, and where."""
    complaint, found, path = text.rpartition(_AT)  # the last one: client text may stand before it
    if not found:
        return text, ""
    return complaint, path.rstrip("`").replace("[...]", ".*").lstrip(".")


def _in_our_words(complaint: str) -> str:
    for theirs, ours in _MESSAGES:
        match = theirs.match(complaint)
        if match is not None:
            said = match.expand(ours).replace(" | null", "")
            return _PYTHON.sub(lambda word: _JSON[word[0]], said)
    return "invalid value"  # rather than words that we have not read


# ---- tables ---------------------------------------------------------------------------------------------------------
# Tables that are read both ways: written once, inverted here, so that the two directions cannot differ.

K = TypeVar("K")
V = TypeVar("V")


def inverted(table: Mapping[K, V]) -> dict[V, K]:
    """The keys of a table by their values. Of several keys with one value, the last one counts."""
    return {value: key for key, value in table.items()}
