"""Waits that are often none, and cost nothing then.

Rule: what has to wait after all waits as if it had been awaited from the start: in one asyncio task, which its
cancellations and its timeouts mean.
"""

import asyncio
import sys
import types
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class Progress:
    """Something that goes from stage to stage, one greater than the other; it is mostly there when somebody asks."""

    __slots__ = ("_waiters", "stage")

    def __init__(self) -> None:
        self.stage = 0
        self._waiters: dict[asyncio.Future[None], int] = {}

    def reach(self, stage: int) -> None:
        if stage > self.stage:
            self.stage = stage
            if self._waiters:
                for waiter, wanted in self._waiters.items():
                    if wanted <= stage and not waiter.done():
                        waiter.set_result(None)

    async def until(self, stage: int) -> None:
        if self.stage < stage:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = stage
            try:
                await waiter
            finally:
                del self._waiters[waiter]


class Turn:
    """Taken by one at a time, in the order of asking. It goes from hand to hand: who comes later cannot slip in."""

    __slots__ = ("_queue", "is_taken")

    def __init__(self, *, is_taken: bool = False) -> None:
        self.is_taken = is_taken
        self._queue: dict[asyncio.Future[None], None] = {}

    async def take(self) -> None:
        if not self.is_taken:
            self.is_taken = True
            return
        waiter = asyncio.get_running_loop().create_future()
        self._queue[waiter] = None
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._queue.pop(waiter, None)
            else:  # the turn had come already
                self.give()
            raise

    def give(self) -> None:
        """Let the next one have it."""
        while self._queue:
            waiter = next(iter(self._queue))
            del self._queue[waiter]
            if not waiter.done():
                waiter.set_result(None)
                return
        self.is_taken = False


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Await with a deadline, which is set only when there is need to wait.

    Raises:
        TimeoutError: it took longer.
    """
    try:
        yielded = begin(work)
    except StopIteration as done:
        value: T = done.value
        return value
    async with asyncio.timeout(seconds):
        result: T = await go_on(work, yielded)
        return result


def begin(step: Any) -> Any:  # Any: whatever can be awaited, and what it yields: a future, or None for a turn
    """Take the first move of something awaitable; it answers what it waits for, and ends as `send` does."""
    yielded = step.send(None)
    if getattr(yielded, "_asyncio_future_blocking", False):
        yielded._asyncio_future_blocking = False  # until `go_on`: others may await the same future
    return yielded


@types.coroutine
def go_on(step: Any, yielded: Any) -> Generator[Any, Any, Any]:
    """Await what has begun and waits: what `await` does, from the second move on."""
    while True:
        if getattr(yielded, "_asyncio_future_blocking", None) is False:
            yielded._asyncio_future_blocking = True  # how a future says to the task that it is awaited
        try:
            yield yielded
        except BaseException as error:  # a cancellation is for whoever waits
            try:
                yielded = step.throw(error)
            except StopIteration as done:
                return done.value
        else:
            return (yield from step)


if sys.version_info >= (3, 12):

    def start_now(work: Coroutine[Any, Any, None], *, name: str) -> "tuple[asyncio.Task[None], bool]":
        """A task that takes its first step here and now, and whether that was all."""
        task = asyncio.Task(work, loop=asyncio.get_running_loop(), name=name, eager_start=True)
        return task, task.done()

else:
    # Python 3.11 has no eager tasks. The same by hand: the task is made first, so that the work knows it from its first
    # step on; when the loop comes to the task, it goes on from where the work waits.
    from asyncio.tasks import _enter_task, _leave_task

    class _First:
        """What came of the first step."""

        yielded: Any = None
        error: BaseException | None = None
        is_all = False

    @types.coroutine
    def _rest(work: Coroutine[Any, Any, None], first: _First) -> Generator[Any, Any, None]:
        cancelled = None
        try:
            yield  # it stands here when the task is made: a task canceled before its turn is canceled here
        except asyncio.CancelledError as error:
            cancelled = error
        if first.error is not None:
            raise first.error
        if first.is_all:
            return
        yielded = first.yielded
        if cancelled is not None and (yielded is None or not yielded.cancel()):  # as Task.cancel does
            try:
                yielded = work.throw(cancelled)
            except StopIteration:
                return
        yield from go_on(work, yielded)

    def start_now(work: Coroutine[Any, Any, None], *, name: str) -> "tuple[asyncio.Task[None], bool]":
        """A task that takes its first step here and now, and whether that was all."""
        loop, context, first = asyncio.get_running_loop(), copy_context(), _First()
        me = asyncio.current_task(loop)
        rest: Any = _rest(work, first)
        rest.send(None)
        task: asyncio.Task[None] = asyncio.Task(rest, loop=loop, name=name, context=context)
        if me is not None:
            _leave_task(loop, me)
        _enter_task(loop, task)
        try:
            first.yielded = context.run(begin, work)
        except StopIteration:
            first.is_all = True
        except BaseException as error:
            first.is_all, first.error = True, error
        finally:
            _leave_task(loop, task)
            if me is not None:
                _enter_task(loop, me)
        return task, first.is_all
