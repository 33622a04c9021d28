"""The interface between the client and an HTTP library: `request` for a whole response, `stream` for one in chunks.

Invariant: a transport knows HTTP and nothing of A2A. It follows no redirects, does not decompress, reads at most the
given limit, and translates every exception of its library.
"""

import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from apcore_a2a.errors import A2AConnectionError, InvalidAgentResponseError

CONNECT_TIMEOUT: Final = 5.0  # seconds, part of the timeout of the call
# Advice for TLS failures, by a part of OpenSSL's text. The first match is used.
TLS_ADVICE: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "To trust a private certificate authority, set SSL_CERT_FILE to its file"),
    ("[SSL: ", "Does the server use TLS? If not, its address begins with http://"),
)


class HttpRequest(Struct, frozen=True):
    method: str
    url: str
    headers: dict[str, str]
    body: bytes = b""
    needs_trailers: bool = False
    """Whether its response has trailers, which only HTTP/2 transports carry. Requests of gRPC need them."""


def with_headers(request: HttpRequest, headers: Mapping[str, str]) -> HttpRequest:
    """Return the request with these headers. They replace headers of the same name, compared without case."""
    replaced = {name.lower() for name in headers}
    merged = {name: value for name, value in request.headers.items() if name.lower() not in replaced}
    merged.update(headers)
    return replace(request, headers=merged)


class HttpResponse(Struct, frozen=True):
    """A whole response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    trailers: Mapping[str, str] = {}

    @property
    def is_redirect(self) -> bool:
        return 300 <= self.status < 400


class HttpStream(Struct, frozen=True):
    """A response whose body is still arriving."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    trailers: Mapping[str, str] = {}
    """Headers after the body. They are complete when the chunks have ended."""


class Transport(Protocol):
    """The operations of an HTTP library that the client needs.

    Both methods raise `A2AConnectionError`. Its `sent` is false only if the request was certainly not sent. A transport
    that carries trailers has an attribute `has_trailers`, which is true. Only such a transport can be used for gRPC.
    """

    async def request(self, request: HttpRequest, limit: int) -> HttpResponse:
        """Send a request, and return its response of at most `limit` bytes."""
        ...

    def stream(self, request: HttpRequest, idle: float) -> AbstractAsyncContextManager[HttpStream]:
        """Send a request, and yield its response in chunks. Silence for `idle` seconds counts as a disconnection."""
        ...

    async def close(self) -> None: ...


async def read_all(response: HttpStream, limit: int) -> bytes:
    """Return the body of a streamed response. Raise an error if it is larger than `limit`."""
    check_headers(response.headers, limit)
    body = bytearray()
    async for chunk in response.chunks:
        body += chunk
        if len(body) > limit:
            raise too_large(limit)  # independent of Content-Length
    return bytes(body)


def check_headers(headers: Mapping[str, str], limit: int) -> None:
    """Reject a response whose headers announce a body above the limit, or one that is compressed without request."""
    # A few compressed kilobytes can expand to gigabytes, so that no limit on received bytes would be effective.
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() not in ("identity", ""):
        raise InvalidAgentResponseError("The agent compressed its answer although it was asked not to")
    length = headers.get("content-length", "")
    # int() rejects thousands of digits, and twenty digits are too large already.
    if length.isdecimal() and int(length[:20]) > limit:
        raise too_large(limit)


def too_large(limit: int) -> InvalidAgentResponseError:
    return InvalidAgentResponseError(f"The answer is larger than {limit:,} bytes. To accept it, raise max_response")


class NoHTTP2Error(A2AConnectionError):
    """The server does not speak HTTP/2, so it cannot be called over gRPC. Nothing was sent."""


def not_reached(url: str, reason: str) -> A2AConnectionError:
    advice = "Is the agent running, and is this its address?"
    for sign, other_advice in TLS_ADVICE:
        if sign in reason:
            advice = other_advice
            break
    return A2AConnectionError(f"Cannot connect to {url}: {reason}. {advice}", sent=False)


def connect_failure(error: BaseException) -> str:
    """Return why the connection failed, as the system says it, or an empty string.

    HTTP libraries have texts of their own ("All connection attempts failed"). The system's error is among the causes.
    """
    cause: BaseException | None = error
    while cause is not None:
        # For these two classes the number is not that of a system error, and their own text is good.
        if isinstance(cause, ssl.SSLError | socket.gaierror):
            return cause.strerror or str(cause)
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return ""


def broken(url: str, reason: str) -> A2AConnectionError:
    return A2AConnectionError(f"The connection to {url} broke: {reason}. The agent may have received the request.")
