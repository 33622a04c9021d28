"""An engine as one of several replicas of a shared store: its loops, and the requests of the other replicas."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from apcore_a2a.agent import Caller
from apcore_a2a.engine.context import CallContext, ReplicaTiming
from apcore_a2a.engine.intake import Intake
from apcore_a2a.engine.recovery import Recovery, Takeover
from apcore_a2a.engine.replica.followers import Followers
from apcore_a2a.engine.replica.lease import Authority, LeaseKeeper
from apcore_a2a.engine.replica.requests import NOT_UNDERSTOOD, ReplicaRequests, decode_request, encode_rejection
from apcore_a2a.engine.runs import BackgroundWork, Runs
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.errors import A2AError, InternalError, OverloadedError, StaleWriteError, StoreUnavailableError
from apcore_a2a.storage.contract import ReplicaRequest, RequestMailbox, SharedStore, WakeUp

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
        """Stop renewing the lease and serving wake-ups. A closed replica must not join again."""
        self.lease_keeper.close()
        await self._loops.close()
        await self._takeover.close()
        await self.inbox.close()

    async def cancel(self, live: LiveTask, caller: Caller) -> None:
        """Cancel a task that another replica runs.

        If that replica does not answer in time, or does not run the task any more, this replica claims and cancels it.

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
            self._takeover.begin_maintenance(may_have_orphans=renewal.may_have_orphans)
        return renewal.pause

    async def _serve_wake_up(self) -> float:
        """Wait for a wake-up, or until it is time to poll, and read what others may have written."""
        pause = self._longest_pause()
        wake_up = await self._watch.until_woken(pause)
        if time.monotonic() - self._read_all_at > pause:
            wake_up = WakeUp(everything=True, requests=True, queue=True)  # it is due, even if other wake-ups came often
        if wake_up.everything:
            self._read_all_at = time.monotonic()
        if wake_up.orphans:
            self._takeover.begin_maintenance(may_have_orphans=True)
        if wake_up.queue:
            await self._takeover.take_queued()
        if wake_up.requests or self.followers.authority.requests_age > self._timing.poll:
            await self.inbox.take_all()
            self.followers.notify()  # a request of this replica may have been answered
        await self.followers.refresh(wake_up)
        return 0

    def _longest_pause(self) -> float:
        """Return the longest pause between two reads of all that other replicas may have written."""
        if self._takeover.has_queue:
            return self._timing.queue_poll
        pause = self._lease.seconds / self._timing.polls
        if len(self.followers) or self._runs.live > self._runs.active:  # tasks of other replicas have readers here
            pause = self._timing.poll
        if self._runs.active:  # else its tasks could not be answered from memory
            pause = min(pause, self._timing.poll)
        return pause


# ---- requests of other replicas -------------------------------------------------------------------------------------
# For tasks that this replica runs. Invariant: each request that was taken is answered, with a rejection if it failed.


class RequestInbox:
    """Takes the requests of other replicas, executes and answers them."""

    def __init__(
        self, mailbox: RequestMailbox, authority: Authority, runs: Runs, intake: Intake, timing: ReplicaTiming
    ) -> None:
        self._mailbox = mailbox
        self._authority = authority
        self._runs = runs
        self._intake = intake
        self._timing = timing
        self._background = BackgroundWork()

    async def close(self) -> None:
        """Cancel the requests that are being executed."""
        await self._background.cancel_all(1)

    async def take_all(self) -> None:
        """Take all requests from the mailbox, and execute them in the background."""
        has_more = True
        while has_more:
            started = time.monotonic()
            requests = await self._mailbox.take()
            self._authority.requests_read(started, [request.task_id for request in requests])
            for request in requests:
                self._background.start(self._answer(request), name=f"replica request for {request.task_id}")
            has_more = len(requests) > 0

    async def _answer(self, request: ReplicaRequest) -> None:
        """Execute a request, and post the answer."""
        rejection = ""
        try:
            await self._execute(request)
        except A2AError as error:
            rejection = encode_rejection(error)
        except Exception:  # an agent's `admit` may raise anything, and the sender waits for an answer
            logger.exception("a replica request failed", extra={"task_id": request.task_id})
            rejection = encode_rejection(InternalError())
        finally:
            self._authority.request_finished(request.task_id)
        await self._mailbox.finish(request.number, rejection)

    async def _execute(self, request: ReplicaRequest) -> None:
        try:
            body = decode_request(request.body)
        except ValueError as error:
            raise OverloadedError(NOT_UNDERSTOOD) from error
        live = self._runs.find(request.task_id, request.owner)
        if live is None:
            raise StaleWriteError
        if body.request is not None:
            context = CallContext(caller=body.caller, headers=body.trace, idempotency_key=body.key)
            await self._intake.queue_here(live, body.request, context)
            return
        with live.held():
            await asyncio.wait({self._runs.cancel(live, body.caller)}, timeout=self._timing.answer)
