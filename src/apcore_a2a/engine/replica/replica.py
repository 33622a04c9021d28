"""One engine among several on one store: its loops for the lease and for wake-ups, and what they lead to."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from apcore_a2a.agent import Caller
from apcore_a2a.engine.context import ReplicaTiming
from apcore_a2a.engine.intake import Intake
from apcore_a2a.engine.recovery import Recovery
from apcore_a2a.engine.replica.followers import Followers
from apcore_a2a.engine.replica.inbox import RequestInbox
from apcore_a2a.engine.replica.lease import LeaseKeeper
from apcore_a2a.engine.replica.requests import ReplicaRequests
from apcore_a2a.engine.replica.takeover import Takeover
from apcore_a2a.engine.runs import BackgroundWork, Runs
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.storage.contract import SharedStore, WakeUp

logger = logging.getLogger(__name__)


class Repeater:
    """Repeats steps until it is closed."""

    def __init__(self, retry: float) -> None:
        self._retry = retry  # seconds between attempts at a step that failed
        self._background = BackgroundWork()
        self._is_closed = False

    def start(self, step: Callable[[], Awaitable[float]], *, name: str) -> None:
        """Repeat a step in the background. It returns the pause before the next one."""
        self._is_closed = False
        self._background.start(self.repeat(step), name=name)

    async def close(self) -> None:
        """Stop all repetitions. A step may call this."""
        self._is_closed = True  # asyncio.wait_for of Python 3.11 may swallow a cancellation
        await self._background.cancel_all(1)

    async def repeat(self, step: Callable[[], Awaitable[float]]) -> None:
        """Repeat a step, with the pauses that it returns."""
        while not self._is_closed:
            try:
                pause = await step()
            except StoreUnavailableError:
                pause = self._retry  # the store has logged it
            except Exception:  # a bug of ours must not make a live replica look dead
                logger.exception("a step of the replica failed")
                pause = self._retry
            if not self._is_closed:
                await asyncio.sleep(pause)


def make_requests(store: SharedStore, runs: Runs, timing: ReplicaTiming) -> ReplicaRequests:
    """Return the followers and the sender of requests for an engine on a shared store."""
    replicas = store.replicas
    followers = Followers(store, runs, lease=replicas.lease, watch=replicas.watch, timing=timing)
    return ReplicaRequests(followers, replicas.mailbox, replicas.claims, timing)


class Replica:
    """This engine as a replica."""

    def __init__(
        self, store: SharedStore, requests: ReplicaRequests, runs: Runs, intake: Intake, recovery: Recovery
    ) -> None:
        replicas = store.replicas
        timing = requests.timing
        self.followers = requests.followers
        self.lease_keeper = LeaseKeeper(replicas.lease, runs, self.followers.authority, timing)
        self.inbox = RequestInbox(replicas.mailbox, self.followers.authority, runs, intake, timing)
        self._lease = replicas.lease
        self._watch = replicas.watch
        self._requests = requests
        self._takeover = Takeover(replicas.claims, replicas.lease, runs, recovery, timing)
        self._runs = runs
        self._timing = timing
        self._loops = Repeater(timing.retry)
        self._read_all_at = 0.0  # when all that other replicas may have written was last read

    def start(self) -> None:
        """Renew the lease and serve wake-ups from now on."""
        now = time.monotonic()
        self.lease_keeper.renewed(now)  # the store has just been opened
        self.followers.authority.requests_read(now, [])
        self._read_all_at = now
        self._loops.start(self._renew, name="renewal of the lease")
        self._loops.start(self._serve_wake_up, name="wake-ups of the replica")

    async def close(self) -> None:
        """Renew the lease and serve wake-ups no more. A closed replica must not join again."""
        self.lease_keeper.close()
        await self._loops.close()
        await self._takeover.close()
        await self.inbox.close()

    async def cancel(self, live: LiveTask, caller: Caller) -> None:
        """Cancel a task that another replica runs.

        If that replica does not answer in time, or has just let go of the task, it is claimed and canceled here.

        Raises:
            TaskNotFoundError: it was removed meanwhile.
        """
        seconds = self._runs.timing.peer_cancel
        with live.held():
            if live.runner.name:  # else no replica runs it yet
                await self._requests.cancel(live, caller, seconds=seconds)
            if live.has_ended():
                return
            await self._takeover.claim(live)
            await asyncio.wait({self._runs.cancel(live, caller)}, timeout=seconds)

    async def _renew(self) -> float:
        """Renew the lease once, and start the work that follows. Return the seconds until the next renewal."""
        renewal = await self.lease_keeper.renew()
        if renewal.is_kept:
            self._takeover.begin_chores(may_have_orphans=renewal.may_have_orphans)
        return renewal.pause

    async def _serve_wake_up(self) -> float:
        """Wait for a wake-up, or until it is time to poll, and read what others may have written."""
        patience = self._patience()
        wake_up = await self._watch.until_woken(patience)
        if time.monotonic() - self._read_all_at > patience:
            wake_up = WakeUp(everything=True, requests=True, queue=True)  # even if woken often, for other reasons
        if wake_up.everything:
            self._read_all_at = time.monotonic()
        if wake_up.queue:
            await self._takeover.take_queued()
        if wake_up.requests or self.followers.authority.requests_age > self._timing.poll:
            await self.inbox.take_all()
            self.followers.notify()  # a request of this replica may have been answered
        await self.followers.refresh(wake_up)
        return 0

    def _patience(self) -> float:
        """Return the longest time without a read of what others may have written."""
        if self._takeover.has_queue:
            return self._timing.queue_poll
        patience = self._lease.seconds / self._timing.polls
        if len(self.followers) or self._runs.live > self._runs.active:  # tasks of other replicas have readers here
            patience = self._timing.poll
        if self._runs.active:  # else its tasks could not be answered from memory
            patience = min(patience, self._timing.poll)
        return patience
