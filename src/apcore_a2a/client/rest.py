"""The HTTP+JSON binding: a table of paths. 1.0 at the root with the tenant in front, 0.3 under its prefix."""

import re
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.client.binding import ChosenInterface, read_event, read_result
from apcore_a2a.client.failures import RemoteError, choose_error, read_retry_after, to_error
from apcore_a2a.client.transport import HttpRequest, HttpResponse
from apcore_a2a.errors import (
    A2AError,
    A2AServerError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    ParseError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from apcore_a2a.protocol.decoding import decode
from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.model import Event, TaskPage, Value
from apcore_a2a.protocol.operations import SHAPES, Operation
from apcore_a2a.protocol.sse import ServerSentEvent
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import rest as v03_rest

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
MEDIA: Final = {"1.0": "application/a2a+json", "0.3": "application/json"}
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
    http = HttpRequest(method, url, interface.headers(MEDIA[dialect.VERSION]), body)
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
