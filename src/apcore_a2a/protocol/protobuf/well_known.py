"""Well-known types of protocol buffers (Struct and Value, which hold any JSON, and Timestamp), and types from tables.

Numbers in a Value are doubles, so an integer above 2^53 is rounded to the nearest double.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from struct import Struct as Packed
from typing import Any, Final

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol.decoding import MAX_DEPTH
from apcore_a2a.protocol.protobuf.wire import (
    FIELDS_PER_VALUE,
    INT32,
    INT64,
    TEXT,
    Base64Bytes,
    Boolean,
    Bytes,
    Field,
    FieldReader,
    Json,
    Kind,
    Map,
    MergeableKind,
    MessageType,
    read_entry,
    too_deep,
    with_length,
)

MAX_EXACT: Final = 2**53  # a double holds every integer up to here
_DOUBLE: Final = Packed("<d")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ITEM: Final = 0x0A  # the tag of the only field of a Struct, a ListValue and a map's key


class FreeObject(MergeableKind):
    """google.protobuf.Struct: a JSON object."""

    def merge(self, found: Json, reader: FieldReader, begin: int, end: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise too_deep()
        for tag, start, stop in reader.fields(begin, end):
            if tag == _ITEM:
                name, value = read_entry(reader, start, stop, depth, VALUE)
                found[name] = value

    def encode(self, value: Json) -> bytes:
        pieces: list[bytes] = []
        for name, item in value.items():
            entry = b"\x0a" + TEXT.write(name) + b"\x12" + VALUE.write(item)
            pieces.append(b"\x0a" + with_length(entry))
        return b"".join(pieces)


class FreeValue(Kind):
    """google.protobuf.Value: any JSON."""

    accepts_null = True

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> Any:
        value: Any = None  # Any: JSON
        for tag, start, stop in reader.fields(begin, end):
            match tag:
                case 0x1A:  # string_value
                    value = TEXT.read(reader, start, stop, depth)
                case 0x11:  # number_value
                    value = _read_number(reader.data, start)
                case 0x2A:  # struct_value. A second one is merged into the first
                    value = value if isinstance(value, dict) else {}
                    STRUCT.merge(value, reader, start, stop, depth)
                case 0x32:  # list_value
                    value = value if isinstance(value, list) else []
                    _read_items(value, reader, start, stop, depth)
                case 0x20:  # bool_value
                    value = start != 0
                case 0x08:  # null_value
                    value = None
        return value

    def write(self, value: Any) -> bytes:
        return with_length(self.encode(value))

    def encode(self, value: Any) -> bytes:
        if isinstance(value, str):
            return b"\x1a" + TEXT.write(value)
        if value is None:
            return b"\x08\x00"
        if isinstance(value, bool):
            return b"\x20\x01" if value else b"\x20\x00"
        if isinstance(value, int | float):
            return _encode_number(value)
        if isinstance(value, dict):
            return b"\x2a" + STRUCT.write(value)
        pieces: list[bytes] = []
        for item in value:
            pieces.append(b"\x0a")
            pieces.append(self.write(item))
        return b"\x32" + with_length(b"".join(pieces))


def _read_items(found: list[Any], reader: FieldReader, begin: int, end: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise too_deep()
    for tag, start, stop in reader.fields(begin, end):
        if tag == _ITEM:
            reader.left -= FIELDS_PER_VALUE - 2  # an item is two fields: itself, and the kind of its value
            found.append(VALUE.read(reader, start, stop, depth + 1))


def _read_number(data: bytes, position: int) -> int | float:
    """Return a whole number as an integer, which JSON writes as `3`. A double does not tell 3 from 3.0."""
    number: float
    (number,) = _DOUBLE.unpack_from(data, position)
    if not isfinite(number):
        raise InvalidParamsError("Invalid parameter: NaN and infinity are not JSON numbers")
    is_minus_zero = not number and data[position + 7] != 0
    if number.is_integer() and -MAX_EXACT <= number <= MAX_EXACT and not is_minus_zero:
        return int(number)
    return number


def _encode_number(value: float) -> bytes:
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits, which no double can hold: its digits as a text
        return b"\x1a" + TEXT.write(str(value))
    return b"\x11" + _DOUBLE.pack(number)


class Timestamp(Kind):
    """google.protobuf.Timestamp, in JSON a text of RFC 3339."""

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> str:
        found = _TIMESTAMP.read(reader, begin, end, depth)
        nanos = found.get("nanos", 0)
        try:
            moment = _EPOCH + timedelta(seconds=found.get("seconds", 0))
        except OverflowError:
            raise _out_of_range() from None
        if not 0 <= nanos < 1_000_000_000:
            raise _out_of_range()
        text = moment.isoformat()[:19]
        if nanos:
            fraction = f"{nanos:09}"
            while fraction.endswith("000"):
                fraction = fraction[:-3]
            text += "." + fraction
        return text + "Z"

    def write(self, value: Any) -> bytes:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        passed = moment - _EPOCH
        fields = {"seconds": passed.days * 86400 + passed.seconds, "nanos": passed.microseconds * 1000}
        return _TIMESTAMP.write(fields)


def _out_of_range() -> InvalidParamsError:
    return InvalidParamsError("Invalid parameter: timestamp out of range")


STRUCT: Final = FreeObject()
VALUE: Final = FreeValue()
TIMESTAMP: Final = Timestamp()


# ---- message types from tables --------------------------------------------------------------------------------------

_KINDS: Final[Mapping[str, Kind]] = {
    "text": TEXT,
    "bytes": Bytes(),
    "base64": Base64Bytes(),
    "bool": Boolean(),
    "int32": INT32,
    "int64": INT64,
    "Struct": STRUCT,
    "Value": VALUE,
    "Timestamp": TIMESTAMP,
}


def make_messages(schema: Mapping[str, str], kinds: Mapping[str, Kind]) -> dict[str, MessageType]:
    r"""Return message types from tables with fields `number name: kind`.

    After the kind, `*` is a repeated field, `?` an optional one, and `|x` a member of the oneof x. Repeated fields are
    texts and messages, because repeated numbers would be packed.

    Example:
        >>> messages = make_messages({"Point": "1 x: int32, 2 name: text?"}, {})
        >>> messages["Point"].encode({"x": 3, "name": ""})
        b'\x08\x03\x12\x00'
    """
    messages = {name: MessageType(name) for name in schema}
    known: dict[str, Kind] = {**_KINDS, **kinds, **messages}
    for name, text in schema.items():
        rows = [row.strip() for row in text.split(",") if row.strip()]
        groups: dict[str, list[str]] = {}
        for row in rows:
            group = row.partition("|")[2]
            if group:
                groups.setdefault(group, []).append(_name_of(row))
        for row in rows:
            group = row.partition("|")[2]
            others = tuple(other for other in groups.get(group, ()) if other != _name_of(row))
            messages[name].add(_make_field(row.partition("|")[0], known, others))
    return messages


def _name_of(row: str) -> str:
    return row.partition(":")[0].partition(" ")[2]


def _make_field(row: str, known: Mapping[str, Kind], others: tuple[str, ...]) -> Field:
    kind = row.partition(": ")[2]
    bare = kind.rstrip("*?")
    value = known[bare.removeprefix("map ")]
    return Field(
        int(row.partition(" ")[0]),
        _name_of(row),
        Map(value) if bare.startswith("map ") else value,
        many=kind.endswith("*"),
        has_presence=kind.endswith("?"),
        others=others,
    )


_TIMESTAMP: Final = make_messages({"Timestamp": "1 seconds: int64, 2 nanos: int32"}, {})["Timestamp"]
