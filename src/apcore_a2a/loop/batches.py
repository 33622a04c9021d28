"""What an agent yields without waiting in between, taken together.

Rule: the agent runs in the caller's own asyncio task and never notices. A step that would wait is held where it
stands, so that what came before it can be written first; then it is awaited as if nothing had happened.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from apcore_a2a.loop.waiting import begin, go_on

T = TypeVar("T")
K = TypeVar("K")

LIMIT: Final = 64  # events; then others get a turn


class Batches(Generic[T, K]):
    """Takes from an async generator all that is ready: first `take`, then, if it waits, `wait`, and again.

    `keep` is called with each event where it is yielded, before the agent can change it, and makes what is kept of it;
    it also says whether no event is wanted after it: then the generator is left standing where it yielded it.
    """

    def __init__(self, events: AsyncGenerator[T, None], keep: Callable[[T], tuple[K, bool]]) -> None:
        self._events, self._keep = events, keep
        self._head: list[K] = []

    ended = False
    _was_last = False
    _step: Any = None  # Any: an async generator's step; it has send and throw
    _yielded: Any = None
    _error: BaseException | None = None

    @property
    def waits(self) -> bool:
        """Whether the agent waits for something before its next event."""
        return self._step is not None

    def take(self) -> list[K]:
        """All events up to the next wait, the end or an error, which the next call raises."""
        if self._error is not None:
            raise self._error
        batch, self._head = self._head, []
        while len(batch) < LIMIT and not self._was_last:
            step: Any = self._events.__anext__()
            try:
                self._yielded = begin(step)
            except StopIteration as done:
                try:
                    kept, self._was_last = self._keep(done.value)
                except Exception as error:
                    return self._fail(error, batch)
                batch.append(kept)
            except StopAsyncIteration:
                self.ended = True
                break
            except BaseException as error:
                return self._fail(error, batch)
            else:
                self._step = step
                break
        return batch

    def _fail(self, error: BaseException, batch: list[K]) -> list[K]:
        if not batch:
            raise error
        self._error = error
        return batch

    async def wait(self) -> None:
        """Let the agent wait; its next event opens the next batch."""
        step, self._step = self._step, None
        try:
            kept, self._was_last = self._keep(await go_on(step, self._yielded))
            self._head.append(kept)
        except StopAsyncIteration:
            self.ended = True

    def close(self) -> Awaitable[None]:
        """Have the agent leave wherever it stands, in a wait or at an event: it is not wanted any more."""
        return self._events.aclose() if self._step is None else self._leave()

    async def _leave(self) -> None:
        step, self._step = self._step, None
        try:
            await go_on(step, step.throw(GeneratorExit()))
        except (GeneratorExit, StopIteration, StopAsyncIteration):
            pass  # it left; what it may have said in leaving comes too late
        await self._events.aclose()
