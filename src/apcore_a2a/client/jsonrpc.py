"""The JSON-RPC binding: every operation is a POST to one address. Rule: an answer whose id is not ours is no answer."""

from typing import Any, Final

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from apcore_a2a.client.binding import ChosenInterface, decode_answer
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
        if not 200 <= response.status < 300:
            raise choose_error(response, self.request.url, self._find_error(response))
        data = self._unwrap(response.body)
        if SHAPES[self.operation].streams:  # an agent with one thing to say may answer without a stream
            return decode_answer(self.dialect.decode_event, data)
        return decode_answer(self.dialect.decode_result, self.operation, data)

    def event(self, event: ServerSentEvent) -> Event:
        return decode_answer(self.dialect.decode_event, self._unwrap(event.data.encode()))

    def _unwrap(self, body: bytes) -> Raw:
        response = decode_answer(parse_response, body)
        if response.error is not None:
            raise to_error(self._told(response.error))
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
        return None if error is None else to_error(self._told(error), read_retry_after(response))

    def _told(self, error: ErrorObject) -> RemoteError:
        data = None if error.data is UNSET else error.data
        return RemoteError(error.code, error.message, data, tuple(self.dialect.decode_violations(data)))


def exchange(interface: ChosenInterface, operation: Operation, request: Value) -> JsonRpcExchange:
    id, dialect = new_id(), interface.dialect
    if interface.tenant:
        request = replace(request, tenant=interface.tenant)
    body = format_request(id, dialect.NAMES[operation], dialect.encode_request(operation, request))
    return JsonRpcExchange(HttpRequest("POST", interface.url, interface.headers(MEDIA), body), operation, dialect, id)
