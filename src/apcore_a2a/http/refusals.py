"""Who was refused what: counted, and told in the log.

Rule: no flood. A line is written once a minute for each caller and reason, and a hundred of them in a minute at most,
however many callers there are. What clients sent is not in it.
"""

import logging
import time
from collections.abc import Callable

from apcore_a2a.agent import Caller
from apcore_a2a.clean_text import clean_line
from apcore_a2a.engine.call_context import allowance_of
from apcore_a2a.errors import A2AError, OverloadedError
from apcore_a2a.once_a_minute import OnceAMinute

logger = logging.getLogger(__name__)


class Refusals:
    """The counts since the start, and the lines of the last minute."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests = 0  # by a limit, or for want of something: 429 and 503
        self.connections = 0
        self.readers = 0
        self._lines = OnceAMinute(clock=clock)

    def refuse_request(
        self, error: A2AError, caller: Caller, peer: tuple[str, int] | None, *, reason: str = ""
    ) -> None:
        """A request was refused with this error; `reason` if clients are told less than operators."""
        level = logging.INFO
        if isinstance(error, OverloadedError):
            self.requests += 1
            level = logging.WARNING
        reason = clean_line(reason or error.message)
        if self._lines.is_due(f"{allowance_of(caller, peer)}\n{reason}"):
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
