"""uvicorn's connections, guarded.

A connection that dribbles its headers, never ends them, goes on with a body after its answer, or takes nothing of its
answer, is closed; so is one too many.

uvicorn bounds neither the time nor the size of a request's headers, nor how many connections there are, and waits for
ever for a client that reads nothing; a few hundred such connections would hold it.
"""

import asyncio
import logging
import ssl
from collections.abc import Iterable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from apcore_a2a.http.one_protocol import OneProtocolParser
from apcore_a2a.http.one_write import OneWriteTransport
from apcore_a2a.http.traffic import CERTIFICATE_KEY, KEY, Room, Traffic
from apcore_a2a.safe_headers import NO_STORE, SAFE

HEADER_DEADLINE: Final = 15.0
MAX_HEADERS: Final = 64 * 1024
STALLED: Final = 60.0  # seconds after which a client that has taken nothing of what waits for it is let go
LOOKS: Final = 4  # how often in that time we look whether it has


def _last_answer(status: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """The whole answer of a connection that is closed after it."""
    length = b"%d" % len(body)
    lines = [b"HTTP/1.1 " + status]
    for name, value in (*headers, *SAFE, *NO_STORE, (b"connection", b"close"), (b"content-length", length)):
        lines.append(name + b": " + value)
    return b"\r\n".join((*lines, b"", body))


def _full(message: bytes) -> bytes:
    body = (
        b'{"error":{"code":503,"status":"UNAVAILABLE","message":"%s","details":'
        b'[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"OVERLOADED",'
        b'"domain":"a2a-protocol.org","metadata":{"type":"OverloadedError"}}]}}' % message
    )
    return _last_answer(
        b"503 Service Unavailable", ((b"content-type", b"application/json"), (b"retry-after", b"1")), body
    )


NO_ROOM: Final = {
    Room.ALL_TAKEN: _full(b"The agent is at its limit of connections; try again later"),
    Room.SHARE_TAKEN: _full(b"Your address is at its limit of connections; try again later"),
}
# uvicorn warns of each request that it cannot read, and twice of each that asks for a WebSocket: whoever wants to can
# fill the disk with that. What it says of errors is still said. A filter, and no level: uvicorn resets those.
_UVICORN: Final = logging.getLogger("uvicorn.error.connections")
_UVICORN.addFilter(lambda record: record.levelno >= logging.ERROR)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits; a request that arrives whole costs four comparisons."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: uvicorn's business
        super().__init__(*args, **kwargs)
        self.logger = _UVICORN
        self.parser: Any = OneProtocolParser(self.parser, self)
        # An application of ours has put it there; around any other there are no limits over all connections.
        self._guard_traffic: Traffic = self.app_state.get(KEY) or Traffic()
        self._guard_address = ""  # whose share of connections this one is
        self._guard_timer: asyncio.TimerHandle | None = None
        self._guard_look_timer: asyncio.TimerHandle | None = None
        self._guard_idle_looks = 0
        self._guard_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(OneWriteTransport(transport))  # type: ignore[arg-type]  # it has all that one has
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.context.verify_mode is not ssl.CERT_NONE:
            # What every request of this connection has in its scope. A copy: the other connections have another.
            self.app_state = {**self.app_state, CERTIFICATE_KEY: tls.getpeercert(binary_form=True)}
        traffic = self._guard_traffic
        self._guard_address = traffic.address_of(self._guard_peer())
        room = traffic.connection_opened(self._guard_address)
        if room is Room.FREE:
            self._guard_start()
            return
        if room is Room.ALL_TAKEN:
            traffic.refusals.refuse_connection(self._guard_peer(), limit=traffic.max_connections)
        else:
            traffic.refusals.refuse_address(self._guard_address, limit=traffic.max_connections_per_address)
        self.transport.write(NO_ROOM[room])
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        before: Any = self.scope  # Any: it is None before the first request, and so is the cycle
        HttpToolsProtocol.data_received(self, data)
        cycle: Any = self.cycle
        if cycle is not None and cycle.scope is self.scope:  # the headers are all there: only then is there a cycle
            self._guard_bytes = 0
            # What comes after an answer is the rest of a body that nobody has waited for. uvicorn has stopped its
            # timer for it, and sets no other: the next request must come in time.
            if cycle.response_complete:
                self._guard_start()
            elif self._guard_timer is not None:
                self._guard_stop()
            return
        if before is None or before is self.scope:  # else most of it was the request before
            self._guard_bytes += len(data)
        if self._guard_bytes > MAX_HEADERS:
            self.transport.close()
        else:
            self._guard_start()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read; uvicorn's own answer has none of the headers that ours have."""
        self._guard_traffic.refusals.refuse_peer(self._guard_peer(), "what was sent is no HTTP")
        headers = (*self.server_state.default_headers, (b"content-type", b"text/plain; charset=utf-8"))
        self.transport.write(_last_answer(b"400 Bad Request", headers, msg.encode()))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard_stop()
        self._guard_forget()
        self._guard_traffic.connection_closed(self._guard_address)
        super().connection_lost(exc)

    # ---- answers that wait to be read -----------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._guard_watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread():  # nearly all is read, and the rest counts as long as it waits
            self._guard_traffic.look_at(self)
        else:
            self._guard_forget()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()  # which closes, as soon as the client has read everything
        if self.unread():
            self._guard_watch()

    def unread(self) -> int:
        return self.transport.get_write_buffer_size()

    def hang_up(self) -> None:
        self._guard_traffic.refusals.cut_off_reader(self._guard_peer(), unread=self.unread())
        self.transport.abort()  # close() would wait until the client has read everything

    def _guard_watch(self) -> None:
        """Look from now on whether the client reads, until it has read everything."""
        self._guard_forget()
        self._guard_idle_looks = 0
        self._guard_look_timer = self.loop.call_later(STALLED / LOOKS, self._guard_look)
        self._guard_traffic.reader_waits(self)

    def _guard_look(self) -> None:
        if not self.unread():
            self._guard_forget()
            return
        if self._guard_traffic.look_at(self):
            self._guard_idle_looks = 0
        else:
            self._guard_idle_looks += 1
        if self._guard_idle_looks >= LOOKS:
            self.hang_up()
        else:
            self._guard_look_timer = self.loop.call_later(STALLED / LOOKS, self._guard_look)

    def _guard_forget(self) -> None:
        if self._guard_look_timer is not None:
            self._guard_look_timer.cancel()
            self._guard_look_timer = None
            self._guard_traffic.reader_done(self)

    # ---- headers --------------------------------------------------------------------------------------------------

    def _guard_start(self) -> None:
        if self._guard_timer is None:
            self._guard_timer = self.loop.call_later(HEADER_DEADLINE, self._too_slow)

    def _guard_stop(self) -> None:
        if self._guard_timer is not None:
            self._guard_timer.cancel()
            self._guard_timer = None

    def _guard_peer(self) -> str:
        return self.client[0] if self.client else ""

    def _too_slow(self) -> None:
        self._guard_timer = None
        self.transport.close()
