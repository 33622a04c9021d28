"""Where webhooks are: a host and a port, which may be down.

Rule: whoever fails several times in a row is left alone (its *circuit* is open), longer each time; then one worker
tries, and the others go on if it gets through.
"""

import logging
from collections import deque
from typing import Final

from apcore_a2a.storage.task_store import Claim

logger = logging.getLogger(__name__)

MAX_WORKERS_PER_TARGET: Final = 16
LATER: Final = 1.0  # seconds after which one is claimed again for which there was no place
OPENS_AFTER: Final = 5  # failures in a row
OPEN_FOR: Final = (1.0, 30.0)  # seconds, the first time and at most: twice as long each time
SPARED: Final = 60.0  # seconds for which what waits for a target that is down is not counted as tried


class Target:
    """A host and a port: its circuit, its workers, and the claims that wait for one of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.workers = 0
        self.queue: deque[tuple[Claim, float]] = deque()  # with the time of the claim
        self.is_listed = False  # among those that have something for a worker to do
        self._failures = 0  # in a row
        self._opened_for = 0.0
        self._closed_until = 0.0
        self._down_since = 0.0
        self._is_tried = False
        self.reason = ""

    def is_idle(self) -> bool:
        return not self.workers and not self.queue and not self._failures

    def is_forgotten(self, now: float) -> bool:
        """Whether it failed, but nobody has asked for it since it may be tried again."""
        return not self.workers and not self.queue and now > self._closed_until

    def seconds_left(self, now: float) -> float:
        """How long nobody may post to it; the first one after that is a trial, which the others wait for."""
        if self._failures < OPENS_AFTER:
            return 0.0
        if self._is_tried:
            return max(self._closed_until - now, LATER)
        return max(self._closed_until - now, 0.0)

    def has_room(self, now: float) -> bool:
        return self.workers < MAX_WORKERS_PER_TARGET and not self.seconds_left(now)

    def is_given_up(self, now: float) -> bool:
        return self._failures >= OPENS_AFTER and now - self._down_since > SPARED

    def begin(self) -> None:
        self.workers += 1
        self._is_tried = self._failures >= OPENS_AFTER

    def end(self) -> None:
        self.workers -= 1
        self._is_tried = False

    def succeeded(self) -> None:
        self._failures = 0
        self._opened_for = 0.0
        self._is_tried = False

    def failed(self, reason: str, now: float) -> None:
        if not self._failures:
            self._down_since = now
        self._failures += 1
        self._is_tried = False
        self.reason = reason
        if self._failures >= OPENS_AFTER and now >= self._closed_until:
            first, longest = OPEN_FOR
            self._opened_for = min(max(2 * self._opened_for, first), longest)
            self._closed_until = now + self._opened_for
            logger.warning("webhook target left alone", extra={"target": self.name, "seconds": self._opened_for})
