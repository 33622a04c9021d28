"""The JSON-RPC envelope: ids come back byte for byte, and what is not one request is refused with what is wrong."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.errors import InvalidParamsError, InvalidRequestError, ParseError
from apcore_a2a.protocol.jsonrpc import (
    EMPTY,
    MAX_ID,
    NULL,
    ErrorObject,
    format_error,
    format_request,
    format_result,
    parse,
    parse_response,
    recover_id,
    result_head,
)
from tests.protocol import strategies

IDS = [
    b"1",
    b"0",
    b"-0",
    b"-7",
    b"1.50",
    b"1e5",
    b"1E+400",
    b"9" * 100,
    b"123456789012345678901234567890",
    b"null",
    b'""',
    b'"req-1"',
    b'"A\\u0041\\/\\"\\\\\\n"',
    b'"\\ud83d\\ude00"',
    '"é€😀"'.encode(),
    b'"\\u0000"',
    b'"%b"' % (b"x" * (MAX_ID - 2)),
]


def request(id: bytes) -> bytes:
    return b'{ "jsonrpc" : "2.0" , "method" : "GetTask" , "params" : { "id" : "t" } , "id" : %b }' % id


@pytest.mark.parametrize("id", IDS)
def test_an_id_comes_back_byte_for_byte(id: bytes) -> None:
    read = parse(request(id))
    assert read.id == id
    assert recover_id(request(id)) == id
    for answer in (format_result(read.id, b"{}"), format_error(read.id, ErrorObject(-32603, "x"))):
        assert b'"id":' + id + b"," in answer
        assert json.loads(answer)["id"] == json.loads(id)


@given(st.text(max_size=80), st.booleans())
def test_any_text_is_an_id_however_it_is_escaped(text: str, ascii: bool) -> None:
    id = json.dumps(text, ensure_ascii=ascii).encode()
    assert parse(request(id)).id == id
    assert json.loads(format_result(id, NULL)) == {"jsonrpc": "2.0", "id": text, "result": None}


def test_a_request_without_an_id_is_kept_apart_from_one_whose_id_is_null() -> None:
    notification = parse(b'{"jsonrpc":"2.0","method":"GetTask","params":{}}')
    assert (notification.id, parse(request(b"null")).id) == (None, NULL)


@pytest.mark.parametrize("id", [b"true", b"false", b"[1]", b"{}", b'"%b"' % (b"x" * (MAX_ID - 1)), b"1" * (MAX_ID + 1)])
def test_an_id_of_the_wrong_kind_or_size_is_refused_and_not_said_back(id: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="id must be a short string, a number or null") as refused:
        parse(request(id))
    assert id.decode() not in str(refused.value)
    assert recover_id(request(id)) == NULL


def test_the_method_and_the_parameters_are_taken_as_they_are() -> None:
    read = parse(request(b"1"))
    assert (read.method, bytes(read.params)) == ("GetTask", b'{ "id" : "t" }')


def test_parameters_that_are_left_out_are_an_empty_object() -> None:
    assert bytes(parse(b'{"jsonrpc":"2.0","method":"ListTasks","id":1}').params) == EMPTY


def test_of_two_keys_the_last_counts() -> None:
    read = parse(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b","params":[],"params":{}}')
    assert (read.id, read.method, bytes(read.params)) == (b"2", "b", b"{}")


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"[]", "expected one request object"),
        (b'[{"jsonrpc":"2.0","method":"GetTask","id":1}]', "expected one request object"),  # a batch
        (b"1", "expected one request object"),
        (b'"x"', "expected one request object"),
        (b"null", "expected one request object"),
        (b"{}", "jsonrpc is missing or wrong"),
        (b'{"jsonrpc":"1.0","method":"x","id":"7"}', "jsonrpc is missing or wrong"),
        (b'{"jsonrpc":2.0,"method":"x","id":"7"}', "jsonrpc is missing or wrong"),
        (b'{"jsonrpc":"2.0","id":"7"}', "method is missing or wrong"),
        (b'{"jsonrpc":"2.0","method":null,"id":"7"}', "method is missing or wrong"),
        (b'{"jsonrpc":"2.0","method":7,"id":"7"}', "method is missing or wrong"),
    ],
)
def test_what_is_not_one_request_is_told_what_is_wrong(body: bytes, wrong: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse(body)
    assert refused.value.message == f"Invalid JSON-RPC request: {wrong}"
    assert recover_id(body) == (b'"7"' if b'"7"' in body else NULL)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"id":1', b'{"id":1}x', b'{"id":"\\ud800"}', b"\xff", b'{"id":1,"a":\xff}']
)
def test_no_id_is_recovered_from_what_is_not_json(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse(body)
    assert recover_id(body) == NULL


@pytest.mark.parametrize("id", [b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"'])
def test_an_id_that_is_not_utf_8_never_gets_into_an_answer(id: bytes) -> None:
    with pytest.raises(ParseError):
        parse(request(id))
    assert recover_id(request(id)) == NULL


@given(st.binary(max_size=40) | st.binary(max_size=8).map(request))
def test_a_recovered_id_can_always_be_answered_with(body: bytes) -> None:
    json.loads(format_error(recover_id(body), ErrorObject(-32700, "x")))


def test_the_head_of_a_result_is_what_an_encoded_event_is_put_behind() -> None:
    assert result_head(b"7") + b"{}" + b"}" == format_result(b"7", b"{}") == b'{"jsonrpc":"2.0","id":7,"result":{}}'


def test_an_error_has_data_only_if_there_is_some() -> None:
    assert (
        format_error(b"1", ErrorObject(-32001, "no"))
        == b'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no"}}'
    )
    assert json.loads(format_error(NULL, ErrorObject(1, "", [{"@type": "x"}])))["error"]["data"] == [{"@type": "x"}]


# ---- the client's half -------------------------------------------------------------------------------------------


@given(st.text(max_size=80), st.text(), strategies.json_objects)
def test_a_request_that_the_client_writes_is_one_that_the_server_reads(id: str, method: str, params: object) -> None:
    body = msgspec.json.encode(params)
    read = parse(format_request(id, method, body))
    assert (msgspec.json.decode(read.id or b""), read.method, bytes(read.params)) == (id, method, body)


def test_a_response_has_a_result_or_an_error() -> None:
    good = parse_response(format_result(b"1", b'{"a":1e400}'))
    assert (bytes(good.id), good.result, good.error) == (b"1", msgspec.Raw(b'{"a":1e400}'), None)
    bad = parse_response(format_error(NULL, ErrorObject(-32001, "no", [1])))
    assert (bytes(bad.id), bad.result, bad.error) == (NULL, msgspec.UNSET, ErrorObject(-32001, "no", [1]))
    bare = parse_response(b'{"error":{"code":1,"message":""}}').error
    assert bare is not None
    assert bare.data is msgspec.UNSET


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"result":{}'])
def test_a_response_that_is_not_json_is_a_parse_error(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_response(body)


@pytest.mark.parametrize("body", [b"[]", b'{"error":{}}', b'{"error":{"code":"x","message":""}}'])
def test_a_response_of_the_wrong_shape_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidParamsError):
        parse_response(body)
