"""What ProtoJSON lets a client write: snake_case names, null for a field that is not set, values in several forms.

The requests are made from the model's own shapes, so a new field is covered the day it is added.
"""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import SHAPES, GetTask, ListTasks, Operation, Role, SendMessage, TaskState, encode
from tests.protocol.test_v1 import requests

Json = dict[str, Any]  # Any: a request as JSON, looked into by name


def struct_of(shape: inspect.Type) -> inspect.StructType | None:
    """The structure a field holds, by itself, optionally or in a list."""
    match shape:
        case inspect.StructType():
            return shape
        case inspect.UnionType(types=kinds):
            return next((found for kind in kinds if (found := struct_of(kind))), None)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return struct_of(item)
    return None


def sample_of(shape: inspect.Type) -> Any:
    """A value of this shape with every field set to something that is not its default."""
    match shape:
        case inspect.StructType(fields=fields):
            given = {field.encode_name: sample_of(field.type) for field in fields}
            if "text" in given:  # a part has one content
                del given["raw"], given["url"], given["data"]
            return given
        case inspect.UnionType(types=kinds):
            return sample_of(next(kind for kind in kinds if not isinstance(kind, inspect.NoneType)))
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [sample_of(item)]
        case inspect.EnumType(cls=cls):
            return list(cls)[-1]
        case inspect.DictType() | inspect.AnyType():
            return {"snake_case": None, "camelCase": {"in_side": None}}
    return {inspect.StrType: "x", inspect.IntType: 7, inspect.BoolType: True, inspect.BytesType: "eA=="}[type(shape)]


def snake(value: Any, shape: inspect.Type) -> Any:
    """The same JSON with the names of our fields, and of nothing else, in snake_case."""
    struct = struct_of(shape)
    if isinstance(value, list):
        return [snake(item, shape) for item in value]
    if struct is None or not isinstance(value, dict):
        return value
    fields = {field.encode_name: field.type for field in struct.fields}
    return {
        re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name): snake(item, fields[name]) for name, item in value.items()
    }


SHAPE = {operation: inspect.type_info(shape.request) for operation, shape in SHAPES.items()}
FULL: dict[Operation, Json] = {operation: sample_of(shape) for operation, shape in SHAPE.items()}


def holders(value: Any, shape: inspect.Type, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every field that may be left out."""
    struct = struct_of(shape)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from holders(item, shape, (*path, index))
    elif struct is not None and isinstance(value, dict):
        for field in struct.fields:
            if not field.required and field.encode_name in value:
                yield (*path, field.encode_name)
            yield from holders(value.get(field.encode_name), field.type, (*path, field.encode_name))


OPTIONAL = [
    (operation, path)
    for operation, shape in SHAPE.items()
    for path in holders(FULL[operation], shape)
    if path[-1] != "text"  # a part must have a content
    and (operation, path) not in {(Operation.GET_PUSH, ("id",)), (Operation.DELETE_PUSH, ("id",))}  # nor this, in 1.0
]


def changed(tree: Json, path: tuple[str | int, ...], *, null: bool) -> bytes:
    copied = json.loads(json.dumps(tree))
    inner: Any = copied
    for key in path[:-1]:
        inner = inner[key]
    if null:
        inner[path[-1]] = None
    else:
        del inner[path[-1]]
    return json.dumps(copied).encode()


@pytest.mark.parametrize("operation", Operation)
def test_every_request_may_be_written_in_snake_case(operation: Operation) -> None:
    camel, snaked = FULL[operation], snake(FULL[operation], SHAPE[operation])
    assert camel != snaked or operation in (Operation.SUBSCRIBE, Operation.CANCEL, Operation.EXTENDED_CARD)
    strict = v1.decode_request(operation, json.dumps(camel).encode())
    assert json.loads(encode(strict)) == camel  # every field is read
    assert v1.decode_request(operation, json.dumps(snaked).encode()) == strict


@pytest.mark.parametrize(("operation", "path"), OPTIONAL, ids=str)
def test_null_is_the_same_as_leaving_a_field_out(operation: Operation, path: tuple[str | int, ...]) -> None:
    without, with_null = (changed(FULL[operation], path, null=null) for null in (False, True))
    assert v1.decode_request(operation, with_null) == v1.decode_request(operation, without)


def test_the_table_of_optional_fields_is_not_empty_and_reaches_inside() -> None:
    assert len(OPTIONAL) > 60
    assert (Operation.SEND, ("message", "parts", 0, "mediaType")) in OPTIONAL


def test_null_is_a_value_where_data_is_expected() -> None:
    body = b'{"message":{"message_id":"m","role":"ROLE_USER","parts":[{"data":null,"filename":null}]}}'
    request = v1.decode_request(Operation.SEND, body)
    assert isinstance(request, SendMessage)
    assert request.message.parts[0].data is None


def test_metadata_and_data_are_carried_as_they_came() -> None:
    free = {"snake_case": None, "camelCase": [{"in_side": None}], "": 2**70}
    message = {"message_id": "m", "role": "ROLE_USER", "parts": [{"data": free}], "metadata": free}
    request = v1.decode_request(Operation.SEND, json.dumps({"message": message, "metadata": free}).encode())
    assert isinstance(request, SendMessage)
    assert request.metadata == request.message.metadata == request.message.parts[0].data == free


@pytest.mark.parametrize(
    ("members", "value"),
    [
        ('"id":"a","id":"b"', "b"),
        ('"id":null,"id":"b"', "b"),
        ('"id":"a","id":"b","history_length":1', "b"),
        ('"id":"b","history_length":1,"historyLength":2', 2),
        ('"id":"b","historyLength":1,"history_length":2', 2),
        ('"id":"b","historyLength":1,"history_length":null', None),
        ('"id":"b","historyLength":1,"historyLength":null', None),
    ],
)
def test_of_two_keys_for_one_field_the_last_counts(members: str, value: object) -> None:
    request = msgspec.structs.asdict(v1.decode_request(Operation.GET, b"{%b}" % members.encode()))
    assert value in (request["id"], request["history_length"])
    assert request["id"] == "b"


def test_of_two_keys_in_free_form_data_the_last_counts_on_both_ways() -> None:
    for extra in (b"", b',"history_length":1'):
        request = v1.decode_request(Operation.CANCEL, b'{"id":"t","metadata":{"k":1,"k":2}%b}' % extra)
        assert msgspec.structs.asdict(request)["metadata"] == {"k": 2}


def test_no_parameters_at_all_are_an_empty_object() -> None:
    assert v1.decode_request(Operation.LIST, b"null") == v1.decode_request(Operation.LIST, b"{}")


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (b'{"message":{"message_id":7,"role":"ROLE_USER","parts":[{"text":""}]}}', "message.messageId"),
        (b'{"message":{"message_id":"m","role":"ROLE_USER","parts":[{"media_type":"x/y"}]}}', "message.parts[0]"),
        (b'{"message":{"message_id":"m","role":null,"parts":[{"text":""}]}}', "message.role"),
        (b'{"message":{"message_id":"m","role":"ROLE_USER","parts":[null]}}', "message.parts[0]"),
        (b'{"return_immediately":1}', "message"),
    ],
)
def test_a_loose_request_is_refused_by_the_official_name_of_the_field(params: bytes, field: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        v1.decode_request(Operation.SEND, params)
    assert refused.value.violations[0].field == field


# ---- values ------------------------------------------------------------------------------------------------------


def part_of(raw: str) -> bytes:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"raw": raw}]}
    return json.dumps({"message": message}).encode()


@given(st.binary())
def test_bytes_are_read_in_both_alphabets_with_and_without_padding(content: bytes) -> None:
    for encoded in (base64.b64encode(content), base64.urlsafe_b64encode(content)):
        for text in (encoded.decode(), encoded.decode().rstrip("=")):
            request = v1.decode_request(Operation.SEND, part_of(text))
            assert isinstance(request, SendMessage)
            assert request.message.parts[0].raw == content
            official = ParseDict({"raw": text}, pb.Part()).raw
            assert official == content


@pytest.mark.parametrize("text", ["a", "abcde", "ab*d", "ab cd", "é"])
def test_what_is_no_base64_in_any_alphabet_is_refused(text: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        v1.decode_request(Operation.SEND, part_of(text))
    assert refused.value.violations[0][:2] == ("message.parts[0].raw", "invalid base64")


@pytest.mark.parametrize(("given", "number"), [('"7"', 7), ("7.0", 7), ("7e0", 7), ('"0"', 0), ("null", None)])
def test_an_integer_may_be_a_text_or_a_whole_float(given: str, number: int | None) -> None:
    request = v1.decode_request(Operation.GET, b'{"id":"t","historyLength":%b}' % given.encode())
    assert isinstance(request, GetTask)
    assert request.history_length == number


@pytest.mark.parametrize("given", ['"seven"', '""', "7.5", '"7.5"', "true", '"1e999"', "[]", f'"{"9" * 5000}"'])
def test_what_is_no_integer_is_refused(given: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        v1.decode_request(Operation.GET, b'{"id":"t","historyLength":%b}' % given.encode())
    assert refused.value.violations[0].field == "historyLength"


@pytest.mark.parametrize(("ours", "theirs"), [(TaskState, pb.TaskState), (Role, pb.Role)])
def test_the_members_of_enums_stand_in_the_order_of_their_numbers(ours: Any, theirs: Any) -> None:
    assert {member.value: number for number, member in enumerate(ours)} == dict(theirs.items())


@pytest.mark.parametrize("given", ["3", '"3"'])
def test_an_enum_may_be_its_number(given: str) -> None:
    request = v1.decode_request(Operation.LIST, b'{"status":%b}' % given.encode())
    assert isinstance(request, ListTasks)
    assert request.status is TaskState.COMPLETED
    assert v1.convert_request(Operation.LIST, {"status": "3"}) == request


@pytest.mark.parametrize("given", ["-1", "9", '"9"', "true", "1.5", '"DONE"'])
def test_what_no_enum_has_is_refused(given: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        v1.decode_request(Operation.LIST, b'{"status":%b}' % given.encode())
    assert refused.value.violations[0].field == "status"


@pytest.mark.parametrize("name", ["historyLength", "history_length"])
def test_a_number_that_no_double_holds_is_refused_whatever_the_names(name: str) -> None:
    with pytest.raises(InvalidParamsError, match="out of range"):
        v1.decode_request(Operation.GET, b'{"id":"t","%b":1e400}' % name.encode())


@given(requests)
def test_the_loose_way_reads_what_the_strict_way_reads(drawn: tuple[Operation, Any]) -> None:
    operation, request = drawn
    body = encode(request)
    loose = body[:-1] + (b',"not_a_field":0}' if body != b"{}" else b'"not_a_field":0}')
    assert v1.decode_request(operation, loose) == v1.decode_request(operation, body) == request
