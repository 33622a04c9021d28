"""What an agent yields without waiting in between, taken together.

Rule: the agent runs in the caller's own asyncio task and never notices. A step that would wait is held where it
stands, so that what came before it can be written first; then it is awaited as if nothing had happened.
"""

import types
from collections.abc import AsyncGenerator, Generator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

LIMIT: Final = 64  # events; then others get a turn


class Batches(Generic[T]):
    """Takes from an async generator all that is ready: first `take`, then, if it waits, `wait`, and again."""

    def __init__(self, events: AsyncGenerator[T, None]) -> None:
        self._events = events
        self._head: list[T] = []
        self._step: Any = None  # Any: an async generator's step; it has send and throw
        self._yielded: Any = None
        self._error: BaseException | None = None
        self.ended = False

    @property
    def waits(self) -> bool:
        """Whether the agent waits for something before its next event."""
        return self._step is not None

    def take(self) -> list[T]:
        """All events up to the next wait, the end or an error, which the next call raises."""
        if self._error is not None:
            raise self._error
        batch, self._head = self._head, []
        while len(batch) < LIMIT:
            step: Any = self._events.__anext__()
            try:
                self._yielded = step.send(None)
            except StopIteration as done:
                batch.append(done.value)
            except StopAsyncIteration:
                self.ended = True
                break
            except BaseException as error:
                if not batch:
                    raise
                self._error = error
                break
            else:
                self._step = step
                break
        return batch

    async def wait(self) -> None:
        """Let the agent wait; its next event opens the next batch."""
        step, self._step = self._step, None
        try:
            self._head.append(await _go_on(step, self._yielded))
        except StopAsyncIteration:
            self.ended = True


@types.coroutine
def _go_on(step: Any, yielded: Any) -> Generator[Any, Any, Any]:
    """Await a step that has begun: what `await` does, from the second move on."""
    try:
        while True:
            try:
                sent = yield yielded
            except BaseException as error:  # a cancellation is the agent's to see
                yielded = step.throw(error)
            else:
                yielded = step.send(sent)
    except StopIteration as done:
        return done.value
