"""What clients make the server hold: connections, bodies that are still coming, answers that nobody has read yet.

Each is counted in bytes (or in connections) over all clients together, and has a limit. Who comes too late is refused:
a connection is closed with 503, a body is answered with 503. Of answers that wait to be read, the reader goes that has
taken nothing for longest, so that one who reads, however slowly, is the last to be cut off.
"""

import sys
from typing import Final, Protocol

from apcore_a2a.http.refusals import Refusals

if sys.platform != "win32":
    import resource

KEY: Final = "a2a.traffic"  # where a server's protocol finds it in the state of the lifespan
CERTIFICATE_KEY: Final = "a2a.client_certificate"  # and where it puts the certificate of a connection's client, DER
MIB: Final = 1024 * 1024
MAX_BODY: Final = 10 * MIB  # of one request


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
        max_body_bytes: int = 256 * MIB,
        max_answer_bytes: int = 256 * MIB,
    ) -> None:
        self.max_connections = max_connections
        self.max_body_bytes = max_body_bytes
        self.max_answer_bytes = max_answer_bytes
        self.refusals = Refusals()
        self.connections = 0
        self.handshakes = 0  # of TLS, before there is a connection: bounded by whoever accepts them
        self.body_bytes = 0
        self.answer_bytes = 0
        # What each has yet to read, as far as we have looked; first stands who has taken nothing for longest.
        self._unread: dict[Reader, int] = {}

    # ---- connections ----------------------------------------------------------------------------------------------

    def connection_opened(self) -> bool:
        """Count a connection; whether there was room for it."""
        self.connections += 1
        return self.connections <= self.max_connections

    def connection_closed(self) -> None:
        self.connections -= 1

    # ---- bodies ---------------------------------------------------------------------------------------------------

    def take_body(self, size: int) -> bool:
        """Hold so many bytes more of a body that is not complete; false, and nothing is held, if there is no room."""
        if self.body_bytes + size > self.max_body_bytes:
            return False
        self.body_bytes += size
        return True

    def release_body(self, size: int) -> None:
        self.body_bytes -= size

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
