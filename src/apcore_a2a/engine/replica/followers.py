"""Tasks that other replicas run, kept up to date here for the callers that ask for them at this replica.

Invariant: only the replica that runs a task writes it. The copy here is never newer than the store. This replica
answers from memory only for tasks that it runs under a valid lease (`authority`).

A followed task is a `LiveTask` like any other, so subscribers and callers that wait for it to rest wait on its log. The
difference is who appends to that log: `refresh` does, with what it reads from the store by one query for all tasks.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from apcore_a2a.engine.context import ReplicaTiming
from apcore_a2a.engine.replica.lease import Authority
from apcore_a2a.engine.runs import SHUTTING_DOWN, Runs
from apcore_a2a.engine.stored_run import NO_RUNNER, Runner
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.errors import OverloadedError, StoreUnavailableError, TaskNotFoundError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.storage.contract import FollowedTask, Record, ReplicaLease, Store, TaskUpdate, TaskWatch, WakeUp

NO_CHANGE: Final = "The replica that runs this task reports nothing; try again later"


class Followers:
    """The tasks of other replicas that callers of this replica use."""

    def __init__(
        self, store: Store, runs: Runs, *, lease: ReplicaLease, watch: TaskWatch, timing: ReplicaTiming
    ) -> None:
        self.authority = Authority(lease, timing)
        self._store = store
        self._runs = runs
        self._lease = lease
        self._watch = watch
        self._timing = timing
        self._followed: dict[str, int | None] = {}  # by task id: its number in the store, once that is known
        self._changed: asyncio.Future[None] | None = None  # done when a followed task has changed
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._followed)

    # ---- reads -------------------------------------------------------------------------------------------------------

    def can_answer_from_memory(self, live: LiveTask) -> bool:
        """Return whether the task runs here, and no other replica can have taken it over or ended it."""
        run = self._runs.running(live.task.id)
        if run is None or run.stopping is not None:
            return False
        return self.authority.holds_for(live.task.id)

    async def load(self, task_id: str, owner: str, *, follow: bool = False) -> LiveTask:
        """Return a task as it is now, to be held before the next await. With `follow` it is kept up to date.

        Raises:
            TaskNotFoundError: this owner has no such task.
        """
        live = self._runs.find(task_id, owner)
        if live is not None and self.can_answer_from_memory(live):
            return live
        if follow:
            record = await self._watch.follow(task_id, owner)
        else:
            record = await self._store.load(task_id, owner)
        if record is None:
            raise TaskNotFoundError(task_id)
        live = self._runs.revive(record)
        self._bring_up_to_date(live, record)
        if follow and record.state not in TERMINAL:
            self._followed.setdefault(task_id, None)
        return live

    def _bring_up_to_date(self, live: LiveTask, record: Record) -> None:
        if self._is_written_here(live):
            return
        live.follow(record)
        live.runner = self._runner_of(record.runner)

    def _is_written_here(self, live: LiveTask) -> bool:
        """Return whether this replica is about to write the task. The store then decides whether it may."""
        return self._runs.running(live.task.id) is not None or live.turn.is_taken

    def _runner_of(self, stored: str | None) -> Runner:
        """Return the other replica that the store's `runner` field names, or NO_RUNNER if it names this replica."""
        if stored is None or stored == self._lease.name:
            return NO_RUNNER
        return Runner(stored)

    # ---- waiting -----------------------------------------------------------------------------------------------------

    async def wait_until(self, live: LiveTask, holds: Callable[[LiveTask], bool], seconds: float) -> bool:
        """Wait until a condition holds for a followed task, at most for this time. Return whether it holds.

        Raises:
            TaskNotFoundError: the task was removed meanwhile.
        """
        self._followed.setdefault(live.task.id, None)
        deadline = time.monotonic() + seconds
        while not holds(live):
            if live.task.id not in self._followed:
                raise TaskNotFoundError(live.task.id)
            if not await self.wait_for_change(deadline - time.monotonic()):
                return holds(live)
        return True

    async def follow_until(self, live: LiveTask, holds: Callable[[LiveTask], bool]) -> None:
        """Wait until a condition holds for a task of another replica, for as long as it may be run there.

        Raises:
            TaskNotFoundError: the task was removed meanwhile.
            StoreUnavailableError: the task has not changed for longer than a run and the takeover of a run may take.
            OverloadedError: this replica shuts down. A retry reaches another replica.
        """
        await self.load(live.task.id, live.owner, follow=True)
        patience = (self._runs.longest_run or self._timing.longest_silence) + self._lease.seconds + self._timing.answer
        while True:
            version, runner = live.version, live.runner
            await self.wait_until(live, lambda live: self._is_closed or holds(live), patience)
            if holds(live):
                return
            if self._is_closed:
                raise OverloadedError(SHUTTING_DOWN, retry_after=5)
            if (version, runner) == (live.version, live.runner):
                raise StoreUnavailableError(NO_CHANGE)

    async def wait_until_free(self, live: LiveTask) -> None:
        """Wait until no other replica runs the task. Then its turn may be taken here. Raises as `follow_until`."""
        await self.follow_until(live, _has_no_runner)

    def close(self) -> None:
        """End the waits for tasks of other replicas, because this replica shuts down."""
        self._is_closed = True
        self.notify()

    async def wait_for_change(self, seconds: float) -> bool:
        """Wait for a call of `notify`, at most for this time. Return whether it came."""
        # `wait`, because it does not cancel the future, for which others wait as well.
        changed, _ = await asyncio.wait({self._next_change()}, timeout=max(seconds, 0))
        return bool(changed)

    def _next_change(self) -> "asyncio.Future[None]":
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def notify(self) -> None:
        """End the waits for a change: a followed task may have changed, or a request may have been answered."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    # ---- following ---------------------------------------------------------------------------------------------------

    def follow(self, live: LiveTask) -> None:
        """Follow a new task, which the store already has with this replica as a follower."""
        self._followed.setdefault(live.task.id, None)
        self._watch.wake_here()  # another replica may have written it already

    async def refresh(self, wake_up: WakeUp) -> None:
        """Read what other replicas wrote to the followed tasks, or to those that the wake-up names."""
        await self._forget_unused()
        if wake_up.everything:
            await self._follow_lost()
        lives: dict[str, LiveTask] = {}
        wanted: list[FollowedTask] = []
        out_of_step: list[LiveTask] = []  # a run here was lost, and the events that it had folded were never stored
        for task_id, number in self._followed.items():
            live = self._runs.get(task_id)
            if live is None or self._is_written_here(live):
                continue
            if not live.is_in_step:
                out_of_step.append(live)
            elif wake_up.everything or number is None or number in wake_up.tasks:
                lives[task_id] = live
                wanted.append(FollowedTask(task_id, live.owner, live.version))
        for live in out_of_step:
            await self._reload(live)
        await self._read_updates(lives, wanted)

    async def _read_updates(self, lives: dict[str, LiveTask], wanted: list[FollowedTask]) -> None:
        while wanted:
            batch = wanted[: self._timing.read_batch]
            after = {followed.task_id: followed.version for followed in batch}
            for update in await self._watch.read_updates(batch):
                self._apply(lives[update.task_id], update, after.pop(update.task_id))
            self.notify()
            unread = [followed for followed in batch if followed.task_id in after]
            wanted = unread + wanted[self._timing.read_batch :]

    def _apply(self, live: LiveTask, update: TaskUpdate, after: int) -> None:
        """Append the events of an update, if they continue the copy here."""
        task_id = update.task_id
        if update.number is None or update.version is None:  # it was removed
            self._drop(live)
            return
        self._followed[task_id] = update.number
        if self._is_written_here(live) or not live.is_in_step or not after <= live.version <= update.version:
            return
        events = update.events[live.version - after :]
        live.follow_events(events, epoch=update.epoch or 1, memo=update.memo or b"")
        if live.version < update.version:
            self._watch.wake_here()  # there are more events than one read returns
            return
        live.runner = self._runner_of(update.runner)
        if update.runner is None:  # otherwise a run that begins here would store messages again that were run there
            live.load_queue(None)

    async def _follow_lost(self) -> None:
        """Follow tasks that this replica runs no longer, that have not ended, and that still have readers here."""
        for live in self._runs.all_live():
            if live.task.id not in self._followed and not self._is_written_here(live) and not live.has_ended():
                await self._reload(live)

    async def _reload(self, live: LiveTask) -> None:
        """Read a task as a whole. Its readers start again from a snapshot."""
        with live.held():
            try:
                await self.load(live.task.id, live.owner, follow=True)
            except TaskNotFoundError:
                self._drop(live)
        self.notify()

    def _drop(self, live: LiveTask) -> None:
        """Stop following a task that was removed, and end its streams."""
        self._followed.pop(live.task.id, None)
        live.log.close()

    async def _forget_unused(self) -> None:
        """Stop following tasks that have ended or that nothing here holds any more."""
        gone = [task_id for task_id in self._followed if not self._is_used(task_id)]
        for task_id in gone:
            del self._followed[task_id]
        if gone:
            await self._watch.unfollow(gone)

    def _is_used(self, task_id: str) -> bool:
        live = self._runs.get(task_id)
        return live is not None and not live.has_ended()


def _has_no_runner(live: LiveTask) -> bool:
    return live.runner.is_none


def is_at_rest(live: LiveTask) -> bool:
    """Return whether the task waits for its user or has ended, so that its sender can be answered."""
    return live.state in AT_REST
