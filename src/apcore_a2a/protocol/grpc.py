"""The gRPC binding without its transport: methods, messages and their framing, statuses and timeouts.

A method is an operation and two message types. A message is the ProtoJSON of the REST form in other bytes. So a
protocol version over gRPC is its REST dialect and a table of fields.

Invariant: what a peer sends is limited before it is decoded: a message in bytes, compressed or not, and in values.
"""

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from apcore_a2a.errors import (
    A2AError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    OverloadedError,
    ParseError,
    UnsupportedOperationError,
    wire,
)
from apcore_a2a.protocol import v1 as json_v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import MAX_VALUES, camel
from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.model import SHAPES, Operation, Value, encode
from apcore_a2a.protocol.protobuf import v03, v1
from apcore_a2a.protocol.protobuf.well_known import make_messages
from apcore_a2a.protocol.protobuf.wire import Enumeration, Json, MessageType
from apcore_a2a.protocol.v03 import card as card_v03
from apcore_a2a.protocol.v03 import rest as json_v03

MEDIA_TYPE: Final = b"application/grpc"
CODES: Final = {
    "OK": 0,
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)


# ---- methods --------------------------------------------------------------------------------------------------------


class Method(NamedTuple):
    """A method of a service: the operation that it performs, and the types of its messages."""

    operation: Operation
    dialect: Dialect
    """The REST dialect of its protocol version."""
    request: MessageType
    answer: MessageType

    @property
    def streams(self) -> bool:
        return SHAPES[self.operation].streams

    # ---- for the server ----

    def decode_request(self, message: bytes, *, max_values: int = MAX_VALUES) -> Value:
        """Return the typed request.

        Raises:
            ParseError: The bytes are not a message.
            InvalidParamsError: A field is wrong. Its violations name it.
        """
        fields = self.request.decode(message, max_values=max_values)
        if self.dialect is json_v03:
            return _read_v03(self.operation, fields)
        return json_v1.convert_fields(self.operation, fields)

    def result_json(self, result: Any) -> bytes:  # Any: each operation has its own result
        """Return the JSON of a result, for `encode`."""
        if isinstance(result, AgentCard) and self.dialect is json_v03:
            return encode(_write_card_v03(result))
        return self.dialect.encode_result(self.operation, result)

    def encode(self, answer: bytes) -> bytes:
        """Return the message of a result or an event, which is given as the JSON of this version."""
        return self.answer.encode(_ANY.decode(answer))

    # ---- for the client ----

    def encode_request(self, request: Value) -> bytes:
        fields: Json = _ANY.decode(self.dialect.encode_request(self.operation, request))
        if self.dialect is json_v03:
            fields = _write_v03(self.operation, fields)
        return self.request.encode(fields)

    def decode_answer(self, message: bytes) -> bytes:
        """Return the JSON of an answer or an event, as this version's REST form has it.

        Raises:
            InvalidAgentResponseError: The bytes are not a message, or have too many values.
        """
        try:
            fields = self.answer.decode(message)
        except (ParseError, InvalidRequestError, InvalidParamsError) as error:
            raise InvalidAgentResponseError(f"The agent's answer cannot be read: {error}") from error
        if self.operation is Operation.EXTENDED_CARD and self.dialect is json_v03:
            fields = _read_card_v03(fields)
        return encode(fields)


_CONFIG: Final = "TaskPushNotificationConfig"
_METHODS_V1: Final = {
    Operation.SEND: ("SendMessageRequest", "SendMessageResponse"),
    Operation.STREAM: ("SendMessageRequest", "StreamResponse"),
    Operation.GET: ("GetTaskRequest", "Task"),
    Operation.LIST: ("ListTasksRequest", "ListTasksResponse"),
    Operation.CANCEL: ("CancelTaskRequest", "Task"),
    Operation.SUBSCRIBE: ("SubscribeToTaskRequest", "StreamResponse"),
    Operation.CREATE_PUSH: (_CONFIG, _CONFIG),
    Operation.GET_PUSH: (f"Get{_CONFIG}Request", _CONFIG),
    Operation.LIST_PUSH: (f"List{_CONFIG}sRequest", f"List{_CONFIG}sResponse"),
    Operation.DELETE_PUSH: (f"Delete{_CONFIG}Request", "Empty"),
    Operation.EXTENDED_CARD: ("GetExtendedAgentCardRequest", "AgentCard"),
}
# The service of 0.3 has no method that lists tasks.
_METHODS_V03: Final = {
    Operation.SEND: ("SendMessage", "SendMessageRequest", "SendMessageResponse"),
    Operation.STREAM: ("SendStreamingMessage", "SendMessageRequest", "StreamResponse"),
    Operation.GET: ("GetTask", "GetTaskRequest", "Task"),
    Operation.CANCEL: ("CancelTask", "CancelTaskRequest", "Task"),
    Operation.SUBSCRIBE: ("TaskSubscription", "TaskSubscriptionRequest", "StreamResponse"),
    Operation.CREATE_PUSH: (f"Create{_CONFIG}", f"Create{_CONFIG}Request", _CONFIG),
    Operation.GET_PUSH: (f"Get{_CONFIG}", f"Get{_CONFIG}Request", _CONFIG),
    Operation.LIST_PUSH: (f"List{_CONFIG}", f"List{_CONFIG}Request", f"List{_CONFIG}Response"),
    Operation.DELETE_PUSH: (f"Delete{_CONFIG}", f"Delete{_CONFIG}Request", "Empty"),
    Operation.EXTENDED_CARD: ("GetAgentCard", "GetAgentCardRequest", "AgentCard"),
}


def _make_paths() -> dict[tuple[str, Operation], str]:
    paths: dict[tuple[str, Operation], str] = {}
    for operation in _METHODS_V1:
        paths[json_v1.VERSION, operation] = f"/{v1.SERVICE}/{operation.value}"
    for operation, (name, _, _) in _METHODS_V03.items():
        paths[json_v03.VERSION, operation] = f"/{v03.SERVICE}/{name}"
    return paths


def _make_methods() -> dict[str, Method]:
    methods: dict[str, Method] = {}
    for operation, (request, answer) in _METHODS_V1.items():
        method = Method(operation, json_v1, v1.MESSAGES[request], v1.MESSAGES[answer])
        methods[PATHS[json_v1.VERSION, operation]] = method
    for operation, (_, request, answer) in _METHODS_V03.items():
        method = Method(operation, json_v03, v03.MESSAGES[request], v03.MESSAGES[answer])
        methods[PATHS[json_v03.VERSION, operation]] = method
    return methods


PATHS: Final = _make_paths()
"""The path of each method, by version and operation."""
METHODS: Final = _make_methods()
"""The methods by their paths."""
SERVICES: Final = (v1.SERVICE, v03.SERVICE)


def find_method(version: str, operation: Operation) -> tuple[str, Method]:
    """Return the path and the method of an operation.

    Raises:
        UnsupportedOperationError: The service of that version has no such method.
    """
    path = PATHS.get((version, operation))
    if path is None:
        raise UnsupportedOperationError(f"A2A {version} has no {operation.value} over gRPC")
    return path, METHODS[path]


# ---- 0.3 ------------------------------------------------------------------------------------------------------------
# In 0.3, ids are in resource names such as tasks/{task}/pushNotificationConfigs/{config}, as in the paths of its REST
# form.

_WITH_NAME: Final = frozenset({Operation.GET, Operation.CANCEL, Operation.SUBSCRIBE})
_WITH_BODY: Final = frozenset({Operation.SEND, Operation.STREAM, Operation.CREATE_PUSH})


def _read_v03(operation: Operation, fields: Json) -> Value:
    if operation in _WITH_BODY:
        request = json_v03.decode_request(operation, encode(fields))
        if operation is Operation.CREATE_PUSH:
            request = replace(request, task_id=_step(fields.get("parent", ""), 1))
        return request
    params: Json = {}
    for name, value in fields.items():
        if name not in ("name", "parent"):
            params[camel(name)] = value
    resource = fields.get("name") or fields.get("parent", "")
    if operation in _WITH_NAME:
        params["id"] = _step(resource, 1)
    elif operation is not Operation.EXTENDED_CARD:
        params["taskId"] = _step(resource, 1)
        if operation is not Operation.LIST_PUSH:
            params["id"] = _step(resource, 3)
    return json_v03.convert_request(operation, params)


def _step(name: str, index: int) -> str:
    """Return one step of a resource name, or an empty string."""
    steps = name.split("/")
    return steps[index] if index < len(steps) else ""


def _write_v03(operation: Operation, fields: Json) -> Json:
    """Return a request of the client with its ids in resource names."""
    if operation in _WITH_BODY:
        return fields
    task = f"tasks/{fields.pop('id', '')}"
    config_id = fields.pop("pushNotificationConfigId", "")
    if operation in _WITH_NAME:
        fields["name"] = task
    elif operation is Operation.LIST_PUSH:
        fields["parent"] = task
    elif operation is not Operation.EXTENDED_CARD:
        fields["name"] = f"{task}/pushNotificationConfigs/{config_id}"
    return fields


def _write_card_v03(card: AgentCard) -> Json:
    # The hybrid has the security schemes of the protocol buffers, which are those of 1.0. Requirements have another
    # name in 1.0.
    body = card_v03.to_hybrid_json(card)
    for holder in (body, *body["skills"]):
        holder["security"] = holder.get("securityRequirements", [])
    return body


def _read_card_v03(body: Json) -> Json:
    for holder in (body, *body.get("skills", [])):
        holder["securityRequirements"] = holder.pop("security", [])
    return body


# ---- messages on the wire -------------------------------------------------------------------------------------------
# Each message has a prefix of five bytes: whether it is compressed, and its length.

PREFIX: Final = 5
ENCODINGS: Final = {b"gzip": 31, b"deflate": 15}  # with the window bits of zlib


def frame_message(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


class StatusError(Exception):
    """A call that the rules of gRPC reject, with their status code. `error` is the A2A error in its details."""

    def __init__(self, code: str, error: A2AError) -> None:
        super().__init__(error.message)
        self.code = code
        self.error = error


def unframe_message(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Return the only message of a request.

    Raises:
        InvalidRequestError: The body is not one message.
        StatusError: Decompressed it is larger than `limit`, or its compression is unknown.
    """
    if len(body) < PREFIX or len(body) != PREFIX + int.from_bytes(body[1:PREFIX], "big"):
        raise InvalidRequestError("The request is not one gRPC message")
    if body[0] == 0:
        return body[PREFIX:]
    if body[0] != 1 or encoding in (b"", b"identity"):
        raise InvalidRequestError("The message is compressed, and grpc-encoding does not say how")
    if encoding not in ENCODINGS:
        raise StatusError("UNIMPLEMENTED", InvalidRequestError("grpc-encoding must be identity, gzip or deflate"))
    return _decompress(body[PREFIX:], ENCODINGS[encoding], limit)


def too_large(limit: int) -> StatusError:
    return StatusError("RESOURCE_EXHAUSTED", InvalidRequestError(f"Message larger than {limit} bytes"))


def _decompress(data: bytes, window_bits: int, limit: int) -> bytes:
    """Return the decompressed data, and build at most one byte more than the limit."""
    inflater = zlib.decompressobj(wbits=window_bits)
    try:
        message = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise InvalidRequestError("The compressed message cannot be read") from error
    if len(message) > limit:
        raise too_large(limit)
    if not inflater.eof or inflater.unused_data:
        raise InvalidRequestError("The compressed message cannot be read")
    return message


class MessageSplitter:
    """Splits a stream of bytes into messages, of at most `limit` bytes each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def waiting(self) -> int:
        """The number of bytes of an incomplete message."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are now complete.

        Raises:
            ValueError: A message is compressed, although the request did not allow it, or is over the limit.
        """
        self._buffer += data
        buffer = self._buffer
        messages: list[bytes] = []
        start = 0
        while len(buffer) - start >= PREFIX:
            if buffer[start]:
                raise ValueError("a message is compressed although it must not be")
            begin = start + PREFIX
            end = begin + int.from_bytes(buffer[start + 1 : begin], "big")
            if end - begin > self._limit:
                raise ValueError(f"a message is larger than {self._limit:,} bytes. To accept it, raise max_response")
            if end > len(buffer):
                break
            messages.append(bytes(buffer[begin:end]))
            start = end
        del buffer[:start]
        return messages


# ---- statuses -------------------------------------------------------------------------------------------------------

Metadata = list[tuple[bytes, bytes]]

TYPE_URL: Final = "type.googleapis.com/google.rpc."
# gRPC clients accept 8 KiB of metadata by default, so the details of an error are limited.
MAX_DETAILS: Final = 4096
MAX_TEXT: Final = 1024  # bytes of grpc-message
_RPC: Final = make_messages(
    {
        "Status": "1 code: int32, 2 message: text, 3 details: Any*",
        "Any": "1 typeUrl: text, 2 value: bytes",
        "ErrorInfo": "1 reason: text, 2 domain: text, 3 metadata: map text",
        "BadRequest": "1 fieldViolations: FieldViolation*",
        "FieldViolation": "1 field: text, 2 description: text",
        "RetryInfo": "1 retryDelay: Duration",
        "Duration": "1 seconds: int64, 2 nanos: int32",
    },
    {},
)
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {0x25}  # the bytes of grpc-message that are not percent-encoded


def plain_status(code: str, message: str = "") -> Metadata:
    """Return the trailers of a status without details."""
    trailers = [(b"grpc-status", b"%d" % CODES[code])]
    if message:
        trailers.append((b"grpc-message", _percent_encode(message)))
    return trailers


def error_status(error: A2AError, code: str = "") -> Metadata:
    """Return the trailers of an error: its status, and google.rpc.Status with its details (1.0 §10.6).

    `code` replaces the code of the error.
    """
    code = code or wire(error).grpc
    trailers = plain_status(code, error.message)
    details = [_to_any(dict(detail)) for detail in json_v1.error_details(error)]
    if isinstance(error, OverloadedError):
        delay: Json = {"@type": TYPE_URL + "RetryInfo", "retryDelay": {"seconds": error.retry_after}}
        details.append(_to_any(delay))
        trailers.append((b"grpc-retry-pushback-ms", b"%d" % (error.retry_after * 1000)))
    text = error.message.encode()[:MAX_TEXT].decode(errors="ignore")
    status = {"code": CODES[code], "message": text, "details": _limit(details)}
    encoded = b64encode(_RPC["Status"].encode(status)).rstrip(b"=")
    trailers.append((b"grpc-status-details-bin", encoded))
    return trailers


def _to_any(detail: Json) -> Json:
    type_url = detail.pop("@type")
    message = _RPC[type_url.removeprefix(TYPE_URL)]
    violations = detail.get("fieldViolations")
    if violations is not None:
        detail["fieldViolations"] = _limit_violations(violations)
    elif "metadata" in detail:
        detail["metadata"] = {name: str(value) for name, value in detail["metadata"].items()}
    return {"typeUrl": type_url, "value": message.encode(detail)}


def _limit_violations(violations: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the first violations, as many as there is room for."""
    left = MAX_DETAILS // 2
    kept: list[dict[str, str]] = []
    for violation in violations:
        left -= sum(len(text.encode()) + 4 for text in violation.values())
        if left < 0:
            break
        kept.append(violation)
    return kept


def _limit(details: list[Json]) -> list[Json]:
    """Return the details without those that are too large, for example an ErrorInfo with long metadata."""
    left = MAX_DETAILS
    kept: list[Json] = []
    for detail in details:
        size = len(detail["value"])
        if size <= left:
            kept.append(detail)
            left -= size
    return kept


def _percent_encode(text: str) -> bytes:
    encoded = bytearray()
    for byte in text.encode():
        if len(encoded) > MAX_TEXT:
            break
        encoded += bytes([byte]) if byte in _PLAIN else b"%%%02X" % byte
    return bytes(encoded)


class ReceivedStatus(NamedTuple):
    """The status of an answer. `details` are those of a REST error (1.0 §11.6)."""

    code: int
    message: str
    details: list[Json]


def read_status(metadata: Mapping[str, str]) -> ReceivedStatus | None:
    """Return the status in the trailers of an answer, or None if there is none. Unreadable details are left out."""
    code = metadata.get("grpc-status", "")
    if not code.isascii() or not code.isdigit() or len(code) > 9:
        return None
    message = _percent_decode(metadata.get("grpc-message", ""))
    details: list[Json] = []
    text = metadata.get("grpc-status-details-bin", "").rstrip("=")
    try:
        status = _RPC["Status"].decode(b64decode(text + "=" * (-len(text) % 4)))
        details = list(_from_anys(status.get("details", [])))
    except (ValueError, A2AError):  # a peer may send anything. The code and the message remain
        details = []
    return ReceivedStatus(int(code), message, details)


def _from_anys(details: Iterable[Json]) -> Iterable[Json]:
    for detail in details:
        type_url = detail.get("typeUrl", "")
        message = _RPC.get(type_url.removeprefix(TYPE_URL))
        if message is not None:
            yield {"@type": type_url, **message.decode(detail.get("value", b""))}


def _percent_decode(text: str) -> str:
    encoded = text.encode("latin-1", "replace")
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), encoded).decode(errors="replace")


# ---- timeouts -------------------------------------------------------------------------------------------------------

_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST: Final = 30 * 86400.0  # seconds. A longer timeout counts as no timeout


def read_timeout(text: bytes) -> float | None:
    """Return the seconds of a grpc-timeout header, or None without one.

    Raises:
        InvalidRequestError: The header is malformed.
    """
    if not text:
        return None
    unit = _UNITS.get(text[-1:])
    if unit is None or not text[:-1].isdigit() or len(text) > 9:
        raise InvalidRequestError("grpc-timeout must be at most eight digits and a unit (H, M, S, m, u, n)")
    seconds = int(text[:-1]) * unit
    return seconds if seconds < _LONGEST else None


# ---- health ---------------------------------------------------------------------------------------------------------
# grpc.health.v1, which Kubernetes and load balancers call.

HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_HEALTH: Final = make_messages(
    {"HealthCheckRequest": "1 service: text", "HealthCheckResponse": "1 status: ServingStatus"},
    {"ServingStatus": Enumeration("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
)


def read_health_request(message: bytes) -> str:
    """Return the name of the service that is asked for."""
    return str(_HEALTH["HealthCheckRequest"].decode(message).get("service", ""))


def write_health(*, is_serving: bool) -> bytes:
    return _HEALTH["HealthCheckResponse"].encode({"status": "SERVING" if is_serving else "NOT_SERVING"})
