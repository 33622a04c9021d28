"""Which hosts are this machine."""

from functools import lru_cache
from ipaddress import ip_address


@lru_cache(64)  # asked of every request to a server that is open to all, where it would take 3 µs of some 250
def is_loopback(host: str) -> bool:
    """Whether this is a name or an address of the loopback interface.

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
