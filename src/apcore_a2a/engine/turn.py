"""Whose turn it is: one at a time, in the order of asking."""

import asyncio

Place = asyncio.Future[None] | None
"""A place in a queue: None when the turn has come already. The one shape here for "done now, or wait for this"."""


class Turn:
    """Taken by one at a time, in the order of asking. It goes from hand to hand: who comes later cannot slip in."""

    __slots__ = ("_queue", "is_taken")

    def __init__(self, *, is_taken: bool = False) -> None:
        self.is_taken = is_taken
        self._queue: dict[asyncio.Future[None], None] = {}

    @property
    def waiting(self) -> int:
        """How many wait for it."""
        return len(self._queue)

    def join(self) -> Place:
        """A place in the queue, taken at once, to be waited for with `wait`."""
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
            else:  # the turn had come already, so it goes on to the next
                self.give()
            raise

    async def take(self) -> None:
        await self.wait(self.join())

    def give(self) -> None:
        """Let the next one have it."""
        while self._queue:
            place = next(iter(self._queue))
            del self._queue[place]
            if not place.done():
                place.set_result(None)
                return
        self.is_taken = False

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give()
