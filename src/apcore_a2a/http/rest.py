"""The HTTP+JSON binding: a table of routes over the same engine. 1.0 at the root, 0.3 under /v1, tenants in front."""

import re
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import A2AError, MethodNotFoundError, VersionNotSupportedError, wire
from apcore_a2a.http.asgi import (
    A2A_JSON,
    JSON,
    HTTPError,
    Inbound,
    Locate,
    as_it_is,
    error_headers,
    inbound,
    internal,
    media_type,
    read_body,
    respond,
    send_stream,
    wrong_media_type,
)
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import camel, check, decode
from apcore_a2a.protocol.dialect import DIALECTS, VERSION_HEADER, Dialect
from apcore_a2a.protocol.operations import SHAPES, Operation
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import rest as v03_rest

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
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


class RESTBinding:
    """Serves an engine over HTTP+JSON. `old_statuses`: the HTTP codes of A2A 1.0.0 where 1.0.1 changed them."""

    def __init__(self, engine: Engine, *, locate: Locate = as_it_is, old_statuses: bool = False) -> None:
        self._engine, self._locate, self._old_statuses = engine, locate, old_statuses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = inbound(scope)
        dialect = request.error_dialect()
        media = _media(request)
        try:
            path = _path(scope)
            dialect, path = _version(request, path)
            operation, names = _find(scope["method"], path)
            params = await _params(request, receive, scope["method"], operation, names, dialect)
            tenant = str(getattr(params, "tenant", ""))
            result = await self._engine.handle(operation, params, request.origin(dialect, tenant))
        except HTTPError as refused:
            body = dialect.encode_rest_error(refused.error, refused.status)
            await respond(send, refused.status, body, media=media, headers=refused.headers)
        except A2AError as error:
            await self._refuse(error, dialect, send, media)
        except Exception as error:
            await self._refuse(internal(error), dialect, send, media)
        else:
            if SHAPES[operation].streams:
                await send_stream(result, receive, send, dialect)
            else:
                result = self._locate(result, scope) if isinstance(result, AgentCard) else result
                await respond(send, 200, dialect.encode_result(operation, result), media=media)

    async def _refuse(self, error: A2AError, dialect: Dialect, send: Send, media: bytes) -> None:
        row = wire(error)
        status = row.http_v1_0_0 if self._old_statuses and row.http_v1_0_0 else row.http
        body = dialect.encode_rest_error(error, status)
        await respond(send, status, body, media=media, headers=error_headers(error))


def _media(request: Inbound) -> bytes:
    """What to answer with: the media type of the request, or without a body what it accepts (1.0 §11.1)."""
    return A2A_JSON if A2A_JSON in (media_type(request) or request.headers.get(b"accept", b"")) else JSON


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/")) or "/"


def _version(request: Inbound, path: str) -> tuple[Dialect, str]:
    dialect = request.dialect()
    if dialect is not v03:
        return dialect, path
    if not path.startswith(v03.REST_PREFIX + "/"):
        if not any(route.path.fullmatch(path) for route in ROUTES):
            return dialect, path  # for `_find` to refuse
        text = "Say A2A-Version: 1.0; without it a request is A2A 0.3, which is served under /v1"
        raise VersionNotSupportedError(v03.VERSION, DIALECTS, text)
    return v03_rest, path.removeprefix(v03.REST_PREFIX)


def _find(method: str, path: str) -> tuple[Operation, dict[str, str]]:
    allowed = ["POST"] if path == "/" else []  # the root is JSON-RPC's
    for route in ROUTES:
        match = route.path.fullmatch(path)
        if match is None:
            continue
        if route.method == method:
            return route.operation, {name: value for name, value in match.groupdict().items() if value}
        allowed.append(route.method)
    if allowed:
        methods = ", ".join(sorted(set(allowed)))
        raise HTTPError(405, MethodNotFoundError(f"Use {methods} here"), ((b"allow", methods.encode()),))
    raise MethodNotFoundError("No such resource")


async def _params(
    request: Inbound, receive: Receive, method: str, operation: Operation, names: dict[str, str], dialect: Dialect
) -> Any:
    body = await read_body(request, receive) if method == "POST" else b""
    if body and media_type(request) not in (JSON, A2A_JSON):
        raise wrong_media_type("Content-Type must be application/json or application/a2a+json")
    check(body)
    if operation in _WITH_BODY:
        return _with_names(dialect.decode_request(operation, body), names)
    given = decode(body, _OBJECT) if body else QueryParams(request.query)
    fields = {camel(name): value for name, value in given.items() if name != VERSION_HEADER}
    return dialect.convert_request(operation, {**fields, **{camel(name): value for name, value in names.items()}})


def _with_names(request: Any, names: dict[str, str]) -> Any:
    """The path counts over the body: /tasks/{id} names the task whatever the body says."""
    return replace(request, **names) if names else request
