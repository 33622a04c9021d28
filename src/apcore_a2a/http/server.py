"""The server as a process: it starts, or says so; it ends, whatever an agent does.

Rule: once every task is at rest in the store, nothing that ignores its cancellation keeps the process alive.
"""

import gc
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import uvicorn

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LAST_GRACE: Final = 2.0  # seconds for what is left after a clean shutdown
FORCED_GRACE: Final = 0.5  # after a second signal


class Server(uvicorn.Server):
    """uvicorn that ends with code 0 on a signal, and at once on the second."""

    def run_to_end(self) -> bool:
        """Serve until a signal; whether it ever started."""
        with _signals_end_the_server_only():
            try:
                self.run()
            except SystemExit:  # uvicorn's way to say that it could not bind; it has logged why
                pass
            finally:
                self._leave(None)
        return self.started

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
            self._leave(FORCED_GRACE)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is there now stays: no collection looks at it again (45,000 objects, 30 ms of an answer)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets)
        self._leave(LAST_GRACE)

    _timer: threading.Timer | None = None

    def _leave(self, seconds: float | None) -> None:
        """End the process in so many seconds, whatever still runs; None if it may end by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = threading.Timer(seconds, os._exit, [0 if not self.force_exit else 1])
            self._timer.daemon = True
            self._timer.start()


@contextmanager
def _signals_end_the_server_only() -> Iterator[None]:
    """At its end uvicorn raises once more the signals that ended it; here they have done their work."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _handled) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _handled(number: int, frame: FrameType | None) -> None:
    """Nothing more to do."""
