"""Connections for all that is not written in groups. Rule: nobody waits for an answer without a limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import asyncpg

from apcore_a2a.storage.postgres.connecting import ANSWER_TIME, FAILURES, Condition, is_lost, says_down

READERS: Final = 3  # connections for what clients ask; with those of writer, listener and lease, a replica has six

T = TypeVar("T")


class Database:
    """A few connections that take turns."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", condition: Condition) -> None:
        self._pool = pool
        self._condition = condition

    @property
    def down_at(self) -> float:
        """When the server last said that it serves nobody, by the monotonic clock."""
        return self._condition.down_at

    async def ask(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call `ask` with a connection; again if that connection turns out to be broken.

        Any: what `ask` takes.

        Raises:
            StoreUnavailableError: the database does not answer in time.
        """
        return await self._in_time(self._persist, ask, *arguments)

    async def ask_once(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """The same, for what does something else the second time: it is not asked again.

        Any: what `ask` takes.

        Raises:
            StoreUnavailableError: the database does not answer in time, or the connection broke: it may have been done.
        """
        return await self._in_time(self._ask_once, ask, *arguments)

    async def _in_time(self, attempt: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        try:
            async with asyncio.timeout(ANSWER_TIME):  # for everything: a connection, the answer, another attempt
                answer = await attempt(*arguments)
        except FAILURES as error:
            raise self._condition.failed(error) from error
        self._condition.succeeded()
        return answer

    async def _persist(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """A server that was restarted has broken all connections; one that is not there is not asked again."""
        for _ in range(self._pool.get_max_size()):
            try:
                return await self._ask_once(ask, *arguments)
            except FAILURES as error:
                if not is_lost(error) or isinstance(error, (TimeoutError, ConnectionRefusedError)) or says_down(error):
                    raise
                self._condition.failed(error)
        return await self._ask_once(ask, *arguments)

    async def _ask_once(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        connection = await self._pool.acquire()
        try:
            return await ask(connection, *arguments)
        except (TimeoutError, asyncio.CancelledError):
            # To give it back, asyncpg would first have the server cancel what it was asked, and wait for that as long.
            connection.terminate()
            raise
        finally:
            await self._pool.release(connection)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIME):
                await self._pool.close()
        except FAILURES:
            self._pool.terminate()
