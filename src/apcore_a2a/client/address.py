"""Checks addresses of remote agents, and decides which origins are trusted.

Invariant: only the origin that the caller named and the origins that the caller allowed are trusted. An address from a
card is untrusted data until it is checked.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, urlsplit

WELL_KNOWN: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")  # A2A 0.3 and later, 0.2
_PORTS: Final = {"http": 80, "https": 443}
# Only these. 127.0.0.2 is this machine too, but another server may be bound to it.
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def check_url(url: str) -> str:
    """Return the address without a trailing slash.

    Raises:
        ValueError: the address is not an http or https address, or has a query, a fragment, a user name or a control
            character.
    """
    parts = _split(url)
    if parts.query or parts.fragment:
        raise ValueError(f"Not the address of an agent: {url!r} has a query or a fragment")
    return url.rstrip("/")


def origin(url: str) -> str:
    """Return scheme, host and port of an http address in canonical form. Equal results mean one origin.

    The loopback names count as one host: a caller of `localhost` reaches a server that advertises 127.0.0.1.
    """
    parts = _split(url)
    host = "localhost" if parts.hostname in _LOOPBACK else parts.hostname
    port = parts.port or _PORTS[parts.scheme]
    return f"{parts.scheme}://{host}:{port}"


def _split(url: str) -> SplitResult:
    # urlsplit silently drops line ends and tabs. The address that was checked would differ from the one that is called.
    for char in url:
        if char <= " " or char == "\x7f":
            raise ValueError(f"Not an http or https address: {url!r}")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"Not an http or https address: {url!r}")
    # "http://agent.example@evil.example/" is an address of evil.example, and a secret in an address ends up in logs.
    # For the same reason the error text does not repeat the address.
    if "@" in parts.netloc:
        raise ValueError("An address must not carry a user name or password. Pass auth= instead")
    _ = parts.port  # the property parses the port, and raises ValueError if it is out of range
    return parts


class TrustedOrigins:
    """The origins that the client may call and that receive its credentials."""

    def __init__(self, url: str, allowed: Iterable[str] = ()) -> None:
        self._origins = {origin(url)}
        for address in allowed:
            self._origins.add(origin(address))

    def __contains__(self, url: object) -> bool:
        if not isinstance(url, str):
            return False
        try:
            return origin(url) in self._origins
        except ValueError:  # a card may contain anything, and text that is not an address is not a trusted origin
            return False


def card_urls(url: str) -> tuple[str, ...]:
    """Return the URLs to try for the card: the address itself if it names a JSON file, else the well-known paths."""
    if url.endswith(".json"):
        return (url,)
    return tuple(url + place for place in WELL_KNOWN)
