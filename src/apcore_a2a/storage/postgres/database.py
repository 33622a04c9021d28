"""The pool of connections for all that is not written in groups. Rule: nobody waits for an answer without a limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import asyncpg

from apcore_a2a.storage.postgres.connecting import ANSWER_TIME, FAILURES, Condition, is_lost

POOL: Final = 4  # connections; with the writer's and the listener's, a replica has six

T = TypeVar("T")


class Database:
    """A few connections that take turns."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", condition: Condition) -> None:
        self._pool = pool
        self._condition = condition

    async def ask(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call `ask` with a connection; again if that connection turns out to be broken.

        Any: what `ask` takes.

        Raises:
            StoreUnavailableError: the database does not answer in time.
        """
        for attempt in range(POOL + 1):
            try:
                async with self._pool.acquire(timeout=ANSWER_TIME) as connection:
                    answer = await ask(connection, *arguments)
            except FAILURES as error:
                unavailable = self._condition.failed(error)
                # A server that was restarted has broken all of them; one that does not answer is not asked again.
                if attempt == POOL or not is_lost(error) or isinstance(error, TimeoutError):
                    raise unavailable from error
            else:
                self._condition.succeeded()
                return answer
        raise AssertionError("not reached")

    async def close(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIME):
                await self._pool.close()
        except FAILURES:
            self._pool.terminate()
