"""Middleware before the routes: checks of Host and Origin, client certificates, other paths, and dispatch."""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.errors import InvalidRequestError
from apcore_a2a.http.asgi import A2A_JSON, CLOSE, JSON, inbound, is_grpc, media_type, path_of, refuse_early
from apcore_a2a.http.traffic import CERTIFICATE_KEY, TrustedProxies
from apcore_a2a.web import is_allowed_host, is_loopback, read_host

# `OriginGate` rejects requests that a page of another origin makes a browser send to this server.
#
# A server on the loopback interface is reachable from other machines only through a browser on its own machine. There
# are two ways. A page may have its own name resolve to 127.0.0.1 (DNS rebinding). The browser then takes this server
# for the page's server, and sends the page's name in Host. And any page may post without permission, if the request
# looks like that of a form. The page cannot read the response, but it can cancel a task without reading it. The browser
# sends the origin of the page in Origin.
#
# A server that listens on every interface (0.0.0.0) listens on the loopback interface too. So the address at which the
# connection arrived decides. This applies only while callers need no credentials: a page has no credentials to send.
#
# Invariant: other programs send no Origin. The checks do not restrict them, if their Host names this server.

READS: Final = ("GET", "HEAD", "OPTIONS")
WRONG_HOST: Final = (
    "This server accepts only requests to localhost; if it has another name, set it with --url (in Python: url=)"
)
# Like names without a dot, these do not exist on the internet.
PRIVATE_SUFFIXES: Final = (".localhost", ".internal", ".local")
NO_HOST: Final = "The request names no host"
TWO_HOSTS: Final = "The request names two hosts"
WRONG_ORIGIN: Final = (
    "Pages of this origin may not call this server; allow it with --cors-origins (in Python: cors_origins=)"
)


def _names_two_hosts(scope: Scope) -> bool:
    # RFC 9112 §3.2: of two Host headers, a proxy may have used the other one.
    return [name for name, _ in scope["headers"]].count(b"host") > 1


class OwnNames(Struct, frozen=True, kw_only=True):
    """The names of this server, besides those of this machine."""

    url: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    any_host: bool = False
    """Whether no browser runs where the server runs, so that any Host is accepted."""


class OriginGate:
    """Rejects requests for another host with 421, and requests of pages of another origin with 403."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        names: OwnNames,
        origins: tuple[str, ...],
        proxies: tuple[str, ...],
        is_open: bool = False,
    ) -> None:
        self._app = app
        self._on_loopback = is_loopback(host)
        self._is_open = is_open
        self._origins = frozenset(origins)
        self._proxies = TrustedProxies(proxies)
        self._names = {host}
        self._allowed_hosts = names.allowed_hosts
        self._any_host = names.any_host
        if names.url is not None:
            address = urlsplit(names.url)
            self._names.add(address.hostname or "")
            self._origins |= {f"{address.scheme}://{address.netloc}"}
        # The last accepted Host: clients repeat the same one.
        self._known_host: bytes | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]) and _names_two_hosts(scope):
            return refuse_early(scope, send, 400, InvalidRequestError(TWO_HOSTS), CLOSE)
        host = headers.get(b"host")
        origin = headers.get(b"origin", b"")
        if host is None or host != self._known_host:
            rejection = self._wrong_host(scope, host)
            if rejection is not None:
                status, text = rejection
                return refuse_early(scope, send, status, InvalidRequestError(text), CLOSE)
        if origin and self._is_forbidden(scope, host or b"", origin.decode("latin-1")):
            return refuse_early(scope, send, 403, InvalidRequestError(WRONG_ORIGIN), CLOSE)
        return self._app(scope, receive, send)

    def _wrong_host(self, scope: Scope, host: bytes | None) -> tuple[int, str] | None:
        """Return the status and the text that reject a Host, or None if it is right."""
        if host is None:
            if scope.get("http_version") == "1.1":  # RFC 9112 §3.2
                return 400, NO_HOST
            return None  # a probe of a load balancer in HTTP/1.0. Browsers always send Host
        if self._must_be_local(scope) and not self._is_our_name(host, scope):
            return 421, WRONG_HOST
        return None

    def _must_be_local(self, scope: Scope) -> bool:
        """Whether Host must be a local name: on a loopback address, or over loopback if no credentials are needed."""
        if self._any_host:
            return False
        if self._on_loopback:
            return True
        here = scope.get("server")
        return self._is_open and here is not None and is_loopback(here[0])

    def _is_our_name(self, host: bytes, scope: Scope) -> bool:
        """Whether a Host names this server. Its port is ignored: a page cannot choose it, and a tunnel changes it."""
        peer = scope.get("client")
        if peer is not None and peer[0] in self._proxies:  # a trusted proxy forwards the Host of its client
            return True
        given = read_host(host.decode("latin-1"))
        if given is None:
            return False
        name = given.name.strip("[]")
        if not (name in self._names or is_loopback(name) or is_allowed_host(given, self._allowed_hosts)):
            if not self._is_name_of_this_machine(name):
                return False
        self._known_host = host
        return True

    def _is_name_of_this_machine(self, name: str) -> bool:
        # Many systems map their own name to 127.0.1.1, and containers call their host host.docker.internal.
        if self._on_loopback or not name or ":" in name:
            return False
        return "." not in name or name.endswith(PRIVATE_SUFFIXES)

    def _is_forbidden(self, scope: Scope, host: bytes, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return False
        request = inbound(scope)
        # The browser compares the origins itself and sends the result. Pages cannot set this header.
        if request.headers.get(b"sec-fetch-site") == b"same-origin":
            return False
        if origin.partition("://")[2] == host.decode("latin-1"):
            return False
        if self._on_loopback:
            return True
        # On other interfaces, JSON needs no check: the browser sends a CORS preflight for it, which fails.
        return scope["method"] not in READS and media_type(request) not in (JSON, A2A_JSON)


# ---- a caller's certificate -----------------------------------------------------------------------------------------
# Authenticators find the certificate of a caller in the header Client-Cert (RFC 9440).
#
# Invariant: the certificate in that header was verified, by this server's TLS or by a trusted proxy. The header is
# removed from requests of other clients.

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
            # A proxy forwards the certificate of its client. Its own certificate is not used. Of two headers, one may
            # come from the client, so both are removed.
            if len(scope["headers"]) - len(headers) < 2:
                return self._app(scope, receive, send)
        else:
            certificate = _verified_certificate(scope)
            if certificate:
                headers.append((HEADER, b":" + certificate + b":"))
        return self._app({**scope, "headers": headers}, receive, send)


def _verified_certificate(scope: Scope) -> bytes:
    """Return the verified certificate of the connection in base64, or empty bytes."""
    certificate: bytes | None = (scope.get("state") or {}).get(CERTIFICATE_KEY)
    if certificate is not None:
        return b64encode(certificate)
    # Another server, with the TLS extension of ASGI.
    tls: dict[str, Any] = (scope.get("extensions") or {}).get("tls") or {}
    chain = tls.get("client_cert_chain") or ()
    if not chain or tls.get("client_cert_error"):
        return b""
    lines = next(iter(chain)).split()
    begin, end = (line.split() for line in _PEM_LINES)
    return "".join(lines[len(begin) : -len(end)]).encode()


# ---- other paths ----------------------------------------------------------------------------------------------------


class PathAliases:
    """Answers at further paths that a platform prescribes: one for JSON-RPC, and a prefix for those of REST.

    The request continues with its usual path, so every check behind this one applies to it as well.
    """

    def __init__(self, app: ASGIApp, *, rpc: str, rest: str) -> None:
        self._app = app
        self._rpc = rpc
        self._rest = rest

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = path_of(scope)
        if path.rstrip("/") == self._rpc:
            path = "/"
        elif path.startswith(f"{self._rest}/"):
            path = path.removeprefix(self._rest)
        else:
            return self._app(scope, receive, send)
        root = scope.get("root_path", "").rstrip("/")
        return self._app({**scope, "path": f"{root}{path}"}, receive, send)


# ---- dispatch -------------------------------------------------------------------------------------------------------


class Dispatch:
    """Forwards a request to the endpoint of its method and path, and any other request to the REST binding."""

    def __init__(
        self,
        routes: Mapping[tuple[str, str], ASGIApp],
        rest: ASGIApp,
        *,
        grpc: Callable[[str], ASGIApp] | None = None,
        on_request: Callable[[], None] | None = None,
    ) -> None:
        """`grpc` returns the endpoint of a gRPC method by its path. Without it, calls are requests like any other."""
        self._routes = routes
        self._rest = rest
        self._grpc = grpc
        self._on_request = on_request

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if self._on_request is not None:
            self._on_request()
        path = path_of(scope)
        endpoint = self._routes.get((scope["method"], path), self._rest)
        if endpoint is self._rest and self._grpc is not None and is_grpc(scope):
            endpoint = self._grpc(path)
        return endpoint(scope, receive, send)
