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
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

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


class Watched(Generic[T]):
    """Iterates over `events` as `async for` would; `waits` is called before each wait of theirs."""

    __slots__ = ("_events", "_waits")

    def __init__(self, events: AsyncGenerator[T, None], waits: Callable[[], None]) -> None:
        self._events = events
        self._waits = waits

    def __aiter__(self) -> "Watched[T]":
        return self

    def __anext__(self) -> Awaitable[T]:
        return tell_when_waiting(self._events.__anext__(), self._waits)


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Await with a deadline, whose timer is set only if there is need to wait (11 µs for each body that is there).

    Raises:
        TimeoutError: it took longer.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        result: T = await tell_when_waiting(work, lambda: limit.reschedule(loop.time() + seconds))
        return result
