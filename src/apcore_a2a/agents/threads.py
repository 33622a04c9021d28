"""Threads for agents whose code blocks.

Invariant: each run has a daemon thread of its own, at most `limit` threads run at once, and functions that never
return are counted. asyncio's pool is not used: it is small, it also resolves host names, and at exit the process waits
for its threads, so that a function that never returns would block the exit. The thread of a finished run waits a while
for another run, because starting a thread takes a fifth of the time of a message.
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
from apcore_a2a.errors import OverloadedError

logger = logging.getLogger(__name__)

MAX_THREADS: Final = 64  # threads of one agent that run at once
SPARE_THREADS: Final = 64  # further threads, which replace those of functions that continue after their runs
CANNOT_START: Final = "The system cannot start another thread; try again later"
OUT_OF_THREADS: Final = "Every thread of the agent is held by a function that does not return; try again later"
RETRY_AFTER: Final = 30  # seconds: a function that blocks for long rarely returns sooner

# A job without a waiting caller, for example the closing of a generator, may delay the end of its thread.
LAST_JOB_TIME: Final = 5.0  # seconds after which a thread with such a job counts as stuck
MAX_IDLE: Final = 16  # idle threads that are kept for further runs
IDLE_TIME: Final = 10.0  # seconds that they are kept

T = TypeVar("T")


class Threads:
    """The threads of one agent: at most `limit` running workers. Further calls of `worker` wait for a free one.

    A thread cannot be ended from outside. If its function continues after the run has ended, the thread is stuck until
    the function returns. Up to `spare` stuck threads are replaced. Each further one reduces the capacity, and with
    `limit` of those no run can start.

    Args:
        last_job_time: Seconds after which a thread counts as stuck whose last job has no waiting caller.
        idle_time: Seconds that an idle thread is kept for another run.
    """

    def __init__(
        self,
        limit: int = MAX_THREADS,
        *,
        spare: int = SPARE_THREADS,
        last_job_time: float = LAST_JOB_TIME,
        idle_time: float = IDLE_TIME,
    ) -> None:
        self._limit = limit
        self._spare = spare
        self._last_job_time = last_job_time
        self._idle_time = idle_time
        self._free = asyncio.Semaphore(limit)
        self._stuck: set[Worker] = set()
        self._idle: list[Worker] = []

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    @property
    def capacity(self) -> int:
        """How many functions can run at once, given the stuck threads."""
        return self._limit - max(0, len(self._stuck) - self._spare)

    @asynccontextmanager
    async def worker(self, name: str, cancel: CancelToken) -> AsyncIterator["Worker"]:
        """Provide a thread for one run. If its function continues after the run, call `cancel.ignore()`."""
        await self._free.acquire()
        try:
            worker = self._idle_or_new(name)
        except RuntimeError:  # the system cannot start another thread
            self._free.release()
            raise
        try:
            yield worker
        finally:
            self._put_back(worker, cancel)

    def check_room(self, name: str) -> None:
        """Reject a call, before its task exists, for which there is no thread. A started thread waits for the call.

        Raises:
            OverloadedError: Every thread is held by a function that does not return, or the system starts no more.
        """
        if not self.capacity:
            raise OverloadedError(OUT_OF_THREADS, retry_after=RETRY_AFTER)
        if self._idle or self._free.locked():  # else the call waits for the thread of another one
            return
        try:
            worker = self._new(name)
        except RuntimeError as error:
            logger.warning("cannot start a thread for a function", extra={"function": name, "reason": str(error)})
            raise OverloadedError(CANNOT_START, retry_after=RETRY_AFTER) from error
        self._idle.append(worker)

    def _idle_or_new(self, name: str) -> "Worker":
        loop = asyncio.get_running_loop()
        while self._idle:
            worker = self._idle.pop()
            if worker.loop is loop:
                worker.rename(name)
                return worker
            worker.retire()  # it belongs to an earlier event loop: an agent may be served twice
        return self._new(name)

    def _new(self, name: str) -> "Worker":
        loop = asyncio.get_running_loop()
        return Worker(name, loop, idle_time=self._idle_time, on_idle=self._retire, on_exit=self._exited)

    def _put_back(self, worker: "Worker", cancel: CancelToken) -> None:
        if worker.is_busy:
            worker.close()
            cancel.ignore()
            self._count_as_stuck(worker)
        elif worker.has_last_job:
            worker.close()
            worker.loop.call_later(self._last_job_time, self._count_as_stuck, worker)
        # A thread that counts as stuck is not kept for another run. Its end removes it from the count.
        elif len(self._idle) < MAX_IDLE and worker not in self._stuck:
            self._idle.append(worker)
            self._free.release()
        else:
            worker.close()

    def _retire(self, worker: "Worker") -> None:
        """End a thread that has been idle for too long, unless a run has taken it in the meantime."""
        if worker in self._idle:
            self._idle.remove(worker)
            worker.retire()

    def expect_end(self, worker: "Worker") -> None:
        """Count a worker as stuck unless its function, whose result is not needed any more, returns soon."""
        asyncio.get_running_loop().call_later(self._last_job_time, self._count_as_stuck, worker)

    def _count_as_stuck(self, worker: "Worker") -> None:
        """Count a worker as stuck, unless its thread has ended or is already counted."""
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
        """Free the place of a worker whose thread has ended."""
        if worker.is_retired:
            return  # an idle thread does not count towards the limit
        was_replaced = worker in self._stuck and self.stuck <= self._spare
        self._stuck.discard(worker)
        if not was_replaced:
            self._free.release()


class Worker:
    """One thread that runs jobs in order, so that all steps of a generator run on the same thread."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        *,
        idle_time: float,
        on_idle: "Callable[[Worker], None]",
        on_exit: "Callable[[Worker], None]",
    ) -> None:
        self.name = name
        self.loop = loop
        self.is_busy = False  # its caller was cancelled, and the function continues
        self.has_last_job = False
        self.is_retired = False  # ended while idle
        self.has_ended = False  # set by the thread itself
        # None ends the thread. A job is a future and the function, without arguments, that produces its result.
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle_time = idle_time
        self._on_idle = on_idle
        self._on_exit = on_exit
        # A daemon thread: the interpreter does not wait for it if the function never returns.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def rename(self, name: str) -> None:
        """Set the name of the next run."""
        self.name = name
        self._thread.name = name

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function on the thread. Cancelling the call stops the wait, not the function."""
        context = contextvars.copy_context()  # as asyncio.to_thread does
        done: Future[T] = Future()
        self._jobs.put((done, lambda: context.run(function, *args)))
        try:
            return await asyncio.wrap_future(done)
        finally:
            self.is_busy = not done.done()

    def close(self) -> None:
        """End the thread after its current jobs."""
        self._jobs.put(None)

    def retire(self) -> None:
        """End the idle thread."""
        self.is_retired = True
        self.close()

    def call_last(self, job: Callable[[], object]) -> None:
        """Run the last job of the thread, without waiting for it."""
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
            self._call_on_loop(self._on_exit)

    def _wait_for_job(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Return the next job, or None if the thread has to end."""
        while True:
            try:
                return self._jobs.get(timeout=self._idle_time)
            except Empty:
                if not self._call_on_loop(self._on_idle):
                    return None

    def _call_on_loop(self, callback: "Callable[[Worker], None]") -> bool:
        """Schedule a callback with this worker on its event loop. False if the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(callback, self)
        except RuntimeError:
            return False
        return True


def _settle(done: Future[Any], job: Callable[[], Any]) -> None:
    try:
        done.set_result(job())
    # A future rejects StopIteration, so its caller would wait forever. GeneratorExit would end the waiting generator.
    except (StopIteration, GeneratorExit) as error:
        failure = RuntimeError(f"the function raised {type(error).__name__}")
        failure.__cause__ = error
        done.set_exception(failure)
    except BaseException as error:  # SystemExit as well: it ends the run, whose caller decides how
        done.set_exception(error)
