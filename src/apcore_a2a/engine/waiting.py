"""Noticing that something has to wait.

Most of what the engine awaits is there already: an agent yields several events in a row, a request's body arrives with
its headers. What has to be done only before a real wait (saving what an agent has said so far, setting a timer) is done
then, and costs nothing otherwise.

asyncio does not say when a coroutine is about to wait, but a coroutine does: its `send` returns instead of finishing.
`tell_when_waiting` looks at that, and is otherwise what `await` is. Its call is made before the loop turns, so nobody
else has run in between. A callback scheduled with `call_soon` would come too late: a request that is queued already
would run before it and see an old state.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def tell_when_waiting(work: Any, waits: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Await `work`, a coroutine or the step of an async generator; call `waits` before its first wait, if it has one.

    `waits` must not raise. Cancellations, exceptions and the result are those of `work`.
    """
    try:
        awaited = work.send(None)
        waits()
        # What `yield from work` does; it cannot be told that the first step has been taken already.
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # a cancellation, which is for whoever waits
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
    except StopIteration as done:
        return done.value


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Await with a deadline whose timer is set only if there is need to wait.

    What `asyncio.timeout` does, but for that: it would cost every request 4 µs, and nearly every body is there already.

    Raises:
        TimeoutError: it took longer.
    """
    deadline = _Deadline(seconds)
    try:
        result: T = await tell_when_waiting(work, deadline.set)
        return result
    except asyncio.CancelledError as error:
        if deadline.has_passed_alone():
            raise TimeoutError from error
        raise
    finally:
        deadline.unset()


class _Deadline:
    """Cancels the current task once, if it is set and not unset in time."""

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
        """Whether the cancellation is the deadline's, and nobody else wants the task cancelled, too."""
        return self._has_passed and _current_task().uncancel() == 0


def _current_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None  # whoever awaits is in one
    return task
