"""Takeover of tasks: orphans of dead replicas, tasks that wait for any replica, and claims whose answer was lost.

Invariant: a claimed task is settled (run again, ended, or handed on) by this replica and by no other.
"""

import asyncio
import logging
from typing import Final

from apcore_a2a.engine.context import ReplicaTiming
from apcore_a2a.engine.recovery import Recovery
from apcore_a2a.engine.run import Stop
from apcore_a2a.engine.runs import BackgroundWork, Runs
from apcore_a2a.engine.task import NO_RUNNER, LiveTask
from apcore_a2a.errors import A2AError, StoreUnavailableError, TaskNotFoundError
from apcore_a2a.storage.contract import Record, ReplicaLease, TaskClaims

logger = logging.getLogger(__name__)

CLEAN_UP_EVERY: Final = 20  # renewals


class Takeover:
    """Claims tasks for this replica, and settles them."""

    def __init__(
        self, claims: TaskClaims, lease: ReplicaLease, runs: Runs, recovery: Recovery, timing: ReplicaTiming
    ) -> None:
        self._claims = claims
        self._lease = lease
        self._runs = runs
        self._recovery = recovery
        self._timing = timing
        self._background = BackgroundWork()
        self._may_have_lost_claims = False  # whether the store may have claims of this replica that are unknown here
        self._renewals = 0
        self._chores: asyncio.Task[None] | None = None
        self.has_queue = False
        """Whether more tasks may wait for a replica with room."""

    async def close(self) -> None:
        """Claim and settle nothing more."""
        await self._background.cancel_all(1)

    def begin_chores(self, *, may_have_orphans: bool) -> None:
        """Start the work after a renewal, unless it is still going on: it may take longer than a lease."""
        if self._chores is None or self._chores.done():
            self._chores = self._background.start(self._do_chores(may_have_orphans), name="chores of a replica")

    async def _do_chores(self, may_have_orphans: bool) -> None:
        try:
            self._renewals += 1
            if self._renewals % CLEAN_UP_EVERY == 0:
                await self._lease.clean_up()
            if self._may_have_lost_claims and not self._runs.draining:
                await self._take_lost_claims()
            has_more = may_have_orphans
            while has_more:
                has_more = await self._take_orphans()
                await asyncio.sleep(self._timing.retry)
        except StoreUnavailableError:
            logger.debug("chores are put off until the next renewal")  # the store has logged the reason

    async def _take_orphans(self) -> bool:
        """Claim tasks of dead replicas. Return whether there may be more."""
        if self._runs.draining:
            return False
        limit = self._timing.claim_batch
        try:
            claimed = await self._claims.claim_orphans(limit)
        except StoreUnavailableError:
            self._may_have_lost_claims = True
            raise
        self._settle_all(claimed)
        return len(claimed) == limit

    async def take_queued(self) -> None:
        """Claim tasks that wait for any replica, as many as this one has room for."""
        room = min(self._runs.room, self._timing.claim_batch)
        if room <= 0 or self._runs.draining:
            self.has_queue = not self._runs.draining  # there may be room later
            return
        try:
            claimed = await self._claims.claim_queued(room)
        except StoreUnavailableError:
            self._may_have_lost_claims = True
            raise
        self.has_queue = len(claimed) == room  # more tasks may wait than there was room for
        self._settle_all(claimed)

    async def _take_lost_claims(self) -> None:
        """Claim the tasks again that the store has as this replica's and that are unknown here: an answer was lost."""
        claimed: list[Record] = []
        for task_id, owner in await self._claims.own_tasks():
            if self._runs.get(task_id) is None:
                record = await self._claims.claim(task_id, owner)
                if record is not None and record.runner == self._lease.name:
                    claimed.append(record)
        self._may_have_lost_claims = False
        self._settle_all(claimed)

    async def claim(self, live: LiveTask) -> None:
        """Claim one task from the replica that runs it.

        Raises:
            TaskNotFoundError: it was removed meanwhile.
        """
        self._may_have_lost_claims = True  # in case the answer is lost, or its caller gives up
        record = await self._claims.claim(live.task.id, live.owner)
        if record is None:
            raise TaskNotFoundError(live.task.id)
        live.follow(record)
        live.runner = NO_RUNNER

    def _settle_all(self, claimed: list[Record]) -> None:
        for record in claimed:
            self._background.start(self._settle(record), name="task taken over")

    async def _settle(self, record: Record) -> None:
        """Settle a claimed task. Retry until it is done, because no other replica does it."""
        task_id = record.document.task().id
        logger.info("task taken over", extra={"task_id": task_id})
        attempt = 0
        while True:
            try:
                await self._stop_earlier_run(task_id)
                await self._recovery.take_over(record)
                return
            except A2AError as error:
                logger.warning("task not taken over yet", extra={"task_id": task_id, "reason": error.message})
                await asyncio.sleep(self._runs.timing.retry_pause(attempt))
                attempt += 1

    async def _stop_earlier_run(self, task_id: str) -> None:
        """Stop a run of the task that this replica began before it was declared dead."""
        run = self._runs.running(task_id)
        if run is not None:
            await asyncio.wait({self._runs.stop(run, Stop.LOST)})
