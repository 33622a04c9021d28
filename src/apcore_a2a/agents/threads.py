"""Blocking code on threads of its own, for agents that are no coroutines.

Rule: a run has a daemon thread to itself, at most `limit` do at once, and those that never return are counted. Not
asyncio's pool: that one is small, resolves host names too, and is waited for when the process ends, which such a thread
would prevent. A thread whose run is over waits for another one, for a while: to start one costs a fifth of a message.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from apcore_a2a.agent import CancelToken

logger = logging.getLogger(__name__)

LAST_JOB_TIME: Final = 5.0  # seconds to come to an end, for what nobody waits for, before its thread counts as stuck

MAX_IDLE: Final = 16  # threads that wait for a run
IDLE_TIME: Final = 10.0  # seconds that they do

T = TypeVar("T")


class Threads:
    """As many workers as may run at once; who wants one more waits for its turn.

    No thread can be ended from outside. One whose function goes on after its run has ended is stuck, until the function
    returns. Up to `spare` of the stuck are replaced, so that others do not wait for them; each one above that takes the
    place of a worker, and with `limit` of those nothing can run any more.
    """

    def __init__(self, limit: int, *, spare: int = 0) -> None:
        self._limit = limit
        self._spare = spare
        self._free = asyncio.Semaphore(limit)
        self._stuck: set[Worker] = set()
        self._idle: list[Worker] = []

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    @property
    def capacity(self) -> int:
        """How many functions can run at once, as things stand."""
        return self._limit - max(0, len(self._stuck) - self._spare)

    @asynccontextmanager
    async def worker(self, name: str, cancel: CancelToken) -> AsyncIterator["Worker"]:
        """A thread for one run, whose token is told when its function goes on."""
        await self._free.acquire()
        try:
            worker = self._idle_or_new(name)
        except RuntimeError:  # the system has no thread left, or no memory for one
            self._free.release()
            raise
        try:
            yield worker
        finally:
            self._put_back(worker, cancel)

    def _idle_or_new(self, name: str) -> "Worker":
        loop = asyncio.get_running_loop()
        while self._idle:
            worker = self._idle.pop()
            if worker.loop is loop:
                worker.rename(name)
                return worker
            worker.retire()  # an agent may be served twice, one loop after the other
        return Worker(name, loop, on_idle=self._retire, on_exit=self._exited)

    def _put_back(self, worker: "Worker", cancel: CancelToken) -> None:
        if worker.is_busy:
            worker.close()
            cancel.ignore()
            self._leave_behind(worker)
        elif worker.has_last_job:
            worker.close()
            worker.loop.call_later(LAST_JOB_TIME, self._leave_behind, worker)
        # Those that are counted as stuck end, and are not any more.
        elif len(self._idle) < MAX_IDLE and worker not in self._stuck:
            self._idle.append(worker)
            self._free.release()
        else:
            worker.close()

    def _retire(self, worker: "Worker") -> None:
        """A thread has waited for long, unless it has found a run in the meantime."""
        if worker in self._idle:
            self._idle.remove(worker)
            worker.retire()

    def expect_end(self, worker: "Worker") -> None:
        """Nobody wants what a worker's function is about any more: it counts as stuck if it does not return soon."""
        asyncio.get_running_loop().call_later(LAST_JOB_TIME, self._leave_behind, worker)

    def _leave_behind(self, worker: "Worker") -> None:
        """Count a worker as stuck, unless its thread has ended by now, or it is counted already."""
        if worker.has_ended or worker in self._stuck:
            return
        self._stuck.add(worker)
        extra = {"function": worker.name, "stuck_threads": self.stuck, "thread_capacity": self.capacity}
        logger.warning("function goes on after its run has ended", extra=extra)
        if self.stuck <= self._spare:
            self._free.release()
        if self.capacity == 0:
            logger.error("every thread is held by a function that does not return", extra=extra)

    def _exited(self, worker: "Worker") -> None:
        """Its thread has ended, and not only its run: a function that goes on still counts."""
        if worker.is_retired:
            return  # it had no place among those that run
        was_replaced = worker in self._stuck and self.stuck <= self._spare
        self._stuck.discard(worker)
        if not was_replaced:
            self._free.release()


class Worker:
    """One thread that does one job after another, so that a generator stays on the thread it began on."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        *,
        on_idle: "Callable[[Worker], None]",
        on_exit: "Callable[[Worker], None]",
    ) -> None:
        self.name = name
        self.loop = loop
        self.is_busy = False  # with a job that nobody waits for any more
        self.has_last_job = False
        self.is_retired = False  # without a run
        self.has_ended = False  # set by the thread itself
        # None ends the thread. A job is a function without arguments, and whom to tell what came of it.
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._on_idle = on_idle
        self._on_exit = on_exit
        # A daemon: the interpreter does not wait for it, should a function never return.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def rename(self, name: str) -> None:
        """Take a run of another name."""
        self.name = name
        self._thread.name = name

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function on the thread. Cancelled, it stops waiting; the function goes on."""
        context = contextvars.copy_context()  # as asyncio.to_thread does
        done: Future[T] = Future()
        self._jobs.put((done, lambda: context.run(function, *args)))
        try:
            return await asyncio.wrap_future(done)
        finally:
            self.is_busy = not done.done()

    def close(self) -> None:
        """Let the thread end after what it does now."""
        self._jobs.put(None)

    def retire(self) -> None:
        """Let the thread end, which has no run."""
        self.is_retired = True
        self.close()

    def later(self, job: Callable[[], object]) -> None:
        """Run a last job that nobody waits for."""
        self.has_last_job = True
        self._jobs.put((Future(), job))

    def _work(self) -> None:
        try:
            next_job = self._wait_for_job()
            while next_job is not None:
                done, job = next_job
                if done.set_running_or_notify_cancel():
                    _settle(done, job)
                next_job = self._wait_for_job()
        finally:
            self.has_ended = True
            self._tell(self._on_exit)

    def _wait_for_job(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next job; None when there is to be none any more."""
        while True:
            try:
                return self._jobs.get(timeout=IDLE_TIME)
            except Empty:
                if not self._tell(self._on_idle):
                    return None

    def _tell(self, what: "Callable[[Worker], None]") -> bool:
        """Have something done about this worker on its loop; false if that is closed, and nobody waits any more."""
        try:
            self.loop.call_soon_threadsafe(what, self)
        except RuntimeError:
            return False
        return True


def _settle(done: Future[Any], job: Callable[[], Any]) -> None:
    try:
        done.set_result(job())
    # A future refuses the one, and who waits would wait for ever; the other looks like the end of whoever waits.
    except (StopIteration, GeneratorExit) as error:
        failure = RuntimeError(f"the function raised {type(error).__name__}")
        failure.__cause__ = error
        done.set_exception(failure)
    except BaseException as error:  # also SystemExit: it is the run that ends, and its owner decides how
        done.set_exception(error)
