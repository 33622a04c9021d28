"""Code to run only if an `await` really waits: a callback (`notice_wait`), or the timer of a deadline (`within`).

Most of what the engine awaits is ready: an agent yields several events in a row, and the body of a request arrives
together with its headers. Some work is needed only before a real wait, for example saving the events so far, or setting
a timer. It is done at that moment, and costs nothing otherwise.

asyncio does not report that a coroutine is about to wait, but the coroutine does: its `send` returns instead of
finishing. `notice_wait` observes that, and otherwise does what `await` does. It calls back before the event loop runs
anything else. A callback scheduled with `call_soon` would be too late: a request that is queued already would run
before it and see an old state.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def notice_wait(work: Any, waits: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Await `work`, a coroutine or the step of an async generator. Call `waits` before its first wait, if it waits.

    `waits` must not raise. The result, exceptions and cancellations are those of `work`.
    """
    try:
        awaited = work.send(None)
        waits()
        # The loop does what `yield from work` does. `yield from` itself cannot continue after a first `send`.
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # a cancellation, which the awaited work has to receive
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
    except StopIteration as done:
        return done.value


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Await with a deadline, whose timer is set only if `work` has to wait.

    `asyncio.timeout` sets its timer always. That would cost every request 4 µs, and nearly every body has arrived.

    Raises:
        TimeoutError: the work took longer.
    """
    deadline = _Deadline(seconds)
    try:
        result: T = await notice_wait(work, deadline.set)
        return result
    except asyncio.CancelledError as error:
        if deadline.has_passed_alone():
            raise TimeoutError from error
        raise
    finally:
        deadline.unset()


class _Deadline:
    """Cancels the current asyncio task once, if it is set and not unset in time."""

    __slots__ = ("_has_passed", "_seconds", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._has_passed = False
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._pass, _current_task())

    def unset(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self, task: "asyncio.Task[Any]") -> None:
        self._has_passed = True
        task.cancel()

    def has_passed_alone(self) -> bool:
        """Return whether only the deadline has cancelled the asyncio task."""
        return self._has_passed and _current_task().uncancel() == 0


def _current_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None  # an awaiting coroutine always runs in one
    return task
