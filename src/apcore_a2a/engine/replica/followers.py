"""Tasks that another replica runs, for those who ask for them here: looked at in the store, followed by their events.

Rule: a task is written where it runs. Here it is a reader's copy, never ahead of the store; what this replica answers
from its own memory it runs itself, under a lease that holds, and nobody can have canceled it meanwhile without asking.

A followed task is a `LiveTask` like any other, so whoever subscribes to it, or waits for it to rest, waits on its log.
The difference is who appends to that log: `refresh` does, with what the store has; one query for all that are followed.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from apcore_a2a.engine.runs import Runs
from apcore_a2a.engine.task import NO_RUNNER, LiveTask, Runner
from apcore_a2a.errors import TaskNotFoundError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.storage.contract import FollowedTask, Record, Replicas, SharedStore, TaskUpdate, WakeUp

ASKED_AT_ONCE: Final = 500  # followed tasks: fewer than a store tells of, so that it tells of one's events at least
POLL: Final = 1.0  # seconds between looks at what is followed: wake-ups may get lost
# Seconds for which a look at what others ask holds: who is not answered cancels a task without us, after `peer_cancel`.
HEARD_FOR: Final = 3.0


class Followers:
    """The tasks of other replicas that somebody here is interested in."""

    def __init__(self, store: SharedStore, runs: Runs) -> None:
        self._store = store
        self._runs = runs
        self._renewed = float("-inf")  # when the lease was last renewed, by the monotonic clock
        self._heard = float("-inf")  # when this replica last looked at what others ask of it
        self._asked: list[str] = []  # the tasks of what they asked, until that is done
        self._followed: dict[str, int | None] = {}  # by task id: its number in the store, once it is known
        self._changed: asyncio.Future[None] | None = None  # done when something that is followed has changed

    @property
    def replicas(self) -> Replicas:
        return self._store.replicas

    def __len__(self) -> int:
        return len(self._followed)

    # ---- the lease ---------------------------------------------------------------------------------------------------

    def renewed(self, at: float) -> None:
        """The lease was asked for at that time, and given."""
        self._renewed = at

    @property
    def lease_age(self) -> float:
        return time.monotonic() - self._renewed

    def runs_here(self, live: LiveTask) -> bool:
        """Whether what is in memory is the truth: it runs here, and nobody can have taken it over or ended it."""
        task_id = live.task.id
        run = self._runs.running(task_id)
        if run is None or run.stopping is not None or task_id in self._asked:
            return False
        return self.lease_age < self.replicas.lease.seconds and self.heard_ago < HEARD_FOR

    # ---- what others ask ---------------------------------------------------------------------------------------------

    def heard(self, at: float, task_ids: Sequence[str]) -> None:
        """All that others had asked by that time is known here; something was asked of these tasks."""
        self._heard = at
        self._asked += task_ids

    def obeyed(self, task_id: str) -> None:
        self._asked.remove(task_id)

    @property
    def heard_ago(self) -> float:
        return time.monotonic() - self._heard

    # ---- looking -----------------------------------------------------------------------------------------------------

    async def look(self, task_id: str, owner: str, *, follow: bool = False) -> LiveTask:
        """A task as it is now, to be held before the next await; `follow` it to learn of what comes.

        Raises:
            TaskNotFoundError: there is none of this owner's.
        """
        live = self._runs.find(task_id, owner)
        if live is not None and self.runs_here(live):
            return live
        if follow:
            record = await self.replicas.watch.follow(task_id, owner)
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
        live.runner = self._other(record.runner)

    def _is_written_here(self, live: LiveTask) -> bool:
        """Whether somebody here is about to write it, and will see for himself whether he may."""
        return self._runs.running(live.task.id) is not None or live.turn.is_taken

    def _other(self, stored: str | None) -> Runner:
        """The other replica that runs the task, by the store's field; NO_RUNNER if it names this replica."""
        if stored is None or stored == self.replicas.lease.name:
            return NO_RUNNER
        return Runner(stored)

    # ---- waiting -----------------------------------------------------------------------------------------------------

    async def until(self, live: LiveTask, holds: Callable[[LiveTask], bool], seconds: float | None = None) -> bool:
        """Wait for something to hold of a followed task, at most so long; whether it does.

        Raises:
            TaskNotFoundError: it was removed meanwhile.
        """
        self._followed.setdefault(live.task.id, None)
        try:
            async with asyncio.timeout(seconds):
                while not holds(live):
                    if live.task.id not in self._followed:
                        raise TaskNotFoundError(live.task.id)
                    await asyncio.shield(self._next_change())  # it is everybody's
        except TimeoutError:
            return holds(live)
        return True

    async def until_free(self, live: LiveTask) -> None:
        """Wait until no other replica has the task; then its turn is to be had here."""
        await self.look(live.task.id, live.owner, follow=True)
        await self.until(live, _is_free)

    async def until_told(self, seconds: float) -> None:
        """Wait for anything to change, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._next_change())
        except TimeoutError:
            return

    def _next_change(self) -> "asyncio.Future[None]":
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def tell(self) -> None:
        """Something has changed, or may have."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    def watch(self, live: LiveTask) -> None:
        """Follow a task from where it is; whoever writes it knows that this replica wants to be told."""
        self._followed.setdefault(live.task.id, None)
        self.replicas.watch.wake_here()  # somebody may have written it already

    # ---- following ---------------------------------------------------------------------------------------------------

    async def refresh(self, hint: WakeUp) -> None:
        """Read what others wrote to the tasks that are followed, or to those of them that the hint names."""
        await self._forget_unwatched()
        if hint.everything:
            await self._follow_lost()
        lives: dict[str, LiveTask] = {}
        wanted: list[FollowedTask] = []
        torn: list[LiveTask] = []  # a run here was lost half-way: what it had folded was never stored
        for task_id, number in self._followed.items():
            live = self._runs.get(task_id)
            if live is None or self._is_written_here(live):
                continue
            if not live.is_in_step:
                torn.append(live)
            elif hint.everything or number is None or number in hint.tasks:
                lives[task_id] = live
                wanted.append(FollowedTask(task_id, live.owner, live.version))
        for live in torn:
            await self._read_anew(live)
        while wanted:
            asked = wanted[:ASKED_AT_ONCE]
            after = {followed.task_id: followed.version for followed in asked}
            for news in await self.replicas.watch.read_updates(asked):
                self._take(lives[news.task_id], news, after.pop(news.task_id))
            self.tell()
            untold = [followed for followed in asked if followed.task_id in after]
            wanted = untold + wanted[ASKED_AT_ONCE:]

    def _take(self, live: LiveTask, news: TaskUpdate, after: int) -> None:
        task_id = news.task_id
        if news.number is None or news.version is None:  # it was removed
            self._drop(live)
            return
        self._followed[task_id] = news.number
        if self._is_written_here(live) or not live.is_in_step or not after <= live.version <= news.version:
            return
        live.follow_events(news.events[live.version - after :], epoch=news.epoch or 1, memo=news.memo or b"")
        if live.version < news.version:
            self.replicas.watch.wake_here()  # there was more than one reads at once
            return
        live.runner = self._other(news.runner)

    async def _follow_lost(self) -> None:
        """Follow what was run here and is not any more, though somebody still watches it."""
        for live in self._runs.all_live():
            if live.task.id not in self._followed and not self._is_written_here(live) and not live.has_ended():
                await self._read_anew(live)

    async def _read_anew(self, live: LiveTask) -> None:
        """Bring a task up to date as a whole; its readers begin again from a snapshot."""
        with live.held():
            try:
                await self.look(live.task.id, live.owner, follow=True)
            except TaskNotFoundError:
                self._drop(live)
        self.tell()

    def _drop(self, live: LiveTask) -> None:
        """It was removed: whoever waits for it need not wait any longer."""
        self._followed.pop(live.task.id, None)
        live.log.close()

    async def _forget_unwatched(self) -> None:
        gone = [task_id for task_id in self._followed if not self._is_watched(task_id)]
        for task_id in gone:
            del self._followed[task_id]
        if gone:
            await self.replicas.watch.unfollow(gone)

    def _is_watched(self, task_id: str) -> bool:
        live = self._runs.get(task_id)
        return live is not None and not live.has_ended()


def _is_free(live: LiveTask) -> bool:
    return live.runner.is_none


def is_at_rest(live: LiveTask) -> bool:
    """Whether its sender can be answered."""
    return live.state in AT_REST
