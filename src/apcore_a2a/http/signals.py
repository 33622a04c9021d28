"""SIGINT and SIGTERM reach the engine when they arrive.

A server waits for open connections before it tells the application to shut down, and an event stream is a connection
that stays open: without this, uvicorn would wait for the stream, and the stream for the shutdown.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_exit_signal(begin: Callable[[], None]) -> Iterator[None]:
    """Call `begin` on the loop at the first exit signal, then whoever would have handled it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(begin)
        earlier = before[signal.Signals(number)]
        if callable(earlier):
            earlier(number, frame)

    for number, earlier in before.items():
        if callable(earlier):  # nobody handles it: the process dies at once, and so be it
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, earlier in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, earlier)
