"""Waiting in asyncio: a callback before the first wait (`notice_wait`), a timeout (`within`), and a fair lock (`Turn`).

Most awaits of the engine finish without a wait: an agent yields several events in a row, and the body of a request
arrives together with its headers. Some work is needed only before a real wait, for example saving the events so far, or
setting a timer. `notice_wait` starts such work just before the first wait. Without a wait, the work is not done.

asyncio has no callback for a coroutine that is about to wait. But the coroutine's `send` shows it: it returns if the
coroutine waits, and raises StopIteration if the coroutine has finished. `notice_wait` calls `send` itself, and does
otherwise what `await` does. It calls back before the event loop runs anything else. A callback scheduled with
`call_soon` would be too late: a request that is queued already would run before it and see an old state.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def notice_wait(work: Any, waits: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Await `work` (a coroutine, or one step of an async generator), and call `waits` before its first wait, if any.

    `waits` must not raise. The result, exceptions and cancellations are those of `work`.
    """
    try:
        awaited = work.send(None)
        waits()
        # The same as `yield from work`, which cannot be used here: it would resume `work` before `awaited` is done.
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # a cancellation, which the awaited work has to receive
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
    except StopIteration as done:
        return done.value


class Begun:
    """A coroutine whose first `send` has been called already, and has returned `awaited`. For `notice_wait`."""

    def __init__(self, work: Any, awaited: Any) -> None:
        self._work = work
        self._awaited = awaited
        self._is_first = True
        self.throw = work.throw

    def send(self, value: Any) -> Any:
        if self._is_first:
            self._is_first = False
            return self._awaited
        return self._work.send(value)


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` with a timeout in seconds, for which a timer is set only if `work` has to wait.

    `asyncio.timeout` always sets a timer. That would cost every request 4 µs. The body of nearly every request has
    arrived already, so that no timer is needed.

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
        self._timer = loop.call_later(self._seconds, self._pass, current_task())

    def unset(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self, task: "asyncio.Task[Any]") -> None:
        self._has_passed = True
        task.cancel()

    def has_passed_alone(self) -> bool:
        """Return whether only the deadline has cancelled the asyncio task."""
        return self._has_passed and current_task().uncancel() == 0


def current_task() -> "asyncio.Task[Any]":
    """Return the asyncio task of the calling coroutine."""
    task = asyncio.current_task()
    assert task is not None  # an awaiting coroutine always runs in one
    return task


# ---- turns ----------------------------------------------------------------------------------------------------------
# Waiting for a turn, which one run or cancel of a task has at a time.

Place = asyncio.Future[None] | None
"""A place in the queue of a turn. None means that the turn has come already, and there is nothing to wait for."""


class Turn:
    """A lock that is granted in the order of requests. `give` passes it on directly, so no later request overtakes."""

    __slots__ = ("_queue", "is_taken")

    def __init__(self, *, is_taken: bool = False) -> None:
        self.is_taken = is_taken
        self._queue: dict[asyncio.Future[None], None] = {}

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait."""
        return len(self._queue)

    def join(self) -> Place:
        """Join the queue at once, and return the place. The caller waits for it with `wait`."""
        if not self.is_taken:
            self.is_taken = True
            return None
        place = asyncio.get_running_loop().create_future()
        self._queue[place] = None
        return place

    async def wait(self, place: Place) -> None:
        if place is None:
            return
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._queue.pop(place, None)
            else:  # the turn had been granted already, so it is passed on
                self.give()
            raise

    async def take(self) -> None:
        await self.wait(self.join())

    def give(self) -> None:
        """Pass the turn on to the next place in the queue, or release it."""
        while self._queue:
            place = next(iter(self._queue))
            del self._queue[place]
            if not place.done():
                place.set_result(None)
                return
        self.is_taken = False
