"""Names of hosts, URLs without their passwords, and the security headers of every response."""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

# ---- hosts ----------------------------------------------------------------------------------------------------------

# A name or an IPv4 address, or an IPv6 address in brackets, then perhaps a port. A name has 253 characters at most.
_HOST: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?\.?)(?::([0-9]{1,5}))?")
_USUAL_PORTS: Final = {"http": 80, "https": 443}


@lru_cache(64)  # called for every request to a server without authentication, of about 250 µs: this saves 3
def is_loopback(host: str) -> bool:
    """Return whether the host is a name or an address of the loopback interface.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "127.0.0.1.evil.example")]
        [True, True, True, False]
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Host(NamedTuple):
    """A valid value of Host: a name or an address, in lower case, and a port if there is one."""

    name: str
    port: int | None

    def at(self, scheme: str) -> str:
        """Return the authority of a URL, without the usual port of its scheme."""
        if self.port is None or self.port == _USUAL_PORTS.get(scheme):
            return self.name
        return f"{self.name}:{self.port}"


def read_host(text: str) -> Host | None:
    """Return the value of a Host header, or None if it is not a host.

    Example:
        >>> read_host("Agent.Example:8000")
        Host(name='agent.example', port=8000)
        >>> read_host("agent.example/evil") is None
        True
    """
    found = _HOST.fullmatch(text.strip().lower())
    if found is None:
        return None
    port = int(found[2]) if found[2] else None
    if port is not None and not 0 < port < 65536:
        return None
    return Host(found[1], port)


def is_host_pattern(text: str) -> bool:
    """Return whether a text is a host, or a pattern such as *.example."""
    return read_host(text.strip().removeprefix("*.")) is not None


def is_allowed_host(host: Host, allowed: Iterable[str]) -> bool:
    """Return whether a host is one of these: names with or without a port, or patterns such as *.example.

    Example:
        >>> is_allowed_host(Host("math.agents.example", 443), ["*.agents.example"])
        True
    """
    for entry in allowed:
        pattern = entry.strip().lower()
        if pattern.startswith("*."):
            if host.name.endswith(pattern[1:]):
                return True
            continue
        known = read_host(pattern)
        if known is not None and known.name == host.name and known.port in (None, host.port):
            return True
    return False


def hide_password(url: str) -> str:
    """Return the URL of a store without the parts that may be a password: before an `@`, or in the query.

    Example:
        >>> hide_password("postgresql://agent:secret@db/tasks?ttl=60")
        'postgresql://…@db/tasks?ttl=60'
    """
    scheme, separator, rest = url.partition("://")
    if rest.startswith("/"):  # the path of a file holds no secret
        return url
    address, question_mark, query = rest.partition("?")
    if "@" in query:  # a password with a "?" and one with an "@" look alike here: hide all of it
        return f"{scheme}{separator}…"
    if "@" in address:
        address = f"…@{address.rpartition('@')[2]}"
    if "password" in query:
        query = "…"
    return f"{scheme}{separator}{address}{question_mark}{query}"


# ---- headers for browsers -------------------------------------------------------------------------------------------
# Every response has these headers, whatever its content. They are constant bytes.
#
# Responses are not pages, so browsers must not interpret, frame or cache them. The Explorer, which is a page, has an
# additional policy.

SAFE: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
NO_STORE: Final = ((b"cache-control", b"no-store"),)
"""For responses that belong to a caller: no cache may store them."""
