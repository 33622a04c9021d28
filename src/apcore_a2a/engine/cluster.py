"""One engine among several on one store: it shows that it lives, takes over from those that do not, and does as asked.

Rule: whoever cannot renew its lease stops its own runs before the others may take them over; it waits for nobody to be
told. A replica that has lost its lease writes nothing more of what it ran, and goes on under a new name.

The lease is renewed three times in its length. After two thirds of it without an answer of the store, the runs are
stopped here; after all of it, any other replica claims their tasks. What may be repeated is run again, up to
MAX_ATTEMPTS times in all; the rest ends as FAILED, "Worker lost".
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from apcore_a2a.agent import Caller
from apcore_a2a.engine.background import BackgroundWork
from apcore_a2a.engine.call_context import CallContext
from apcore_a2a.engine.errands import ANSWER_TIME, ask_to_cancel, decode_errand
from apcore_a2a.engine.followers import POLL, Followers
from apcore_a2a.engine.intake import Intake
from apcore_a2a.engine.live_task import LiveTask
from apcore_a2a.engine.phase import Stop
from apcore_a2a.engine.recovery import Recovery
from apcore_a2a.engine.run import CANCEL_GRACE, retry_pause
from apcore_a2a.engine.runs import Runs
from apcore_a2a.errors import A2AError, StaleWriteError, StoreUnavailableError, TaskNotFoundError
from apcore_a2a.storage.task_store import Command, Record, Replicas

logger = logging.getLogger(__name__)

BEATS: Final = 3  # in the length of a lease
STOP_AFTER: Final = 2 / 3  # of the lease: then the runs here are stopped, while nobody else may run them yet
RETRY: Final = 0.5  # seconds between attempts at a beat that failed
TIDY_EVERY: Final = 12  # beats
QUEUE_POLL: Final = 0.2  # seconds between looks for room while tasks wait for it
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

    @property
    def _replicas(self) -> Replicas:
        return self._followers.replicas

    def start(self) -> None:
        self._followers.renewed(time.monotonic())  # the store has just been opened
        self._background.start(self._repeat(self._beat), name="beat")
        self._background.start(self._repeat(self._listen), name="listen to replicas")

    async def close(self) -> None:
        await self._background.cancel_all(1)

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do something again and again, whatever becomes of it: nobody else does it for this replica."""
        while True:
            try:
                await step()
            except StoreUnavailableError:
                await asyncio.sleep(RETRY)  # the store has said so in the log
            except Exception:  # a bug of ours must not make a live replica look dead
                logger.exception("a step of the replica failed")
                await asyncio.sleep(RETRY)

    # ---- the lease ---------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """One beat, what it leads to, and the pause until the next."""
        lease = self._replicas.lease
        started = time.monotonic()
        try:
            is_alive = await self._replicas.beat()
        except StoreUnavailableError:
            if self._followers.lease_age > lease * STOP_AFTER:
                self._stop_all()
            raise
        if not is_alive:
            await self._start_anew()
            return
        self._followers.renewed(started)
        await self._take_over_dead()
        await asyncio.sleep(max(lease / BEATS - (time.monotonic() - started), 0))

    def _stop_all(self) -> None:
        runs = self._runs.all_running()
        for run in runs:
            if run.stopping is None:
                logger.warning("lease not renewed: run stopped", extra={"task_id": run.live.task.id})
            self._runs.stop(run, Stop.LOST)

    async def _start_anew(self) -> None:
        """The others take this replica for dead."""
        logger.warning("lease lost: this replica goes on under a new name", extra={"replica": self._replicas.name})
        self._stop_all()
        started = time.monotonic()
        await self._replicas.join()
        self._followers.renewed(started)

    # ---- taking over -------------------------------------------------------------------------------------------------

    async def _take_over_dead(self) -> None:
        self._beats += 1
        try:
            if self._beats % TIDY_EVERY == 0:
                await self._replicas.tidy()
            if self._runs.draining:
                return
            claimed = await self._replicas.claim_dead(CLAIMED_AT_ONCE)
            if self._has_strays:
                claimed += await self._claim_strays()
        except StoreUnavailableError:
            self._has_strays = True
            raise
        for record in claimed:
            self._settle_soon(record)

    async def _claim_strays(self) -> list[Record]:
        """Tasks that are this replica's by the store, and that nobody here knows of: an answer was lost on its way."""
        claimed: list[Record] = []
        for task_id, owner in await self._replicas.own_tasks():
            if self._runs.get(task_id) is None:
                record = await self._replicas.claim(task_id, owner)
                if record is not None and record.runner == self._replicas.name:
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
            claimed = await self._replicas.claim_queued(room)
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
            except (StaleWriteError, TaskNotFoundError):
                return  # somebody else was quicker
            except A2AError as error:
                logger.warning("task not taken over yet", extra={"task_id": task_id, "reason": error.message})
                await asyncio.sleep(retry_pause(attempt))
                attempt += 1

    async def _stop_here(self, task_id: str) -> None:
        """A run of the same task that this replica began before it was taken for dead has to be over first."""
        run = self._runs.running(task_id)
        if run is not None:
            await asyncio.wait({self._runs.stop(run, Stop.LOST)})

    # ---- what others say ---------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        patience = self._replicas.lease / BEATS
        if len(self._followers) or self._runs.live > self._runs.active:  # somebody watches what is not run here
            patience = POLL
        if self._has_queue:
            patience = QUEUE_POLL
        hint = await self._replicas.until_woken(patience)
        if hint.queue:
            await self._take_queued()
        if hint.commands:
            for command in await self._replicas.take():
                self._background.start(self._obey(command), name=f"command for {command.task_id}")
            self._followers.tell()  # a command of ours may have been answered
        await self._followers.refresh(hint)

    async def _obey(self, command: Command) -> None:
        """Do as another replica asks; whatever comes of it is answered."""
        refusal = ""
        try:
            errand = decode_errand(command.body)
            live = self._runs.find(command.task_id, command.owner)
            if live is None:
                refusal = "The task is no longer run here; try again"
            elif errand.request is not None:
                await self._intake.queue_here(live, errand.request, CallContext(caller=errand.caller))
            else:
                with live.held():
                    await asyncio.wait({self._runs.cancel(live, errand.caller)}, timeout=ANSWER_TIME)
        except A2AError as error:
            refusal = error.message
        except ValueError:
            refusal = "The replicas do not understand each other: are their versions too far apart?"
        await self._replicas.finish(command.number, refusal)

    # ---- what is asked of others -------------------------------------------------------------------------------------

    async def cancel(self, live: LiveTask, caller: Caller) -> None:
        """Cancel a task that another replica runs; without it, if it does not answer in time.

        Raises:
            TaskNotFoundError: it was removed meanwhile.
        """
        with live.held():
            # Where nobody runs it yet ("") there is nobody to ask.
            if live.runner and await ask_to_cancel(self._followers, live, caller, seconds=CANCEL_GRACE):
                return
            self._has_strays = True  # should what follows fail half-way
            record = await self._replicas.claim(live.task.id, live.owner)
            if record is None:
                raise TaskNotFoundError(live.task.id)
            live.follow(record)
            live.runner = None
            await asyncio.wait({self._runs.cancel(live, caller)}, timeout=CANCEL_GRACE)
