"""The HTTP+JSON binding: a table of routes. 1.0 is at the root, 0.3 under /v1. A tenant comes first in the path."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import A2AError, MethodNotFoundError, OverloadedError, VersionNotSupportedError, wire
from apcore_a2a.http.asgi import (
    A2A_JSON,
    HTTP_JSON,
    JSON,
    Headers,
    HTTPError,
    Inbound,
    Locate,
    echo_extensions,
    error_headers,
    inbound,
    internal,
    media_type,
    path_of,
    read_body,
    refuse,
    respond,
    send_stream,
    unchanged_card,
    wrong_media_type,
)
from apcore_a2a.http.traffic import MAX_BODY
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import MAX_VALUES, camel, check, decode
from apcore_a2a.protocol.dialect import REST_DIALECTS, VERSION_HEADER, Dialect
from apcore_a2a.protocol.model import SHAPES, Operation, TaskPage

_ID: Final = r"(?P<id>[^/]+?)"
_TASK: Final = r"(?P<task_id>[^/]+?)"


class Route(NamedTuple):
    method: str
    path: re.Pattern[str]
    operation: Operation


def _route(method: str, path: str, operation: Operation) -> Route:
    return Route(method, re.compile(rf"(?:/(?P<tenant>[^/]+))?{path}"), operation)


ROUTES: Final = (
    _route("POST", "/message:send", Operation.SEND),
    _route("POST", "/message:stream", Operation.STREAM),
    _route("GET", "/tasks", Operation.LIST),
    _route("GET", f"/tasks/{_ID}:subscribe", Operation.SUBSCRIBE),
    _route("POST", f"/tasks/{_ID}:subscribe", Operation.SUBSCRIBE),
    _route("POST", f"/tasks/{_ID}:cancel", Operation.CANCEL),
    _route("GET", f"/tasks/{_ID}", Operation.GET),
    _route("POST", f"/tasks/{_TASK}/pushNotificationConfigs", Operation.CREATE_PUSH),
    _route("GET", f"/tasks/{_TASK}/pushNotificationConfigs", Operation.LIST_PUSH),
    _route("GET", f"/tasks/{_TASK}/pushNotificationConfigs/{_ID}", Operation.GET_PUSH),
    _route("DELETE", f"/tasks/{_TASK}/pushNotificationConfigs/{_ID}", Operation.DELETE_PUSH),
    _route("GET", "/extendedAgentCard", Operation.EXTENDED_CARD),
    _route("GET", "/card", Operation.EXTENDED_CARD),
)


_WITH_BODY: Final = frozenset({Operation.SEND, Operation.STREAM, Operation.CREATE_PUSH})
GRPC_PATHS: Final = ("/lf.a2a.v1.A2AService/", "/a2a.v1.A2AService/")  # not imported: the tables are for gRPC only
NEEDS_HTTP_2: Final = (
    "gRPC is served over HTTP/2 only. Let the proxy before this server pass it on as HTTP/2, or take it off the card "
    "with --no-grpc (in Python: grpc=False)"
)
_OBJECT: Final[msgspec.json.Decoder[dict[str, Any] | None]] = msgspec.json.Decoder(dict[str, Any] | None)


class RESTBinding:
    """Serves an engine over HTTP+JSON. `old_statuses` selects the HTTP codes of A2A 1.0.0 where 1.0.1 changed them."""

    def __init__(
        self,
        engine: Engine,
        *,
        locate: Locate = unchanged_card,
        max_values: int = MAX_VALUES,
        max_body: int = MAX_BODY,
        old_statuses: bool = False,
    ) -> None:
        self._engine = engine
        self._locate = locate
        self._max_values = max_values
        self._max_body = max_body
        self._old_statuses = old_statuses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = inbound(scope)
        dialect = request.error_dialect()
        media = _media(request)
        try:
            # A client that appends "/tasks" to a URL with a slash at its end requests "//tasks".
            path = "/" + path_of(scope).lstrip("/")
            dialect, path = _choose_dialect(request, path)
            operation, path_values = _find(scope["method"], path)
            body = await self._read_body(request, receive, scope["method"])
            params = _read_params(request, body, operation, path_values, dialect)
            tenant = str(getattr(params, "tenant", ""))
            context = request.context(dialect, tenant, HTTP_JSON)
            result = await self._engine.handle(operation, params, context)
        except HTTPError as refused:
            request.note_refusal(refused.error)
            body = request.encode_rest_error(refused.error, dialect, refused.status)
            await refuse(refused, body, receive, send, media=media)
        except A2AError as error:
            await self._refuse(error, request, dialect, send)
        except (Exception, SystemExit) as error:  # sys.exit() in an agent that admits a message must not end the server
            await self._refuse(internal(error), request, dialect, send)
        else:
            if context.extensions:
                send = echo_extensions(send, context.extensions & self._engine.options.extensions, dialect)
            if SHAPES[operation].streams:
                await send_stream(result, receive, send, dialect)
                return
            if isinstance(result, AgentCard):
                result = self._locate(result, scope, dialect.VERSION)
            body = dialect.encode_result(operation, result)
            await respond(send, 200, body, media=media, headers=_link_next(request, dialect, result))

    async def _read_body(self, request: Inbound, receive: Receive, method: str) -> bytes:
        """Return the body of a POST, after checking that it is JSON within the limits."""
        if method != "POST":
            return b""
        body = await read_body(request, receive, limit=self._max_body)
        if body and media_type(request) not in (JSON, A2A_JSON):
            raise wrong_media_type("Content-Type must be application/json or application/a2a+json")
        check(body, max_values=self._max_values)
        return body

    async def _refuse(self, error: A2AError, request: Inbound, dialect: Dialect, send: Send) -> None:
        if isinstance(error, OverloadedError):
            request.note_refusal(error)
        row = wire(error)
        status = row.http
        if self._old_statuses and row.http_v1_0_0:
            status = row.http_v1_0_0
        body = request.encode_rest_error(error, dialect, status)
        await respond(send, status, body, media=_media(request), headers=error_headers(error))


def _media(request: Inbound) -> bytes:
    """Return the media type of the response: that of the request, or without a body the accepted one (1.0 §11.1)."""
    wanted = media_type(request) or request.headers.get(b"accept", b"")
    if A2A_JSON in wanted:
        return A2A_JSON
    return JSON


def _link_next(request: Inbound, dialect: Dialect, result: object) -> Headers:
    """Return a Link header to the next page (RFC 8288), for a version without a field for it in the body."""
    if not isinstance(result, TaskPage) or not result.next_page_token or not dialect.RULES.page_is_array:
        return ()
    fields = dict(QueryParams(request.query))
    for name in ("page_token", "pageToken", "cursor"):
        fields.pop(name, None)
    query = urlencode({**fields, "pageToken": result.next_page_token})
    return ((b"link", f'<?{query}>; rel="next"'.encode()),)


def _choose_dialect(request: Inbound, path: str) -> tuple[Dialect, str]:
    """Return the dialect of a request, and its path as in the table of routes, without the prefix of 0.3."""
    dialect = REST_DIALECTS[request.dialect().VERSION]
    prefix = dialect.REST_PREFIX
    if not prefix:
        return dialect, path
    if path.startswith(prefix + "/"):
        return dialect, path.removeprefix(prefix)
    if any(route.path.fullmatch(path) for route in ROUTES):
        text = (
            "This path belongs to A2A 1.0: send A2A-Version: 1.0. Without it, a request is A2A 0.3, which is under /v1"
        )
        raise VersionNotSupportedError(dialect.VERSION, [v1.VERSION], text)
    return dialect, path  # no route of any version: `_find` rejects it


def _find(method: str, path: str) -> tuple[Operation, dict[str, str]]:
    """Return the operation of a route, and the values in its path."""
    allowed: set[str] = set()
    if path == "/":  # the root is the JSON-RPC endpoint
        allowed.add("POST")
    for route in ROUTES:
        match = route.path.fullmatch(path)
        if match is None:
            continue
        if route.method == method:
            path_values = match.groupdict()
            if path_values["tenant"] is None:
                del path_values["tenant"]
            return route.operation, path_values
        allowed.add(route.method)
    if allowed:
        methods = ", ".join(sorted(allowed))
        raise HTTPError(405, MethodNotFoundError(f"Use {methods} here"), ((b"allow", methods.encode()),))
    if path.startswith(GRPC_PATHS):
        raise HTTPError(404, MethodNotFoundError(NEEDS_HTTP_2))  # which is logged, because the client cannot show it
    raise MethodNotFoundError("No such resource")


def _read_params(
    request: Inbound, body: bytes, operation: Operation, path_values: dict[str, str], dialect: Dialect
) -> Any:
    """Return the parameters from the body or the query, and the path. Values in the path take precedence."""
    if operation in _WITH_BODY:
        params = dialect.decode_request(operation, body)
        if path_values:
            params = replace(params, **path_values)
        return params
    given: Mapping[str, Any] | None = None
    if body:
        given = decode(body, _OBJECT)
    if given is None:  # the body `null` means no body
        given = QueryParams(request.query)
    fields: dict[str, Any] = {}
    for name, value in (*given.items(), *path_values.items()):
        if name != VERSION_HEADER:
            fields[camel(name)] = value
    return dialect.convert_request(operation, fields)
