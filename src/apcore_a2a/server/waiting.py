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


class Moment:
    """Something that happens once. It has mostly happened when somebody asks."""

    __slots__ = ("_waiters", "has_come")

    def __init__(self) -> None:
        self.has_come = False
        self._waiters: list[asyncio.Future[None]] = []

    def come(self) -> None:
        self.has_come = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        if not self.has_come:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)


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
        def __init__(self, work: Coroutine[Any, Any, None]) -> None:
            self.work = work
            self.yielded: Any = None
            self.error: BaseException | None = None
            self.is_all = False

        def step(self) -> None:
            try:
                self.yielded = begin(self.work)
            except StopIteration:
                self.is_all = True
            except BaseException as error:
                self.is_all, self.error = True, error

    @types.coroutine
    def _rest(first: _First) -> Generator[Any, Any, None]:
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
                yielded = first.work.throw(cancelled)
            except StopIteration:
                return
        yield from go_on(first.work, yielded)

    def start_now(work: Coroutine[Any, Any, None], *, name: str) -> "tuple[asyncio.Task[None], bool]":
        """A task that takes its first step here and now, and whether that was all."""
        loop, me, context, first = asyncio.get_running_loop(), asyncio.current_task(), copy_context(), _First(work)
        rest: Any = _rest(first)
        rest.send(None)
        task: asyncio.Task[None] = loop.create_task(rest, name=name, context=context)
        if me is not None:
            _leave_task(loop, me)
        _enter_task(loop, task)
        try:
            context.run(first.step)
        finally:
            _leave_task(loop, task)
            if me is not None:
                _enter_task(loop, me)
        return task, first.is_all
