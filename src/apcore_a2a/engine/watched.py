"""The moment at which something awaited has to wait.

Rule: whoever awaits gets what `await` gives, cancellations included. The only addition is a call when, and only when,
the result is not there yet. It is made before the loop turns, so nobody else has run since.
"""

import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@types.coroutine
def tell_when_waiting(work: Any, waits: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Await `work`, a coroutine or the step of an async generator; `waits` is called before its first wait."""
    try:
        awaited = work.send(None)
        waits()
        # What `yield from work` does; it cannot be told that the first move is made already.
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
    """Iterates over `events`; `waits` is called before each wait of theirs. It must not raise."""

    __slots__ = ("_events", "_waits")

    def __init__(self, events: AsyncGenerator[T, None], waits: Callable[[], None]) -> None:
        self._events = events
        self._waits = waits

    def __aiter__(self) -> "Watched[T]":
        return self

    def __anext__(self) -> Awaitable[T]:
        return tell_when_waiting(self._events.__anext__(), self._waits)
