"""What clients make the server hold: connections, bodies that are still coming, answers that nobody has read yet.

Each is counted in bytes (or in connections) over all clients together, and has a limit. Who comes too late is refused:
a connection is closed with 503, a body is answered with 503. Nobody may take all of it: one address has a share of the
connections, one caller of the bodies. Of answers that wait to be read, the reader goes that has taken nothing for
longest, so that one who reads, however slowly, is the last to be cut off.
"""

import sys
from enum import Enum
from typing import Final, Protocol

from apcore_a2a.engine.call_context import network_of
from apcore_a2a.errors import LimitExceededError, OverloadedError
from apcore_a2a.http.refusals import Refusals
from apcore_a2a.http.trusted_proxies import TrustedProxies

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
        self.connections = 0
        self._proxies = TrustedProxies(proxies)
        self._connections_from: dict[str, int] = {}  # by address, as `address_of` has it
        self.handshakes = 0  # of TLS, before there is a connection: bounded by whoever accepts them
        self.body_bytes = 0
        self._body_bytes_of: dict[str, int] = {}  # by caller
        self.answer_bytes = 0
        # What each has yet to read, as far as we have looked; first stands who has taken nothing for longest.
        self._unread: dict[Reader, int] = {}

    # ---- connections ----------------------------------------------------------------------------------------------

    def address_of(self, host: str) -> str:
        """Whose share of connections one from there takes; empty if nobody's: a trusted proxy's, a Unix socket's."""
        if not host or host in self._proxies:
            return ""
        return network_of(host)

    def connection_opened(self, address: str) -> Room:
        """Count a connection, for which there is room or not."""
        self.connections += 1
        count = 0
        if address:
            count = self._connections_from.get(address, 0) + 1
            self._connections_from[address] = count
        if self.connections > self.max_connections:
            return Room.ALL_TAKEN
        if count > self.max_connections_per_address:
            return Room.SHARE_TAKEN
        return Room.FREE

    def connection_closed(self, address: str) -> None:
        self.connections -= 1
        if address:
            _take_off(self._connections_from, address, 1)

    # ---- bodies ---------------------------------------------------------------------------------------------------

    def take_body(self, size: int, caller: str) -> OverloadedError | None:
        """Hold so many bytes more of a caller's body that is not complete; if there is no room, why nothing is held."""
        held = self._body_bytes_of.get(caller, 0) + size
        if held > self.max_body_bytes_per_caller:
            return LimitExceededError(TOO_MANY_OF_YOURS)
        if self.body_bytes + size > self.max_body_bytes:
            return OverloadedError(TOO_MANY_BODIES)
        self.body_bytes += size
        self._body_bytes_of[caller] = held
        return None

    def release_body(self, size: int, caller: str) -> None:
        self.body_bytes -= size
        _take_off(self._body_bytes_of, caller, size)

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

    def look_at(self, reader: Reader) -> bool:
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
            self.look_at(reader)
        while self.answer_bytes > self.max_answer_bytes and len(self._unread) > 1:  # one answer may be as it is
            slowest = next(iter(self._unread))
            self.reader_done(slowest)
            slowest.hang_up()


def half(number: int) -> int:
    """The share of one, where nothing else is said: two of them can have all."""
    return (number + 1) // 2


def _take_off(counts: dict[str, int], name: str, number: int) -> None:
    left = counts.get(name, 0) - number
    if left > 0:
        counts[name] = left
    else:
        counts.pop(name, None)
