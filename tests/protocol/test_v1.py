"""The 1.0 dialect: the model's own JSON, exact both ways, with the wrappers and details that 1.0 puts around it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.errors import (
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    OverloadedError,
    ParseError,
    TaskNotFoundError,
    Violation,
)
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.lifecycle import copy, fold
from apcore_a2a.protocol.model import (
    SHAPES,
    Artifact,
    ArtifactUpdate,
    Document,
    Event,
    GetTask,
    ListTasks,
    Message,
    Operation,
    Part,
    Role,
    SendMessage,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    Value,
    encode,
)
from tests.protocol import strategies
from tests.requirements import requirement

UNARY = [operation for operation in Operation if not SHAPES[operation].streams]
TASK = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))
SAID = Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),))

# What 1.0 asks for and 0.3 does not: the id of a push config.
requests = st.sampled_from(Operation).flatmap(
    lambda operation: st.tuples(
        st.just(operation), strategies.requests[operation].filter(lambda request: getattr(request, "id", "x") != "")
    )
)
results = st.sampled_from(UNARY).flatmap(lambda operation: st.tuples(st.just(operation), strategies.results(operation)))


# ---- there and back ----------------------------------------------------------------------------------------------


@given(requests)
def test_every_request_comes_through_exactly(drawn: tuple[Operation, Value]) -> None:
    operation, request = drawn
    body = v1.encode_request(operation, request)
    read = v1.decode_request(operation, body)
    assert read == request
    assert v1.encode_request(operation, read) == body  # 1 is not 1.0, and 2**70 is no float


@given(results)
def test_every_result_comes_through_exactly(drawn: tuple[Operation, Any]) -> None:
    operation, result = drawn
    body = v1.encode_result(operation, result)
    read = v1.decode_result(operation, body)
    assert read == result
    assert v1.encode_result(operation, read) == body


@given(strategies.events())
def test_every_event_comes_through_exactly(event: Event) -> None:
    for body in (v1.encode_event(event), v1.encode_push(event, TASK)):
        read = v1.decode_event(body)
        assert read == event
        assert v1.encode_event(read) == body


@given(strategies.cards)
def test_every_card_comes_through_exactly(card: AgentCard) -> None:
    body = v1.encode_card(card)
    assert v1.decode_card(body) == card
    assert v1.encode_card(v1.decode_card(body)) == body


@pytest.mark.parametrize(
    "raw",
    [
        "1",
        "1.0",
        "-0.0",
        "0.1",
        "1e22",
        "5e-324",
        "9007199254740993",
        "-" + "9" * 4_000,
        '"é€😀\\u0000\\u2028"',
        "null",
    ],
)
def test_numbers_and_texts_in_data_mean_after_what_they_meant_before(raw: str) -> None:
    message = f'{{"messageId":"m","role":"ROLE_USER","parts":[{{"data":{raw}}}],"metadata":{{"k":[{raw}]}}}}'
    request = v1.decode_request(Operation.SEND, f'{{"message":{message}}}'.encode())
    again = json.loads(v1.encode_request(Operation.SEND, request))["message"]
    for value in (again["parts"][0]["data"], again["metadata"]["k"][0]):
        assert (repr(value), type(value)) == (repr(json.loads(raw)), type(json.loads(raw)))


# ---- wrappers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "member"),
    [
        (TASK, "task"),
        (SAID, "message"),
        (StatusUpdate(status=TASK.status), "statusUpdate"),
        (ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[])), "artifactUpdate"),
    ],
)
def test_an_event_is_named_by_its_one_member(event: Event, member: str) -> None:
    assert list(json.loads(v1.encode_event(event))) == [member]


def test_only_send_message_wraps_its_result() -> None:
    assert v1.encode_result(Operation.SEND, TASK) == b'{"task":' + encode(TASK) + b"}"
    assert v1.encode_result(Operation.SEND, SAID) == b'{"message":' + encode(SAID) + b"}"
    assert v1.encode_result(Operation.GET, TASK) == encode(TASK)


def test_a_stored_document_is_sent_as_it_is() -> None:
    stored = Document(b'{ "id" : "t" , "status" : { "state" : "TASK_STATE_WORKING" } }')
    assert v1.encode_result(Operation.GET, stored) == stored.body
    assert v1.encode_result(Operation.SEND, stored) == b'{"task":' + stored.body + b"}"


def test_a_kept_event_is_shown_without_the_message_that_caused_it() -> None:
    event = StatusUpdate(status=TaskStatus(state=TaskState.WORKING), task_id="t", context_id="c")
    said = Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),))
    assert v1.event_of(v1.encode_record(event)) == v1.encode_event(event)
    assert v1.event_of(v1.encode_record(event, said)) == v1.encode_event(event)


def test_deleting_a_push_config_answers_with_an_empty_object_and_any_answer_is_taken() -> None:
    assert v1.encode_result(Operation.DELETE_PUSH, None) == b"{}"
    for answer in (b"{}", b"null", b""):
        assert v1.decode_result(Operation.DELETE_PUSH, answer) is None


@pytest.mark.parametrize("body", [b"{}", b'{"task":null}', b'{"msg":{}}', b"null"])
def test_a_wrapper_around_nothing_is_an_invalid_answer(body: bytes) -> None:
    with pytest.raises(InvalidAgentResponseError):
        v1.decode_event(body)


def test_the_answers_of_a_remote_agent_may_be_in_snake_case_with_nulls() -> None:
    body = b'{"status_update":{"task_id":"t","context_id":"c","status":{"state":"TASK_STATE_WORKING","message":null}}}'
    assert v1.decode_event(body) == StatusUpdate(task_id="t", context_id="c", status=TASK.status)
    task = b'{"id":"t","context_id":"c","artifacts":[{"artifact_id":"a"}],"status":{"state":"TASK_STATE_WORKING"}}'
    assert v1.decode_result(Operation.GET, task).artifacts[0].artifact_id == "a"


# ---- requests from a path and a query ----------------------------------------------------------------------------


def test_a_query_says_numbers_and_booleans_in_text() -> None:
    query = {
        "pageSize": "7",
        "includeArtifacts": "true",
        "status": "TASK_STATE_WORKING",
        "contextId": "7",
        "other": "x",
    }
    wanted = ListTasks(page_size=7, include_artifacts=True, status=TaskState.WORKING, context_id="7")
    assert v1.convert_request(Operation.LIST, query) == wanted
    assert v1.convert_request(Operation.GET, {"id": "1", "historyLength": "0"}) == GetTask(id="1", history_length=0)


@pytest.mark.parametrize(
    ("operation", "query", "field", "said"),
    [
        (Operation.LIST, {"pageSize": "many"}, "pageSize", "expected integer, got string"),
        (Operation.LIST, {"pageSize": "1.5"}, "pageSize", "expected integer, got string"),
        (Operation.LIST, {"pageSize": "101"}, "pageSize", "must be at most 100"),
        (Operation.LIST, {"includeArtifacts": "yes"}, "includeArtifacts", "expected boolean, got string"),
        (Operation.LIST, {"status": "working"}, "status", "unknown value"),
        (Operation.GET, {"id": "x" * 257}, "id", "string longer than 256"),
        (Operation.GET_PUSH, {"taskId": "t"}, "id", "is required"),
    ],
)
def test_a_wrong_query_is_refused_by_field(operation: Operation, query: dict[str, str], field: str, said: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        v1.convert_request(operation, query)
    assert refused.value.violations[0][:2] == (field, said)


@pytest.mark.parametrize("operation", [Operation.GET_PUSH, Operation.DELETE_PUSH])
@pytest.mark.parametrize("params", [b'{"taskId":"t"}', b'{"taskId":"t","id":""}'])
def test_a_push_config_is_named_by_its_id(operation: Operation, params: bytes) -> None:
    with pytest.raises(InvalidParamsError, match="Missing required parameter: id"):
        v1.decode_request(operation, params)


# ---- errors ------------------------------------------------------------------------------------------------------


@requirement("NFR-SEC-001")
def test_an_error_tells_its_reason_and_nothing_of_its_cause() -> None:
    error = InternalError("4f1c")
    error.__cause__ = ValueError("/etc/passwd")
    assert msgspec.to_builtins(v1.encode_error(error)) == {
        "code": -32603,
        "message": "Internal error",
        "data": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "INTERNAL_ERROR",
                "domain": "a2a-protocol.org",
                "metadata": {"type": "InternalError", "reference": "4f1c"},
            }
        ],
    }


def test_an_error_about_fields_names_them_and_the_client_reads_them_back() -> None:
    violations = [Violation("a.b", "is wrong"), Violation("c", "is required", "required")]
    error = v1.encode_error(InvalidParamsError("no", violations))
    assert isinstance(error.data, list)
    assert error.data[1] == {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [{"field": "a.b", "description": "is wrong"}, {"field": "c", "description": "is required"}],
    }
    assert v1.decode_violations(error.data) == [Violation("a.b", "is wrong"), Violation("c", "is required")]
    assert len(v1.error_details(InvalidParamsError("no"))) == 1


def test_a_rest_error_is_a_google_rpc_status() -> None:
    body = json.loads(v1.encode_rest_error(TaskNotFoundError("t"), 404))
    assert list(body) == ["error"]
    assert body["error"] | {"details": None} == {
        "code": 404,
        "status": "NOT_FOUND",
        "message": "Task not found: t",
        "details": None,
    }
    assert body["error"]["details"][0]["metadata"] == {"type": "TaskNotFoundError", "taskId": "t"}
    assert json.loads(v1.encode_rest_error(OverloadedError(), 429))["error"]["code"] == 429


@pytest.mark.parametrize(
    "data", [None, 7, "x", {}, [None, 7, []], [{"fieldViolations": None}], [{"fieldViolations": [None, 7, [], {}]}]]
)
def test_any_details_of_a_remote_agent_are_read_without_a_fault(data: object) -> None:
    assert all(violation == Violation("", "") for violation in v1.decode_violations(data))


# ---- records -----------------------------------------------------------------------------------------------------


@given(strategies.tasks() | strategies.status_updates | strategies.artifact_updates(), st.none() | strategies.messages)
def test_a_kept_event_comes_back_with_the_message_that_caused_it(event: Event, said: Message | None) -> None:
    record = v1.encode_record(event, said)
    traced = v1.encode_traced({"baggage": 'a="1"'}, record)
    assert v1.decode_record(record) == v1.decode_record(traced) == (event, said)
    assert (v1.trace_of(record), v1.trace_of(traced)) == ({}, {"baggage": 'a="1"'})
    assert v1.event_of(record) == v1.event_of(traced) == v1.event_of(traced, event) == v1.encode_event(event)


@pytest.mark.parametrize("record", [b"{}", v1.encode_event(SAID)])
def test_a_record_without_an_event_is_refused(record: bytes) -> None:
    with pytest.raises(InvalidAgentResponseError):
        v1.decode_record(record)


def test_a_broken_record_is_not_json() -> None:
    with pytest.raises(ParseError):
        v1.decode_record(b'{"task":')


def test_replaying_what_was_kept_leads_to_the_same_task() -> None:
    live, stored = copy(TASK), copy(TASK)
    updates = [StatusUpdate(status=TaskStatus(state=state)) for state in (TaskState.INPUT_REQUIRED, TaskState.WORKING)]
    records = []
    for update, said in zip(updates, (None, SAID), strict=True):
        records.append(v1.encode_record(fold(live, update), said))
        if said is not None:
            fold(live, said)
    v1.replay(stored, records)
    assert encode(stored) == encode(live)
    assert live.history == [SAID]


def test_the_request_type_of_an_operation_is_what_its_parameters_become() -> None:
    assert isinstance(v1.decode_request(Operation.STREAM, encode(SendMessage(message=SAID))), SendMessage)
