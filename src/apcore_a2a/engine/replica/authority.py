"""Whether a replica may answer for a task from its own memory, without reading the store.

Invariant: a replica answers from memory only while no other replica can have taken the task over or canceled it. That
is while the lease holds, and while it has lately read the requests of the others and finished those for the task.
"""

import time
from collections.abc import Callable, Sequence

from apcore_a2a.engine.context import ReplicaTiming
from apcore_a2a.storage.contract import ReplicaLease


class Authority:
    """The time of the last renewal, the time of the last read of requests, and the tasks with unfinished requests."""

    def __init__(
        self, lease: ReplicaLease, timing: ReplicaTiming, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lease = lease
        self._timing = timing
        self._clock = clock
        self._renewed_at = float("-inf")  # by the clock, as all times here
        self._read_at = float("-inf")
        self._requested: list[str] = []  # the task of each unfinished request

    def lease_renewed(self, at: float) -> None:
        """Note a renewal of the lease that was requested at this time."""
        self._renewed_at = at

    @property
    def lease_age(self) -> float:
        """Seconds since the last renewal."""
        return self._clock() - self._renewed_at

    def requests_read(self, at: float, task_ids: Sequence[str]) -> None:
        """Note that all requests posted by this time were read, and the tasks of the new ones."""
        self._read_at = at
        self._requested += task_ids

    def request_finished(self, task_id: str) -> None:
        """Note that one request for a task is finished."""
        self._requested.remove(task_id)

    @property
    def requests_age(self) -> float:
        """Seconds since the last read of requests."""
        return self._clock() - self._read_at

    def holds_for(self, task_id: str) -> bool:
        """Return whether this replica may answer for a task that it runs from memory."""
        if task_id in self._requested:
            return False
        return self.lease_age < self._lease.seconds and self.requests_age < self._timing.requests_valid
