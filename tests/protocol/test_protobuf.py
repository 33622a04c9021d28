"""The tables of message types against the official descriptors, and the codec against the official implementation."""

import base64
import random
from typing import Any, Final

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as OfficialMessage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apcore_a2a.errors import A2AError, InvalidParamsError, InvalidRequestError, ParseError
from apcore_a2a.protocol.decoding import MAX_DEPTH
from apcore_a2a.protocol.protobuf import v03, v1
from apcore_a2a.protocol.protobuf.well_known import STRUCT, TIMESTAMP, VALUE, make_messages
from apcore_a2a.protocol.protobuf.wire import (
    INT32,
    TEXT,
    Base64Bytes,
    Boolean,
    Bytes,
    Enumeration,
    Field,
    Kind,
    Map,
    MessageType,
    encode_varint,
    with_length,
)

OFFICIAL: Final = {"1.0": a2a_pb2, "0.3": a2a_v0_3_pb2}
OURS: Final = {"1.0": v1, "0.3": v03}
WELL_KNOWN: Final = {
    "google.protobuf.Struct": STRUCT,
    "google.protobuf.Value": VALUE,
    "google.protobuf.Timestamp": TIMESTAMP,
}
SCALARS: Final = {
    FieldDescriptor.TYPE_STRING: type(TEXT),
    FieldDescriptor.TYPE_BYTES: Bytes,
    FieldDescriptor.TYPE_BOOL: Boolean,
    FieldDescriptor.TYPE_INT32: type(INT32),
    FieldDescriptor.TYPE_ENUM: Enumeration,
}

# ---- the tables -----------------------------------------------------------------------------------------------------


def described(version: str) -> list[tuple[str, Descriptor]]:
    return [(version, found) for found in OFFICIAL[version].DESCRIPTOR.message_types_by_name.values()]


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def other_members(field: FieldDescriptor) -> set[str]:
    """Return the other members of the oneof. A oneof that begins with _ stands for `optional`."""
    oneof = field.containing_oneof
    if oneof is None or oneof.name.startswith("_"):
        return set()
    return {member.json_name for member in oneof.fields} - {field.json_name}


def check_kind(kind: Kind, field: FieldDescriptor, messages: dict[str, MessageType]) -> None:
    if field.message_type is not None:
        expected = WELL_KNOWN.get(field.message_type.full_name) or messages[field.message_type.name]
        assert kind is expected
        return
    if isinstance(kind, Base64Bytes):  # the one field whose bytes are base64 text
        assert (field.type, field.name) == (FieldDescriptor.TYPE_BYTES, "file_with_bytes")
        return
    assert type(kind) is SCALARS[field.type]
    if isinstance(kind, Enumeration):
        assert field.enum_type is not None
        numbers = {value.name: value.number for value in field.enum_type.values}
        assert {name: number for number, name in enumerate(kind.names)} == numbers


@pytest.mark.parametrize("version", OFFICIAL)
def test_every_official_message_type_has_a_table(version: str) -> None:
    names = set(OFFICIAL[version].DESCRIPTOR.message_types_by_name)
    assert names == OURS[version].MESSAGES.keys() - {"Empty"}


@pytest.mark.parametrize(("version", "message"), [*described("1.0"), *described("0.3")])
def test_every_table_agrees_with_its_official_descriptor(version: str, message: Descriptor) -> None:
    messages = OURS[version].MESSAGES
    ours = messages[message.name].fields
    assert {field.json_name for field in message.fields} == ours.keys()
    for field in message.fields:
        mine: Field = ours[field.json_name]
        assert mine.number == field.number
        assert mine.many == (field.is_repeated and not is_map(field))
        assert set(mine.others) == other_members(field)
        assert isinstance(mine.kind, Map) == is_map(field)
        if isinstance(mine.kind, Map):
            assert field.message_type is not None
            check_kind(mine.kind.value, field.message_type.fields_by_name["value"], messages)
        else:
            check_kind(mine.kind, field, messages)
        if not field.is_repeated:
            assert mine.has_presence == field.has_presence


@pytest.mark.parametrize("version", OFFICIAL)
def test_repeated_fields_are_never_packed(version: str) -> None:
    fields = [field for message in OURS[version].MESSAGES.values() for field in message.fields.values()]
    assert {field.kind.wire_type for field in fields if field.many} == {TEXT.wire_type}


# ---- random messages ------------------------------------------------------------------------------------------------

TEXTS: Final = st.text(max_size=20)
NUMBERS: Final = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
JSON: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
OBJECTS: Final = st.dictionaries(TEXTS, JSON, max_size=4)
MAX_NESTED: Final = 4  # message types contain one another


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return TEXTS
        case FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=20).map(base64.b64encode)
        case FieldDescriptor.TYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            return st.sampled_from([value.name for value in field.enum_type.values])
    return st.integers(-(2**31), 2**31 - 1)


def timestamps() -> st.SearchStrategy[str]:
    seconds = st.integers(0, 10**9)
    return seconds.map(lambda second: f"2024-01-01T00:00:{second % 60:02}.{second % 1000:03}Z")


def values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    """Return a strategy for the ProtoJSON of one value of a field."""
    if field.message_type is None:
        return scalars(field).map(lambda value: value.decode() if isinstance(value, bytes) else value)
    match field.message_type.full_name:
        case "google.protobuf.Struct":
            return OBJECTS
        case "google.protobuf.Value":
            return JSON
        case "google.protobuf.Timestamp":
            return timestamps()
    return messages_of(field.message_type, depth + 1)


@st.composite
def messages_of(draw: st.DrawFn, message: Descriptor, depth: int = 0) -> dict[str, Any]:
    """Draw the ProtoJSON of a message, with about half of its fields."""
    found: dict[str, Any] = {}
    for field in message.fields:
        if depth > MAX_NESTED or not draw(st.booleans()) or other_members(field) & found.keys():
            continue
        if is_map(field):
            assert field.message_type is not None
            items = values(field.message_type.fields_by_name["value"], depth)
            found[field.json_name] = draw(st.dictionaries(TEXTS, items, max_size=2))
        elif field.is_repeated:
            found[field.json_name] = draw(st.lists(values(field, depth), max_size=2))
        else:
            found[field.json_name] = draw(values(field, depth))
    return found


def with_base64(value: Any) -> Any:
    """Return a decoded message as ProtoJSON, where bytes are base64."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: with_base64(item) for name, item in value.items()}
        case list():
            return [with_base64(item) for item in value]
    return value


def check_both_ways(ours: MessageType, official: OfficialMessage) -> None:
    data = official.SerializeToString()
    decoded = ours.decode(data)
    assert with_base64(decoded) == json_format.MessageToDict(official)
    assert type(official).FromString(ours.encode(decoded)) == official
    assert type(official).FromString(ours.encode(json_format.MessageToDict(official))) == official


NAMES: Final = (
    "SendMessageRequest",
    "Task",
    "StreamResponse",
    "ListTasksRequest",
    "ListTasksResponse",
    "TaskPushNotificationConfig",
    "AgentCard",
    "SecurityScheme",
    "GetTaskRequest",
)


@pytest.mark.parametrize("name", NAMES)
def test_messages_are_read_and_written_as_by_the_official_implementation(name: str) -> None:
    official = getattr(a2a_pb2, name)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(messages_of(official.DESCRIPTOR))
    def check(message: dict[str, Any]) -> None:
        check_both_ways(v1.MESSAGES[name], json_format.ParseDict(message, official()))

    check()


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_rejected_or_read_as_by_the_official_implementation(data: bytes) -> None:
    for name in ("SendMessageRequest", "Task", "StreamResponse"):
        try:
            getattr(a2a_pb2, name).FromString(data)
        except DecodeError:
            with pytest.raises(A2AError):
                v1.MESSAGES[name].decode(data)
        else:
            v1.MESSAGES[name].decode(data)


def sample_request() -> bytes:
    request = a2a_pb2.SendMessageRequest()
    body = {
        "message": {
            "messageId": "m-1",
            "role": "ROLE_USER",
            "parts": [{"text": "hi"}, {"raw": "MTI="}, {"data": {"z": [1.5, True, "t", {}, None]}}],
        },
        "configuration": {"historyLength": 0, "returnImmediately": True},
        "metadata": {"a": [1, {"b": None}], "c": "x"},
    }
    json_format.ParseDict(body, request)
    return request.SerializeToString()


def mutate(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(changed))
        kind = chance.random()
        if kind < 0.6:
            changed[place] = chance.randrange(256)
        elif kind < 0.8:
            del changed[place]
        else:
            changed.insert(place, chance.randrange(256))
    return bytes(changed)


def test_mutated_requests_are_read_alike_or_rejected_with_an_error_of_the_protocol() -> None:
    chance = random.Random(1)
    base = sample_request()
    different = []
    for _ in range(10_000):
        data = mutate(base, chance)
        try:
            theirs: Any = json_format.MessageToDict(a2a_pb2.SendMessageRequest.FromString(data))
        except (DecodeError, json_format.SerializeToJsonError, ValueError):
            theirs = None
        try:
            ours: Any = with_base64(v1.MESSAGES["SendMessageRequest"].decode(data))
        except A2AError:
            ours = None
        if ours != theirs:
            different.append((data, ours, theirs))
    assert [row for row in different if row[2] is not None and not contains(row[1], row[2])] == []
    assert len(different) < 100


def contains(ours: Any, theirs: Any) -> bool:
    """Return whether a decoded message differs only by members of objects that the official one leaves out.

    The official implementation drops entries of a Struct that have no value, or an unknown field. In its conversion to
    JSON, a Value without a kind is an error. Here it is null.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(name in ours and contains(ours[name], item) for name, item in theirs.items())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(contains, ours, theirs))
    return bool(ours == theirs)


# ---- rules of proto3 ------------------------------------------------------------------------------------------------

POINT: Final = make_messages(
    {
        "Point": "1 x: int32, 2 name: text, 3 label: text?, 4 inner: Point, 5 names: text*, "
        "6 free: Struct, 7 any: Value",
        "Choice": "1 text: text|content, 2 number: int32|content, 3 raw: bytes|content",
    },
    {},
)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x08\x01\x08\x02", {"x": 2}),
        (b"\x08\x01\x08\x00", {}),
        (b"\x1a\x00", {"label": ""}),
        (b"\x22\x02\x08\x01\x22\x03\x12\x01a", {"inner": {"x": 1, "name": "a"}}),
        (b"\x2a\x01a\x2a\x00", {"names": ["a", ""]}),
        (b"\x48\x05\x08\x01", {"x": 1}),
        (b"\x4b\x08\x05\x4c\x08\x01", {"x": 1}),
        (b"\x0a\x01a", {}),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", {"x": -1}),
    ],
    ids=[
        "the last value counts",
        "a default value is absent",
        "an optional value is kept",
        "messages are merged",
        "repeated",
        "an unknown field",
        "a group",
        "a wrong wire type",
        "a negative number",
    ],
)
def test_fields_are_read_by_the_rules_of_proto3(data: bytes, message: dict[str, Any]) -> None:
    assert POINT["Point"].decode(data) == message


def test_of_a_oneof_the_last_member_counts_and_an_empty_one_is_written() -> None:
    assert POINT["Choice"].decode(b"\x0a\x01a\x10\x05") == {"number": 5}
    assert POINT["Choice"].decode(b"\x10\x05\x0a\x00") == {"text": ""}
    assert POINT["Choice"].encode({"text": ""}) == b"\x0a\x00"


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x0a\x05abc",
        b"\x12\x02\xff\xfe",
        b"\x00\x00",
        b"\x0b\x08\x01",
        b"\x0b\x14",
        b"\x0c",
        b"\x0f",
        b"\x08" + b"\xff" * 10 + b"\x01",
        b"\x3a\x02\x11\x00",
    ],
    ids=[
        "no value",
        "too short",
        "not UTF-8",
        "field 0",
        "an open group",
        "another group's end",
        "an end alone",
        "wire type 7",
        "a varint of 11 bytes",
        "half a double",
    ],
)
def test_bytes_that_are_not_a_message_are_rejected(data: bytes) -> None:
    with pytest.raises(ParseError, match="Invalid protobuf message"):
        POINT["Point"].decode(data)


# ---- free-form JSON -------------------------------------------------------------------------------------------------


def test_whole_numbers_are_integers_as_far_as_a_double_is_exact() -> None:
    values = {"one": 1.0, "half": 0.5, "exact": 2**53, "large": 2**60, "digits": 10**400, "zero": -0.0}
    read = POINT["Point"].decode(POINT["Point"].encode({"free": values}))["free"]
    assert read == {**values, "digits": str(10**400)}
    assert {name: type(value) for name, value in read.items()} == {
        "one": int,
        "half": float,
        "exact": int,
        "large": float,
        "digits": str,
        "zero": float,
    }


@pytest.mark.parametrize("number", [b"\x00\x00\x00\x00\x00\x00\xf0\x7f", b"\x00\x00\x00\x00\x00\x00\xf8\x7f"])
def test_numbers_that_json_does_not_have_are_rejected(number: bytes) -> None:
    value = b"\x11" + number
    with pytest.raises(InvalidParamsError, match="NaN and infinity"):
        POINT["Point"].decode(b"\x3a" + with_length(value))


def test_null_is_a_value_in_free_form_json_and_an_absent_field_elsewhere() -> None:
    assert POINT["Point"].decode(POINT["Point"].encode({"any": None, "name": None})) == {"any": None}


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "2026-11-19T12:00:00.001Z", "9999-12-31T23:59:59.999999Z"])
def test_timestamps_keep_their_text(text: str) -> None:
    status = {"state": "TASK_STATE_WORKING", "timestamp": text}
    assert v1.MESSAGES["TaskStatus"].decode(v1.MESSAGES["TaskStatus"].encode(status)) == status


@pytest.mark.parametrize("fields", [b"\x08" + encode_varint(2**62), b"\x10" + encode_varint(2**30)])
def test_timestamps_out_of_range_are_rejected(fields: bytes) -> None:
    with pytest.raises(InvalidParamsError, match="timestamp out of range"):
        v1.MESSAGES["TaskStatus"].decode(b"\x1a" + with_length(fields))


def test_bytes_of_0_3_hold_base64_text_and_plain_bytes_are_read() -> None:
    file = v03.MESSAGES["FilePart"]
    assert file.decode(b"\x12\x04AQID") == {"fileWithBytes": "AQID"}
    assert file.decode(b"\x12\x03\x01\x02\x03") == {"fileWithBytes": "AQID"}
    assert file.encode({"fileWithBytes": "AQID"}) == b"\x12\x04AQID"


# ---- limits ---------------------------------------------------------------------------------------------------------


def nested(levels: int) -> dict[str, Any]:
    """Return an object with so many levels, itself included."""
    value: Any = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return {"a": value}


def test_depth_has_the_same_limit_as_in_json() -> None:
    # The message is the first level, and the object `nested` returns adds one to its argument.
    deepest = {"free": nested(MAX_DEPTH - 2)}
    assert POINT["Point"].decode(POINT["Point"].encode(deepest)) == deepest
    with pytest.raises(InvalidRequestError, match="nested deeper than 64 levels"):
        POINT["Point"].decode(POINT["Point"].encode({"free": nested(MAX_DEPTH - 1)}))


@pytest.mark.parametrize("data", [b"\x4b" * 65, b"\x4b" * 65 + b"\x4c" * 65], ids=["open", "closed"])
def test_deep_groups_are_rejected(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="nested deeper"):
        POINT["Point"].decode(data)


def test_deep_messages_are_rejected() -> None:
    data = b""
    for _ in range(MAX_DEPTH):
        data = b"\x22" + with_length(data)
    with pytest.raises(InvalidRequestError, match="nested deeper"):
        POINT["Point"].decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x2a\x00" * 101,
        b"\x48\x00" * 401,
        b"\x4b\x4c" * 401,
        b"\x4b" + b"\x48\x00" * 401 + b"\x4c",
        POINT["Point"].encode({"free": dict.fromkeys(map(str, range(101)), 1)}),
        POINT["Point"].encode({"any": [None] * 101}),
        b"\x3a" + with_length(b"\x08\x00" * 401),
    ],
    ids=["items", "unknown fields", "groups", "fields of a group", "members", "free items", "kinds of one value"],
)
def test_many_values_are_rejected(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="more than 100 values"):
        POINT["Point"].decode(data, max_values=100)
    POINT["Point"].decode(data, max_values=1000)
