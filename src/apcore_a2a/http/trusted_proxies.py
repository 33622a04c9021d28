"""Which proxies are believed when they say whom a request is from: addresses, and networks of them.

Rule: what cannot be read is refused at the start. An entry that never matches would have every caller behind the proxy
share one address, and nobody notices before they share its limits.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

REMEMBERED: Final = 1024  # addresses: a proxy asks again and again, and reading its address takes longer than looking


class TrustedProxies:
    """Whether an address is that of a trusted proxy.

    Raises:
        ValueError: one of them is neither an address nor a network; the text names it.

    Example:
        >>> proxies = TrustedProxies(("127.0.0.1", "10.0.0.0/8"))
        >>> ["10.20.30.40" in proxies, "192.0.2.1" in proxies, "proxy.example" in proxies]
        [True, False, False]
    """

    def __init__(self, named: tuple[str, ...]) -> None:
        networks = []
        for text in named:
            try:
                networks.append(ip_network(text))
            except ValueError as error:
                example = "such as '10.0.0.1' or '10.0.0.0/8'"
                raise ValueError(f"trusted_proxies must hold addresses or networks {example}: {error}") from None
        self._networks = tuple(networks)
        self._is_trusted = lru_cache(REMEMBERED)(self._look_up)

    def __contains__(self, host: str) -> bool:
        return self._is_trusted(host)

    def _look_up(self, host: str) -> bool:
        try:
            address = _unmapped(ip_address(host))
        except ValueError:  # the path of a Unix socket, or the name that a test gives itself
            return False
        return any(address in network for network in self._networks)


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """A server that listens for both families at one socket sees 10.0.0.1 as ::ffff:10.0.0.1."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
