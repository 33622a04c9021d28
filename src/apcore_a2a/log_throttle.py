"""A throttle for log lines that clients can cause: each line once a minute, and at most a hundred lines a minute."""

import time
from collections.abc import Callable
from typing import Final

INTERVAL: Final = 60.0  # seconds between two equal lines
MAX_LINES: Final = 100  # different lines in that time


class LogThrottle:
    """Decides whether a log line may be written.

    Example:
        >>> lines = LogThrottle(clock=lambda: 0.0)
        >>> [lines.is_due("ada is refused"), lines.is_due("ada is refused"), lines.is_due("bob is refused")]
        [True, False, True]
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._written_at: dict[str, float] = {}  # by line, the oldest first

    def is_due(self, line: str) -> bool:
        """Return whether a line may be written now. If so, it counts as written."""
        now = self._clock()
        written_at = self._written_at.get(line)
        if written_at is not None:
            if now - written_at < INTERVAL:
                return False
            del self._written_at[line]
        elif len(self._written_at) >= MAX_LINES:
            oldest = next(iter(self._written_at))
            if now - self._written_at[oldest] < INTERVAL:
                return False
            del self._written_at[oldest]
        self._written_at[line] = now
        return True
