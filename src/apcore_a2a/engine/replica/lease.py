"""The lease of this replica: renewed in time, and runs stopped before it expires.

Invariant: a replica that cannot renew its lease stops its own runs before another replica may take them over. It
decides this by its own clock, and needs no message for it. A replica that was declared dead writes nothing
more for the tasks that it ran, and joins under a new name.

The lease is renewed `ReplicaTiming.renewals` times in its length. After two thirds of the lease without an answer of
the store, the runs are stopped, even if a renewal is pending. This replica cannot tell whether the store is unavailable
to all replicas or only to this one, unless the store reports that it is starting or shutting down. When the lease has
expired, any other replica may declare this one dead and claim its tasks. Repeatable tasks run again, up to MAX_ATTEMPTS
times in all. The others end as FAILED, "Worker lost".

An expired lease stays valid until another replica declares its holder dead. So if the store was unavailable to all
replicas, all of them keep their leases: a replica whose own renewal failed waits one more renewal before it claims
orphans, and the live replicas renew their leases in that time. A process that was suspended (its machine slept or was
migrated) tries to renew its lease before it stops its runs.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from apcore_a2a.engine.context import ReplicaTiming
from apcore_a2a.engine.run import Stop
from apcore_a2a.engine.runs import Runs
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.storage.contract import ReplicaLease

logger = logging.getLogger(__name__)

# ---- authority ------------------------------------------------------------------------------------------------------
# Whether a replica may answer for a task from its own memory, without reading the store.
#
# Invariant: a replica answers from memory only while no other replica can have taken the task over or canceled it. That
# is the case while its lease is valid, its last read of the other replicas' requests is recent, and it has finished all
# requests for the task.


class Authority:
    """When the lease was last renewed, when requests were last read, and which tasks have unfinished requests."""

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


# ---- renewal --------------------------------------------------------------------------------------------------------

CLAIM_DELAY: Final = 0.05  # seconds after the end of another replica's lease at which its tasks are claimed


class Renewal(NamedTuple):
    """The outcome of one renewal."""

    pause: float
    """Seconds until the next renewal."""
    is_kept: bool
    """False if this replica was declared dead, and has joined under a new name."""
    may_have_orphans: bool = False
    """Whether the lease of another replica has expired, so that its tasks may be claimed."""


class LeaseKeeper:
    """Renews the lease of this replica, and stops its runs when the lease is about to expire."""

    def __init__(self, lease: ReplicaLease, runs: Runs, authority: Authority, timing: ReplicaTiming) -> None:
        self._lease = lease
        self._runs = runs
        self._authority = authority
        self._timing = timing
        self._has_failed = False  # whether the renewal before failed
        self._stop_time = float("inf")  # when the runs are to be stopped, by the monotonic clock
        self._stop_timer: asyncio.TimerHandle | None = None  # fires at that time

    @property
    def _interval(self) -> float:
        return self._lease.seconds / self._timing.renewals

    async def renew(self) -> Renewal:
        """Renew the lease once.

        Raises:
            StoreUnavailableError: the store does not answer. Runs are stopped if the lease is about to expire.
        """
        started = time.monotonic()
        try:
            next_end = await self._lease.renew()
        except StoreUnavailableError:
            self._has_failed = True
            if time.monotonic() > self._stop_time and not self._postpone_stop():
                self._stop_all()  # again: runs may have begun since
            raise
        if next_end is None:
            await self._join_again()
            return Renewal(0, is_kept=False)
        self.renewed(started)
        if next_end > 0:
            return Renewal(min(self._interval, next_end + CLAIM_DELAY), is_kept=True)
        # If the store was unavailable, perhaps to all: then the live replicas have not renewed their leases yet either.
        may_have_orphans = not self._has_failed
        self._has_failed = False
        return Renewal(self._interval, is_kept=True, may_have_orphans=may_have_orphans)

    def renewed(self, started: float) -> None:
        """Note a renewal that was requested at this time, by the monotonic clock."""
        self._authority.lease_renewed(started)
        self._stop_at(started + self._lease.seconds * self._timing.stop_after)

    def close(self) -> None:
        """Cancel the timer that would stop the runs."""
        self._set_stop_timer(None)

    def expire(self, late_by: float) -> None:
        """Stop the runs, because the lease is about to expire. `late_by`: seconds by which the timer fired late."""
        if late_by > self._timing.suspended:  # the process was suspended, and a renewal is on its way now
            loop = asyncio.get_running_loop()
            self._set_stop_timer(loop.call_later(self._timing.suspended, self._stop_all))
        elif not self._postpone_stop():
            self._stop_all()

    def _stop_at(self, when: float) -> None:
        self._stop_time = when
        loop = asyncio.get_running_loop()
        seconds = max(when - time.monotonic(), 0)
        self._set_stop_timer(loop.call_later(seconds, self._on_timer, loop.time() + seconds))

    def _on_timer(self, due: float) -> None:
        self.expire(asyncio.get_running_loop().time() - due)

    def _set_stop_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._stop_timer = timer

    def _postpone_stop(self) -> bool:
        """Let the runs continue for now if the store reported recently that it serves no client. Return whether it did.

        The runs are stopped one renewal interval after the last such report. When the store is available again, the
        other replicas give this one that time to renew its lease.
        """
        until = self._lease.down_at + self._interval
        if until < time.monotonic() or self._authority.lease_age > self._timing.longest_hold:
            return False
        self._stop_at(until)
        return True

    def _stop_all(self) -> None:
        for run in self._runs.all_running():
            if run.stopping is None:
                logger.warning("lease not renewed: run stopped", extra={"task_id": run.live.task.id})
            self._runs.stop(run, Stop.LOST)

    async def _join_again(self) -> None:
        """Join under a new name, because another replica has declared this one dead."""
        logger.warning("lease lost: this replica goes on under a new name", extra={"replica": self._lease.name})
        self._stop_all()
        started = time.monotonic()
        await self._lease.join()
        self.renewed(started)
