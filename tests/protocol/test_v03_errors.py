"""Errors in A2A 0.3: the code, the text, and an object that says the rest."""

from typing import Any

import msgspec
import pytest

from apcore_a2a import errors
from apcore_a2a.errors import A2AError, InvalidParamsError, SkillNotFoundError, Violation
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.v03 import jsonrpc as v03
from tests.requirements import requirement


def make(kind: type[A2AError]) -> A2AError:
    """An instance of each error that the table knows."""
    arguments: dict[type[A2AError], tuple[Any, ...]] = {
        errors.ExtensionSupportRequiredError: ("urn:x",),
        errors.VersionNotSupportedError: ("9.9", ["1.0"]),
    }
    return kind(*arguments.get(kind, ()))


@pytest.mark.parametrize("kind", errors.WIRE)
def test_an_error_keeps_its_code_and_says_its_type(kind: type[A2AError]) -> None:
    error = make(kind)
    encoded = v03.encode_error(error)
    assert (encoded.code, encoded.message) == (errors.WIRE[kind].code, error.message)
    assert isinstance(encoded.data, dict)
    assert encoded.data["type"] == error.kind


@requirement("FR-ERR-001")
def test_an_unknown_skill_is_a_method_not_found() -> None:
    encoded = v03.encode_error(SkillNotFoundError("image.resize"))
    assert (encoded.code, encoded.message) == (-32601, "Skill not found: image.resize")
    assert isinstance(encoded.data, dict)
    assert encoded.data["type"] == "ModuleNotFoundError"


@requirement("FR-ERR-002")
def test_wrong_fields_are_listed_in_the_errors_data() -> None:
    error = InvalidParamsError("no", [Violation("a.b", "too long", "max_length")], kind="SchemaValidationError")
    encoded = v03.encode_error(error)
    assert encoded.data == {
        "type": "SchemaValidationError",
        "errors": [{"field": "a.b", "code": "max_length", "message": "too long"}],
    }
    assert v03.decode_violations(encoded.data) == list(error.violations)


@pytest.mark.parametrize("kind", errors.WIRE)
def test_who_knows_1_0_gets_its_details(kind: type[A2AError]) -> None:
    error = make(kind)
    encoded = v03.encode_error(error, typed=True)
    assert (encoded.code, encoded.data) == (errors.WIRE[kind].code, v1.error_details(error))


def test_wrong_fields_are_read_from_the_details_of_1_0() -> None:
    error = InvalidParamsError("no", [Violation("a.b", "too long")])
    assert v03.decode_violations(v03.encode_error(error, typed=True).data) == list(error.violations)
    assert v03.decode_violations(v03.encode_error(errors.TaskNotFoundError("t"), typed=True).data) == []


def test_values_of_an_error_stand_beside_its_type() -> None:
    assert v03.encode_error(errors.TaskNotFoundError("t-1")).data == {"type": "TaskNotFoundError", "taskId": "t-1"}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            [{"type": "missing", "loc": ["params", "message", "role"], "msg": "Field required"}],
            [Violation("params.message.role", "Field required")],
        ),
        (None, []),
        ("text", []),
        ({"type": "X"}, []),
        ({"errors": "text"}, []),
        ([1, {"field": "f"}], [Violation("f", "")]),
    ],
)
def test_violations_are_read_from_any_data(data: object, expected: list[Violation]) -> None:
    assert v03.decode_violations(data) == expected


@pytest.mark.parametrize(
    ("error", "name", "code"),
    [
        (errors.TaskNotFoundError("t"), "TaskNotFoundError", -32001),
        (errors.ExtendedAgentCardNotConfiguredError(), "AuthenticatedExtendedCardNotConfiguredError", -32007),
        (InvalidParamsError(kind="SchemaValidationError"), "InvalidParamsError", -32602),
        (errors.InternalError("ref"), "InternalError", -32603),
        (errors.ExtensionSupportRequiredError("urn:x"), "ExtensionSupportRequiredError", -32008),
    ],
)
def test_a_rest_error_has_its_official_name_and_message(error: A2AError, name: str, code: int) -> None:
    body = msgspec.json.decode(v03.encode_rest_error(error, 400))
    assert (body["type"], body["message"], body["code"]) == (name, error.message, code)
    assert body["data"]["type"] == error.kind
    assert body["error"] == name
    typed = msgspec.json.decode(v03.encode_rest_error(error, 400, typed=True))
    assert typed == body | {"error": msgspec.json.decode(v1.encode_rest_error(error, 400))["error"]}
