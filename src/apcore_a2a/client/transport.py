"""The seam between the client and an HTTP library: `request` for one answer, `stream` for bytes as they come.

Rule: a transport knows HTTP and nothing of A2A. It follows no redirect, decompresses nothing, reads no more than it is
told to, and lets no exception of its library out.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.errors import A2AConnectionError, InvalidAgentResponseError

CONNECT_TIMEOUT: Final = 5.0  # seconds, of whatever the whole call may take
# What to do about a failure of TLS, by what OpenSSL calls it; the first that fits.
TLS_ADVICE: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "To trust an authority of your own, name its file in SSL_CERT_FILE"),
    ("[SSL: ", "Does it speak TLS? If not, its address begins with http://"),
)


class HttpRequest(Struct, frozen=True):
    method: str
    url: str
    headers: dict[str, str]
    body: bytes = b""


def with_headers(request: HttpRequest, headers: Mapping[str, str]) -> HttpRequest:
    """The request with these headers, in place of its own of the same name: names of headers have no case."""
    replaced = {name.lower() for name in headers}
    merged = {name: value for name, value in request.headers.items() if name.lower() not in replaced}
    merged.update(headers)
    return replace(request, headers=merged)


class HttpResponse(Struct, frozen=True):
    """A whole answer. Header names are looked up in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def is_redirect(self) -> bool:
        return 300 <= self.status < 400


class HttpStream(Struct, frozen=True):
    """An answer whose body is still coming."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Transport(Protocol):
    """What the client needs of an HTTP library.

    Both methods raise `A2AConnectionError`, with `sent` false if the request certainly never left.
    """

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        """Send, and read an answer of at most `limit` bytes."""
        ...

    def stream(self, request: HttpRequest, idle: float) -> AbstractAsyncContextManager[HttpStream]:
        """Send, and hand out the answer as it comes; silence for `idle` seconds is a broken connection."""
        ...

    async def close(self) -> None: ...


async def read_all(response: HttpStream, limit: int) -> bytes:
    """The body of a streamed answer, if it is no larger than `limit`."""
    check_headers(response.headers, limit)
    body = bytearray()
    async for chunk in response.chunks:
        body += chunk
        if len(body) > limit:
            raise too_large(limit)  # whatever Content-Length said, or did not say
    return bytes(body)


def check_headers(headers: Mapping[str, str], limit: int) -> None:
    """Refuse early what announces itself as too large, or as compressed though we asked for plain bytes."""
    # A few compressed kilobytes can become gigabytes: no limit on what is read would hold.
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() not in ("identity", ""):
        raise InvalidAgentResponseError("The agent compressed its answer although it was asked not to")
    length = headers.get("content-length", "")
    # Python refuses to convert thousands of digits; the first twenty are too large already.
    if length.isdecimal() and int(length[:20]) > limit:
        raise too_large(limit)


def too_large(limit: int) -> InvalidAgentResponseError:
    return InvalidAgentResponseError(f"The answer is larger than {limit:,} bytes; raise max_response if it should be")


def not_reached(url: str, reason: str) -> A2AConnectionError:
    advice = "Is the agent running, and is this its address?"
    for sign, other_advice in TLS_ADVICE:
        if sign in reason:
            advice = other_advice
            break
    return A2AConnectionError(f"Cannot connect to {url}: {reason}. {advice}", sent=False)


def broken(url: str, reason: str) -> A2AConnectionError:
    return A2AConnectionError(f"The connection to {url} broke: {reason}. The agent may have received the request.")
