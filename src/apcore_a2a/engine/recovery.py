"""Recovery of the tasks of processes that ended, and the claims by which a replica takes over tasks from others.

A run whose process ended is repeated if the agent allows it. Otherwise its task fails. Queued messages are queued
again.

Invariant: only the process that has claimed a task from the store continues it.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from apcore_a2a.agent import Call
from apcore_a2a.engine import runs as runs_module
from apcore_a2a.engine.agent_output import failed_status
from apcore_a2a.engine.context import CallContext, ReplicaTiming
from apcore_a2a.engine.conversation import EarlierTask
from apcore_a2a.engine.event_log import READ_AT_ONCE
from apcore_a2a.engine.intake import Intake, new_call
from apcore_a2a.engine.run import FromQueue, Rerun, Start, Stop
from apcore_a2a.engine.runs import BackgroundWork, Runs
from apcore_a2a.engine.stored_run import NO_RUNNER, StoredRun, decode_stored_run
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.engine.turn_writes import hand_on
from apcore_a2a.engine.webhooks.operations import Webhooks
from apcore_a2a.errors import A2AError, AgentError, StaleWriteError, StoreUnavailableError, TaskNotFoundError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import AT_REST, copy
from apcore_a2a.protocol.model import SendMessage, Task
from apcore_a2a.storage.contract import Record, ReplicaLease, Store, TaskClaims

logger = logging.getLogger(__name__)

LOST: Final = "Worker lost: the process running this task ended"


class InterruptedTurn(NamedTuple):
    """The task before the turn that is run again (None if there was no task), and at the beginning of this turn."""

    before: Task | None
    begun: Task


class Recovery:
    """Continues tasks that were claimed from processes that ended."""

    def __init__(self, store: Store, runs: Runs, intake: Intake, webhooks: Webhooks | None) -> None:
        self._store = store
        self._runs = runs
        self._intake = intake
        self._webhooks = webhooks

    async def recover(self) -> None:
        """Claim the tasks of ended processes. Run them again if allowed, run queued messages, and fail the rest."""
        for record in await self._store.orphans():
            await self.take_over(record)

    async def take_over(self, record: Record) -> None:
        """Continue a task that was claimed from another process, unless a third process has claimed it meanwhile."""
        live = self._runs.revive(record)
        with live.held():
            await live.turn.take()  # first, so that messages that wait here for the claim get the turn later
            runs_again = False
            try:
                runs_again = await self._go_on(live, record)
            except (StaleWriteError, TaskNotFoundError):
                runs_module.log_recovered(live.task, "left to another replica")
            finally:
                if not runs_again:
                    live.turn.give()

    async def _go_on(self, live: LiveTask, record: Record) -> bool:
        """Run the task again, fail it or leave it as it is. Return whether it runs again, and so keeps the turn."""
        stored = decode_stored_run(record.run)
        runs_again = False
        if live.is_shared:
            live.follow(record)
            live.runner = NO_RUNNER
        if self._webhooks is not None:
            await self._webhooks.resume(live)
        live.load_queue(stored)
        request = stored.request if stored is not None else None
        if stored is not None and request is not None and stored.may_run_again():
            turn = await _read_turn(self._store, live, stored)
            call = await self._prepare_rerun(live, stored, request, turn)
            if self._runs.draining and live.is_shared:  # the shutdown began after the claim
                live.set_run(stored)
                await hand_on(live)
                return False
            self._rerun(live, stored, call, turn)
            runs_module.log_recovered(live.task, "run again")
            runs_again = True
        elif request is not None or live.state not in AT_REST:
            await live.write(failed_status(AgentError(LOST, kind="WorkerLostError")))
            self._runs.observer.run_lost(live.task.id)
            runs_module.log_recovered(live.task, "failed: its worker is lost")
        elif not live.queue.waiting:
            await live.save_run()  # the claim was for a cancel, and the task waits for its user: give the claim up
        # The queued messages wait again. If the task has just ended, they were rejected, and the queue is empty.
        for queued in live.queue.waiting:
            self._intake.resume_queued(live, queued)
        return runs_again

    async def _prepare_rerun(
        self, live: LiveTask, stored: StoredRun, request: SendMessage, turn: InterruptedTurn
    ) -> Call:
        """Return the call for an agent that starts again with the request of a process that ended."""
        context = CallContext(caller=stored.caller, headers=stored.trace)
        call = new_call(request, live.task, context)
        await self._intake.conversations.add_history(call, context, task=EarlierTask(live.task.id, turn.before))
        call.resumed = stored.resumed
        call.memo = stored.memo
        call.attempt = stored.attempt + 1
        if turn.before is not None:
            call.waited_in = turn.before.status.state
        return call

    def _rerun(self, live: LiveTask, stored: StoredRun, call: Call, turn: InterruptedTurn) -> None:
        """Start the run from the beginning. `take_over` has the turn already."""
        live.set_run(replace(stored, attempt=stored.attempt + 1))
        start: Start = Rerun(turn.begun)
        if stored.attempt == 0:
            start = FromQueue()
        self._runs.launch(live, call, start, quota_key=CallContext(caller=stored.caller).quota_key)


async def _read_turn(store: Store, live: LiveTask, stored: StoredRun) -> InterruptedTurn:
    """Return the task before and at the beginning of the turn that a dead process did not finish.

    What earlier turns produced has been received by clients, so it is kept. If the store does not keep events, or a
    previous version stored the run, it is unknown which artifacts are from earlier turns, and all are kept.
    """
    if not stored.resumed:
        first = await store.events(live.task.id, live.owner, 0, 1)
        return InterruptedTurn(None, replace(_replay(None, first) if first else live.task, artifacts=[]))
    task: Task | None = None
    version = 0
    while 0 < stored.start and version < stored.start:
        records = await store.events(live.task.id, live.owner, version, min(stored.start - version, READ_AT_ONCE))
        if not records:
            break
        task = _replay(task, records)
        version += len(records)
    records = await store.events(live.task.id, live.owner, version, 1)
    if task is None or not records:
        return InterruptedTurn(live.task, live.task)
    begun = copy(task)
    v1.replay(begun, records)
    return InterruptedTurn(task, begun)


def _replay(task: Task | None, records: Sequence[bytes]) -> Task:
    """Fold stored events into a task, or into the task of the first event."""
    if task is None:
        first, _ = v1.decode_record(records[0])
        assert isinstance(first, Task)  # the first event of each task
        task = first
        records = records[1:]
    v1.replay(task, records)
    return task


# ---- tasks of other replicas ----------------------------------------------------------------------------------------
# Orphans of dead replicas, tasks that wait for any replica, and claims whose answer was lost.
#
# Invariant: a claimed task is settled (run again, ended, or handed on) by this replica and by no other.

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
        self._idle: set[tuple[str, str]] = set()  # own tasks that nothing worked on at the last clean-up
        self._renewals = 0
        self._maintenance: asyncio.Task[None] | None = None
        self.has_queue = False
        """Whether more tasks may wait for a replica with room."""

    async def close(self) -> None:
        """Claim and settle nothing more."""
        await self._background.cancel_all(1)

    def begin_maintenance(self, *, may_have_orphans: bool) -> None:
        """Start the work that follows a renewal, unless the previous one continues: it may take longer than a lease."""
        if self._maintenance is None or self._maintenance.done():
            work = self._maintain(may_have_orphans)
            self._maintenance = self._background.start(work, name="maintenance of a replica")

    async def _maintain(self, may_have_orphans: bool) -> None:
        try:
            self._renewals += 1
            if self._renewals % CLEAN_UP_EVERY == 0:
                await self._lease.clean_up()
                await self._take_idle_tasks()
            if self._may_have_lost_claims and not self._runs.draining:
                await self._take_lost_claims()
            has_more = may_have_orphans
            while has_more:
                has_more = await self._take_orphans()
                await asyncio.sleep(self._timing.retry)
        except StoreUnavailableError:
            logger.debug("maintenance is postponed until the next renewal")  # the store has logged the reason

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
        """Claim again the tasks that the store has claimed for this replica, which did not receive the answer."""
        await self._claim_again(await self._idle_tasks())
        self._may_have_lost_claims = False

    async def _take_idle_tasks(self) -> None:
        """Claim again tasks that this replica should work on, and has not worked on since the last clean-up.

        There are none, unless an unforeseen error has ended that work. Other replicas would wait for it forever.
        """
        idle = await self._idle_tasks()
        stuck = idle & self._idle
        self._idle = idle - stuck
        for task_id, _ in stuck:
            logger.warning("task without a run is claimed again", extra={"task_id": task_id})
        await self._claim_again(stuck)

    async def _idle_tasks(self) -> set[tuple[str, str]]:
        """Return id and owner of the tasks whose runner is this replica, and on which nothing works here."""
        idle: set[tuple[str, str]] = set()
        for task_id, owner in await self._claims.own_tasks():
            live = self._runs.get(task_id)
            if live is None or (self._runs.running(task_id) is None and not live.turn.is_taken):
                idle.add((task_id, owner))
        return idle

    async def _claim_again(self, tasks: set[tuple[str, str]]) -> None:
        claimed: list[Record] = []
        for task_id, owner in sorted(tasks):
            record = await self._claims.claim(task_id, owner)
            if record is not None and record.runner == self._lease.name:
                claimed.append(record)
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
