"""The certificate that a caller showed, where authenticators find it: in the header Client-Cert (RFC 9440).

Rule: what stands there was verified, by our own TLS or by a trusted proxy. Whatever anybody else writes is thrown away.
"""

from base64 import b64encode
from collections.abc import Awaitable
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.http.traffic import CERTIFICATE_KEY
from apcore_a2a.http.trusted_proxies import TrustedProxies

HEADER: Final = b"client-cert"
_PEM_LINES: Final = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----")


class ClientCertificate:
    """Puts the verified certificate of a connection into the headers of its requests."""

    def __init__(self, app: ASGIApp, *, proxies: tuple[str, ...]) -> None:
        self._app = app
        self._proxies = TrustedProxies(proxies)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        peer = scope.get("client")
        headers = [pair for pair in scope["headers"] if pair[0] != HEADER]
        if peer is not None and peer[0] in self._proxies:
            # A proxy speaks for others: what it hands on counts, and its own certificate does not. Of two, it may have
            # let one through that its client wrote.
            if len(scope["headers"]) - len(headers) < 2:
                return self._app(scope, receive, send)
        else:
            shown = _verified(scope)
            if shown:
                headers.append((HEADER, b":" + shown + b":"))
        return self._app({**scope, "headers": headers}, receive, send)


def _verified(scope: Scope) -> bytes:
    """The certificate of the connection in base64; nothing if there is none that was verified."""
    certificate: bytes | None = (scope.get("state") or {}).get(CERTIFICATE_KEY)
    if certificate is not None:
        return b64encode(certificate)
    # Another server, which says it as the TLS extension of ASGI has it.
    tls: dict[str, Any] = (scope.get("extensions") or {}).get("tls") or {}
    chain = tls.get("client_cert_chain") or ()
    if not chain or tls.get("client_cert_error"):
        return b""
    lines = next(iter(chain)).split()
    begin, end = (line.split() for line in _PEM_LINES)
    return "".join(lines[len(begin) : -len(end)]).encode()
