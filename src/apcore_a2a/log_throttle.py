"""Lines of the log that somebody outside can cause: each once a minute, and a hundred of them in a minute at most."""

import time
from collections.abc import Callable
from typing import Final

INTERVAL: Final = 60.0  # seconds between two lines about the same
MAX_LINES: Final = 100  # in that time


class LogThrottle:
    """Says whether a line is due.

    Example:
        >>> lines = LogThrottle(clock=lambda: 0.0)
        >>> [lines.is_due("ada is refused"), lines.is_due("ada is refused"), lines.is_due("bob is refused")]
        [True, False, True]
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at: dict[str, float] = {}  # by what was told, the oldest first

    def is_due(self, line: str) -> bool:
        """Whether a line may be written now; if so, it counts as written."""
        now = self._clock()
        told_at = self._told_at.get(line)
        if told_at is not None:
            if now - told_at < INTERVAL:
                return False
            del self._told_at[line]
        elif len(self._told_at) >= MAX_LINES:
            oldest = next(iter(self._told_at))
            if now - self._told_at[oldest] < INTERVAL:
                return False
            del self._told_at[oldest]
        self._told_at[line] = now
        return True
