"""Blocking code on threads of its own, for agents that are no coroutines.

Rule: one daemon thread a run, at most `limit` at once. Not asyncio's pool: that one is small, resolves host names too,
and is waited for when the process ends, which a function that never returns would prevent.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Threads:
    """As many workers as may run at once; who wants one more waits for its turn."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def worker(self, name: str) -> AsyncIterator["Worker"]:
        await self._free.acquire()
        loop = asyncio.get_running_loop()

        def release() -> None:
            # When the thread has ended, not when its run has: a function that goes on still counts.
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._free.release)

        worker = Worker(name, release)
        try:
            yield worker
        finally:
            worker.close()


class Worker:
    """One thread that does one job after another, so that a generator stays on the thread it began on."""

    def __init__(self, name: str, on_exit: Callable[[], None]) -> None:
        # None ends the thread. A job is a function without arguments, and whom to tell what came of it.
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._name = name
        self._on_exit = on_exit
        self._is_busy = False  # with a job that nobody waits for any more
        # A daemon: the interpreter does not wait for it, should a function never return.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function on the thread. Cancelled, it stops waiting; the function goes on."""
        context = contextvars.copy_context()  # as asyncio.to_thread does
        done: Future[T] = Future()
        self._jobs.put((done, lambda: context.run(function, *args)))
        try:
            return await asyncio.wrap_future(done)
        finally:
            self._is_busy = not done.done()

    def close(self) -> None:
        """Let the thread end after what it does now."""
        if self._is_busy:
            logger.warning("function goes on after its run has ended", extra={"function": self._name})
        self._jobs.put(None)

    def later(self, job: Callable[[], object]) -> None:
        """Run a last job that nobody waits for."""
        self._jobs.put((Future(), job))

    def _work(self) -> None:
        try:
            for done, job in iter(self._jobs.get, None):
                if done.set_running_or_notify_cancel():
                    _settle(done, job)
        finally:
            self._on_exit()


def _settle(done: Future[Any], job: Callable[[], Any]) -> None:
    try:
        done.set_result(job())
    except StopIteration as error:  # a future refuses it, and who waits would wait for ever
        failure = RuntimeError("the function raised StopIteration")
        failure.__cause__ = error
        done.set_exception(failure)
    except BaseException as error:  # also SystemExit: it is the run that ends, and its owner decides how
        done.set_exception(error)
