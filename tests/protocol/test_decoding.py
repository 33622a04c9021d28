"""From bytes to values: what is refused, with which error, naming which field, in whose words.

Every request is read here as the server reads it: the envelope first, then the parameters.
"""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.errors import A2AError, InvalidParamsError, InvalidRequestError, ParseError
from apcore_a2a.protocol import decoding, jsonrpc, v1
from apcore_a2a.protocol.model import MAX_ID, MAX_PARTS, Message, Operation, SendMessage, Value, encode
from tests.protocol import strategies
from tests.requirements import requirement

FOREIGN_WORDS = ("`", "struct", "Expected", "msgspec", "Traceback", "Error:", "codec", "<class", "UNSET", "got str,")
PYTHON_WORDS = {"str", "int", "float", "bool", "bytes", "dict", "list", "tuple", "None", "True", "False"}


def read(params: bytes, operation: Operation = Operation.SEND) -> Value:
    """What the server makes of a request with these parameters."""
    request = jsonrpc.parse(b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (operation.value.encode(), params))
    return v1.decode_request(operation, request.params)


def message(**members: bytes) -> bytes:
    """The parameters of SendMessage; each member of the message as raw JSON, b"" to leave it out."""
    given = {"messageId": b'"m"', "role": b'"ROLE_USER"', "parts": b'[{"text":"hi"}]'} | members
    return b'{"message":{%b}}' % b",".join(b'"%b":%b' % (name.encode(), raw) for name, raw in given.items() if raw)


def part(raw: bytes) -> bytes:
    return message(parts=b"[%b]" % raw)


def read_message(params: bytes) -> Message:
    request = read(params)
    assert isinstance(request, SendMessage)
    return request.message


def words_of(error: A2AError) -> str:
    """All that a client sees of the error."""
    return encode(v1.encode_error(error)).decode()


def assert_our_words(error: A2AError) -> None:
    seen = words_of(error)
    assert [word for word in FOREIGN_WORDS if word in seen] == []
    assert PYTHON_WORDS & set(error.message.replace(",", " ").split()) == set()
    assert len(seen) < 1_000


# ---- not JSON ----------------------------------------------------------------------------------------------------


@requirement("NFR-SEC-001")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        b"{",
        b"nul",
        b"{'a':1}",
        b'{"a":1,}',
        b"\xef\xbb\xbf{}",  # a byte order mark: RFC 8259 §8.1 lets a parser refuse it
        '{"jsonrpc":"2.0"}'.encode("utf-16"),
        b'{"jsonrpc":"2.0","method":"x"}\0',
        b'{"jsonrpc":"2.0","method":"x"}{}',
        b"[1,2",  # broken counts before wrong
        b'{"method":7,"jsonrpc":"2.0"',
    ],
)
def test_what_is_not_json_is_a_parse_error_and_nothing_else(body: bytes) -> None:
    with pytest.raises(ParseError) as refused:
        jsonrpc.parse(body)
    assert refused.value.message == "Invalid JSON payload"


@requirement("NFR-SEC-001")
@pytest.mark.parametrize(
    "raw",
    [
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"01",
        b"+1",
        b"1.",
        b".5",
        b"0x1",
        b'"\xff"',  # invalid UTF-8
        b'"\xc0\x80"',  # NUL, encoded too long
        b'"\xed\xa0\x80"',  # a surrogate, encoded
        rb'"\ud800"',  # half a pair
        rb'"\udc00"',
        rb'"\ud800A"',
        rb'"\ud800\ud800"',
        rb'"\x41"',
        b'"a\tb"',
        b'"a\0b"',
    ],
)
@pytest.mark.parametrize("place", ['"parts":[{"data":%s}]', '"parts":[{"text":"hi"}],"unknown":%s'])
def test_broken_numbers_and_texts_are_parse_errors_wherever_they_stand(raw: bytes, place: str) -> None:
    before, after = place.encode().split(b"%s")
    params = b'{"message":{"messageId":"m","role":"ROLE_USER",' + before + raw + after + b"}}"
    with pytest.raises(ParseError) as refused:
        read(params)
    assert refused.value.message == "Invalid JSON payload"


def test_parameters_that_come_without_an_envelope_are_read_as_strictly() -> None:
    for params in (message(messageId=b'"\xff"'), message(messageId=rb'"\ud800"'), message(messageId=b"NaN")):
        with pytest.raises(ParseError):
            v1.decode_request(Operation.SEND, params)


def test_a_nul_is_a_character_like_any_other_once_it_is_escaped() -> None:
    assert read_message(part(rb'{"text":"a\u0000b"}')).parts[0].text == "a\0b"


# ---- JSON of the wrong shape -------------------------------------------------------------------------------------

WRONG = [
    (b"[]", "", "expected object, got array"),
    (b"7", "", "expected object, got integer"),
    (b"{}", "message", "is required"),
    (b"null", "message", "is required"),
    (b'{"message":null}', "message", "is required"),
    (b'{"message":[]}', "message", "expected object, got array"),
    (message(messageId=b""), "message.messageId", "is required"),
    (message(messageId=b"null"), "message.messageId", "is required"),
    (message(messageId=b'""'), "message.messageId", "must not be empty"),
    (message(messageId=b"7"), "message.messageId", "expected string, got integer"),
    (message(messageId=b'"%b"' % (b"x" * (MAX_ID + 1))), "message.messageId", "string longer than 256"),
    (message(contextId=b'"%b"' % (b"x" * (MAX_ID + 1))), "message.contextId", "string longer than 256"),
    (message(taskId=b"true"), "message.taskId", "expected string, got boolean"),
    (message(referenceTaskIds=b'["a",""]'), "message.referenceTaskIds[1]", "must not be empty"),
    (message(role=b""), "message.role", "is required"),
    (message(role=b'"user"'), "message.role", "unknown value"),
    (message(role=b"1.5"), "message.role", "expected string, got number"),
    (message(metadata=b"[]"), "message.metadata", "expected object, got array"),
    (message(metadata=b'"x"'), "message.metadata", "expected object, got string"),
    (message(parts=b""), "message.parts", "is required"),
    (message(parts=b"{}"), "message.parts", "expected array, got object"),
    (message(parts=b"[null]"), "message.parts[0]", "expected object, got null"),
    (message(parts=b"[%b]" % b",".join([b'{"text":""}'] * (MAX_PARTS + 1))), "message.parts", "array longer than 1000"),
    (part(b"{}"), "message.parts[0]", "a part has exactly one of text, raw, url and data"),
    (part(b'{"text":"a","url":"b"}'), "message.parts[0]", "a part has exactly one of text, raw, url and data"),
    (part(b'{"text":"a"},{"text":1}'), "message.parts[1].text", "expected string, got integer"),
    (part(b'{"raw":"a"}'), "message.parts[0].raw", "invalid base64"),
    (part(b'{"raw":"!!!!"}'), "message.parts[0].raw", "invalid base64"),
    (part(b'{"raw":1}'), "message.parts[0].raw", "expected base64 string, got integer"),
    (part(b'{"data":1e400}'), "message.parts[0].data", "number out of range"),
    (part(b'{"data":-1e400}'), "message.parts[0].data", "number out of range"),
    (part(b'{"data":%b}' % (b"9" * 5_000)), "message.parts[0].data", "number out of range"),
    (part(b'{"data":{"a":[1e400]}}'), "message.parts[0].data.*[0]", "number out of range"),
    (part(b'{"data":1e400,"media_type":"x/y"}'), "*.*[0].*", "number out of range"),
]


@requirement("NFR-SEC-001")
@pytest.mark.parametrize(("params", "field", "said"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_shape_is_an_invalid_params_error_that_names_the_field(params: bytes, field: str, said: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        read(params)
    [violation] = refused.value.violations
    assert (violation.field, violation.message) == (field, said)
    assert violation.code == ("required" if said == "is required" else "invalid")
    assert_our_words(refused.value)


def test_a_message_without_parts_is_told_so_in_the_words_of_the_requirements() -> None:
    with pytest.raises(InvalidParamsError, match=r"^Message must contain at least one Part$") as refused:
        read(message(parts=b"[]"))
    assert refused.value.violations[0][::2] == ("message.parts", "required")


def test_the_error_text_names_the_field_too() -> None:
    with pytest.raises(InvalidParamsError, match=r"^Missing required parameter: message\.messageId$"):
        read(message(messageId=b""))
    with pytest.raises(InvalidParamsError, match=r"^Invalid parameter message\.role: unknown value$"):
        read(message(role=b'"x"'))
    with pytest.raises(InvalidParamsError, match=r"^Invalid parameter \(all\): expected object, got array$"):
        read(b"[]")


@pytest.mark.parametrize("value", ["x" * 1_000_000, "x - at `$.id`", "Expected `a`, got `b` - at `$.y"])
def test_a_client_cannot_put_its_own_words_or_fields_into_an_error(value: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        read(message(role=json.dumps(value).encode()))
    assert refused.value.violations[0][:2] == ("message.role", "unknown value")
    assert_our_words(refused.value)


def test_what_the_library_may_say_one_day_is_not_passed_on() -> None:
    error = decoding.invalid_params(msgspec.ValidationError("Expected `struct` to be kind - at `$.a[0]`"))
    assert error.violations[0][:2] == ("a[0]", "invalid value")


@pytest.mark.parametrize(
    ("operation", "params", "field", "said"),
    [
        (Operation.GET, b"{}", "id", "is required"),
        (Operation.GET, b'{"id":"t","historyLength":-1}', "historyLength", "must be at least 0"),
        (Operation.GET, b'{"id":"t","historyLength":2147483648}', "historyLength", "must be at most 2147483647"),
        (Operation.GET, b'{"id":"t","historyLength":1.5}', "historyLength", "expected integer, got number"),
        (Operation.LIST, b'{"pageSize":0}', "pageSize", "must be at least 1"),
        (Operation.LIST, b'{"pageSize":101}', "pageSize", "must be at most 100"),
        (Operation.LIST, b'{"status":"working"}', "status", "unknown value"),
        (Operation.LIST, b'{"includeArtifacts":1}', "includeArtifacts", "expected boolean, got integer"),
        (Operation.CANCEL, b'{"id":""}', "id", "must not be empty"),
        (Operation.SUBSCRIBE, b'{"id":[]}', "id", "expected string, got array"),
        (Operation.CREATE_PUSH, b'{"taskId":"t"}', "url", "is required"),
        (Operation.CREATE_PUSH, b'{"url":""}', "url", "must not be empty"),
        (Operation.CREATE_PUSH, b'{"url":"u","authentication":{}}', "authentication.scheme", "is required"),
        (Operation.GET_PUSH, b'{"id":"c"}', "taskId", "is required"),
        (Operation.LIST_PUSH, b"{}", "taskId", "is required"),
        (Operation.DELETE_PUSH, b'{"taskId":7}', "taskId", "expected string, got integer"),
        (Operation.EXTENDED_CARD, b'{"tenant":7}', "tenant", "expected string, got integer"),
    ],
)
def test_every_operation_names_its_wrong_field(operation: Operation, params: bytes, field: str, said: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        read(params, operation)
    assert refused.value.violations[0][:2] == (field, said)
    assert_our_words(refused.value)


# ---- anything at all ---------------------------------------------------------------------------------------------


@st.composite
def damaged_requests(draw: st.DrawFn) -> tuple[Operation, bytes]:
    """A request in order, with one value somewhere in it replaced by another one, or gone."""
    operation = draw(st.sampled_from(Operation))
    tree = json.loads(encode(draw(strategies.requests[operation])))
    places: list[tuple[Any, Any]] = [({"params": tree}, "params")]
    for container, key in places:
        inner = container[key]
        pairs = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        places += [(inner, name) for name, _ in pairs]
    container, key = draw(st.sampled_from(places))
    if draw(st.booleans()):
        del container[key]
    else:
        container[key] = draw(strategies.json_values)
    return operation, json.dumps(places[0][0].get("params")).encode()


@requirement("NFR-SEC-001")
@given(damaged_requests())
def test_a_damaged_request_is_read_or_refused_by_field_in_our_own_words(damaged: tuple[Operation, bytes]) -> None:
    operation, params = damaged
    try:
        read(params, operation)
    except InvalidParamsError as error:
        assert error.violations
        assert_our_words(error)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_as_json_or_as_a_request(body: bytes) -> None:
    with pytest.raises((ParseError, InvalidRequestError)) as refused:
        jsonrpc.parse(body)
    assert_our_words(refused.value)
