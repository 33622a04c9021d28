"""Which hosts are this machine, and what every answer says to browsers."""

from functools import lru_cache
from ipaddress import ip_address
from typing import Final

# Which hosts are this machine.


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


# ---- what every answer says to browsers -----------------------------------------------------------------------------
# What every answer says to browsers, whatever it holds: constant bytes, made once.
#
# Nothing here is a page, so nothing may be taken for one, framed, or kept. The Explorer, which is one, has a policy of
# its own besides.

SAFE: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
NO_STORE: Final = ((b"cache-control", b"no-store"),)
"""For what belongs to a caller: nobody between us keeps it."""
