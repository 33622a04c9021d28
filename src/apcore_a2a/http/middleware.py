"""What stands before the routes: Host and Origin, the address behind a proxy, the certificate that a caller showed."""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.errors import InvalidRequestError
from apcore_a2a.http.asgi import A2A_JSON, CLIENT_KEY, CLOSE, JSON, inbound, media_type, path_of, refuse_early
from apcore_a2a.http.traffic import CERTIFICATE_KEY, TrustedProxies
from apcore_a2a.web import is_loopback

# What a browser may be made to send here by a page that is not ours.
#
# A server on the loopback interface is out of reach for everybody else, save through the browser of whoever runs it.
# Two ways lead there. A page may have its own name resolve to 127.0.0.1 (DNS rebinding): then the browser takes us for
# that page's server and says so in Host. And any page may post to us without asking, as long as the request looks like
# that of a form; it cannot read the answer, but cancelling a task needs none. The browser says in Origin where that
# page is from.
#
# A server that listens on every interface (0.0.0.0) listens on that one, too. So what counts is where a connection came
# in; but there only while nobody has to prove who they are: a page has no credentials of ours to send along.
#
# Rule: programs send no Origin, and are not kept from anything here.

READS: Final = ("GET", "HEAD", "OPTIONS")
WRONG_HOST: Final = "This server answers to localhost only; if it has another name, say so with --url (in Python: url=)"
PRIVATE_SUFFIXES: Final = (
    ".localhost",
    ".internal",
    ".local",
)  # like a name without a dot: no page of the internet has one
NO_HOST: Final = "The request names no host"
TWO_HOSTS: Final = "The request names two hosts"
WRONG_ORIGIN: Final = (
    "Pages of this origin may not call this server; allow it with --cors-origins (in Python: cors_origins=)"
)


def _names_two_hosts(scope: Scope) -> bool:
    # RFC 9112 §3.2: of two, a proxy may have looked at the other one.
    return [name for name, _ in scope["headers"]].count(b"host") > 1


class OriginGate:
    """Refuses with 421 what was meant for another host, and with 403 what a foreign page makes a browser send."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        url: str | None,
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
        if url is not None:
            address = urlsplit(url)
            self._names.add(address.hostname or "")
            self._origins |= {f"{address.scheme}://{address.netloc}"}
        # The last Host that was right: clients say the same one over and over.
        self._known_host: bytes | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]) and _names_two_hosts(scope):
            return refuse_early(scope, send, 400, InvalidRequestError(TWO_HOSTS), CLOSE)
        host = headers.get(b"host")
        origin = headers.get(b"origin", b"")
        if host is None or host != self._known_host:
            refusal = self._wrong_host(scope, host)
            if refusal is not None:
                status, words = refusal
                return refuse_early(scope, send, status, InvalidRequestError(words), CLOSE)
        if origin and self._is_forbidden(scope, host or b"", origin.decode("latin-1")):
            return refuse_early(scope, send, 403, InvalidRequestError(WRONG_ORIGIN), CLOSE)
        return self._app(scope, receive, send)

    def _wrong_host(self, scope: Scope, host: bytes | None) -> tuple[int, str] | None:
        """The status and the words that a Host is refused with; None if nothing is wrong with it."""
        if host is None:
            if scope.get("http_version") == "1.1":  # RFC 9112 §3.2
                return 400, NO_HOST
            return None  # a probe in HTTP/1.0, as balancers send them: a browser names one
        if self._is_local(scope) and not self._is_our_name(host, scope):
            return 421, WRONG_HOST
        return None

    def _is_local(self, scope: Scope) -> bool:
        """Whether only who is on this machine could have sent this, and could do so without credentials."""
        if self._on_loopback:
            return True
        here = scope.get("server")
        return self._is_open and here is not None and is_loopback(here[0])

    def _is_our_name(self, host: bytes, scope: Scope) -> bool:
        """Whether a Host names us. Its port does not matter: a page cannot choose it, and a tunnel has another one."""
        peer = scope.get("client")
        if peer is not None and peer[0] in self._proxies:  # it hands on what it was asked for
            return True
        try:
            name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
        except ValueError:
            return False
        if name not in self._names and not is_loopback(name) and not self._is_name_of_this_machine(name):
            return False
        self._known_host = host
        return True

    def _is_name_of_this_machine(self, name: str) -> bool:
        # Many systems have their own name at 127.0.1.1, and containers call their host host.docker.internal.
        if self._on_loopback or not name or ":" in name:
            return False
        return "." not in name or name.endswith(PRIVATE_SUFFIXES)

    def _is_forbidden(self, scope: Scope, host: bytes, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return False
        request = inbound(scope)
        # A browser compares the two itself, and says what it found; pages cannot write this header.
        if request.headers.get(b"sec-fetch-site") == b"same-origin":
            return False
        if origin.partition("://")[2] == host.decode("latin-1"):
            return False
        if self._on_loopback:
            return True
        # Elsewhere what is not JSON: before that, a browser asks (CORS), and is told no.
        return scope["method"] not in READS and media_type(request) not in (JSON, A2A_JSON)


# ---- the address behind a proxy -------------------------------------------------------------------------------------
# Who is behind a proxy: the address that a trusted one says it has a request from.
#
# Rule: only what a trusted proxy wrote counts. Each appends to X-Forwarded-For whom it was asked by, so the list is
# read from its end, as far as those who wrote are trusted; what stands before that, anybody may have made up.


class ForwardedClient:
    """Notes in the scope whom a request came from, when it came through a trusted proxy."""

    def __init__(self, app: ASGIApp, *, proxies: tuple[str, ...]) -> None:
        self._app = app
        self._proxies = TrustedProxies(proxies)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        peer = scope.get("client")
        if peer is not None and peer[0] in self._proxies:
            scope[CLIENT_KEY] = (self._origin_of(scope, peer[0]), 0)
        return self._app(scope, receive, send)

    def _origin_of(self, scope: Scope, peer: str) -> str:
        named: list[str] = []
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":  # there may be several of them: they are one list
                named += value.decode("latin-1").split(",")
        origin = peer
        for text in reversed(named):
            address = _read_address(text.strip())
            if address is None:
                break
            origin = address
            if address not in self._proxies:
                break
        return origin


def _read_address(text: str) -> str | None:
    """An address, which some proxies write with a port: 10.0.0.1:4711, [::1]:4711."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None


# ---- a caller's certificate -----------------------------------------------------------------------------------------
# The certificate that a caller showed, where authenticators find it: in the header Client-Cert (RFC 9440).
#
# Rule: what stands there was verified, by our own TLS or by a trusted proxy. Whatever anybody else writes is thrown
# away.

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


# ---- dispatch -------------------------------------------------------------------------------------------------------


class Dispatch:
    """Forwards a request to the endpoint of its method and path, and any other request to the REST binding."""

    def __init__(
        self,
        routes: Mapping[tuple[str, str], ASGIApp],
        rest: ASGIApp,
        *,
        on_request: Callable[[], None] | None = None,
    ) -> None:
        self._routes = routes
        self._rest = rest
        self._on_request = on_request

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if self._on_request is not None:
            self._on_request()
        return self._routes.get((scope["method"], path_of(scope)), self._rest)(scope, receive, send)
