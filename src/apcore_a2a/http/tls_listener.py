"""Connections that begin with TLS: accepted, and handed on when their handshake is done.

Rule: whoever does not speak TLS holds little, and not for long. A handshake has ten seconds, and there are so many at
once; one more takes the place of the one that has waited longest. An honest client needs a few round trips, so it is
done long before that, however many others connect and say nothing.

asyncio's own servers wait a minute for each handshake, do not say how many there are, and keep one context for good.
"""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from apcore_a2a.http.tls import RenewedContext
from apcore_a2a.http.traffic import Traffic

logger = logging.getLogger(__name__)

MAX_HANDSHAKES: Final = 512  # half of the files that a process may open in many a system
HANDSHAKE_TIME: Final = 10.0  # seconds
NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE: Final = 0.1  # seconds until the next attempt when there are no files left
LOG_INTERVAL: Final = 60.0


class TLSListener:
    """Accepts connections at sockets that are bound, for a server with TLS."""

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], context: RenewedContext, traffic: Traffic
    ) -> None:
        self._make_protocol = make_protocol
        self._context = context
        self._traffic = traffic
        self._sockets: Sequence[socket.socket] = ()
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the one that began first stands first
        self._logged_at = float("-inf")

    def listen(self, sockets: Sequence[socket.socket], backlog: int) -> None:
        loop = asyncio.get_running_loop()
        self._sockets = sockets
        for listener in sockets:
            listener.setblocking(False)
            listener.listen(backlog)
        for listener in sockets:
            self._accepting.append(loop.create_task(self._accept(listener), name="accept TLS"))
        self._accepting.append(loop.create_task(self._context.watch(), name="watch the certificate"))

    async def close(self) -> None:
        """Accept nothing more, and leave those alone who have not finished their handshake."""
        ending = [*self._accepting, *self._handshakes]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=1)
        for listener in self._sockets:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                if listener.fileno() < 0:
                    return
                pause = 0.0  # whoever connected has left
                if error.errno in NO_FILES:
                    self._make_room()
                    self._log("no files are left for connections", error)
                    pause = PAUSE
                await asyncio.sleep(pause)
                continue
            self._begin(connection, address)
            await asyncio.sleep(0)  # `sock_accept` does not, while there are others to accept

    def _begin(self, connection: socket.socket, address: Any) -> None:  # Any: as sockets have it
        if len(self._handshakes) >= MAX_HANDSHAKES:
            self._make_room()
        handshake = asyncio.get_running_loop().create_task(self._shake_hands(connection, address), name="TLS handshake")
        self._handshakes[handshake] = None
        handshake.add_done_callback(partial(self._ended, connection))
        self._traffic.handshakes = len(self._handshakes)

    def _make_room(self) -> None:
        """End the handshake that has waited longest."""
        for oldest in self._handshakes:
            self._handshakes.pop(oldest)
            oldest.cancel()
            return

    async def _shake_hands(self, connection: socket.socket, address: Any) -> None:  # Any: as above
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context.current,
                ssl_handshake_timeout=HANDSHAKE_TIME,
            )
        except ssl.SSLError as error:  # most clients are not told why: the log is where somebody finds out
            connection.close()
            reason = getattr(error, "verify_message", "") or error.reason
            peer = address[0] if address else ""
            self._traffic.refusals.refuse_peer(peer, f"TLS: {reason}")
        except OSError as error:
            connection.close()
            logger.debug("TLS handshake failed", extra={"reason": type(error).__name__})

    def _ended(self, connection: socket.socket, handshake: "asyncio.Task[None]") -> None:
        self._handshakes.pop(handshake, None)
        self._traffic.handshakes = len(self._handshakes)
        if handshake.cancelled():  # perhaps before it began
            connection.close()
        elif handshake.exception() is not None:
            connection.close()
            self._log("a TLS connection could not be taken", handshake.exception())

    def _log(self, text: str, error: BaseException | None) -> None:
        """Once a minute: there may be thousands."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            logger.warning(text, extra={"reason": str(error)})
