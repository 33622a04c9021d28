"""The error tree: drawn as it is, a wire row for every class, the codes of the specification, and text that is ours."""

import inspect
import re
from pathlib import Path

import pytest

from apcore_a2a import errors
from apcore_a2a.errors import (
    DOMAIN,
    MAX_SHOWN,
    WIRE,
    A2AConnectionError,
    A2ADiscoveryError,
    A2AError,
    A2AServerError,
    AgentError,
    ExtensionSupportRequiredError,
    InternalError,
    InvalidParamsError,
    InvalidStateTransitionError,
    OverloadedError,
    ParseError,
    SkillNotFoundError,
    StaleWriteError,
    StoreUnavailableError,
    TaskNotCancelableError,
    TaskNotFoundError,
    VersionNotSupportedError,
    Violation,
    list_names,
    to_metadata,
    wire,
)
from scripts import error_table
from tests.requirements import requirement

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, A2AError)]

# A2A 1.0 §5.4: JSON-RPC code, gRPC status, HTTP status of 1.0.1 and, where it was another one, of 1.0.0.
SPECIFIED = {
    "TaskNotFoundError": (-32001, "NOT_FOUND", 404, None),
    "TaskNotCancelableError": (-32002, "FAILED_PRECONDITION", 400, 409),
    "PushNotificationNotSupportedError": (-32003, "FAILED_PRECONDITION", 400, None),
    "UnsupportedOperationError": (-32004, "FAILED_PRECONDITION", 400, None),
    "ContentTypeNotSupportedError": (-32005, "INVALID_ARGUMENT", 400, 415),
    "InvalidAgentResponseError": (-32006, "INTERNAL", 500, 502),
    "ExtendedAgentCardNotConfiguredError": (-32007, "FAILED_PRECONDITION", 400, None),
    "ExtensionSupportRequiredError": (-32008, "FAILED_PRECONDITION", 400, None),
    "VersionNotSupportedError": (-32009, "FAILED_PRECONDITION", 400, None),
}
# JSON-RPC 2.0 §5.1, with the texts of A2A 1.0 §9.5.
JSON_RPC = {
    "ParseError": (-32700, "Invalid JSON payload"),
    "InvalidRequestError": (-32600, "Request payload validation error"),
    "MethodNotFoundError": (-32601, "Method not found"),
    "InvalidParamsError": (-32602, "Invalid parameters"),
    "A2AError": (-32603, "Internal error"),
}


def drawn_tree() -> dict[str, str]:
    """Each class in the docstring's drawing with the class it is drawn under."""
    parents = {"A2AError": "Exception"}
    above = "A2AError"
    for line in (errors.__doc__ or "").partition("Invariant:")[0].splitlines()[3:]:
        names = re.findall(r"\w+Error\b", line.partition("(under")[0])
        under = re.search(r"\(under (\w+)\)", line)
        nested = line.find("──") > 4 + len("├──")
        parents.update(dict.fromkeys(names, (under[1] if under else above) if nested else "A2AError"))
        above = above if nested or not names else names[-1]
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    assert drawn_tree() == {cls.__name__: cls.__mro__[1].__name__ for cls in CLASSES}


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_has_a_wire_row_by_inheritance(cls: type[A2AError]) -> None:
    row = wire(cls.__new__(cls))
    assert row is next(WIRE[parent] for parent in cls.__mro__ if parent in WIRE)
    assert cls is A2AError or row is not WIRE[A2AError] or issubclass(cls, CLASSES_THAT_MAY_SAY_INTERNAL)


CLASSES_THAT_MAY_SAY_INTERNAL = (InternalError, A2AServerError, A2AConnectionError)


@pytest.mark.parametrize("name", SPECIFIED)
def test_the_codes_are_those_of_the_specification(name: str) -> None:
    row = WIRE[getattr(errors, name)]
    assert (row.code, row.grpc, row.http, row.http_v1_0_0) == SPECIFIED[name]


@pytest.mark.parametrize("name", SPECIFIED)
def test_the_reason_is_the_name_in_upper_snake_case_without_error(name: str) -> None:
    words = re.findall("[A-Z][a-z]+", name.removesuffix("Error"))
    assert WIRE[getattr(errors, name)].reason == "_".join(words).upper()


@pytest.mark.parametrize("name", JSON_RPC)
def test_the_errors_of_json_rpc_keep_their_codes_and_texts(name: str) -> None:
    error = getattr(errors, name)()
    assert (wire(error).code, error.message) == JSON_RPC[name]


def test_no_two_specified_errors_share_a_code() -> None:
    """A special case of another error has the same code, after it in the table, and a reason of its own."""
    general = {row.code: kind for kind, row in reversed(WIRE.items()) if row.code != -32603}
    for kind, row in WIRE.items():
        assert row.code == -32603 or issubclass(kind, general[row.code])
    reasons = [row.reason for row in WIRE.values()]
    assert len(reasons) == len(set(reasons))


def test_the_domain_is_the_one_of_the_specification() -> None:
    assert DOMAIN == "a2a-protocol.org"


def test_an_error_carries_values_and_the_text_made_of_them() -> None:
    assert (TaskNotFoundError("t-1").task_id, str(TaskNotFoundError("t-1"))) == ("t-1", "Task not found: t-1")
    assert str(TaskNotFoundError()) == "Task not found"
    ended = TaskNotCancelableError("t-1", "completed")
    assert (ended.task_id, ended.state, ended.message) == (
        "t-1",
        "completed",
        "Task is not cancelable: current state is completed",
    )
    version = VersionNotSupportedError("9.9", ["1.0", "0.3"])
    assert (version.version, version.supported) == ("9.9", "1.0, 0.3")
    assert version.metadata == {"requestedVersion": "9.9", "supportedVersions": "1.0, 0.3"}
    assert ExtensionSupportRequiredError("urn:x").uri == "urn:x"
    assert (OverloadedError(retry_after=7).retry_after, StoreUnavailableError().retry_after) == (7, 1)
    assert (A2AServerError("no", code=-32050, data=[1]).code, A2AServerError(data=[1]).data) == (-32050, [1])
    assert (A2AConnectionError().sent, A2AConnectionError(sent=False).sent) == (True, False)
    lost = A2ADiscoveryError("no", url="https://a", status=404)
    assert (lost.url, lost.status, lost.sent, str(lost)) == ("https://a", 404, True, "no")
    violation = Violation("a.b", "is wrong")
    assert InvalidParamsError("x", [violation]).violations == (violation,)
    assert violation.code == "invalid"


def test_metadata_is_text_and_leaves_out_what_is_not_known() -> None:
    error = AgentError("boom", attempts=3, cause=None)
    assert (error.metadata, error.kind, error.message) == ({"attempts": "3"}, "AgentError", "boom")
    assert TaskNotFoundError().metadata == {}


@requirement("NFR-SEC-001")
@pytest.mark.parametrize(
    "error",
    [
        InvalidStateTransitionError("TASK_STATE_COMPLETED", "TASK_STATE_WORKING"),
        StaleWriteError(),
        InternalError("4f1c"),
    ],
)
def test_our_own_faults_look_alike_from_outside(error: InternalError) -> None:
    assert (error.message, error.kind, wire(error).code) == ("Internal error", "InternalError", -32603)
    assert set(error.metadata) <= {"reference"}


def test_an_unknown_skill_names_the_field_and_says_back_only_so_much() -> None:
    error = SkillNotFoundError("x" * 10_000)
    assert error.violations == (
        Violation("message.metadata.skillId", f"Skill not found: {'x' * MAX_SHOWN}", "unknown"),
    )
    assert (error.kind, len(error.skill_id)) == ("ModuleNotFoundError", 10_000)


def test_a_failed_task_says_what_an_error_of_the_request_would_say() -> None:
    assert to_metadata(InternalError("4f1c")) == {"type": "InternalError", "code": -32603, "reference": "4f1c"}
    assert to_metadata(InvalidParamsError("Wrong", [Violation("a", "is odd")])) == {
        "type": "InvalidParamsError",
        "code": -32602,
        "errors": [{"field": "a", "message": "is odd", "code": "invalid"}],
    }
    assert to_metadata(InvalidParamsError("Wrong")) == {"type": "InvalidParamsError", "code": -32602}


@pytest.mark.parametrize("cls", [ParseError, AgentError])
def test_an_error_without_a_message_says_its_default_text(cls: type[A2AError]) -> None:
    assert str(cls()) == cls.text
    assert str(cls("")) == ""


def test_the_page_about_errors_is_written_from_the_table() -> None:
    page = Path(error_table.PAGE).read_text(encoding="utf-8")
    assert page == error_table.render(), "docs/errors.md is stale: run python -m scripts.error_table"


def test_the_page_about_errors_has_a_row_for_every_class() -> None:
    page = error_table.render()
    assert [cls.__name__ for cls in CLASSES if f"`{cls.__name__}`" not in page] == []
    assert "| `TaskNotCancelableError` | -32002 | 400 (409) | FAILED_PRECONDITION | TASK_NOT_CANCELABLE |" in page


def test_what_an_error_says_back_holds_no_control_characters() -> None:
    hostile = "a\r\n\x1b[31mred\u202e\tend"
    error = InvalidParamsError(hostile, [Violation(hostile, hostile)])
    assert (error.message, str(error)) == ("a\nred\tend", "a\nred\tend")
    assert error.violations == (Violation("a\nred\tend", "a\nred\tend"),)
    assert AgentError("no", account=hostile).metadata == {"account": "a\nred\tend"}


def test_as_many_names_are_listed_as_one_reads() -> None:
    names = [f"skill{number}" for number in range(30)]
    assert list_names(names) == ", ".join(names[:20]) + ", …"
