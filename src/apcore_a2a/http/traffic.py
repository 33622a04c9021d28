"""What clients make the server hold, which proxies are believed about whom, and who was refused: counted, and told.

Rule: the largest holder is the first to be refused; a refusal is written to the log once a minute.
"""

import logging
import sys
import time
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, Protocol

from apcore_a2a.agent import Caller
from apcore_a2a.clean_text import clean_line
from apcore_a2a.engine.context import live_quota_key, network_of
from apcore_a2a.errors import A2AError, LimitExceededError, OverloadedError
from apcore_a2a.log_throttle import LogThrottle
from apcore_a2a.quota import QuotaCounter

logger = logging.getLogger(__name__)

# What clients make the server hold: connections, bodies that are still coming, answers that nobody has read yet.
#
# Each is counted in bytes (or in connections) over all clients together, and has a limit. Who comes too late is
# refused: a connection is closed with 503, a body is answered with 503. Nobody may take all of it: one address has a
# share of the connections, one caller of the bodies. Of answers that wait to be read, the reader goes that has taken
# nothing for longest, so that one who reads, however slowly, is the last to be cut off.

if sys.platform != "win32":
    import resource

KEY: Final = "a2a.traffic"  # where a server's protocol finds it in the state of the lifespan
CERTIFICATE_KEY: Final = "a2a.client_certificate"  # and where it puts the certificate of a connection's client, DER
MIB: Final = 1024 * 1024
MAX_BODY: Final = 10 * MIB  # of one request
TOO_MANY_BODIES: Final = "The agent is receiving too many large requests; try again later"
TOO_MANY_OF_YOURS: Final = "You are sending too many large requests at once; try again later"


def within_files(connections: int) -> int:
    """So many connections, or fewer: a connection is a file, and a process may open only so many of those.

    An eighth of them, 32 at least, is left to the store, the log and the agent. Without this, who comes when no file is
    left is hung up on, and nobody is told.
    """
    if sys.platform == "win32":
        return connections
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, files - max(32, files // 8)))


class Room(Enum):
    """Whether there is room for one more connection."""

    FREE = "there is"
    SHARE_TAKEN = "its address has all of its share"
    ALL_TAKEN = "there is none for anybody"


class Reader(Protocol):
    """A connection whose answer waits to be read."""

    def unread(self) -> int: ...
    def hang_up(self) -> None: ...


class Traffic:
    """The counts and their limits. One for each application."""

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
        """`proxies` have no share of connections: they are many callers. `max_body` is what one body may have."""
        if max_connections_per_address is None:
            max_connections_per_address = half(max_connections)
        self.max_connections = max_connections
        self.max_connections_per_address = max_connections_per_address
        self.max_body_bytes = max_body_bytes
        self.max_body_bytes_per_caller = max(half(max_body_bytes), max_body)  # else a body alone could be too much
        self.max_answer_bytes = max_answer_bytes
        self.refusals = Refusals()
        self._proxies = TrustedProxies(proxies)
        self._connections = QuotaCounter()  # by address, as `address_of` has it
        self.handshakes = 0  # of TLS, before there is a connection: bounded by whoever accepts them
        self._body_bytes = QuotaCounter()  # by caller
        self.answer_bytes = 0
        # What each has yet to read, as far as we have looked; first stands who has taken nothing for longest.
        self._unread: dict[Reader, int] = {}

    # ---- connections ----------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """The connections that are open now."""
        return self._connections.total

    def address_of(self, host: str) -> str:
        """Whose share of connections one from there takes; empty if nobody's: a trusted proxy's, a Unix socket's."""
        if not host or host in self._proxies:
            return ""
        return network_of(host)

    def connection_opened(self, address: str) -> Room:
        """Count a connection, for which there is room or not."""
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
        """The bytes held of bodies that are not complete."""
        return self._body_bytes.total

    def take_body(self, size: int, caller: str) -> OverloadedError | None:
        """Hold so many bytes more of a caller's body that is not complete; if there is no room, why nothing is held."""
        if self._body_bytes.used_by(caller) + size > self.max_body_bytes_per_caller:
            return LimitExceededError(TOO_MANY_OF_YOURS)
        if self._body_bytes.total + size > self.max_body_bytes:
            return OverloadedError(TOO_MANY_BODIES)
        self._body_bytes.add(caller, size)
        return None

    def release_body(self, size: int, caller: str) -> None:
        self._body_bytes.subtract(caller, size)

    # ---- answers --------------------------------------------------------------------------------------------------

    def reader_waits(self, reader: Reader) -> None:
        """A reader has more to read than it takes at once."""
        self.reader_done(reader)
        left = reader.unread()
        self._unread[reader] = left
        self.answer_bytes += left
        if self.answer_bytes > self.max_answer_bytes:
            self._make_room()

    def reader_done(self, reader: Reader) -> None:
        """It has read nearly all, or is gone."""
        self.answer_bytes -= self._unread.pop(reader, 0)

    def has_read_more(self, reader: Reader) -> bool:
        """Whether a reader has taken anything since the last look."""
        before = self._unread.get(reader)
        left = reader.unread()
        if before is None or left >= before:
            return False
        del self._unread[reader]
        self._unread[reader] = left  # the last place in the order
        self.answer_bytes += left - before
        return True

    def _make_room(self) -> None:
        for reader in list(self._unread):
            self.has_read_more(reader)
        while self.answer_bytes > self.max_answer_bytes and len(self._unread) > 1:  # one answer may be as it is
            slowest = next(iter(self._unread))
            self.reader_done(slowest)
            slowest.hang_up()


def half(number: int) -> int:
    """The share of one, where nothing else is said: two of them can have all."""
    return (number + 1) // 2


# ---- who was refused ------------------------------------------------------------------------------------------------
# Who was refused what: counted, and told in the log.
#
# Rule: no flood. A line is written once a minute for each caller and reason, and a hundred of them in a minute at most,
# however many callers there are. What clients sent is not in it.


class Refusals:
    """The counts since the start, and the lines of the last minute."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests = 0  # by a limit, or for want of something: 429 and 503
        self.connections = 0
        self.readers = 0
        self._lines = LogThrottle(clock=clock)

    def refuse_request(
        self, error: A2AError, caller: Caller, peer: tuple[str, int] | None, *, reason: str = ""
    ) -> None:
        """A request was refused with this error; `reason` if clients are told less than operators."""
        level = logging.INFO
        if isinstance(error, OverloadedError):
            self.requests += 1
            level = logging.WARNING
        reason = clean_line(reason or error.message)
        if self._lines.is_due(f"{live_quota_key(caller, peer)}\n{reason}"):
            extra = {"caller": clean_line(caller.id), "peer": peer[0] if peer else "", "reason": reason}
            logger.log(level, "request refused", extra=extra)

    def refuse_connection(self, peer: str, *, limit: int) -> None:
        """There are as many connections as there may be."""
        self.connections += 1
        if self._lines.is_due("connections"):
            reason = f"all {limit} connections are taken"
            logger.warning("connection refused", extra={"peer": peer, "reason": reason})

    def refuse_address(self, address: str, *, limit: int) -> None:
        """One address has as many connections as it may have; there is room for others."""
        self.connections += 1
        if self._lines.is_due(f"{address}\nconnections"):
            reason = f"it has all {limit} connections that one address may have"
            logger.warning("connection refused", extra={"peer": address, "reason": reason})

    def refuse_peer(self, peer: str, reason: str) -> None:
        """Somebody was sent away before there was a request: they speak no HTTP, or not the TLS that is asked for."""
        if self._lines.is_due(f"{peer}\n{reason}"):
            logger.info("connection refused", extra={"peer": peer, "reason": reason})

    def cut_off_reader(self, peer: str, *, unread: int) -> None:
        """A client was let go that did not read its answer."""
        self.readers += 1
        if self._lines.is_due("readers"):
            logger.warning("connection closed: its client reads nothing", extra={"peer": peer, "unread_bytes": unread})


# ---- proxies that are believed --------------------------------------------------------------------------------------
# Which proxies are believed when they say whom a request is from: addresses, and networks of them.
#
# Rule: what cannot be read is refused at the start. An entry that never matches would have every caller behind the
# proxy share one address, and nobody notices before they share its limits.

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
