"""1.0 as others define it: the official SDK's protobuf reads all that we write, we read all that it writes.

Protobuf keeps free-form numbers as doubles and times as instants, so what comes back is compared by `meaning`.
"""

import json
from datetime import datetime
from typing import Any

import pytest
from a2a.types import a2a_pb2
from a2a.utils.errors import A2A_ERROR_MAPPING, JSON_RPC_ERROR_CODE_MAP
from google.api.field_behavior_pb2 import REQUIRED, field_behavior  # type: ignore[import-untyped]  # has no stubs
from google.protobuf.json_format import MessageToJson, ParseDict
from google.protobuf.message import Message as ProtoMessage
from google.rpc import error_details_pb2, status_pb2
from hypothesis import assume, given

from apcore_a2a import errors
from apcore_a2a.errors import WIRE, InvalidParamsError, TaskNotFoundError, Violation
from apcore_a2a.protocol import card, model, v1
from apcore_a2a.protocol.model import SHAPES, Operation
from tests.protocol import strategies
from tests.protocol.test_v1 import requests, results

SERVICE = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
METHODS = {method.name: method for method in SERVICE.methods}
LEFT_OUT = {"list", "scopes"}  # of security requirements and schemes: free-form to us, so they stay as they came
Json = Any  # JSON, compared and never looked into


def proto(name: str) -> ProtoMessage:
    made: ProtoMessage = getattr(a2a_pb2, name)()
    return made


def official(body: bytes, name: str) -> ProtoMessage:
    """Our bytes as the SDK's type; a name or a value it does not know raises."""
    return ParseDict(json.loads(body), proto(name), ignore_unknown_fields=False)


def written(message: ProtoMessage) -> list[bytes]:
    """What an SDK may write for the message: defaults left out or not, camelCase or the names of the proto."""
    return [
        MessageToJson(message, always_print_fields_with_no_presence=full, preserving_proto_field_name=snake).encode()
        for full in (False, True)
        for snake in (False, True)
    ]


def meaning(value: Json, key: str = "") -> Json:
    match value:
        case dict():
            return {name: meaning(item, name) for name, item in value.items() if item or name not in LEFT_OUT}
        case list():
            return [meaning(item) for item in value]
        case bool() | None:
            return value
        case int() | float():
            return float(value)
        case str() if key in ("timestamp", "statusTimestampAfter") and value.endswith("Z"):
            return datetime.fromisoformat(value)
    return value


def means(read: Json, body: bytes) -> bool:
    return bool(meaning(json.loads(model.encode(read))) == meaning(json.loads(body)))


def assume_stated(body: bytes) -> None:
    assume(b"TASK_STATE_UNSPECIFIED" not in body)  # protobuf leaves it out, so a status of it is a status without state


# ---- what we write -----------------------------------------------------------------------------------------------


@given(requests)
def test_the_official_sdk_reads_our_requests_and_we_read_its_own(drawn: tuple[Operation, model.Value]) -> None:
    operation, request = drawn
    body = v1.encode_request(operation, request)
    theirs = official(body, METHODS[operation.value].input_type.name)
    for answer in written(theirs):
        assert means(v1.decode_request(operation, answer), body)


@given(results)
def test_the_official_sdk_reads_our_results_and_we_read_its_own(drawn: tuple[Operation, Any]) -> None:
    operation, result = drawn
    assume(operation not in (Operation.DELETE_PUSH, Operation.EXTENDED_CARD))  # nothing, and a card: see below
    body = v1.encode_result(operation, result)
    assume_stated(body)
    theirs = official(body, METHODS[operation.value].output_type.name)
    for answer in written(theirs):
        assert means(v1.decode_result(operation, answer), model.encode(result))


@given(strategies.events())
def test_the_official_sdk_reads_our_events_and_we_read_its_own(event: model.Event) -> None:
    body = v1.encode_event(event)
    assume_stated(body)
    for answer in written(official(body, "StreamResponse")):
        assert means(v1.decode_event(answer), model.encode(event))


@given(strategies.cards)
def test_the_official_sdk_reads_our_card_and_we_read_its_own(agent: card.AgentCard) -> None:
    body = v1.encode_card(agent)
    usual, full = written(official(body, "AgentCard"))[::2]
    assert means(v1.decode_card(usual), body)
    assert v1.decode_card(full).skills == agent.skills  # and its schemes have members that we never wrote


# ---- what is REQUIRED --------------------------------------------------------------------------------------------

# Our type for each official one, as empty as our own constructors let it be.
PART = model.Part(text="")
SAID = model.Message(message_id="m", role=model.Role.USER, parts=(PART,))
STATUS = model.TaskStatus(state=model.TaskState.WORKING)
ARTIFACT = model.Artifact(artifact_id="a")
BARE: dict[str, model.Value | model.Task] = {
    "SendMessageConfiguration": model.SendConfiguration(),
    "Task": model.Task(id="t", status=STATUS),
    "TaskStatus": STATUS,
    "Part": PART,
    "Message": SAID,
    "Artifact": ARTIFACT,
    "TaskStatusUpdateEvent": model.StatusUpdate(status=STATUS),
    "TaskArtifactUpdateEvent": model.ArtifactUpdate(artifact=ARTIFACT),
    "AuthenticationInfo": model.AuthenticationInfo(scheme="Bearer"),
    "AgentInterface": card.AgentInterface(url="u", protocol_binding="JSONRPC"),
    "AgentCard": card.AgentCard(supported_interfaces=()),
    "AgentProvider": card.AgentProvider(),
    "AgentCapabilities": card.AgentCapabilities(),
    "AgentExtension": card.AgentExtension(uri="u"),
    "AgentSkill": card.AgentSkill(id="s"),
    "AgentCardSignature": card.AgentCardSignature(),
    "TaskPushNotificationConfig": model.PushConfig(url="u"),
    "SendMessageRequest": model.SendMessage(message=SAID),
    "GetTaskRequest": model.GetTask(id="t"),
    "ListTasksRequest": model.ListTasks(),
    "ListTasksResponse": model.TaskPage(),
    "CancelTaskRequest": model.CancelTask(id="t"),
    "GetTaskPushNotificationConfigRequest": model.PushConfigRef(task_id="t"),
    "DeleteTaskPushNotificationConfigRequest": model.PushConfigRef(task_id="t"),
    "SubscribeToTaskRequest": model.SubscribeToTask(id="t"),
    "ListTaskPushNotificationConfigsRequest": model.ListPushConfigs(task_id="t"),
    "GetExtendedAgentCardRequest": model.GetExtendedCard(),
    "ListTaskPushNotificationConfigsResponse": model.PushConfigPage(),
}
FREE_FORM = {"StringList", "OAuthFlows"}  # members of security schemes and requirements: dictionaries to us
WRAPPERS = {"SendMessageResponse", "StreamResponse"}  # written by `v1` around their one member


def test_every_official_type_has_ours() -> None:
    theirs = {name for name in a2a_pb2.DESCRIPTOR.message_types_by_name if not name.endswith(("OAuthFlow", "Scheme"))}
    assert theirs - FREE_FORM - WRAPPERS - {"SecurityRequirement"} == set(BARE)


@pytest.mark.parametrize("name", BARE)
def test_what_is_required_is_on_the_wire_even_when_it_is_empty(name: str) -> None:
    fields = proto(name).DESCRIPTOR.fields
    required = {field.json_name for field in fields if REQUIRED in field.GetOptions().Extensions[field_behavior]}
    assert required - set(json.loads(model.encode(BARE[name]))) == set()


@pytest.mark.parametrize("name", BARE)
def test_our_fields_are_the_official_ones_and_no_other(name: str) -> None:
    ours = set(type(BARE[name]).__struct_encode_fields__)
    assert ours == {field.json_name for field in proto(name).DESCRIPTOR.fields}


@pytest.mark.parametrize("kind", [model.TaskState, model.Role])
def test_our_enumerations_have_the_official_names(kind: type[model.TaskState | model.Role]) -> None:
    theirs = a2a_pb2.DESCRIPTOR.enum_types_by_name[kind.__name__]
    assert [member.value for member in kind] == [value.name for value in theirs.values]


# ---- operations and errors ---------------------------------------------------------------------------------------


def test_the_operations_are_those_of_the_official_service_and_stream_as_they_do() -> None:
    assert {operation.value: SHAPES[operation].streams for operation in Operation} == {
        name: method.server_streaming for name, method in METHODS.items()
    }
    assert set(v1.METHODS) == set(METHODS)


def test_our_errors_have_the_codes_and_reasons_of_the_official_sdk() -> None:
    names = {"JSONParseError": "ParseError", "InternalError": "A2AError"}
    for cls, code in JSON_RPC_ERROR_CODE_MAP.items():
        assert WIRE[getattr(errors, names.get(cls.__name__, cls.__name__))].code == code
    for cls, mapping in A2A_ERROR_MAPPING.items():
        row = WIRE[getattr(errors, names.get(cls.__name__, cls.__name__))]
        assert (row.http, row.grpc, row.reason) == (mapping.http_code, mapping.grpc_status, mapping.reason)


@pytest.mark.parametrize(
    "error", [TaskNotFoundError("t"), InvalidParamsError("no", [Violation("a.b", "is wrong")]), errors.InternalError()]
)
def test_the_details_of_our_errors_are_google_rpc_messages(error: errors.A2AError) -> None:
    status = json.loads(v1.encode_rest_error(error, 400))["error"]
    parsed = ParseDict({name: status[name] for name in ("code", "message", "details")}, status_pb2.Status())
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert parsed.details[0].Unpack(info)
    assert (info.reason, info.domain) == (errors.wire(error).reason, "a2a-protocol.org")
    assert info.metadata["type"] == error.kind
    if isinstance(error, InvalidParamsError):
        assert parsed.details[1].Unpack(bad_request)
        assert [(one.field, one.description) for one in bad_request.field_violations] == [("a.b", "is wrong")]
