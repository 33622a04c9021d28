"""Addresses of remote agents: which are well formed, and which the caller trusts.

Rule: the origin the caller named is trusted, and those the caller allowed. An address from a card is data until vetted.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, urlsplit

WELL_KNOWN: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")  # today's, and that of 0.2
_PORTS: Final = {"http": 80, "https": 443}
# Exactly these: 127.0.0.2 is this machine as well, but people bind another server to it.
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def check_url(url: str) -> str:
    """The address without a trailing slash.

    Raises:
        ValueError: not a plain http or https address.
    """
    parts = _split(url)
    if parts.query or parts.fragment:
        raise ValueError(f"Not the address of an agent: {url!r} has a query or a fragment")
    return url.rstrip("/")


def origin(url: str) -> str:
    """Scheme, host and port of an http address in one spelling: of one origin are those for which it is equal.

    The names of this machine are one: who calls `localhost` reaches a server that says it is at 127.0.0.1.
    """
    parts = _split(url)
    host = "localhost" if parts.hostname in _LOOPBACK else parts.hostname
    port = parts.port or _PORTS[parts.scheme]
    return f"{parts.scheme}://{host}:{port}"


def _split(url: str) -> SplitResult:
    # urlsplit drops line ends and tabs without a word: what was checked would not be what is called.
    for char in url:
        if char <= " " or char == "\x7f":
            raise ValueError(f"Not an http or https address: {url!r}")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"Not an http or https address: {url!r}")
    # "http://agent.example@evil.example/" is an address of evil.example; and a secret in it would end up in logs.
    # The text does not repeat the address, for the same reason.
    if "@" in parts.netloc:
        raise ValueError("An address must not carry a user name or password; pass auth= instead")
    _ = parts.port  # only now is it read: out of range it is a ValueError that says so
    return parts


class TrustedOrigins:
    """The origins that may be called, and given credentials."""

    def __init__(self, url: str, allowed: Iterable[str] = ()) -> None:
        self._origins = {origin(url)}
        for address in allowed:
            self._origins.add(origin(address))

    def __contains__(self, url: object) -> bool:
        if not isinstance(url, str):
            return False
        try:
            return origin(url) in self._origins
        except ValueError:  # a card may say anything; what is no address is no trusted one
            return False


def card_urls(url: str) -> tuple[str, ...]:
    """Where to look for the card: the address itself if it names a JSON file, else the well-known places below it."""
    if url.endswith(".json"):
        return (url,)
    return tuple(url + place for place in WELL_KNOWN)
