"""Encodes requests and decodes responses of the JSON-RPC and REST bindings and of our webhook status extension."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar
from urllib.parse import parse_qs, quote, urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, field
from msgspec.structs import replace

from apcore_a2a.clean_text import clean_line
from apcore_a2a.client.failures import MAX_TEXT, RemoteError, choose_error, read_retry_after, to_error
from apcore_a2a.client.transport import HttpRequest, HttpResponse, HttpStream
from apcore_a2a.errors import (
    A2AError,
    A2AServerError,
    ContentTypeNotSupportedError,
    InvalidAgentResponseError,
    InvalidParamsError,
    ParseError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol import mixed, v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import decode
from apcore_a2a.protocol.dialect import VERSION_HEADER, Dialect
from apcore_a2a.protocol.jsonrpc import NULL, ErrorObject, format_request, parse_response
from apcore_a2a.protocol.model import (
    SHAPES,
    ArtifactUpdate,
    Event,
    Message,
    Operation,
    PushConfigRef,
    StatusUpdate,
    Task,
    TaskPage,
    Value,
    encode,
)
from apcore_a2a.protocol.sse import ServerSentEvent, SSEDecoder
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import rest as v03_rest

logger = logging.getLogger(__name__)

# Shared by both bindings: the chosen interface of an agent, and one exchange with it.
#
# Invariant: a binding turns an operation into an HTTP request, and a response into a value or an exception. It does no
# I/O.

LEFT_OUT: Final = "apcore.leftOut"  # metadata key: the paths of the fields that the client could not decode
MAX_NAMED: Final = 20  # maximum number of paths listed; an agent may send thousands of unknown parts

P = ParamSpec("P")
T = TypeVar("T")


class MixedForms:
    """Logs once for each connection to an agent that its answers mix the forms of two protocol versions."""

    def __init__(self) -> None:
        self._is_logged = False

    def log(self, url: str, version: str) -> None:
        if self._is_logged:
            return
        self._is_logged = True
        text = "%s offers A2A %s, but its answers do not have the form of that version. They are read nevertheless"
        logger.warning(text, clean_line(url, MAX_TEXT), version, extra={"url": url, "version": version})


class ChosenInterface(Struct, frozen=True):
    """The interface of an agent that was chosen from its card."""

    url: str
    binding: str
    dialect: Dialect
    tenant: str = ""
    extensions: tuple[str, ...] = ()
    mixed_forms: MixedForms = field(default_factory=MixedForms)

    def headers(self, media: str) -> dict[str, str]:
        # Always both media types: an agent may answer a streaming request with a single response instead of a stream.
        return {"Content-Type": media, "Accept": f"{media}, text/event-stream", **self.parameters()}

    def parameters(self) -> dict[str, str]:
        """Return the service parameters (1.0 §3.2.6), which are headers in every binding."""
        headers: dict[str, str] = {}
        # 1.0 §3.6.1: a missing header means 0.3, and 0.3 agents do not know the header.
        if self.dialect.VERSION != "0.3":
            headers[VERSION_HEADER] = self.dialect.VERSION
        if self.extensions:
            headers[self.dialect.EXTENSIONS_HEADER] = ", ".join(self.extensions)
        return headers


class EventWithId(NamedTuple):
    """An event, and the id of its SSE frame ("" if the frame has none)."""

    event: Event
    id: str


class StreamDecoder(Protocol):
    """Decodes the body of a response that is a stream."""

    @property
    def waiting(self) -> int:
        """The number of bytes of an incomplete message that take long to decode."""
        ...

    def feed(self, chunk: bytes) -> Iterator[EventWithId]:
        """Yield the events that are now complete. Raise the typed error if the agent has sent one."""
        ...

    def end(self, trailers: Mapping[str, str]) -> None:
        """Raise the typed error with which the agent has ended the stream, if any."""
        ...


class Exchange(Protocol):
    """One request, and the functions that decode its response."""

    @property
    def request(self) -> HttpRequest: ...

    def result(self, response: HttpResponse) -> Any:
        """Return the typed result, or raise the typed error."""
        ...

    def is_stream(self, response: HttpStream) -> bool:
        """Return whether the response is a stream of events. Otherwise it is a single answer, or an error."""
        ...

    def decoder(self, limit: int) -> StreamDecoder:
        """Return a decoder for a stream with events of at most `limit` bytes."""
        ...


class Binding(Protocol):
    def __call__(self, interface: ChosenInterface, operation: Operation, request: Value) -> Exchange: ...


def decode_answer(decode: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `decode`. If the data is invalid, raise InvalidAgentResponseError, because the agent has sent it."""
    # The server uses the same decoders. There, their errors report an invalid request to the client.
    try:
        return decode(*args, **kwargs)
    except (ParseError, InvalidParamsError) as error:
        raise InvalidAgentResponseError(f"The agent's answer cannot be read: {error}") from error


class ReceivedCard(Struct, frozen=True):
    """A card, and the decoded body that it came from: signatures cover the body."""

    card: AgentCard
    body: dict[str, Any]


# Answers that may have the form of another version than that of the interface.
_MIXED: Final = frozenset({Operation.SEND, Operation.GET, Operation.CANCEL, Operation.LIST})


class AnswerReader(Struct, frozen=True):
    """Decodes the answers of one interface. An answer that is not in the form of its version is read in any form."""

    dialect: Dialect
    interface: ChosenInterface

    def event(self, data: bytes | Raw) -> Event:
        """Return an event of a stream, or the answer to a message."""
        event: Event = self._decode(Operation.SEND, data)  # both have the same form
        return event

    def result(self, operation: Operation, data: bytes | Raw) -> Any:  # Any: each operation has its own result
        """Return the result of an operation. A card is returned as a ReceivedCard."""
        result = self._decode(operation, data)
        # The answer to a message has the shape of an event. Of the events, only Task and Message are valid answers.
        if operation is Operation.SEND and not isinstance(result, Task | Message):
            raise InvalidAgentResponseError("The agent answered a message with neither a task nor a message")
        if isinstance(result, AgentCard):
            return ReceivedCard(result, msgspec.json.decode(bytes(data), type=dict[str, Any]))
        return result

    def _decode(self, operation: Operation, data: bytes | Raw) -> Any:  # Any: each operation has its own result
        left_out: list[str] = []
        failure: InvalidAgentResponseError | None = None
        answer: Any = None
        try:
            answer = decode_answer(self.dialect.decode_result, operation, data, left_out)
        except InvalidAgentResponseError as error:
            failure = error
        if (failure is not None or left_out) and operation in _MIXED:
            left_out_of_mixed: list[str] = []
            with suppress(InvalidAgentResponseError):
                mixed_answer = decode_answer(mixed.decode_result, operation, data, left_out_of_mixed)
                if failure is not None or len(left_out_of_mixed) < len(left_out):
                    self.interface.mixed_forms.log(self.interface.url, self.dialect.VERSION)
                    return _note_left_out(mixed_answer, left_out_of_mixed)
        if failure is not None:
            raise failure
        return _note_left_out(answer, left_out)


def _note_left_out(answer: T, left_out: list[str]) -> T:
    """Log the undecodable fields and list them in the metadata: no data is lost silently (docs/decisions/0045)."""
    if not left_out:
        return answer
    named = left_out[:MAX_NAMED]
    # The paths are in the text too: a program without logging configuration, such as the CLI, shows only the text.
    text = "parts of the agent's answer cannot be read and were left out: %s"
    logger.warning(text, "; ".join(named), extra={"left_out": named})
    if not isinstance(answer, Task | Message | StatusUpdate | ArtifactUpdate):
        return answer  # a page has no metadata
    metadata = {**(answer.metadata or {}), LEFT_OUT: named}
    return replace(answer, metadata=metadata)


class SSEEventDecoder:
    """Decodes server-sent events: the streams of JSON-RPC and REST."""

    def __init__(self, decode_event: Callable[[ServerSentEvent], Event], limit: int) -> None:
        self._decode_event = decode_event
        self._frames = SSEDecoder(limit)

    @property
    def waiting(self) -> int:
        return 0  # JSON is decoded at once, whatever its size

    def feed(self, chunk: bytes) -> Iterator[EventWithId]:
        try:
            frames = self._frames.feed(chunk)
        except ValueError as error:
            raise InvalidAgentResponseError(f"The agent's stream cannot be read: {error}") from error
        for frame in frames:
            if frame.data:  # an empty frame is a keep-alive
                yield EventWithId(self._decode_event(frame), frame.id)

    def end(self, trailers: Mapping[str, str]) -> None:
        """Do nothing: an error would have been an event."""


def is_event_stream(response: HttpStream) -> bool:
    # A response with another status is an error, whatever its media type. Media types are case-insensitive (RFC 9110
    # §8.3.1).
    media_type = response.headers.get("content-type", "").lower()
    return response.status == 200 and media_type.startswith("text/event-stream")


# ---- jsonrpc --------------------------------------------------------------------------------------------------------
# The JSON-RPC binding: every operation is a POST to one address.
#
# Invariant: a response whose id differs from the request's is rejected.

JSONRPC_MEDIA: Final = "application/json"


class JsonRpcExchange(Struct, frozen=True):
    request: HttpRequest
    operation: Operation
    answers: AnswerReader
    id: str

    def result(self, response: HttpResponse) -> Any:  # Any: each operation has its own result
        # JSON-RPC errors have status 200. Another status comes from a proxy, or from an agent that sets both.
        if not 200 <= response.status < 300:
            raise choose_error(response, self.request.url, self._find_error(response))
        data = self._unwrap(response.body)
        if SHAPES[self.operation].streams:  # an agent may answer a streaming request without a stream
            return self.answers.event(data)
        return self.answers.result(self.operation, data)

    def is_stream(self, response: HttpStream) -> bool:
        return is_event_stream(response)

    def decoder(self, limit: int) -> SSEEventDecoder:
        return SSEEventDecoder(self._event, limit)

    def _event(self, event: ServerSentEvent) -> Event:
        return self.answers.event(self._unwrap(event.data.encode()))

    def _unwrap(self, body: bytes) -> Raw:
        response = decode_answer(parse_response, body)
        if response.error is not None:
            # The id is checked later: an agent that could not parse the request answers with a null id (JSON-RPC §5).
            raise to_error(self._to_remote_error(response.error))
        if bytes(response.id) != b'"%b"' % self.id.encode():
            raise InvalidAgentResponseError("The agent answered another request: its JSON-RPC id is unknown")
        if response.result is UNSET:
            if self.operation is Operation.DELETE_PUSH:
                return Raw(NULL)  # a2a-sdk 0.3 omits a null result
            raise InvalidAgentResponseError("The agent answered with neither a result nor an error")
        return response.result

    def _find_error(self, response: HttpResponse) -> A2AError | None:
        try:
            error = decode_answer(parse_response, response.body).error
        except InvalidAgentResponseError:
            return None  # for example an HTML page from a proxy: only the status is usable
        if error is None:
            return None
        return to_error(self._to_remote_error(error), read_retry_after(response))

    def _to_remote_error(self, error: ErrorObject) -> RemoteError:
        data = None if error.data is UNSET else error.data
        violations = tuple(self.answers.dialect.decode_violations(data))
        return RemoteError(error.code, error.message, data, violations)


def prepare_jsonrpc(interface: ChosenInterface, operation: Operation, request: Value) -> JsonRpcExchange:
    """Return the exchange for one operation, ready to be sent."""
    dialect = interface.dialect
    id = new_id()
    if interface.tenant:  # 1.0 §8.3.2: in every request, exactly as in the card's interface
        request = replace(request, tenant=interface.tenant)
    params = dialect.encode_request(operation, request)
    body = format_request(id, dialect.NAMES[operation], params)
    http = HttpRequest("POST", interface.url, interface.headers(JSONRPC_MEDIA), body)
    return JsonRpcExchange(http, operation, AnswerReader(dialect, interface), id)


# ---- rest -----------------------------------------------------------------------------------------------------------
# The HTTP+JSON binding: a table of paths. 1.0 is at the root, with the tenant as a prefix. 0.3 has its own path prefix.

_PUSHES: Final = "/tasks/{task_id}/pushNotificationConfigs"
PATHS: Final = {
    Operation.SEND: ("POST", "/message:send"),
    Operation.STREAM: ("POST", "/message:stream"),
    Operation.GET: ("GET", "/tasks/{id}"),
    Operation.LIST: ("GET", "/tasks"),
    Operation.CANCEL: ("POST", "/tasks/{id}:cancel"),
    Operation.SUBSCRIBE: ("POST", "/tasks/{id}:subscribe"),
    Operation.CREATE_PUSH: ("POST", _PUSHES),
    Operation.GET_PUSH: ("GET", _PUSHES + "/{id}"),
    Operation.LIST_PUSH: ("GET", _PUSHES),
    Operation.DELETE_PUSH: ("DELETE", _PUSHES + "/{id}"),
    Operation.EXTENDED_CARD: ("GET", "/extendedAgentCard"),
}
# For agents whose errors have no `reason`, such as those of a2a-sdk 0.3.
BY_STATUS: Final[dict[int, type[A2AError]]] = {
    409: TaskNotCancelableError,
    415: ContentTypeNotSupportedError,
    422: InvalidParamsError,
    501: UnsupportedOperationError,
}
# The paths that differ in 0.3. a2a-sdk 0.3 accepts only GET for subscribing.
PATHS_OF_0_3: Final = {
    Operation.SUBSCRIBE: ("GET", "/tasks/{id}:subscribe"),
    Operation.EXTENDED_CARD: ("GET", "/card"),
}
# 1.0 has its own media type (§11.1), 0.3 has none.
REST_MEDIA: Final = {"1.0": "application/a2a+json", "0.3": "application/json"}
IN_PATH: Final = frozenset({"id", "taskId", "pushNotificationConfigId", "tenant"})

MAX_LINK: Final = 8192  # maximum length of a Link header that is parsed, in characters
_NEXT: Final = re.compile(r'<([^<>]*)>\s*;\s*rel="?next"?')
_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


class RestExchange(Struct, frozen=True):
    request: HttpRequest
    operation: Operation
    answers: AnswerReader
    task_id: str = ""

    def result(self, response: HttpResponse) -> Any:  # Any: each operation has its own result
        if not 200 <= response.status < 300:
            from_body = self._find_error(response.body, response.status, read_retry_after(response))
            raise choose_error(response, self.request.url, from_body)
        if SHAPES[self.operation].streams:
            return self.answers.event(response.body)
        result = self.answers.result(self.operation, response.body)
        if isinstance(result, TaskPage) and not result.next_page_token:
            # 0.3 lists tasks as a bare array, which has no field for the token. Our agents send it in a header
            # (docs/decisions/0046).
            result = replace(result, next_page_token=_next_page_token(response))
        return result

    def is_stream(self, response: HttpStream) -> bool:
        return is_event_stream(response)

    def decoder(self, limit: int) -> SSEEventDecoder:
        return SSEEventDecoder(self._event, limit)

    def _event(self, event: ServerSentEvent) -> Event:
        data = event.data.encode()
        # 1.0 §11.7 defines no form for an error within a stream. Some agents name the event, some send the body of an
        # HTTP error.
        if event.event == "error" or data.startswith(b'{"error"'):
            error = self._find_error(data)
            if error is not None:
                raise error
        return self.answers.event(data)

    def _find_error(self, body: bytes, status: int = 0, retry_after: int = 1) -> A2AError | None:
        try:
            value = decode(body, _ANY)
        except ParseError:
            return None
        match value:
            case {"error": {"code": int(code), "message": str(text)} as error}:  # google.rpc.Status, 1.0 §11.6
                data = error.get("details")
            # 0.3 does not define the body of an error. Agents of this project send this one.
            case {"code": int(code), "message": str(text)}:
                data = value.get("data")
            case {"message": str(text)}:  # the form of a2a-sdk 0.3
                code = status
                data = None
            case _:
                return None
        violations = tuple(self.answers.dialect.decode_violations(data))
        return to_error(RemoteError(code, text, data, violations), retry_after, self._by_status(code))

    def _by_status(self, code: int) -> type[A2AError]:
        """Return the error class for an HTTP status without further information."""
        # If the path has no task id, a 404 means that the path is wrong, not that a task is missing.
        if code == 404 and self.task_id:
            return TaskNotFoundError
        return BY_STATUS.get(code, A2AServerError)


def _next_page_token(response: HttpResponse) -> str:
    """Return the token in the link to the next page (RFC 8288), or an empty string."""
    link = _NEXT.search(response.headers.get("link", "")[:MAX_LINK])
    if link is None:
        return ""
    # Not urlsplit: it raises errors about the part before the query, which is not used here.
    query: str = link[1].partition("?")[2].partition("#")[0]
    fields = parse_qs(query)
    tokens: list[str] = fields.get("pageToken") or fields.get("cursor") or [""]
    return tokens[0]


def prepare_rest(interface: ChosenInterface, operation: Operation, request: Value) -> RestExchange:
    """Return the exchange for one operation, ready to be sent."""
    dialect = interface.dialect
    method, template = PATHS[operation]
    if dialect.VERSION == v03.VERSION:
        dialect = v03_rest  # 0.3 has one JSON encoding for JSON-RPC and another for REST
        method, template = PATHS_OF_0_3.get(operation, PATHS[operation])
    path = _fill_in(template, request)
    base = interface.url.rstrip("/")
    if interface.tenant:
        base += "/" + quote(interface.tenant, safe="")
    body = dialect.encode_request(operation, request)
    query = ""
    if method != "POST":
        query = _to_query(body)
        body = b""
    url = f"{base}{dialect.REST_PREFIX}{path}{query}"
    http = HttpRequest(method, url, interface.headers(REST_MEDIA[dialect.VERSION]), body)
    task_id = getattr(request, "task_id", "") or getattr(request, "id", "")
    return RestExchange(http, operation, AnswerReader(dialect, interface), task_id)


def _fill_in(template: str, request: Value) -> str:
    """Return the path with the ids of the request in it."""
    path = template
    for name in ("id", "task_id"):
        place = f"{{{name}}}"
        if place in template:
            path = path.replace(place, _quote_segment(getattr(request, name)))
    return path


def _quote_segment(value: str) -> str:
    # Quoting is not enough: proxies that normalize paths treat "%2e%2e" as "..". With an empty id, the path is that of
    # the whole collection.
    if value in ("", ".", ".."):
        raise InvalidParamsError(f"Over REST an id cannot be {value!r}: it would change the path")
    return quote(value, safe="")


def _to_query(body: bytes) -> str:
    """Encode the fields of a request without a body as a query (1.0 §11.5), except those that are in the path."""
    fields: dict[str, str] = {}
    for name, value in decode(body, _OBJECT).items():
        if name in IN_PATH:
            continue
        text = str(value)
        if isinstance(value, bool):
            text = text.lower()
        fields[name] = text
    if not fields:
        return ""
    return f"?{urlencode(fields)}"


# ---- webhooks -------------------------------------------------------------------------------------------------------
# Webhook status and redelivery: an extension of this project that other agents do not have.

_PATH: Final = "/webhooks"


class WebhookStatus(Value, frozen=True):
    """The delivery progress of one webhook of a task."""

    task_id: str
    id: str
    url: str
    state: str
    """"active" or "failed". The events of a failed webhook are dead letters, until it is set again or redelivered."""
    a2a_version: str = "1.0"
    delivered: int = 0
    undelivered: int = 0
    attempts: int = 0
    reason: str = ""


class _Answer(Struct, frozen=True):
    webhooks: list[WebhookStatus]


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class WebhookExchange(Struct, frozen=True):
    request: HttpRequest
    task_id: str
    answers: AnswerReader

    def result(self, response: HttpResponse) -> list[WebhookStatus]:
        if response.status != 200:
            if response.status in (404, 405) and b'"TASK_NOT_FOUND"' not in response.body:
                raise UnsupportedOperationError(
                    "The agent has no webhook status. Either its webhooks are off, or it is not an apcore-a2a agent"
                )
            RestExchange(self.request, Operation.GET_PUSH, self.answers, self.task_id).result(response)
        return decode_answer(decode, response.body, _ANSWER).webhooks


def ask_status(interface: ChosenInterface, task_id: str) -> WebhookExchange:
    """Return the exchange that asks for the webhooks of a task, or without a task id for the caller's dead letters."""
    query: dict[str, str] = {}
    if task_id:
        query["taskId"] = task_id
    if interface.tenant:
        query["tenant"] = interface.tenant
    url = f"{interface.url.rstrip('/')}{_PATH}"
    if query:
        url += "?" + urlencode(query)
    return WebhookExchange(
        HttpRequest("GET", url, {"Accept": "application/json"}), task_id, AnswerReader(v1, interface)
    )


def ask_redelivery(interface: ChosenInterface, task_id: str, config_id: str) -> WebhookExchange:
    body = encode(PushConfigRef(task_id=task_id, id=config_id, tenant=interface.tenant))
    url = f"{interface.url.rstrip('/')}{_PATH}:redeliver"
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    return WebhookExchange(HttpRequest("POST", url, headers, body), task_id, AnswerReader(v1, interface))
