"""gRPC without a transport: methods against the official services, framing, statuses, timeouts."""

import gzip
import zlib
from base64 import b64decode, b64encode
from typing import Any, Final

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb03
from a2a.types import a2a_pb2 as pb1
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.json_format import ParseDict
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.errors import (
    WIRE,
    A2AError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    LimitExceededError,
    TaskNotFoundError,
    UnsupportedOperationError,
    Violation,
)
from apcore_a2a.protocol import grpc
from apcore_a2a.protocol.card import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from apcore_a2a.protocol.grpc import (
    CODES,
    METHODS,
    MessageSplitter,
    Method,
    StatusError,
    error_status,
    find_method,
    frame_message,
    plain_status,
    read_status,
    read_timeout,
    unframe_message,
)
from apcore_a2a.protocol.model import (
    GetExtendedCard,
    GetTask,
    ListPushConfigs,
    Operation,
    PushConfig,
    PushConfigRef,
    SubscribeToTask,
    Task,
    TaskState,
    TaskStatus,
)

OFFICIAL: Final = {"1.0": pb1, "0.3": pb03}
LIMIT: Final = 1000


def services() -> list[ServiceDescriptor]:
    return [service for module in OFFICIAL.values() for service in module.DESCRIPTOR.services_by_name.values()]


def method_of(version: str, operation: Operation) -> Method:
    return find_method(version, operation)[1]


# ---- methods --------------------------------------------------------------------------------------------------------


def test_every_method_of_the_official_services_exists_with_its_types() -> None:
    official: dict[str, tuple[str, str, bool]] = {}
    for service in services():
        for method in service.methods:
            types = (method.input_type.name, method.output_type.name, method.server_streaming)
            official[f"/{service.full_name}/{method.name}"] = types
    ours = {path: (method.request.name, method.answer.name, method.streams) for path, method in METHODS.items()}
    assert ours == official


def test_0_3_has_no_method_that_lists_tasks() -> None:
    with pytest.raises(UnsupportedOperationError, match=r"A2A 0\.3 has no ListTasks over gRPC"):
        find_method("0.3", Operation.LIST)


@pytest.mark.parametrize(
    ("operation", "request_", "official"),
    [
        (Operation.GET, GetTask(id="t-1", history_length=3), pb03.GetTaskRequest(name="tasks/t-1", history_length=3)),
        (Operation.SUBSCRIBE, SubscribeToTask(id="t-1"), pb03.TaskSubscriptionRequest(name="tasks/t-1")),
        (
            Operation.GET_PUSH,
            PushConfigRef(task_id="t-1", id="c-1"),
            pb03.GetTaskPushNotificationConfigRequest(name="tasks/t-1/pushNotificationConfigs/c-1"),
        ),
        (
            Operation.DELETE_PUSH,
            PushConfigRef(task_id="t-1", id="c-1"),
            pb03.DeleteTaskPushNotificationConfigRequest(name="tasks/t-1/pushNotificationConfigs/c-1"),
        ),
        (
            Operation.LIST_PUSH,
            ListPushConfigs(task_id="t-1"),
            pb03.ListTaskPushNotificationConfigRequest(parent="tasks/t-1"),
        ),
        (
            Operation.CREATE_PUSH,
            PushConfig(task_id="t-1", id="c-1", url="https://example.com/hook"),
            pb03.CreateTaskPushNotificationConfigRequest(
                parent="tasks/t-1",
                config_id="c-1",
                config=pb03.TaskPushNotificationConfig(
                    name="tasks/t-1/pushNotificationConfigs/c-1",
                    push_notification_config=pb03.PushNotificationConfig(id="c-1", url="https://example.com/hook"),
                ),
            ),
        ),
        (Operation.EXTENDED_CARD, GetExtendedCard(), pb03.GetAgentCardRequest()),
    ],
    ids=lambda value: value.value if isinstance(value, Operation) else "",
)
def test_ids_of_0_3_are_in_resource_names(operation: Operation, request_: Any, official: Any) -> None:
    method = method_of("0.3", operation)
    assert type(official).FromString(method.encode_request(request_)) == official
    assert method.decode_request(official.SerializeToString()) == request_


@pytest.mark.parametrize("name", ["", "tasks", "tasks/", "t-1"])
def test_a_resource_name_without_an_id_is_rejected(name: str) -> None:
    with pytest.raises(InvalidParamsError):
        method_of("0.3", Operation.GET).decode_request(pb03.GetTaskRequest(name=name).SerializeToString())


def test_in_0_3_a_history_length_of_zero_means_the_whole_history() -> None:
    request = method_of("0.3", Operation.GET).decode_request(pb03.GetTaskRequest(name="tasks/t").SerializeToString())
    assert request == GetTask(id="t", history_length=None)


@pytest.mark.parametrize("version", OFFICIAL)
def test_requests_are_read_and_rejected_with_the_wrong_field(version: str) -> None:
    message: dict[str, Any] = {"messageId": "m", "role": "ROLE_USER"}
    message["parts" if version == "1.0" else "content"] = [{"text": "hi"}]
    official = ParseDict({"message": message}, OFFICIAL[version].SendMessageRequest())
    method = method_of(version, Operation.SEND)
    request: Any = method.decode_request(official.SerializeToString())
    assert request.message.parts[0].text == "hi"
    getattr(official, "message" if version == "1.0" else "request").ClearField("role")
    with pytest.raises(InvalidParamsError) as caught:
        method.decode_request(official.SerializeToString())
    assert [violation.field for violation in caught.value.violations] == ["message.role"]


@pytest.mark.parametrize("version", OFFICIAL)
def test_results_are_messages_of_the_official_type_and_are_read_again(version: str) -> None:
    task = Task(id="t-1", context_id="c-1", status=TaskStatus(state=TaskState.CANCELED))
    method = method_of(version, Operation.GET)
    message = method.encode(method.result_json(task))
    official = OFFICIAL[version].Task.FromString(message)
    assert official.id == "t-1"
    assert OFFICIAL[version].TaskState.Name(official.status.state).startswith("TASK_STATE_CANCEL")
    assert method.dialect.decode_result(Operation.GET, method.decode_answer(message)) == task


def a_card() -> AgentCard:
    scheme = {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}}
    return AgentCard(
        name="agent",
        description="An agent.",
        version="1.0",
        supported_interfaces=(
            AgentInterface(url="https://example.com", protocol_binding="GRPC", protocol_version="0.3"),
        ),
        capabilities=AgentCapabilities(streaming=True),
        skills=(AgentSkill(id="s", name="S", description="Does.", tags=("t",)),),
        security_schemes={"key": scheme},
        security_requirements=({"schemes": {"key": {"list": ["read"]}}},),
    )


def test_the_card_of_0_3_keeps_its_security_schemes() -> None:
    method = method_of("0.3", Operation.EXTENDED_CARD)
    message = method.encode(method.result_json(a_card()))
    official = pb03.AgentCard.FromString(message)
    assert official.security_schemes["key"].api_key_security_scheme.name == "X-API-Key"
    assert list(official.security[0].schemes["key"].list) == ["read"]
    assert (official.url, official.preferred_transport) == ("https://example.com", "GRPC")
    read = method.dialect.decode_result(Operation.EXTENDED_CARD, method.decode_answer(message))
    assert read.security_requirements == a_card().security_requirements
    assert read.security_schemes == a_card().security_schemes


@pytest.mark.parametrize("message", [b"\xff", b"\x0a\x05ab"])
def test_an_answer_that_is_not_a_message_is_an_error_of_the_agent(message: bytes) -> None:
    with pytest.raises(InvalidAgentResponseError, match="cannot be read"):
        method_of("1.0", Operation.GET).decode_answer(message)


# ---- framing --------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_a_framed_message_is_read_again(message: bytes) -> None:
    assert unframe_message(frame_message(message), b"", LIMIT) == message


@pytest.mark.parametrize(
    "body",
    [b"", b"\0\0\0", b"\0\0\0\0\5abcd", b"\0\0\0\0\3abcd", frame_message(b"a") * 2, b"\1\0\0\0\1a", b"\2\0\0\0\1a"],
    ids=["nothing", "half a prefix", "too short", "too long", "two messages", "compressed", "unknown flag"],
)
def test_a_body_that_is_not_one_message_is_rejected(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        unframe_message(body, b"", LIMIT)


def compressed(data: bytes) -> bytes:
    return b"\1" + len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_messages_are_read_up_to_the_limit(encoding: bytes, compress: Any) -> None:
    assert unframe_message(compressed(compress(b"a" * LIMIT)), encoding, LIMIT) == b"a" * LIMIT
    with pytest.raises(StatusError, match="larger than 1000 bytes") as caught:
        unframe_message(compressed(compress(b"a" * (LIMIT + 1))), encoding, LIMIT)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    for broken in (compress(b"abc")[:-1], compress(b"abc") + b"x", b"not compressed"):
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            unframe_message(compressed(broken), encoding, LIMIT)


def test_an_unknown_compression_is_unimplemented() -> None:
    with pytest.raises(StatusError) as caught:
        unframe_message(compressed(b"abc"), b"zstd", LIMIT)
    assert caught.value.code == "UNIMPLEMENTED"


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 50))
def test_messages_are_split_however_they_arrive(messages: list[bytes], size: int) -> None:
    data = b"".join(map(frame_message, messages))
    splitter = MessageSplitter(LIMIT)
    received: list[bytes] = []
    for start in range(0, len(data), size):
        received += splitter.feed(data[start : start + size])
    assert received == messages
    assert splitter.waiting == 0


@pytest.mark.parametrize("data", [b"\1\0\0\0\1a", b"\0\0\0\4\0"], ids=["compressed", "too large"])
def test_messages_that_a_client_does_not_accept_are_rejected_at_their_prefix(data: bytes) -> None:
    with pytest.raises(ValueError, match="a message is"):
        MessageSplitter(LIMIT).feed(data)


# ---- statuses -------------------------------------------------------------------------------------------------------


def trailers_of(status: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode("ascii") for name, value in status}


def details_of(trailers: dict[str, str]) -> status_pb2.Status:
    text = trailers["grpc-status-details-bin"]
    return status_pb2.Status.FromString(b64decode(text + "=" * (-len(text) % 4)))


def unpack(detail: AnyMessage, kind: Any) -> Any:
    message = kind()
    assert detail.Unpack(message)
    return message


def test_an_error_has_its_details_in_the_official_form() -> None:
    error = InvalidParamsError("Wrong", [Violation("message.parts", "is required", "required")])
    trailers = trailers_of(error_status(error))
    assert trailers["grpc-status"] == "3"
    status = details_of(trailers)
    assert (status.code, status.message) == (3, "Wrong")
    info = unpack(status.details[0], error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == ("INVALID_PARAMS", "a2a-protocol.org")
    wrong = unpack(status.details[1], error_details_pb2.BadRequest)
    assert [(one.field, one.description) for one in wrong.field_violations] == [("message.parts", "is required")]


def test_a_limit_says_when_to_retry() -> None:
    trailers = trailers_of(error_status(LimitExceededError("Too fast", retry_after=7)))
    assert (trailers["grpc-status"], trailers["grpc-retry-pushback-ms"]) == ("8", "7000")
    retry = unpack(details_of(trailers).details[1], error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 7


@pytest.mark.parametrize("error", WIRE, ids=lambda error: error.__name__)
def test_every_code_of_an_error_is_one_of_grpc(error: type[A2AError]) -> None:
    assert WIRE[error].grpc in CODES
    assert WIRE[error].grpc_v1_0_0 in (None, *CODES)


@given(st.text(max_size=60))
def test_the_text_of_an_error_is_ascii_and_read_again(text: str) -> None:
    text = text.encode(errors="ignore").decode()
    trailers = trailers_of(plain_status("INTERNAL", text))
    assert all(" " <= char <= "~" for char in trailers.get("grpc-message", ""))
    status = read_status(trailers)
    assert status is not None
    assert (status.code, status.message) == (13, text)


def test_the_trailers_of_an_error_stay_below_what_clients_accept() -> None:
    violations = [Violation(f"message.parts[{index}]", "ü" * 300) for index in range(1000)]
    error = InvalidParamsError("ü" * 5000, violations)
    error.metadata = {"long": "x" * 10_000}
    status = error_status(error)
    assert sum(len(name) + len(value) + 32 for name, value in status) < 8192
    read = read_status(trailers_of(status))
    assert read is not None
    assert [detail["@type"] for detail in read.details] == ["type.googleapis.com/google.rpc.BadRequest"]
    assert details_of(trailers_of(status)).message.startswith("üü")


def test_the_details_of_an_error_are_read_as_those_of_rest() -> None:
    status = read_status(trailers_of(error_status(TaskNotFoundError("t-1"))))
    assert status is not None
    assert status.details[0]["reason"] == "TASK_NOT_FOUND"
    assert status.details[0]["metadata"]["taskId"] == "t-1"


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        ({}, None),
        ({"grpc-status": "x"}, None),
        ({"grpc-status": "9" * 5000}, None),
        ({"grpc-status": "5", "grpc-message": "100% %zz %C3%BC"}, (5, "100% %zz ü", [])),
        ({"grpc-status": "5", "grpc-status-details-bin": "\x00?"}, (5, "", [])),
        ({"grpc-status": "5", "grpc-status-details-bin": "/////w"}, (5, "", [])),
    ],
)
def test_a_status_of_any_peer_is_read_as_far_as_possible(metadata: dict[str, str], status: Any) -> None:
    assert read_status(metadata) == status


# ---- timeouts and health --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"", None), (b"2S", 2), (b"1500m", 1.5), (b"3M", 180), (b"1H", 3600), (b"5000n", 5e-6), (b"99999999H", None)],
)
def test_a_timeout_is_read_in_its_unit(text: bytes, seconds: float | None) -> None:
    assert read_timeout(text) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("text", [b"S", b"5", b"-1S", b"1.5S", b"123456789S", "٣S".encode(), b"1 S"])
def test_a_malformed_timeout_is_rejected(text: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="grpc-timeout must be"):
        read_timeout(text)


def test_the_health_service_speaks_the_official_messages() -> None:
    assert grpc.read_health_request(b"\x0a\x04live") == "live"
    assert (grpc.write_health(is_serving=True), grpc.write_health(is_serving=False)) == (b"\x08\x01", b"\x08\x02")


def test_in_0_3_an_explicit_history_length_of_zero_means_the_whole_history_as_well() -> None:
    body = pb03.GetTaskRequest(name="tasks/t").SerializeToString() + b"\x10\x00"  # field 2, which writers leave out
    assert method_of("0.3", Operation.GET).decode_request(body) == GetTask(id="t", history_length=None)


def test_details_of_an_unknown_type_are_left_out() -> None:
    unknown = AnyMessage(type_url="type.googleapis.com/my.Detail", value=b"x")
    status = status_pb2.Status(code=5, message="no", details=[unknown])
    packed = b64encode(status.SerializeToString()).decode().rstrip("=")
    trailers = {"grpc-status": "5", "grpc-message": "no", "grpc-status-details-bin": packed}
    assert read_status(trailers) == (5, "no", [])
