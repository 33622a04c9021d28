"""Encodes requests and decodes responses of the gRPC binding. It does no I/O.

A message is the JSON of the REST form in protocol buffers, so its answers are read like those of the other bindings.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.bindings import AnswerReader, ChosenInterface, EventWithId
from apcore_a2a.client.failures import BY_REASON, MAX_TEXT, RemoteError, from_status, read_retry_after, to_error
from apcore_a2a.client.transport import HttpRequest, HttpResponse, HttpStream, broken
from apcore_a2a.errors import (
    A2AError,
    A2AServerError,
    ContentTypeNotSupportedError,
    InvalidAgentResponseError,
    InvalidParamsError,
    LimitExceededError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.grpc import (
    CODES,
    MEDIA_TYPE,
    MessageSplitter,
    Method,
    ReceivedStatus,
    find_method,
    frame_message,
    read_status,
)
from apcore_a2a.protocol.model import Event, Operation, Value

MEDIA: Final = MEDIA_TYPE.decode()
# For agents whose errors have no `reason`. a2a-sdk 0.3 has one status for several errors, but its texts begin with the
# name of the error.
BY_NAME: Final = {
    kind.__name__: kind
    for kind in (
        ContentTypeNotSupportedError,
        InvalidParamsError,
        PushNotificationNotSupportedError,
        TaskNotCancelableError,
        TaskNotFoundError,
        UnsupportedOperationError,
    )
}
BY_CODE: Final[dict[int, type[A2AError]]] = {
    CODES["INVALID_ARGUMENT"]: InvalidParamsError,
    CODES["UNIMPLEMENTED"]: UnsupportedOperationError,
    CODES["UNAUTHENTICATED"]: UnauthenticatedError,
}
# The call ended for a reason that is not the agent's. It may have had an effect.
BROKEN: Final = frozenset({CODES["CANCELLED"], CODES["DEADLINE_EXCEEDED"], CODES["UNAVAILABLE"]})


class GrpcExchange(Struct, frozen=True):
    request: HttpRequest
    method: Method
    answers: AnswerReader
    task_id: str = ""

    def is_stream(self, response: HttpStream) -> bool:
        # A response that consists of trailers alone is an error, or a stream without events.
        return response.status == 200 and response.headers.get("grpc-status", "0") == "0" and _is_grpc(response.headers)

    def result(self, response: HttpResponse) -> Any:  # Any: each operation has its own result
        if response.status != 200:
            raise from_status(response, self.request.url)  # of a proxy, or of a server that is not one of gRPC
        if not _is_grpc(response.headers):
            raise InvalidAgentResponseError("The agent's answer is not one of gRPC")
        self._check_status(response.trailers or response.headers)
        messages = _split(MessageSplitter(len(response.body)), response.body)
        if len(messages) != 1:
            raise InvalidAgentResponseError(f"The agent answered with {len(messages)} messages instead of one")
        return self.answers.result(self.method.operation, self.method.decode_answer(messages[0]))

    def decoder(self, limit: int) -> "MessageDecoder":
        return MessageDecoder(self, limit)

    def event(self, message: bytes) -> Event:
        return self.answers.event(self.method.decode_answer(message))

    def _check_status(self, trailers: Mapping[str, str]) -> None:
        status = read_status(trailers)
        if status is None:
            raise broken(self.request.url, "the answer has no status")
        if status.code != CODES["OK"]:
            raise self._to_error(status, trailers)

    def _to_error(self, status: ReceivedStatus, trailers: Mapping[str, str]) -> A2AError:
        violations = tuple(v1.decode_violations(status.details))
        remote = RemoteError(status.code, status.message, status.details, violations)
        retry_after = _read_pushback(trailers, status)
        if remote.info.get("reason") in BY_REASON:
            return to_error(remote, retry_after or 1)
        if status.code in BROKEN:
            return broken(self.request.url, clean_line(status.message, MAX_TEXT) or f"gRPC status {status.code}")
        return to_error(remote, retry_after or 1, self._choose_kind(status, can_retry=retry_after is not None))

    def _choose_kind(self, status: ReceivedStatus, *, can_retry: bool) -> type[A2AError]:
        """Return the class for a status without a reason."""
        name = status.message.partition(":")[0]
        if name in BY_NAME:
            return BY_NAME[name]
        if status.code == CODES["NOT_FOUND"] and self.task_id:
            return TaskNotFoundError
        if status.code == CODES["RESOURCE_EXHAUSTED"] and can_retry:
            return LimitExceededError  # otherwise it may be the size of the message, which a retry does not change
        return BY_CODE.get(status.code, A2AServerError)


class MessageDecoder:
    """Decodes the stream of one exchange."""

    def __init__(self, exchange: GrpcExchange, limit: int) -> None:
        self._exchange = exchange
        self._splitter = MessageSplitter(limit)

    @property
    def waiting(self) -> int:
        return self._splitter.waiting

    def feed(self, chunk: bytes) -> Iterator[EventWithId]:
        for message in _split(self._splitter, chunk):
            yield EventWithId(self._exchange.event(message), "")

    def end(self, trailers: Mapping[str, str]) -> None:
        """Raise the error with which the agent has ended the stream, if any."""
        self._exchange._check_status(trailers)
        if self._splitter.waiting:
            raise InvalidAgentResponseError("The agent's stream ended in the middle of a message")


def _is_grpc(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").lower().startswith(MEDIA)


def _split(splitter: MessageSplitter, data: bytes) -> list[bytes]:
    try:
        return splitter.feed(data)
    except ValueError as error:
        raise InvalidAgentResponseError(f"The agent's answer cannot be read: {error}") from error


def _read_pushback(trailers: Mapping[str, str], status: ReceivedStatus) -> int | None:
    """Return the seconds after which the agent wants the call to be repeated, or None without such a value."""
    if "retry-after" in trailers:
        return read_retry_after(HttpResponse(0, trailers))
    milliseconds = trailers.get("grpc-retry-pushback-ms", "")
    if milliseconds.isascii() and milliseconds.isdecimal():
        return max(1, int(milliseconds[:18]) // 1000)
    for detail in status.details:
        if "retryDelay" in detail:  # google.rpc.RetryInfo
            return max(1, int(detail["retryDelay"].get("seconds", 0)))
    return None


def prepare_grpc(interface: ChosenInterface, operation: Operation, request: Value) -> GrpcExchange:
    """Return the exchange for one operation, ready to be sent.

    Raises:
        UnsupportedOperationError: The service of that version has no such method.
    """
    dialect = interface.dialect
    path, method = find_method(dialect.VERSION, operation)
    if interface.tenant:
        request = replace(request, tenant=interface.tenant)
    headers = {"Content-Type": MEDIA, "TE": "trailers", **interface.parameters()}
    body = frame_message(method.encode_request(request))
    http = HttpRequest("POST", interface.url.rstrip("/") + path, headers, body, needs_trailers=True)
    task_id = getattr(request, "task_id", "") or getattr(request, "id", "")
    return GrpcExchange(http, method, AnswerReader(method.dialect, interface), task_id)
