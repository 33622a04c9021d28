"""One engine among several on one store: it shows that it lives, takes over from those that do not, and does as asked.

Rule: whoever cannot renew its lease stops its own runs before the others may take them over; it waits for nobody to be
told. A replica that was taken for dead writes nothing more of what it ran, and goes on under a new name.

The lease is renewed BEATS times in its length. After two thirds of it without an answer of the store, the runs are
stopped here, also while the store is being asked: whether the store is away, and for everybody, or only this replica is
cut off from it, cannot be told from here, unless the store itself says that it starts or shuts down. After all of the
lease, any other replica may take this one for dead, and claims its tasks. What may be repeated is run again, up to
MAX_ATTEMPTS times in all; the rest ends as FAILED, "Worker lost".

A lease that is over is still this replica's until somebody does that. So when the store was away for everybody, all go
on with the leases they had: whoever finds that it was away itself looks for the dead one beat later, when those who
live have said so. And a process that stood still (its machine was suspended, or moved) asks before it stops its runs.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from apcore_a2a.agent import Caller
from apcore_a2a.engine.context import CallContext
from apcore_a2a.engine.intake import Intake
from apcore_a2a.engine.recovery import Recovery
from apcore_a2a.engine.replica.followers import POLL, Followers
from apcore_a2a.engine.replica.requests import ANSWER_TIME, NOT_UNDERSTOOD, ask_to_cancel, decode_errand, encode_refusal
from apcore_a2a.engine.run import Stop
from apcore_a2a.engine.runs import BackgroundWork, Runs
from apcore_a2a.engine.task import NO_RUNNER, LiveTask
from apcore_a2a.errors import (
    A2AError,
    InternalError,
    OverloadedError,
    StaleWriteError,
    StoreUnavailableError,
    TaskNotFoundError,
)
from apcore_a2a.storage.contract import Record, ReplicaRequest, Replicas, WakeUp

logger = logging.getLogger(__name__)

BEATS: Final = 5  # in the length of a lease: the store may be away for seven of fifteen seconds at any time
LOOKS: Final = 3  # in the same time, at what others may have said: their wake-ups may get lost
STOP_AFTER: Final = 2 / 3  # of the lease: then the runs here are stopped, while nobody else may run them yet
STOOD_STILL: Final = 1.0  # seconds by which a timer is late only when the whole process stood still
RETRY: Final = 0.25  # seconds between attempts at a beat that failed
LONGEST_HOLD: Final = 100.0  # seconds after a beat for which a store that says that it is down stops no run
LATE: Final = 0.05  # seconds after the end of a lease that others look at its tasks
TIDY_EVERY: Final = 20  # beats
QUEUE_POLL: Final = 0.2  # seconds between looks for room while tasks wait for it
ANYTHING: Final = WakeUp(everything=True, requests=True, queue=True)
CLAIMED_AT_ONCE: Final = 100  # tasks of dead replicas; others may want some, too


class Cluster:
    """This engine as a replica."""

    def __init__(self, followers: Followers, runs: Runs, intake: Intake, recovery: Recovery) -> None:
        self._followers = followers
        self._runs = runs
        self._intake = intake
        self._recovery = recovery
        self._background = BackgroundWork()
        self._has_strays = False  # whether a task may have been claimed here without our knowing
        self._has_queue = False  # whether more may wait for a replica with room
        self._beats = 0
        self._chores: asyncio.Task[None] | None = None
        self._was_away = False  # whether the last beat but one failed
        self._looked = 0.0  # when everything that others may have written was last looked at
        self._stop_time = float("inf")  # when the runs here are to be stopped, by the monotonic clock
        self._stop_timer: asyncio.TimerHandle | None = None  # goes off then
        self._is_closed = False

    @property
    def _replicas(self) -> Replicas:
        return self._followers.replicas

    def start(self) -> None:
        self._is_closed = False
        self._renewed(time.monotonic())  # the store has just been opened
        self._followers.heard(time.monotonic(), [])
        self._looked = time.monotonic()
        self._background.start(self._repeat(self._beat), name="beat")
        self._background.start(self._repeat(self._listen), name="listen to replicas")

    async def close(self) -> None:
        """Beat and listen no more: whoever is closed is about to leave, and must not come back to life."""
        self._is_closed = True  # asyncio.wait_for of Python 3.11 may swallow a cancellation
        self._set_stop_timer(None)
        await self._background.cancel_all(1)

    async def _repeat(self, step: Callable[[], Awaitable[float]]) -> None:
        """Do something again and again, with the pauses it asks for: nobody else does it for this replica."""
        while not self._is_closed:
            try:
                pause = await step()
            except StoreUnavailableError:
                pause = RETRY  # the store has said so in the log
            except Exception:  # a bug of ours must not make a live replica look dead
                logger.exception("a step of the replica failed")
                pause = RETRY
            if not self._is_closed:
                await asyncio.sleep(pause)

    # ---- the lease ---------------------------------------------------------------------------------------------------

    async def _beat(self) -> float:
        """One beat; the seconds until the next."""
        interval = self._replicas.lease.seconds / BEATS
        started = time.monotonic()
        try:
            next_end = await self._replicas.lease.renew()
        except StoreUnavailableError:
            self._was_away = True
            if time.monotonic() > self._stop_time and not self._is_held():
                self._stop_all()  # again: some may have begun since
            raise
        if next_end is None:
            await self._start_anew()
            return 0
        self._renewed(started)
        if next_end > 0:
            self._begin_chores(somebody_died=False)
            return min(interval, next_end + LATE)
        # If the store was away, it may have been so for all: those who live have not said so yet.
        self._begin_chores(somebody_died=not self._was_away)
        self._was_away = False
        return interval

    def _renewed(self, started: float) -> None:
        """The store has given a lease that was asked for at that time."""
        self._followers.renewed(started)
        self._stop_at(started + self._replicas.lease.seconds * STOP_AFTER)

    def _stop_at(self, when: float) -> None:
        self._stop_time = when
        loop = asyncio.get_running_loop()
        seconds = max(when - time.monotonic(), 0)
        self._set_stop_timer(loop.call_later(seconds, self._lease_is_ending, loop.time() + seconds))

    def _set_stop_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._stop_timer = timer

    def _lease_is_ending(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - due > STOOD_STILL:  # the store was not asked at all: a beat is on its way now
            self._set_stop_timer(loop.call_later(STOOD_STILL, self._stop_all))
        elif not self._is_held():
            self._stop_all()

    def _is_held(self) -> bool:
        """Whether the store said lately that it serves nobody; then the runs have the time of a beat more.

        When it is back, the others give this replica that time to say that it lives.
        """
        until = self._replicas.lease.down_at + self._replicas.lease.seconds / BEATS
        if until < time.monotonic() or self._followers.lease_age > LONGEST_HOLD:
            return False
        self._stop_at(until)
        return True

    def _stop_all(self) -> None:
        runs = self._runs.all_running()
        for run in runs:
            if run.stopping is None:
                logger.warning("lease not renewed: run stopped", extra={"task_id": run.live.task.id})
            self._runs.stop(run, Stop.LOST)

    async def _start_anew(self) -> None:
        """The others have taken this replica for dead."""
        logger.warning(
            "lease lost: this replica goes on under a new name", extra={"replica": self._replicas.lease.name}
        )
        self._stop_all()
        started = time.monotonic()
        await self._replicas.lease.join()
        self._renewed(started)

    # ---- taking over -------------------------------------------------------------------------------------------------

    def _begin_chores(self, *, somebody_died: bool) -> None:
        """What a beat leads to, beside the next beats: what the dead have left may take longer to read than a lease."""
        if self._chores is None or self._chores.done():
            self._chores = self._background.start(self._do_chores(somebody_died), name="chores of a replica")

    async def _do_chores(self, somebody_died: bool) -> None:
        try:
            await self._tidy_if_due()
            await self._take_strays()
            has_more = somebody_died
            while has_more:
                has_more = await self._take_over_dead()
                await asyncio.sleep(RETRY)
        except StoreUnavailableError:
            logger.debug("chores are put off until the next beat")  # the store has said why in the log

    async def _tidy_if_due(self) -> None:
        self._beats += 1
        if self._beats % TIDY_EVERY == 0:
            await self._replicas.lease.clean_up()

    async def _take_over_dead(self) -> bool:
        """Claim what dead replicas left, and go on with it; whether they may have left more."""
        if self._runs.draining:
            return False
        try:
            claimed = await self._replicas.claims.claim_orphans(CLAIMED_AT_ONCE)
        except StoreUnavailableError:
            self._has_strays = True
            raise
        for record in claimed:
            self._settle_soon(record)
        return len(claimed) == CLAIMED_AT_ONCE

    async def _take_strays(self) -> None:
        """Go on with what was claimed here by an answer that got lost."""
        if self._has_strays and not self._runs.draining:
            for record in await self._claim_strays():
                self._settle_soon(record)

    async def _claim_strays(self) -> list[Record]:
        """Tasks that are this replica's by the store, and that nobody here knows of: an answer was lost on its way."""
        claimed: list[Record] = []
        for task_id, owner in await self._replicas.claims.own_tasks():
            if self._runs.get(task_id) is None:
                record = await self._replicas.claims.claim(task_id, owner)
                if record is not None and record.runner == self._replicas.lease.name:
                    claimed.append(record)
        self._has_strays = False
        return claimed

    async def _take_queued(self) -> None:
        """Run what waits for a replica with room, if this is one."""
        room = min(self._runs.room, CLAIMED_AT_ONCE)
        if room <= 0 or self._runs.draining:
            self._has_queue = not self._runs.draining  # look again when there may be room
            return
        claimed: list[Record] = []
        try:
            claimed = await self._replicas.claims.claim_queued(room)
        except StoreUnavailableError:
            self._has_strays = True
            raise
        self._has_queue = len(claimed) == room  # there may be more than there was room for
        for record in claimed:
            self._settle_soon(record)

    def _settle_soon(self, record: Record) -> None:
        self._background.start(self._settle(record), name="task taken over")

    async def _settle(self, record: Record) -> None:
        """Go on with a task that was claimed: it is nobody else's to do."""
        task_id = record.document.task().id
        logger.info("task taken over", extra={"task_id": task_id})
        attempt = 0
        while True:
            try:
                await self._stop_here(task_id)
                await self._recovery.take_over(record)
                return
            except A2AError as error:
                logger.warning("task not taken over yet", extra={"task_id": task_id, "reason": error.message})
                await asyncio.sleep(self._runs.timing.retry_pause(attempt))
                attempt += 1

    async def _stop_here(self, task_id: str) -> None:
        """A run of the same task that this replica began before it was taken for dead has to be over first."""
        run = self._runs.running(task_id)
        if run is not None:
            await asyncio.wait({self._runs.stop(run, Stop.LOST)})

    # ---- what others say ---------------------------------------------------------------------------------------------

    async def _listen(self) -> float:
        """Wait for others to say something, and do as they say; then at once again."""
        patience = self._replicas.lease.seconds / LOOKS
        if len(self._followers) or self._runs.live > self._runs.active:  # somebody watches what is not run here
            patience = POLL
        if self._runs.active:
            patience = min(patience, POLL)  # or their tasks could not be answered from memory
        if self._has_queue:
            patience = QUEUE_POLL
        hint = await self._replicas.watch.until_woken(patience)
        if time.monotonic() - self._looked > patience:
            hint = ANYTHING  # also when it was woken all the time, because of other things
        if hint.everything:
            self._looked = time.monotonic()
        if hint.queue:
            await self._take_queued()
        if hint.requests or self._followers.heard_ago > POLL:
            await self._take_commands()
        await self._followers.refresh(hint)
        return 0

    async def _take_commands(self) -> None:
        more = True
        while more:
            looked = time.monotonic()
            commands = await self._replicas.mailbox.take()
            self._followers.heard(looked, [command.task_id for command in commands])
            for command in commands:
                self._background.start(self._obey(command), name=f"command for {command.task_id}")
            more = len(commands) > 0
        self._followers.tell()  # a command of ours may have been answered

    async def _obey(self, command: ReplicaRequest) -> None:
        """Do as another replica asks; whatever comes of it is answered."""
        refusal = ""
        try:
            await self._run_errand(command)
        except A2AError as error:
            refusal = encode_refusal(error)
        except Exception:  # an agent's `admit` may raise anything; whoever sent the message must not wait for nothing
            logger.exception("a command failed", extra={"task_id": command.task_id})
            refusal = encode_refusal(InternalError())
        finally:
            self._followers.obeyed(command.task_id)
        await self._replicas.mailbox.finish(command.number, refusal)

    async def _run_errand(self, command: ReplicaRequest) -> None:
        try:
            errand = decode_errand(command.body)
        except ValueError as error:
            raise OverloadedError(NOT_UNDERSTOOD) from error
        live = self._runs.find(command.task_id, command.owner)
        if live is None:
            raise StaleWriteError
        if errand.request is not None:
            await self._intake.queue_here(live, errand.request, CallContext(caller=errand.caller))
            return
        with live.held():
            await asyncio.wait({self._runs.cancel(live, errand.caller)}, timeout=ANSWER_TIME)

    # ---- what is asked of others -------------------------------------------------------------------------------------

    async def cancel(self, live: LiveTask, caller: Caller) -> None:
        """Cancel a task that another replica runs; without it, if it does not answer in time, or has just let go of it.

        Raises:
            TaskNotFoundError: it was removed meanwhile.
        """
        with live.held():
            if live.runner.name:  # else no replica runs it yet that could be asked
                await ask_to_cancel(self._followers, live, caller, seconds=self._runs.timing.peer_cancel)
            if live.has_ended():
                return
            self._has_strays = True  # should what follows fail half-way
            record = await self._replicas.claims.claim(live.task.id, live.owner)
            if record is None:
                raise TaskNotFoundError(live.task.id)
            live.follow(record)
            live.runner = NO_RUNNER
            await asyncio.wait({self._runs.cancel(live, caller)}, timeout=self._runs.timing.peer_cancel)
