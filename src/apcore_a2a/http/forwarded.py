"""The address at which a client called, and the address of the client, as proxies report them.

X-Forwarded-For, -Proto, -Host and -Prefix are read, or else Forwarded (RFC 7239).

Invariant: only values that a trusted proxy wrote are used. Each proxy appends its value to a list, so the list is read
from its end. A proxy that writes X-Forwarded-* may pass on the Forwarded of its client, so that is ignored beside them.
"""

import re
from collections.abc import Awaitable, Iterable, Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.http.asgi import CLIENT_KEY
from apcore_a2a.http.traffic import TrustedProxies
from apcore_a2a.web import Host, is_allowed_host, is_loopback, read_host

FORWARDED: Final = b"forwarded"
X_FORWARDED: Final = b"x-forwarded-"
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*/?")
_SCHEMES: Final = ("http", "https")
# A parameter of an element, and what follows it (RFC 7239 §4). The value is a token or a quoted text.
_PARAMETER: Final = re.compile(r"\s*([A-Za-z]+)=(\"(?:[^\"\\]|\\.)*\"|[^\s\",;=]*)\s*(;|,|$)")


class Forwarded(NamedTuple):
    """The address of a request as the last proxy reports it. Each value is empty or None if that is not reported."""

    scheme: str = ""
    host: Host | None = None
    prefix: str = ""


def read_forwarded(headers: Mapping[bytes, bytes]) -> Forwarded:
    """Return the values of the headers, also if their writer is not trusted. Values that are not valid are ignored."""
    values: dict[str, str] = {}
    if any(name.startswith(X_FORWARDED) for name in headers):
        for name in ("proto", "host", "prefix"):
            values[name] = _last(headers.get(X_FORWARDED + name.encode(), b"").decode("latin-1"))
    elif FORWARDED in headers:
        elements = parse_forwarded(headers[FORWARDED].decode("latin-1"))
        if elements:
            values = elements[-1]
    scheme = values.get("proto", "").lower()
    prefix = values.get("prefix", "").rstrip("/")
    return Forwarded(
        scheme=scheme if scheme in _SCHEMES else "",
        host=read_host(values.get("host", "")),
        prefix=prefix if _PREFIX.fullmatch(prefix) else "",
    )


def _last(values: str) -> str:
    """Return the last value of a list. Some proxies append their value to a list that the client may have made up."""
    return values.rpartition(",")[2].strip()


def parse_forwarded(text: str) -> list[dict[str, str]]:
    """Return the elements of a Forwarded header, one for each proxy. A header that is not valid has none.

    Example:
        >>> parse_forwarded('for=192.0.2.60;proto=https, for="[2001:db8::17]:47011"')
        [{'for': '192.0.2.60', 'proto': 'https'}, {'for': '[2001:db8::17]:47011'}]
    """
    elements: list[dict[str, str]] = [{}]
    position = 0
    while position < len(text):
        found = _PARAMETER.match(text, position)
        if found is None:
            return []
        name, value, end = found.groups()
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        elements[-1][name.lower()] = value
        if end == ",":
            elements.append({})
        position = found.end()
    return elements


# ---- the address of the agent ---------------------------------------------------------------------------------------


class PublicAddress:
    """The address of the agent in its card: the first of these that is known.

    1. `url`, which the operator has set.
    2. `platform_url`, which the platform has published, with the path of the agent.
    3. What a trusted proxy reports.
    4. The Host of the request.
    5. The address of the socket.

    Args:
        allowed_hosts: The names by which clients may call, such as "agent.example" or "*.example". A request with
            another Host gets a card with the first of them that is not a pattern. Empty: any name.
        uses_host: Whether the Host of a request may be used without `allowed_hosts`. A client chooses it, so an agent
            that signs its card must not sign it.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        platform_url: str | None = None,
        proxies: tuple[str, ...] = (),
        allowed_hosts: tuple[str, ...] = (),
        uses_host: bool = True,
    ) -> None:
        self._url = url
        self._platform_url = platform_url
        self._proxies = TrustedProxies(proxies)
        self._allowed = allowed_hosts
        self._uses_host = uses_host or bool(allowed_hosts)

    def of(self, scope: Scope) -> str:
        """Return the address, with a slash at its end unless `url` has none."""
        if self._url is not None:
            return self._url
        prefix = scope.get("root_path", "").rstrip("/")
        if self._platform_url is not None:
            return f"{self._platform_url.rstrip('/')}{prefix}/"
        headers = dict(scope["headers"])
        reported = Forwarded()
        if self.trusts_peer(scope):
            reported = read_forwarded(headers)
        scheme = reported.scheme or scope.get("scheme", "http")
        host = self._allowed_host(reported.host)
        if host is None and self._uses_host:
            host = self._allowed_host(read_host(headers.get(b"host", b"").decode("latin-1")))
        if host is None:
            host = self._usual_host(scope)
        return f"{scheme}://{host.at(scheme)}{reported.prefix}{prefix}/"

    def trusts_peer(self, scope: Scope) -> bool:
        """Return whether the connection comes from a trusted proxy."""
        peer = scope.get("client")
        return peer is not None and peer[0] in self._proxies

    def _allowed_host(self, host: Host | None) -> Host | None:
        if host is None or not self._allowed or is_allowed_host(host, self._allowed):
            return host
        return None

    def _usual_host(self, scope: Scope) -> Host:
        """Return the first allowed name, or else the address of the socket."""
        for name in self._allowed:
            if not name.startswith("*"):
                known = read_host(name)
                if known is not None:
                    return known
        name, port = scope.get("server") or ("localhost", None)
        return Host(f"[{name}]" if ":" in name else name, port)


# ---- the address of the client --------------------------------------------------------------------------------------


class ForwardedClient:
    """Puts the client's address into the scope of a request that came through a trusted proxy.

    Args:
        proxies: Addresses and networks of proxies that may follow each other.
        forwarders: Networks from which a platform connects. Of its list, only the last address is used: the one that it
            has added itself.
    """

    def __init__(self, app: ASGIApp, *, proxies: tuple[str, ...], forwarders: tuple[str, ...] = ()) -> None:
        self._app = app
        self._proxies = TrustedProxies(proxies)
        self._peers = TrustedProxies(proxies + forwarders)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        peer = scope.get("client")
        if peer is not None and peer[0] in self._peers:
            scope[CLIENT_KEY] = (self._client_address(scope, peer[0]), 0)
        return self._app(scope, receive, send)

    def _client_address(self, scope: Scope, peer: str) -> str:
        client = peer
        for text in reversed(_reported_clients(scope["headers"])):
            address = _read_address(text.strip())
            if address is None:
                break
            client = address
            if address not in self._proxies:
                break
        return client


def _reported_clients(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the addresses that proxies have reported, that of the last proxy's client at the end."""
    addresses: list[str] = []
    elements: list[dict[str, str]] = []
    has_x_forwarded = False
    for name, value in headers:
        if name == b"x-forwarded-for":  # several of these headers are one list
            addresses += value.decode("latin-1").split(",")
        if name.startswith(X_FORWARDED):
            has_x_forwarded = True
        elif name == FORWARDED:
            elements += parse_forwarded(value.decode("latin-1"))
    if has_x_forwarded:
        return addresses
    return [element.get("for", "") for element in elements]


def _read_address(text: str) -> str | None:
    """Parse an address, or return None. Some proxies add a port: 10.0.0.1:4711, [::1]:4711."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None


# ---- what clients use -----------------------------------------------------------------------------------------------


def other_address(said: str, scope: Scope) -> str:
    """Return the address that the client seems to have used, if a card has another one, else an empty string.

    The scheme is compared if a proxy reports it, trusted or not, the host always. Ports are not compared, because a
    proxy or a container changes them.
    """
    headers = dict(scope["headers"])
    reported = read_forwarded(headers)
    host = reported.host or read_host(headers.get(b"host", b"").decode("latin-1"))
    if host is None:
        return ""
    card = urlsplit(said)
    name = host.name.strip("[]")
    in_card = card.hostname or ""
    is_same_host = in_card == name or (is_loopback(in_card) and is_loopback(name))
    if is_same_host and reported.scheme in ("", card.scheme):
        return ""
    scheme = reported.scheme or scope.get("scheme", "http")
    return f"{scheme}://{host.at(scheme)}{reported.prefix}/"
