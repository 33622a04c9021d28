"""Limits of connections, incomplete bodies and unread responses, the log of rejections, and the trusted proxies.

Invariant: no client can use up a limit alone. A rejection is logged at most once a minute for a caller and a reason.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, Protocol

from apcore_a2a.agent import Caller
from apcore_a2a.clean_text import clean_line
from apcore_a2a.engine.context import live_quota_key, network_of
from apcore_a2a.errors import A2AError, LimitExceededError, OverloadedError, wire
from apcore_a2a.log_throttle import LogThrottle
from apcore_a2a.quota import QuotaCounter

logger = logging.getLogger(__name__)

# Each client makes the server hold connections, incomplete request bodies, and unread responses.
#
# Each is counted over all clients, in bytes or in connections, and has a limit. Over the limit, a new connection is
# closed with 503, and a body is answered with 503. No client can use up a limit: one address has a share of the
# connections, and one caller a share of the bodies. For unread responses, the client that has read nothing for the
# longest time is disconnected, so a client that reads slowly is disconnected last.

if sys.platform != "win32":
    import resource

KEY: Final = "a2a.traffic"  # in the lifespan state, where the connections of a server find it
HTTP2_KEY: Final = "a2a.http2"  # there too: `HTTP2Support`, if the server speaks HTTP/2
CERTIFICATE_KEY: Final = "a2a.client_certificate"  # where a connection puts its client's certificate, in DER
MIB: Final = 1024 * 1024
MAX_BODY: Final = 10 * MIB  # of one request
TOO_MANY_BODIES: Final = "The agent is receiving too many large requests; try again later"
TOO_MANY_OF_YOURS: Final = "You are sending too many large requests at once; try again later"


def limit_to_file_descriptors(connections: int) -> int:
    """Return the number of connections, or fewer if the process may not have that many file descriptors.

    An eighth of them, at least 32, is left to the store, the log and the agent. Without this limit, connections beyond
    the last file descriptor would be closed without a response and without a log line.
    """
    if sys.platform == "win32":
        return connections
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, files - max(32, files // 8)))


class Room(Enum):
    """Whether there is room for another connection."""

    FREE = "there is room"
    SHARE_TAKEN = "its address has used its share"
    ALL_TAKEN = "all connections are taken"


class Reader(Protocol):
    """A connection with unread bytes of a response."""

    def unread(self) -> int: ...
    def disconnect(self) -> None: ...


class Traffic:
    """Counts connections, incomplete bodies and unread responses, and limits them. Each application has one."""

    def __init__(
        self,
        *,
        max_connections: int = 10_000,
        max_connections_per_address: int | None = None,
        max_body_bytes: int = 256 * MIB,
        max_body: int = MAX_BODY,
        max_answer_bytes: int = 256 * MIB,
        proxies: tuple[str, ...] = (),
    ) -> None:
        """`max_connections_per_address` does not apply to `proxies`, because one proxy carries many callers.

        `max_body` is the size limit of one body. It is enforced elsewhere. Here it is the minimum of a caller's share
        of `max_body_bytes`.
        """
        if max_connections_per_address is None:
            max_connections_per_address = half(max_connections)
        self.max_connections = max_connections
        self.max_connections_per_address = max_connections_per_address
        self.max_body_bytes = max_body_bytes
        self.max_body_bytes_per_caller = max(half(max_body_bytes), max_body)  # at least one body of the largest size
        self.max_answer_bytes = max_answer_bytes
        self.refusals = Refusals()
        self._proxies = TrustedProxies(proxies)
        self._connections = QuotaCounter()  # by address, from `address_of`
        self.handshakes = 0  # TLS handshakes in progress. TLSListener limits them
        self._body_bytes = QuotaCounter()  # by caller
        self.answer_bytes = 0
        # Unread bytes of each reader at the last check. The reader without progress for the longest time is first.
        self._unread: dict[Reader, int] = {}

    # ---- connections ----------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """The connections that are open now."""
        return self._connections.total

    def address_of(self, host: str) -> str:
        """Return the address for which a connection counts, or an empty string for trusted proxies and Unix sockets."""
        if not host or host in self._proxies:
            return ""
        return network_of(host)

    def connection_opened(self, address: str) -> Room:
        """Count a connection, and return whether there is room for it."""
        self._connections.add(address)
        if self._connections.total > self.max_connections:
            return Room.ALL_TAKEN
        if address and self._connections.used_by(address) > self.max_connections_per_address:
            return Room.SHARE_TAKEN
        return Room.FREE

    def connection_closed(self, address: str) -> None:
        self._connections.subtract(address)

    # ---- bodies ---------------------------------------------------------------------------------------------------

    @property
    def body_bytes(self) -> int:
        """The bytes held of incomplete bodies."""
        return self._body_bytes.total

    def take_body(self, size: int, caller: str) -> OverloadedError | None:
        """Count more bytes of a caller's incomplete body. If there is no room, count nothing and return the error."""
        if self._body_bytes.used_by(caller) + size > self.max_body_bytes_per_caller:
            return LimitExceededError(TOO_MANY_OF_YOURS)
        if self._body_bytes.total + size > self.max_body_bytes:
            return OverloadedError(TOO_MANY_BODIES)
        self._body_bytes.add(caller, size)
        return None

    def release_body(self, size: int, caller: str) -> None:
        self._body_bytes.subtract(caller, size)

    # ---- unread responses -----------------------------------------------------------------------------------------

    def reader_waits(self, reader: Reader) -> None:
        """Record that a reader has more to read than its socket accepts."""
        self.reader_done(reader)
        left = reader.unread()
        self._unread[reader] = left
        self.answer_bytes += left
        if self.answer_bytes > self.max_answer_bytes:
            self._make_room()

    def reader_holds(self, reader: Reader, *, has_progressed: bool) -> None:
        """Record the unread bytes of a reader with several responses. Without progress it keeps its place."""
        if has_progressed:
            self.reader_done(reader)
        left = reader.unread()
        self.answer_bytes += left - self._unread.get(reader, 0)
        self._unread[reader] = left
        if self.answer_bytes > self.max_answer_bytes:
            self._make_room()

    def reader_done(self, reader: Reader) -> None:
        """Forget a reader that has read nearly everything, or has disconnected."""
        self.answer_bytes -= self._unread.pop(reader, 0)

    def has_read_more(self, reader: Reader) -> bool:
        """Whether a reader has read anything since the last check."""
        before = self._unread.get(reader)
        left = reader.unread()
        if before is None or left >= before:
            return False
        del self._unread[reader]
        self._unread[reader] = left  # now the last in the order
        self.answer_bytes += left - before
        return True

    def _make_room(self) -> None:
        for reader in list(self._unread):
            self.has_read_more(reader)
        while self.answer_bytes > self.max_answer_bytes and len(self._unread) > 1:  # one response may exceed it
            slowest = next(iter(self._unread))
            self.reader_done(slowest)
            slowest.disconnect()


def half(number: int) -> int:
    """Return the default share of one client: half, rounded up."""
    return (number + 1) // 2


# ---- rejections -----------------------------------------------------------------------------------------------------
# Rejections are counted and logged.
#
# Invariant: the log is not flooded. A line is written once a minute for each caller and reason, and at most a hundred
# lines a minute for all callers. No line contains what clients sent.


class Refusals:
    """Counts rejections since the start, and logs them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests = 0  # answered with 429 or 503
        self.reasons: Counter[str] = Counter()  # of all rejected requests, as in google.rpc.ErrorInfo
        self.connections = 0
        self.readers = 0
        self._lines = LogThrottle(clock=clock)

    def refuse_request(
        self, error: A2AError, caller: Caller, peer: tuple[str, int] | None, *, reason: str = ""
    ) -> None:
        """Count a rejected request. `reason` is for the log, if the client gets less detail."""
        level = logging.INFO
        self.reasons[wire(error).reason] += 1
        if isinstance(error, OverloadedError):
            self.requests += 1
            level = logging.WARNING
        reason = clean_line(reason or error.message)
        if self._lines.is_due(f"{live_quota_key(caller, peer)}\n{reason}"):
            extra = {"caller": clean_line(caller.id), "peer": peer[0] if peer else "", "reason": reason}
            logger.log(level, "request refused", extra=extra)

    def refuse_connection(self, peer: str, *, limit: int) -> None:
        """Count a connection over the limit of all connections."""
        self.connections += 1
        if self._lines.is_due("connections"):
            reason = f"all {limit} connections are taken"
            logger.warning("connection refused", extra={"peer": peer, "reason": reason})

    def refuse_address(self, address: str, *, limit: int) -> None:
        """Count a connection over the limit of one address."""
        self.connections += 1
        if self._lines.is_due(f"{address}\nconnections"):
            reason = f"it has all {limit} connections that one address may have"
            logger.warning("connection refused", extra={"peer": address, "reason": reason})

    def refuse_peer(self, peer: str, reason: str) -> None:
        """Log a client that was disconnected before its first request: its TLS or its HTTP is invalid."""
        if self._lines.is_due(f"{peer}\n{reason}"):
            logger.info("connection refused", extra={"peer": peer, "reason": reason})

    def cut_off_reader(self, peer: str, *, unread: int) -> None:
        """Count a client that was disconnected because it did not read its response."""
        self.readers += 1
        if self._lines.is_due("readers"):
            logger.warning("connection closed: its client reads nothing", extra={"peer": peer, "unread_bytes": unread})


# ---- trusted proxies ------------------------------------------------------------------------------------------------
# The addresses and networks of proxies whose forwarded client addresses are used.
#
# Invariant: an invalid entry is rejected at the start. With an entry that never matches, all callers behind the proxy
# would have one address, which becomes visible only when they share its limits.

MAX_CACHED: Final = 1024  # addresses: a proxy sends many requests, and parsing its address takes longer than a lookup


class TrustedProxies:
    """The set of trusted proxies: `address in proxies`.

    Raises:
        ValueError: an entry is neither an address nor a network. The text names it.

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
        self._is_trusted = lru_cache(MAX_CACHED)(self._look_up)

    def __contains__(self, host: str) -> bool:
        return self._is_trusted(host)

    def _look_up(self, host: str) -> bool:
        try:
            address = _unmapped(ip_address(host))
        except ValueError:  # the path of a Unix socket, or a name from a test client
            return False
        return any(address in network for network in self._networks)


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address of ::ffff:10.0.0.1, which a socket for both families reports for 10.0.0.1."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
