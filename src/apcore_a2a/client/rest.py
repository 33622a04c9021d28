"""The HTTP+JSON binding: a table of paths. 1.0 at the root with the tenant in front, 0.3 under its prefix."""

from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from apcore_a2a.client.binding import ChosenInterface, decode_answer
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
from apcore_a2a.protocol.model import Event, Value
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
BY_STATUS: Final[dict[int, type[A2AError]]] = {  # for agents that give no reason, as those of a2a-sdk 0.3
    409: TaskNotCancelableError,
    415: ContentTypeNotSupportedError,
    422: InvalidParamsError,
    501: UnsupportedOperationError,
}
OLD_PATHS: Final = {  # of 0.3, where they differ; a2a-sdk 0.3 subscribes by GET alone
    Operation.SUBSCRIBE: ("GET", "/tasks/{id}:subscribe"),
    Operation.EXTENDED_CARD: ("GET", "/card"),
}
MEDIA: Final = {"1.0": "application/a2a+json", "0.3": "application/json"}
IN_PATH: Final = frozenset({"id", "taskId", "pushNotificationConfigId", "tenant"})

_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(Any)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


class RestExchange(Struct, frozen=True):
    request: HttpRequest
    operation: Operation
    dialect: Dialect
    task_id: str = ""

    def result(self, response: HttpResponse) -> Any:  # Any: each operation has its own result
        if not 200 <= response.status < 300:
            told = self._find_error(response.body, response.status, read_retry_after(response))
            raise choose_error(response, self.request.url, told)
        if SHAPES[self.operation].streams or self.operation is Operation.SEND:
            return decode_answer(self.dialect.decode_event, response.body)
        return decode_answer(self.dialect.decode_result, self.operation, response.body)

    def event(self, event: ServerSentEvent) -> Event:
        data = event.data.encode()
        error = self._find_error(data) if event.event == "error" or data.startswith(b'{"error"') else None
        if error is not None:
            raise error
        return decode_answer(self.dialect.decode_event, data)

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
                code, data = status, None
            case _:
                return None
        told = RemoteError(code, text, data, tuple(self.dialect.decode_violations(data)))
        return to_error(told, retry_after, self._by_status(code))

    def _by_status(self, code: int) -> type[A2AError]:
        """What an HTTP status means where nothing else is said."""
        return TaskNotFoundError if code == 404 and self.task_id else BY_STATUS.get(code, A2AServerError)


def exchange(interface: ChosenInterface, operation: Operation, request: Value) -> RestExchange:
    is_old = interface.dialect.VERSION == v03.VERSION
    dialect: Dialect = v03_rest if is_old else interface.dialect
    method, template = (is_old and OLD_PATHS.get(operation)) or PATHS[operation]
    names = {name: getattr(request, name, "") for name in ("id", "task_id")}
    path = template.format(**{name: _segment(value) for name, value in names.items()})
    tenant = f"/{quote(interface.tenant, safe='')}" if interface.tenant else ""
    body = dialect.encode_request(operation, request)
    query = ""
    if method != "POST":
        fields = {name: _text(value) for name, value in decode(body, _OBJECT).items() if name not in IN_PATH}
        query, body = (f"?{urlencode(fields)}" if fields else ""), b""
    url = f"{interface.url.rstrip('/')}{tenant}{dialect.REST_PREFIX}{path}{query}"
    http = HttpRequest(method, url, interface.headers(MEDIA[dialect.VERSION]), body)
    return RestExchange(http, operation, dialect, names["task_id"] or names["id"])


def _segment(value: str) -> str:
    if value in (".", ".."):
        raise InvalidParamsError(f"Over REST an id cannot be {value!r}: it would be taken for a step in the path")
    return quote(value, safe="")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
