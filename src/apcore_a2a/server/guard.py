"""A connection that dribbles its headers, or never ends them, is closed.

uvicorn bounds neither the time nor the size of a request's headers; a few hundred slow connections would hold it.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_DEADLINE: Final = 15.0
MAX_HEADERS: Final = 64 * 1024


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a limit on the headers; a request that arrives whole costs two comparisons."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: uvicorn's business
        super().__init__(*args, **kwargs)
        self._guard_timer: asyncio.TimerHandle | None = None
        self._guard_bytes = 0
        self._guard_waits = True  # for the end of the headers

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._guard_timer = self.loop.call_later(HEADER_DEADLINE, self._too_slow)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._guard_waits = True
        self._guard_bytes = 0

    def on_headers_complete(self) -> None:
        self._guard_waits = False
        self._guard_stop()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        if self._guard_waits:
            self._guard_bytes += len(data)
        super().data_received(data)
        if self._guard_waits and self._guard_bytes:
            if self._guard_bytes > MAX_HEADERS:
                self.transport.close()
            elif self._guard_timer is None:
                self._guard_timer = self.loop.call_later(HEADER_DEADLINE, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard_stop()
        super().connection_lost(exc)

    def _guard_stop(self) -> None:
        if self._guard_timer is not None:
            self._guard_timer.cancel()
            self._guard_timer = None

    def _too_slow(self) -> None:
        self._guard_timer = None
        self.transport.close()
