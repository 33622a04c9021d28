"""The JSON-RPC 2.0 envelope: it decodes requests and encodes responses for the server, and vice versa for the client.

Invariant: ids are echoed byte for byte. Params and results stay encoded, and the dialects decode them.
"""

from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from apcore_a2a.errors import InvalidParamsError, InvalidRequestError, ParseError
from apcore_a2a.protocol.decoding import MAX_VALUES, check_and_decode, decode
from apcore_a2a.protocol.model import encode

NULL: Final = b"null"
EMPTY: Final = b"{}"
MAX_ID: Final = 1024  # bytes, because every event of a stream echoes the id


class _Envelope(Struct, gc=False):
    jsonrpc: Literal["2.0"]
    method: str
    # Raw: a client gets its id back byte for byte (1, 1.0 or "1"), and params are decoded once, by a dialect.
    id: Raw | UnsetType = UNSET
    params: Raw = Raw(EMPTY)


_DECODER: Final = msgspec.json.Decoder(_Envelope)


class Request(Struct, frozen=True, gc=False):
    """A request with a valid envelope. `id` is None if it is absent (a notification in JSON-RPC)."""

    method: str
    params: bytes | Raw
    id: bytes | None


def parse(body: bytes, *, max_values: int = MAX_VALUES) -> Request:
    """Read the envelope.

    Raises:
        ParseError: not JSON.
        InvalidRequestError: JSON, but not one JSON-RPC request, or too many values.
    """
    try:
        envelope = check_and_decode(body, _DECODER, max_values=max_values)
    except InvalidParamsError as error:
        field = error.violations[0].field
        wrong = f"{field} is missing or wrong" if field else "expected one request object"
        raise InvalidRequestError(f"Invalid JSON-RPC request: {wrong}") from error
    if envelope.id is UNSET:
        return Request(envelope.method, envelope.params, None)
    # This copies a Raw faster than bytes(…), which first tries to use it as a number.
    id = _checked_id(b"" + envelope.id)
    return Request(envelope.method, envelope.params, id)


def _checked_id(id: bytes) -> bytes:
    # It is valid JSON, so its first byte shows an array, an object, true or false.
    if id[:1] in b"[{tf" or len(id) > MAX_ID:
        raise InvalidRequestError("Invalid JSON-RPC request: id must be a short string, a number or null")
    return id


def recover_id(body: bytes) -> bytes:
    """Return the id of a request with an invalid envelope, or null if it has no valid id."""
    try:
        id = decode(body, _ID_DECODER).id
        if id is UNSET:
            return NULL
        # The body may be invalid because of bytes that are not UTF-8. These must not be echoed.
        return str(_checked_id(bytes(id)), "utf-8").encode()
    except (ParseError, InvalidParamsError, InvalidRequestError, UnicodeDecodeError):
        return NULL


class _OnlyId(Struct, gc=False):
    id: Raw | UnsetType = UNSET


_ID_DECODER: Final = msgspec.json.Decoder(_OnlyId)


def result_head(id: bytes) -> bytes:
    """Return the bytes before an encoded result. `}` closes the response."""
    return b'{"jsonrpc":"2.0","id":' + id + b',"result":'


def format_result(id: bytes, result: bytes) -> bytes:
    return result_head(id) + result + b"}"


def format_error(id: bytes, error: object) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + id + b',"error":' + encode(error) + b"}"


class ErrorObject(Struct, frozen=True, omit_defaults=True):
    """The `error` member of a response."""

    code: int
    message: str
    data: object = UNSET  # its form depends on the dialect


# ---- for the client ----------------------------------------------------------------------------------------------


class Response(Struct, frozen=True):
    """A response for the client: either a result or an error."""

    id: Raw = Raw(NULL)
    result: Raw | UnsetType = UNSET
    error: ErrorObject | None = None


_RESPONSE: Final = msgspec.json.Decoder(Response)


def format_request(id: str, method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + encode(id) + b',"method":' + encode(method) + b',"params":' + params + b"}"


def parse_response(body: bytes) -> Response:
    return decode(body, _RESPONSE)
