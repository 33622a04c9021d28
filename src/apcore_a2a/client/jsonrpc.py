"""The JSON-RPC binding: every operation is a POST to one address. Rule: an answer whose id is not ours is no answer."""

from typing import Any, Final

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from apcore_a2a.client.binding import ChosenInterface, decode_answer, read_event, read_result
from apcore_a2a.client.failures import RemoteError, choose_error, read_retry_after, to_error
from apcore_a2a.client.transport import HttpRequest, HttpResponse
from apcore_a2a.errors import A2AError, InvalidAgentResponseError
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.jsonrpc import NULL, ErrorObject, format_request, parse_response
from apcore_a2a.protocol.model import Event, Value
from apcore_a2a.protocol.operations import SHAPES, Operation
from apcore_a2a.protocol.sse import ServerSentEvent

MEDIA: Final = "application/json"


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
    http = HttpRequest("POST", interface.url, interface.headers(MEDIA), body)
    return JsonRpcExchange(http, operation, dialect, id)
