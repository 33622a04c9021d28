"""How long the event loop was kept from turning: a timer that looks how much later than asked it is called.

Whatever runs on the loop without waiting delays everybody by as long as it takes. The wall clock also counts the time
in which the machine did something else; the time on the processor counts only our own.
"""

import asyncio
import time
from collections import deque
from typing import Final

EVERY: Final = 0.1  # seconds
MINUTE: Final = 60.0


class LoopLag:
    """The longest delay since the start and within the last minute, in seconds; ten timers a second."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.longest_on_processor = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._asked_for = 0.0  # when the timer is due, on the loop's clock
        self._processor = 0.0  # what the loop's thread had used when it was set
        self._seconds: deque[tuple[int, float]] = deque()  # of each second of the last minute the longest

    def start(self) -> None:
        """Measure from now on; once is enough."""
        if self._timer is None:
            self._set()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def longest_of_last_minute(self) -> float:
        self._forget(asyncio.get_running_loop().time())
        return max((lag for _, lag in self._seconds), default=0.0)

    def _set(self) -> None:
        loop = asyncio.get_running_loop()
        self._asked_for = loop.time() + EVERY
        self._processor = time.thread_time()
        self._timer = loop.call_at(self._asked_for, self._measure)

    def _measure(self) -> None:
        now = asyncio.get_running_loop().time()
        lag = max(now - self._asked_for, 0.0)
        self.longest = max(self.longest, lag)
        # What was computed before the timer was due has delayed nobody; it is counted as far as there was a delay.
        on_processor = min(lag, time.thread_time() - self._processor)
        self.longest_on_processor = max(self.longest_on_processor, on_processor)
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            lag = max(lag, self._seconds.pop()[1])
        self._seconds.append((second, lag))
        self._forget(now)
        self._set()

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] < now - MINUTE:
            self._seconds.popleft()
