"""The wire format of proto3, decoded to and encoded from the objects of ProtoJSON.

A message type is a table of fields (`v1.py`, `v03.py`), which tests compare with the official descriptors. Bytes fields
are `bytes` in decoded objects, and may be base64 in objects to encode.

Invariants: the work for a message is limited by `FieldReader.left`, and its depth by MAX_DEPTH. Of a repeated field
that is not a list the last occurrence counts, and messages are merged. Unknown fields are skipped. Default values are
not written, except in a oneof and in fields with presence.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any, Final

from apcore_a2a.errors import InvalidRequestError, ParseError
from apcore_a2a.protocol.decoding import MAX_DEPTH, MAX_VALUES

Json = dict[str, Any]  # Any: the JSON of a message

VARINT: Final = 0
BYTES: Final = 2
_GROUP: Final = 3
MAX_TAG: Final = 0xFFFFFFFF

# An entry of a Struct is four fields on the wire: the entry, its key, its value, and the kind of the value. So a
# message may have four times as many fields as JSON may have values, and each repeated item costs as much as an entry.
FIELDS_PER_VALUE: Final = 4
_SMALL: Final = tuple(bytes([number]) for number in range(128))  # the varints of one byte


def malformed() -> ParseError:
    return ParseError("Invalid protobuf message")


def encode_varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it."""
    result = 0
    shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        result |= (byte & 127) << shift
        if byte < 128:
            if result >> 64:
                break
            return result, position
        shift += 7
    raise malformed()


class FieldReader:
    """Reads the fields of one encoded message, and limits their number."""

    __slots__ = ("_max_values", "data", "left")

    def __init__(self, data: bytes, max_values: int) -> None:
        self.data = data
        self.left = max_values * FIELDS_PER_VALUE  # how many more fields may be read
        self._max_values = max_values

    def fields(self, position: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the tag of each field with the beginning and the end of its value. For a varint: the number, and 0.

        A tag is the number of the field and its wire type. Groups, which proto3 does not have, are skipped.
        """
        data = self.data
        while position < end:
            self.left -= 1
            if self.left < 0:
                raise self._too_many_values()
            tag = data[position]
            position += 1
            if tag > 127 or tag < 8:
                tag, position = _read_long_tag(data, position - 1, end)
            wire_type = tag & 7
            if wire_type == VARINT:
                number, position = read_varint(data, position, end)
                yield tag, number, 0
                continue
            if wire_type == BYTES:
                length, position = read_varint(data, position, end)
                stop = position + length
            else:
                stop = self._end_of_other(tag, position, end)
            if stop > end:
                raise malformed()
            if wire_type != _GROUP:
                yield tag, position, stop
            position = stop

    def _end_of_other(self, tag: int, position: int, end: int) -> int:
        """Return the end of a value that is neither a varint nor has a length."""
        match tag & 7:
            case 1:  # eight bytes
                return position + 8
            case 5:  # four bytes
                return position + 4
            case 3:  # a group
                return self._end_of_group(tag >> 3, position, end)
        raise malformed()

    def _end_of_group(self, number: int, position: int, end: int) -> int:
        """Return the position after a group and the groups in it."""
        open_groups = [number]
        while open_groups:
            self.left -= 1
            if self.left < 0:
                raise self._too_many_values()
            if len(open_groups) > MAX_DEPTH:
                raise too_deep()
            tag, position = _read_long_tag(self.data, position, end)
            match tag & 7:
                case 0:  # a varint
                    _, position = read_varint(self.data, position, end)
                case 2:  # a value with its length
                    length, position = read_varint(self.data, position, end)
                    position += length
                case 3:  # a group
                    open_groups.append(tag >> 3)
                case 4:  # its end
                    if open_groups.pop() != tag >> 3:
                        raise malformed()
                case _:
                    position = self._end_of_other(tag, position, end)
        return position

    def _too_many_values(self) -> InvalidRequestError:
        text = f"Message with more than {self._max_values} values; send large data as a file (raw or url)"
        return InvalidRequestError(text)


def _read_long_tag(data: bytes, position: int, end: int) -> tuple[int, int]:
    tag, stop = read_varint(data, position, end)
    if tag < 8 or tag > MAX_TAG or stop - position > 5:
        raise malformed()
    return tag, stop


def too_deep() -> InvalidRequestError:
    return InvalidRequestError(f"Message nested deeper than {MAX_DEPTH} levels")


# ---- kinds of fields ------------------------------------------------------------------------------------------------


class Kind:
    """How values of one kind are read and written. `default` is the value that is not written."""

    wire_type = BYTES
    default: Any = None
    accepts_null = False
    """Whether null is a value. Otherwise it means an absent field."""

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> Any:
        """Return the value between two positions, in an object of this depth. For a varint, `begin` is the number."""
        raise NotImplementedError

    def write(self, value: Any) -> bytes:
        """Return the encoded value, with its length if its wire type has one."""
        raise NotImplementedError


class Text(Kind):
    default = ""

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> str:
        try:
            return reader.data[begin:end].decode()
        except UnicodeDecodeError as error:
            raise malformed() from error

    def write(self, value: Any) -> bytes:
        return with_length(value.encode())


class Bytes(Kind):
    default = b""

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> bytes:
        return reader.data[begin:end]

    def write(self, value: Any) -> bytes:
        if isinstance(value, str):
            value = b64decode(value)
        return with_length(value)


class Base64Bytes(Kind):
    """Bytes that hold base64 text, which the official SDK of 0.3 writes and expects. Other bytes are read as well."""

    default = ""

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> str:
        found = reader.data[begin:end]
        try:
            b64decode(found, validate=True)
        except binascii.Error:
            return b64encode(found).decode()
        return found.decode()

    def write(self, value: Any) -> bytes:
        return TEXT.write(value)


class Boolean(Kind):
    wire_type = VARINT
    default = False

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> bool:
        return begin != 0

    def write(self, value: Any) -> bytes:
        return b"\x01" if value else b"\x00"


class Integer(Kind):
    """A signed integer of so many bits."""

    wire_type = VARINT
    default = 0

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> int:
        number = begin & (1 << self._bits) - 1
        if number >> self._bits - 1:
            return number - (1 << self._bits)
        return number

    def write(self, value: Any) -> bytes:
        return encode_varint(value & 0xFFFFFFFFFFFFFFFF)


class Enumeration(Kind):
    """An enum with its names in the order of their numbers, from 0."""

    wire_type = VARINT

    def __init__(self, *names: str) -> None:
        self.names = names
        self.default = names[0]
        self._numbers = {name: _SMALL[number] for number, name in enumerate(names)}

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> str | int:
        if begin < len(self.names):
            return self.names[begin]
        return INT32.read(reader, begin, end, depth)  # an unknown number, which the model rejects

    def write(self, value: Any) -> bytes:
        return self._numbers[value]


TEXT: Final = Text()
INT32: Final = Integer(32)
INT64: Final = Integer(64)


def with_length(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


# ---- messages -------------------------------------------------------------------------------------------------------


class Field:
    """A field of a message type."""

    __slots__ = ("_key", "default", "has_presence", "kind", "many", "name", "number", "others")

    def __init__(
        self, number: int, name: str, kind: Kind, *, many: bool, has_presence: bool, others: tuple[str, ...]
    ) -> None:
        self.number = number
        self.name = name
        self.kind = kind
        self.many = many
        self.others = others
        """The names of the other members of its oneof."""
        # A member of a oneof is written even if it is empty, and so is an empty message.
        self.has_presence = has_presence or bool(others) or kind.default is None
        self.default = kind.default
        self._key = encode_varint(self.tag)

    @property
    def tag(self) -> int:
        return self.number << 3 | self.kind.wire_type

    def read_into(self, found: Json, reader: FieldReader, begin: int, end: int, depth: int) -> None:
        """Add the value between two positions to a decoded message."""
        for other in self.others:
            found.pop(other, None)
        name = self.name
        if self.many:
            reader.left -= FIELDS_PER_VALUE - 1
            found.setdefault(name, []).append(self.kind.read(reader, begin, end, depth + 2))
            return
        if isinstance(self.kind, MergeableKind):
            self.kind.merge(found.setdefault(name, {}), reader, begin, end, depth + 1)
            return
        value = self.kind.read(reader, begin, end, depth)
        if self.has_presence or value != self.default:
            found[name] = value
        else:
            found.pop(name, None)

    def write(self, value: Any, pieces: list[bytes]) -> None:
        """Append the encoded field to pieces."""
        key = self._key
        write = self.kind.write
        if self.many:
            for item in value:
                pieces.append(key)
                pieces.append(write(item))
        elif isinstance(self.kind, Map):
            for name, item in value.items():
                pieces.append(key)
                pieces.append(with_length(self.kind.encode_entry(name, item)))
        elif self.has_presence or value != self.default:
            pieces.append(key)
            pieces.append(write(value))


class MergeableKind(Kind):
    """A kind whose values are objects, so that a second occurrence is merged into the first."""

    def merge(self, found: Json, reader: FieldReader, begin: int, end: int, depth: int) -> None:
        raise NotImplementedError

    def encode(self, value: Json) -> bytes:
        raise NotImplementedError

    def read(self, reader: FieldReader, begin: int, end: int, depth: int) -> Json:
        found: Json = {}
        self.merge(found, reader, begin, end, depth)
        return found

    def write(self, value: Any) -> bytes:
        return with_length(self.encode(value))


class MessageType(MergeableKind):
    """A message type. Its fields are added after its construction, because message types contain one another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_tag: dict[int, Field] = {}
        self._by_name: dict[str, Field] = {}

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._by_name

    def add(self, field: Field) -> None:
        self._by_tag[field.tag] = field
        self._by_name[field.name] = field

    def decode(self, data: bytes, *, max_values: int = MAX_VALUES) -> Json:
        """Return the ProtoJSON of an encoded message.

        Raises:
            ParseError: The bytes are not a message.
            InvalidRequestError: The message has too many values, or is nested too deeply.
        """
        return self.read(FieldReader(data, max_values), 0, len(data), 1)

    def merge(self, found: Json, reader: FieldReader, begin: int, end: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise too_deep()
        by_tag = self._by_tag
        for tag, start, stop in reader.fields(begin, end):
            field = by_tag.get(tag)
            if field is not None:
                field.read_into(found, reader, start, stop, depth)

    def encode(self, value: Json) -> bytes:
        """Return the bytes of a message. Members that the message type does not have are left out."""
        pieces: list[bytes] = []
        by_name = self._by_name
        for name, item in value.items():
            field = by_name.get(name)
            if field is not None and (item is not None or field.kind.accepts_null):
                field.write(item, pieces)
        return b"".join(pieces)


class Map(MergeableKind):
    """A map from strings to values of one kind, in JSON an object. Each occurrence of the field is one entry."""

    def __init__(self, value: Kind) -> None:
        self.value = value

    def merge(self, found: Json, reader: FieldReader, begin: int, end: int, depth: int) -> None:
        name, item = read_entry(reader, begin, end, depth, self.value)
        found[name] = item

    def encode_entry(self, name: str, item: Any) -> bytes:
        return b"\x0a" + TEXT.write(name) + b"\x12" + self.value.write(item)


def read_entry(reader: FieldReader, begin: int, end: int, depth: int, kind: Kind) -> tuple[str, Any]:
    """Return the key and the value of a map entry."""
    name = ""
    value = kind.default
    is_given = False
    for tag, start, stop in reader.fields(begin, end):
        if tag == 0x0A:
            name = TEXT.read(reader, start, stop, depth)
        elif tag == 0x12:
            value = kind.read(reader, start, stop, depth + 1)
            is_given = True
    if not is_given and value is None:
        value = kind.read(reader, 0, 0, depth)
    return name, value
