"""uvicorn's connections, guarded.

A connection that dribbles its headers, never ends them, or takes nothing of its answer, is closed.

uvicorn bounds neither the time nor the size of a request's headers, and waits for ever for a client that reads nothing;
a few hundred such connections would hold it.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_DEADLINE: Final = 15.0
MAX_HEADERS: Final = 64 * 1024
STALLED: Final = 60.0  # seconds in which a client must have read the better part of what waits for it (48 KiB)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a limit on the headers; a request that arrives whole costs three comparisons."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: uvicorn's business
        super().__init__(*args, **kwargs)
        self._guard_timer: asyncio.TimerHandle | None = None
        self._guard_stalled: asyncio.TimerHandle | None = None
        self._guard_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._guard_timer = self.loop.call_later(HEADER_DEADLINE, self._too_slow)

    def data_received(self, data: bytes) -> None:
        before: Any = self.scope  # Any: it is None before the first request, and so is the cycle
        HttpToolsProtocol.data_received(self, data)
        cycle: Any = self.cycle
        if cycle is not None and cycle.scope is self.scope:  # the headers are all there: only then is there a cycle
            if self._guard_timer is not None:
                self._guard_stop()
            self._guard_bytes = 0
            return
        if before is None or before is self.scope:  # else most of it was the request before
            self._guard_bytes += len(data)
        if self._guard_bytes > MAX_HEADERS:
            self.transport.close()
        elif self._guard_timer is None:
            self._guard_timer = self.loop.call_later(HEADER_DEADLINE, self._too_slow)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._guard_stalled = self.loop.call_later(STALLED, self.transport.abort)  # close() would wait for the client

    def resume_writing(self) -> None:
        super().resume_writing()
        self._guard_flows()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard_stop()
        self._guard_flows()
        super().connection_lost(exc)

    def _guard_stop(self) -> None:
        if self._guard_timer is not None:
            self._guard_timer.cancel()
            self._guard_timer = None

    def _guard_flows(self) -> None:
        if self._guard_stalled is not None:
            self._guard_stalled.cancel()
            self._guard_stalled = None

    def _too_slow(self) -> None:
        self._guard_timer = None
        self.transport.close()
