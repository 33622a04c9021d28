"""Where a webhook may be: no way into the network behind the server.

Rule: what a URL says is checked when it is set; where its name leads is checked when it is dialed, at the address that
is dialed. A name may lead elsewhere a second later, so the first check alone would prove nothing.
"""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

from apcore_a2a.errors import InvalidParamsError, Violation

PORTS: Final = (443, 8443)
NEEDS_HTTPS: Final = "Webhook URL must use HTTPS in production mode"  # the requirements' text
NOT_PUBLIC: Final = "Webhook URL must not point to a loopback or private address in production mode"

# What `ipaddress` calls global, and is none of a stranger's business: relays and translations that lead to another
# address (its own check follows below), and what providers use for their metadata.
_NOT_PUBLIC: Final = tuple(
    ip_network(network)
    for network in (
        "100.64.0.0/10",  # carrier-grade NAT
        "168.63.129.16/32",  # Azure's platform
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.88.99.0/24",  # 6to4 relays
        "198.18.0.0/15",  # benchmarks
        "224.0.0.0/4",
        "240.0.0.0/4",
        "64:ff9b:1::/48",  # NAT64 within a network
        "100::/64",
        "2001::/23",  # protocol assignments; Teredo
        "2001:db8::/32",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fec0::/10",  # site-local
        "ff00::/8",
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")  # IPv4-compatible, and ::1


def is_public(address: str) -> bool:
    """Whether an address is anybody's to call, and not within a network: also when it wraps another one."""
    try:
        parsed = ip_address(address.partition("%")[0])  # without the zone of a link-local one
    except ValueError:
        return False
    return _is_public(parsed)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):
        inner = _wrapped(address)
        if inner is not None:
            return False  # nobody has to be called through a translation: there is the address itself
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return not any(address in network for network in _NOT_PUBLIC if network.version == address.version)


def _wrapped(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that is meant: mapped, compatible, by NAT64, 6to4 or Teredo."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or address in _COMPATIBLE:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def check_url(url: str, *, allow_insecure: bool) -> SplitResult:
    """The parts of a webhook's URL, if it may be one. In development (`allow_insecure`) any well-formed one may.

    Raises:
        InvalidParamsError: it may not; the text says why.
    """
    parts = _split(url)
    if allow_insecure:
        return parts
    host = parts.hostname or ""
    if parts.scheme != "https":
        raise _refused(NEEDS_HTTPS)
    if _is_local_name(host) or _is_odd_number(host) or (_is_literal(host) and not is_public(host)):
        raise _refused(NOT_PUBLIC)
    if (parts.port or 443) not in PORTS:
        known = " or ".join(map(str, PORTS))
        raise _refused(f"Webhook URL must use port {known} in production mode")
    return parts


def _split(url: str) -> SplitResult:
    # Control characters and backslashes are read one way by some and another way by others: nobody needs them.
    if any(ord(character) <= 0x20 or character in "\\\x7f" for character in url):
        raise _refused("Webhook URL is not well-formed")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refused("Webhook URL is not well-formed") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _refused("Webhook URL must be an absolute http or https URL")
    if parts.username is not None or parts.password is not None:
        raise _refused("Webhook URL must not hold a user name or a password")
    if parts.fragment:
        raise _refused("Webhook URL must not have a fragment")
    return parts


def _is_local_name(host: str) -> bool:
    name = host.rstrip(".")
    return name == "localhost" or name.endswith((".localhost", ".local", ".internal"))


def _is_literal(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_odd_number(host: str) -> bool:
    """Whether it is an IPv4 address in a way that only C libraries understand: 2130706433, 0x7f.1, 017700000001."""
    if _is_literal(host):
        return False
    last = host.rstrip(".").rpartition(".")[2]
    return last.isdigit() or last.startswith("0x")


def _refused(text: str) -> InvalidParamsError:
    return InvalidParamsError(text, [Violation("url", text)])
