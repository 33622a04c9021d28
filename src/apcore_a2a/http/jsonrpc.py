"""The JSON-RPC binding: one endpoint for every operation, with the version in a header.

It is a raw ASGI application, because it is the hot path.
"""

from typing import Any

from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.engine import Engine
from apcore_a2a.errors import (
    A2AError,
    InvalidRequestError,
    MethodNotFoundError,
    OverloadedError,
    VersionNotSupportedError,
    wire,
)
from apcore_a2a.http.asgi import (
    EVENT_STREAM,
    JSONRPC,
    HTTPError,
    Inbound,
    Locate,
    echo_extensions,
    error_headers,
    inbound,
    internal,
    read_json,
    refuse,
    respond,
    send_stream,
    unchanged_card,
)
from apcore_a2a.http.traffic import MAX_BODY
from apcore_a2a.protocol import jsonrpc
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.decoding import MAX_VALUES
from apcore_a2a.protocol.dialect import DIALECTS, Dialect
from apcore_a2a.protocol.model import SHAPES, Operation
from apcore_a2a.protocol.sse import frame_only


class JSONRPCBinding:
    """Serves an engine over JSON-RPC 2.0."""

    def __init__(
        self, engine: Engine, *, locate: Locate = unchanged_card, max_values: int = MAX_VALUES, max_body: int = MAX_BODY
    ) -> None:
        self._engine = engine
        self._locate = locate
        self._max_values = max_values
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = inbound(scope)
        # Set as soon as they are known, because an error response uses the dialect and the id of its request.
        id = jsonrpc.NULL
        dialect = None
        operation = None
        try:
            body = await read_json(request, receive, limit=self._max_body)
            try:
                envelope = jsonrpc.parse(body, max_values=self._max_values)
            except InvalidRequestError:
                id = jsonrpc.recover_id(body)
                raise
            id = envelope.id or jsonrpc.NULL
            dialect = request.dialect()
            operation = dialect.METHODS.get(envelope.method)
            if operation is None:
                raise _unknown(envelope.method, dialect, versioned=bool(request.version()))
            if envelope.id is None:
                raise InvalidRequestError("Invalid JSON-RPC request: id is missing or wrong")
            params = dialect.decode_request(operation, envelope.params)
            context = request.context(dialect, params.tenant, JSONRPC, id)  # type: ignore[attr-defined]  # every request has one
            del body, envelope  # maybe megabytes, which are not needed while the agent works
            result = await self._engine.handle(operation, params, context)
        except HTTPError as refused:
            request.note_refusal(refused.error)
            reply = jsonrpc.format_error(id, request.encode_error(refused.error, request.error_dialect()))
            await refuse(refused, reply, receive, send)
        except (Exception, SystemExit) as error:  # sys.exit() in an agent that admits a message must not end the server
            known = error if isinstance(error, A2AError) else internal(error)
            reply = jsonrpc.format_error(id, request.encode_error(known, dialect or request.error_dialect()))
            as_event = _expects_event_stream(request, dialect, operation)
            await _answer_error(send, known, reply, request, as_event=as_event)
        else:
            if context.extensions:
                send = echo_extensions(send, context.extensions & self._engine.options.extensions, dialect)
            if SHAPES[operation].streams:
                await send_stream(result, receive, send, dialect, head=jsonrpc.result_head(id), tail=b"}")
            else:
                await respond(send, 200, jsonrpc.format_result(id, self._encode(operation, result, scope, dialect)))

    def _encode(self, operation: Operation, result: Any, scope: Scope, dialect: Dialect) -> bytes:
        """Return the encoded result of an operation, with the address of the request if it is a card."""
        if type(result) is AgentCard:
            result = self._locate(result, scope, dialect.VERSION)
        return dialect.encode_result(operation, result)


async def _answer_error(send: Send, error: A2AError, reply: bytes, request: Inbound, *, as_event: bool) -> None:
    """Send an error with status 200, as in JSON-RPC, or for a limit with 429 or 503, which load balancers know."""
    if isinstance(error, OverloadedError):
        request.note_refusal(error)
        await respond(send, wire(error).http, reply, headers=error_headers(error))
    elif as_event:
        await respond(send, 200, frame_only(reply), media=EVENT_STREAM)
    else:
        await respond(send, 200, reply, headers=error_headers(error))


def _expects_event_stream(request: Inbound, dialect: Dialect | None, operation: Operation | None) -> bool:
    """Whether the client reads an error as the first event of the stream."""
    if dialect is None or operation is None or not dialect.RULES.stream_errors_as_events:
        return False
    return SHAPES[operation].streams and request.accepts(EVENT_STREAM)


def _unknown(method: str, dialect: Dialect, *, versioned: bool) -> A2AError:
    """Return the error for a method that the version of the request does not have. Another version may have it."""
    if not versioned:  # no header means 0.3 (1.0 §3.6.2)
        for version, other in DIALECTS.items():
            if method in other.METHODS:
                text = f"{method} needs the header A2A-Version: {version}"
                return VersionNotSupportedError(dialect.VERSION, [version], text)
    return MethodNotFoundError(f"Method not found: {method[:100]}")
