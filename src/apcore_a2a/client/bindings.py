"""How a request goes over the wire, and how its answer comes back: JSON-RPC, REST, and our own status of webhooks."""

import logging
import re
from collections.abc import Callable
from typing import Any, Final, ParamSpec, Protocol, TypeVar
from urllib.parse import parse_qs, quote, urlencode

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from apcore_a2a.client.failures import RemoteError, choose_error, read_retry_after, to_error
from apcore_a2a.client.transport import HttpRequest, HttpResponse
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
from apcore_a2a.protocol import v1
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
from apcore_a2a.protocol.sse import ServerSentEvent
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import rest as v03_rest

logger = logging.getLogger(__name__)

# What the two bindings have in common: where an agent listens, and one exchange with it.
#
# Rule: a binding turns an operation into an HTTP request, and an answer into a value or an exception. It sends nothing.

LEFT_OUT: Final = "apcore.leftOut"  # in the metadata of an answer: what of it could not be read
MAX_NAMED: Final = 20  # of what was left out; an agent may send thousands of parts that nobody knows

P = ParamSpec("P")
T = TypeVar("T")


class ChosenInterface(Struct, frozen=True):
    """One interface of an agent, as chosen from its card."""

    url: str
    binding: str
    dialect: Dialect
    tenant: str = ""
    extensions: tuple[str, ...] = ()

    def headers(self, media: str) -> dict[str, str]:
        # Both media types, always: an agent with one thing to say may answer a streaming request without a stream.
        headers = {"Content-Type": media, "Accept": f"{media}, text/event-stream"}
        # 1.0 §3.6.1: a missing header means 0.3, and 0.3 agents know no header.
        if self.dialect.VERSION != "0.3":
            headers[VERSION_HEADER] = self.dialect.VERSION
        if self.extensions:
            headers[self.dialect.EXTENSIONS_HEADER] = ", ".join(self.extensions)
        return headers


class Exchange(Protocol):
    """One request, and how to read what comes back."""

    @property
    def request(self) -> HttpRequest: ...

    def result(self, response: HttpResponse) -> Any:
        """The typed result, or the typed error raised."""
        ...

    def event(self, event: ServerSentEvent) -> Event:
        """One event of a stream, or the typed error raised."""
        ...


class Binding(Protocol):
    def __call__(self, interface: ChosenInterface, operation: Operation, request: Value) -> Exchange: ...


def decode_answer(decode: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `decode` makes of an agent's words; that they make no sense is the agent's fault, not the caller's."""
    # The decoders serve both sides of the wire. There, the same errors tell a client that its request is wrong.
    try:
        return decode(*args, **kwargs)
    except (ParseError, InvalidParamsError) as error:
        raise InvalidAgentResponseError(f"The agent's answer cannot be read: {error}") from error


def read_event(dialect: Dialect, data: bytes | Raw) -> Event:
    """An event of a stream, or what a message was answered with."""
    left_out: list[str] = []
    event = decode_answer(dialect.decode_event, data, left_out)
    return _note_left_out(event, left_out)


class ReceivedCard(Struct, frozen=True):
    """A card, and what it came as, decoded: that is what was signed."""

    card: AgentCard
    body: dict[str, Any]


def read_result(dialect: Dialect, operation: Operation, data: bytes | Raw) -> Any:
    """What an operation answered; a card as a ReceivedCard."""
    left_out: list[str] = []
    result = decode_answer(dialect.decode_result, operation, data, left_out)
    # A message is answered in the shape of an event; of events, these two are an answer.
    if operation is Operation.SEND and not isinstance(result, Task | Message):
        raise InvalidAgentResponseError("The agent answered a message with neither a task nor a message")
    if isinstance(result, AgentCard):
        return ReceivedCard(result, msgspec.json.decode(bytes(data), type=dict[str, Any]))
    return _note_left_out(result, left_out)


def _note_left_out(answer: T, left_out: list[str]) -> T:
    """The answer, marked if something of it could not be read: nothing is lost silently (docs/decisions/0045)."""
    if not left_out:
        return answer
    named = left_out[:MAX_NAMED]
    # The paths also in the text: a program that has not set up logging, as the command line, shows nothing else.
    text = "left out of the agent's answer, because it cannot be read: %s"
    logger.warning(text, "; ".join(named), extra={"left_out": named})
    if not isinstance(answer, Task | Message | StatusUpdate | ArtifactUpdate):
        return answer  # a page has no metadata
    metadata = {**(answer.metadata or {}), LEFT_OUT: named}
    return replace(answer, metadata=metadata)


# ---- jsonrpc --------------------------------------------------------------------------------------------------------
# The JSON-RPC binding: every operation is a POST to one address. Rule: an answer whose id is not ours is no answer.

JSONRPC_MEDIA: Final = "application/json"


class JsonRpcExchange(Struct, frozen=True):
    request: HttpRequest
    operation: Operation
    dialect: Dialect
    id: str

    def result(self, response: HttpResponse) -> Any:  # Any: each operation has its own result
        # JSON-RPC sends its errors with 200. Any other status is a proxy's, or an agent's that uses both.
        if not 200 <= response.status < 300:
            raise choose_error(response, self.request.url, self._find_error(response))
        data = self._unwrap(response.body)
        if SHAPES[self.operation].streams:  # an agent with one thing to say may answer without a stream
            return read_event(self.dialect, data)
        return read_result(self.dialect, self.operation, data)

    def event(self, event: ServerSentEvent) -> Event:
        return read_event(self.dialect, self._unwrap(event.data.encode()))

    def _unwrap(self, body: bytes) -> Raw:
        response = decode_answer(parse_response, body)
        if response.error is not None:
            # Before the id is looked at: an agent that could not read ours answers with null (JSON-RPC 2.0 §5).
            raise to_error(self._to_remote_error(response.error))
        if bytes(response.id) != b'"%b"' % self.id.encode():
            raise InvalidAgentResponseError("The agent answered another request than ours: the JSON-RPC id is not ours")
        if response.result is UNSET:
            if self.operation is Operation.DELETE_PUSH:
                return Raw(NULL)  # a2a-sdk 0.3 leaves out the null
            raise InvalidAgentResponseError("The agent answered with neither a result nor an error")
        return response.result

    def _find_error(self, response: HttpResponse) -> A2AError | None:
        try:
            error = decode_answer(parse_response, response.body).error
        except InvalidAgentResponseError:
            return None  # a proxy's page, say: the status is all there is
        if error is None:
            return None
        return to_error(self._to_remote_error(error), read_retry_after(response))

    def _to_remote_error(self, error: ErrorObject) -> RemoteError:
        data = None if error.data is UNSET else error.data
        violations = tuple(self.dialect.decode_violations(data))
        return RemoteError(error.code, error.message, data, violations)


def prepare_jsonrpc(interface: ChosenInterface, operation: Operation, request: Value) -> JsonRpcExchange:
    """The exchange for one operation, ready to be sent."""
    dialect = interface.dialect
    id = new_id()
    if interface.tenant:  # 1.0 §8.3.2: in every request, just as the card's interface says it
        request = replace(request, tenant=interface.tenant)
    params = dialect.encode_request(operation, request)
    body = format_request(id, dialect.NAMES[operation], params)
    http = HttpRequest("POST", interface.url, interface.headers(JSONRPC_MEDIA), body)
    return JsonRpcExchange(http, operation, dialect, id)


# ---- rest -----------------------------------------------------------------------------------------------------------
# The HTTP+JSON binding: a table of paths. 1.0 at the root with the tenant in front, 0.3 under its prefix.

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
# For agents that give no reason, as those of a2a-sdk 0.3.
BY_STATUS: Final[dict[int, type[A2AError]]] = {
    409: TaskNotCancelableError,
    415: ContentTypeNotSupportedError,
    422: InvalidParamsError,
    501: UnsupportedOperationError,
}
# Where they differ; a2a-sdk 0.3 subscribes by GET alone.
PATHS_OF_0_3: Final = {
    Operation.SUBSCRIBE: ("GET", "/tasks/{id}:subscribe"),
    Operation.EXTENDED_CARD: ("GET", "/card"),
}
# 1.0 has a media type of its own (§11.1); 0.3 had none.
REST_MEDIA: Final = {"1.0": "application/a2a+json", "0.3": "application/json"}
IN_PATH: Final = frozenset({"id", "taskId", "pushNotificationConfigId", "tenant"})

MAX_LINK: Final = 8192  # characters of a Link header that are looked at
_NEXT: Final = re.compile(r'<([^<>]*)>\s*;\s*rel="?next"?')
_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


class RestExchange(Struct, frozen=True):
    request: HttpRequest
    operation: Operation
    dialect: Dialect
    task_id: str = ""

    def result(self, response: HttpResponse) -> Any:  # Any: each operation has its own result
        if not 200 <= response.status < 300:
            from_body = self._find_error(response.body, response.status, read_retry_after(response))
            raise choose_error(response, self.request.url, from_body)
        if SHAPES[self.operation].streams:
            return read_event(self.dialect, response.body)
        result = read_result(self.dialect, self.operation, response.body)
        if isinstance(result, TaskPage) and not result.next_page_token:
            # 0.3 lists tasks as a bare array, with no place for it; ours say it in a header (docs/decisions/0046).
            result = replace(result, next_page_token=_next_page_token(response))
        return result

    def event(self, event: ServerSentEvent) -> Event:
        data = event.data.encode()
        # 1.0 §11.7 names no form for an error amid a stream: some name the event, some send the body of an HTTP error.
        if event.event == "error" or data.startswith(b'{"error"'):
            error = self._find_error(data)
            if error is not None:
                raise error
        return read_event(self.dialect, data)

    def _find_error(self, body: bytes, status: int = 0, retry_after: int = 1) -> A2AError | None:
        try:
            value = decode(body, _ANY)
        except ParseError:
            return None
        match value:
            case {"error": {"code": int(code), "message": str(text)} as error}:  # google.rpc.Status, 1.0 §11.6
                data = error.get("details")
            case {"code": int(code), "message": str(text)}:  # 0.3 leaves the form open; this is ours
                data = value.get("data")
            case {"message": str(text)}:  # and this is a2a-sdk 0.3's
                code = status
                data = None
            case _:
                return None
        violations = tuple(self.dialect.decode_violations(data))
        return to_error(RemoteError(code, text, data, violations), retry_after, self._by_status(code))

    def _by_status(self, code: int) -> type[A2AError]:
        """What an HTTP status means where nothing else is said."""
        # Without a task in its path, a 404 says that the path is wrong and not that a task is missing.
        if code == 404 and self.task_id:
            return TaskNotFoundError
        return BY_STATUS.get(code, A2AServerError)


def _next_page_token(response: HttpResponse) -> str:
    """The token in the link to the next page (RFC 8288); empty if there is no such link."""
    link = _NEXT.search(response.headers.get("link", "")[:MAX_LINK])
    if link is None:
        return ""
    # Not urlsplit: it raises an exception about what comes before the query, which is of no interest here.
    query: str = link[1].partition("?")[2].partition("#")[0]
    fields = parse_qs(query)
    tokens: list[str] = fields.get("pageToken") or fields.get("cursor") or [""]
    return tokens[0]


def prepare_rest(interface: ChosenInterface, operation: Operation, request: Value) -> RestExchange:
    """The exchange for one operation, ready to be sent."""
    dialect = interface.dialect
    method, template = PATHS[operation]
    if dialect.VERSION == v03.VERSION:
        dialect = v03_rest  # 0.3 has one JSON for JSON-RPC and another for REST
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
    return RestExchange(http, operation, dialect, task_id)


def _fill_in(template: str, request: Value) -> str:
    """The path with the ids of the request in it."""
    path = template
    for name in ("id", "task_id"):
        place = f"{{{name}}}"
        if place in template:
            path = path.replace(place, _quote_segment(getattr(request, name)))
    return path


def _quote_segment(value: str) -> str:
    # Quoting does not help here: "%2e%2e" is the same step to whoever resolves the path on the way. And without an id,
    # the path is that of the whole collection.
    if value in ("", ".", ".."):
        raise InvalidParamsError(f"Over REST an id cannot be {value!r}: the path would lead elsewhere")
    return quote(value, safe="")


def _to_query(body: bytes) -> str:
    """The fields of a request that has no body as a query (1.0 §11.5), without those that stand in the path."""
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
# What an agent of ours tells of its webhooks: an addition to A2A, of which other agents know nothing.

_PATH: Final = "/webhooks"


class WebhookStatus(Value, frozen=True):
    """How far a webhook has got with the events of its task."""

    task_id: str
    id: str
    url: str
    state: str
    """"active", or "failed": then its events are dead letters, until it is set again or redelivered."""
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

    def result(self, response: HttpResponse) -> list[WebhookStatus]:
        if response.status != 200:
            if response.status in (404, 405) and b'"TASK_NOT_FOUND"' not in response.body:
                raise UnsupportedOperationError("The agent tells nothing of its webhooks: it has none, or is not ours")
            RestExchange(self.request, Operation.GET_PUSH, v1, self.task_id).result(response)
        return decode_answer(decode, response.body, _ANSWER).webhooks


def ask_status(interface: ChosenInterface, task_id: str) -> WebhookExchange:
    """Those of a task, or with no task the dead ones of the caller."""
    query: dict[str, str] = {}
    if task_id:
        query["taskId"] = task_id
    if interface.tenant:
        query["tenant"] = interface.tenant
    url = f"{interface.url.rstrip('/')}{_PATH}"
    if query:
        url += "?" + urlencode(query)
    return WebhookExchange(HttpRequest("GET", url, {"Accept": "application/json"}), task_id)


def ask_redelivery(interface: ChosenInterface, task_id: str, config_id: str) -> WebhookExchange:
    body = encode(PushConfigRef(task_id=task_id, id=config_id, tenant=interface.tenant))
    url = f"{interface.url.rstrip('/')}{_PATH}:redeliver"
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    return WebhookExchange(HttpRequest("POST", url, headers, body), task_id)
