"""The JSON-RPC binding: one endpoint, every operation, the version by header. A raw ASGI app: it is the hot path."""

from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import (
    A2AError,
    InvalidRequestError,
    MethodNotFoundError,
    OverloadedError,
    VersionNotSupportedError,
)
from apcore_a2a.http.asgi import (
    EVENT_STREAM,
    JSON,
    HTTPError,
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
from apcore_a2a.protocol import jsonrpc
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.dialect import DIALECTS, Dialect
from apcore_a2a.protocol.operations import SHAPES
from apcore_a2a.protocol.sse import only
from apcore_a2a.protocol.v03 import jsonrpc as v03


class JSONRPCBinding:
    """Serves an engine over JSON-RPC 2.0."""

    def __init__(self, engine: Engine, *, locate: Locate = as_it_is) -> None:
        self._engine, self._locate = engine, locate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = inbound(scope)
        id, dialect, operation = jsonrpc.NULL, None, None
        try:
            if media_type(request) != JSON:
                raise wrong_media_type("Content-Type must be application/json")
            body = await read_body(request, receive)
            try:
                envelope = jsonrpc.parse(body)
            except InvalidRequestError:
                id = jsonrpc.recover_id(body)
                raise
            id = envelope.id or jsonrpc.NULL
            dialect = request.dialect()
            operation = dialect.METHODS.get(envelope.method)
            if operation is None:
                raise _unknown(envelope.method, dialect, versioned=bool(request.version()))
            params = dialect.decode_request(operation, envelope.params)
            if envelope.id is None:
                raise InvalidRequestError("Invalid JSON-RPC request: id is missing or wrong")
            origin = request.origin(dialect, params.tenant)  # type: ignore[attr-defined]  # every request has one
            result = await self._engine.handle(operation, params, origin)
        except HTTPError as refused:
            reply = jsonrpc.format_error(id, request.error_dialect().encode_error(refused.error))
            await respond(send, refused.status, reply, headers=refused.headers)
        except Exception as error:
            known = error if isinstance(error, A2AError) else internal(error)
            reply = jsonrpc.format_error(id, (dialect or request.error_dialect()).encode_error(known))
            if dialect is v03 and operation is not None and SHAPES[operation].streams and request.accepts(EVENT_STREAM):
                await respond(send, 200, only(reply), media=EVENT_STREAM)  # where 0.3 clients look for an error
                return
            status = 503 if isinstance(known, OverloadedError) else 200
            await respond(send, status, reply, headers=error_headers(known))
        else:
            if SHAPES[operation].streams:
                await send_stream(result, receive, send, dialect, head=jsonrpc.result_head(id), tail=b"}")
            else:
                result = self._locate(result, scope) if isinstance(result, AgentCard) else result
                await respond(send, 200, jsonrpc.format_result(id, dialect.encode_result(operation, result)))


def _unknown(method: str, dialect: Dialect, *, versioned: bool) -> A2AError:
    newer = next((version for version, other in DIALECTS.items() if method in other.METHODS), None)
    if newer is not None and not versioned:  # no header means 0.3 (1.0 §3.6.2)
        return VersionNotSupportedError(dialect.VERSION, DIALECTS, f"{method} needs the header A2A-Version: {newer}")
    return MethodNotFoundError(f"Method not found: {method[:100]}")
