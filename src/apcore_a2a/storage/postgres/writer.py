"""One connection that writes for the whole replica: all that waits in one statement, one group after the other.

Rule: a write is answered after its commit. What is wrong with one write fails no other; a connection that breaks fails
none, if there is a new one in time.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import asyncpg

from apcore_a2a.errors import OverloadedError, StaleWriteError, StoreUnavailableError
from apcore_a2a.storage.postgres.connection import (
    FAILURES,
    Address,
    Connection,
    ServerCondition,
    close_quietly,
    connect,
    is_lost,
    says_down,
)
from apcore_a2a.storage.postgres.statements import (
    FIND_KEY,
    FIND_WRITTEN,
    REMOVE_EXPIRED,
    REMOVE_OLDEST,
    WRITE,
    Known,
    Write,
    arguments,
    to_text,
)

logger = logging.getLogger(__name__)

MAX_BATCH: Final = 512  # writes in one statement: bounds how long the first waits for the last
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
MAX_WAITING: Final = 20_000  # writes in the queue: beyond it the database does not keep up
PATIENCE: Final = 20.0  # seconds for which writes wait for a new connection when one breaks: longer than a lease
PATIENCE_WHILE_DOWN: Final = 120.0  # the same while the server says that it starts: after a crash that takes its time
PATIENCE_FOR_NEW: Final = 5.0  # the same for new tasks, whose senders can try again
PAUSES: Final = (0.0, 0.05, 0.2, 0.5, 1.0)  # between attempts at that; the last one repeats
SWEEP_INTERVAL: Final = 10.0  # seconds between looks for expired tasks
MAX_SWEPT: Final = 100  # expired tasks removed in one look, with all their events: nothing is written meanwhile
SWEEP_PAUSE: Final = 0.1  # seconds between looks while there are more
# The plan is made once, when the tables may be empty; it must be the right one for a million tasks, too: found by
# index, joined by hash. A nested loop looks at every pair of a group, which for 256 writes was most of the statement.
PLANNING: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    "enable_nestloop": "off",
}

ALL_REPLICAS: Final = ""  # as the name of a replica

Wake = Callable[[dict[str, list[int]]], None]
"""Called after a commit: which tasks were written, by their numbers, for each replica that watches them."""


class RetentionRule:
    """How long ended tasks are kept, and how many tasks there may be. `clock` is for tests: None is the server's."""

    def __init__(self, *, ttl: float, max_tasks: int | None, clock: Callable[[], float] | None) -> None:
        self.ttl = ttl
        self.max_tasks = max_tasks
        self.clock = clock

    def now(self) -> float | None:
        """The time of an end; None for the server's own."""
        if self.clock is None:
            return None
        return self.clock()


class PostgresWriter:
    """Writes what is submitted, in its order."""

    def __init__(self, address: Address, condition: ServerCondition, retention: RetentionRule, *, wake: Wake) -> None:
        self.replica = ""  # the name under which tasks are run here
        self._address = address
        self._condition = condition
        self._retention = retention
        self._wake_watchers = wake
        self._queue: deque[Write] = deque()
        self._known: dict[bytes, Known] = {}
        self._arrived = asyncio.Event()
        self._closed = False
        self._connection: Connection | None = None
        self._old_backend: int | None = None  # of a connection that broke, which may still have something to do
        self._count: int | None = None  # of all tasks; None: not counted yet
        self._next_sweep = float("-inf")
        self._sweep_limit = MAX_SWEPT  # fewer when those have so many events that it takes too long
        self._has_expired = False  # whether there may be more that have expired
        self._work: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._connection = await self._connect()
        self._work = asyncio.get_running_loop().create_task(self._run(), name="postgres writer")

    async def close(self) -> None:
        """Return when all that was submitted is written, or has failed."""
        self._closed = True
        self._arrived.set()
        if self._work is not None:
            await asyncio.wait({self._work}, timeout=PATIENCE + 5)
            self._work.cancel()
        await close_quietly(self._connection)

    def submit(self, write: Write) -> None:
        """Have it written with the next group; its future is done after the commit.

        Raises:
            StoreUnavailableError: it is closed, or too much waits already.
        """
        if self._closed:
            raise StoreUnavailableError("The task store is closed")
        if len(self._queue) >= MAX_WAITING:
            raise StoreUnavailableError
        self._queue.append(write)
        self._arrived.set()

    def forget(self, task_id: bytes) -> None:
        """Another replica may have written the task since."""
        self._known.pop(task_id, None)

    def removed(self) -> None:
        """One task fewer."""
        if self._count is not None:
            self._count -= 1

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._closed or self._queue:
            try:
                async with asyncio.timeout(SWEEP_PAUSE if self._has_expired else SWEEP_INTERVAL):
                    await self._arrived.wait()
            except TimeoutError:
                logger.debug("nothing to write")
            self._arrived.clear()
            try:
                await self._sweep_if_due()
                while self._queue:
                    await self._write_all(self._next_batch())
                    await asyncio.sleep(0)  # what these writes were waited for often writes next: it joins the group
            except Exception:  # nothing may end this loop; whoever waited for these writes has been answered
                logger.exception("writing to the task store failed")

    def _next_batch(self) -> list[Write]:
        """What waits, in order, each task once: writes that follow each other are made one."""
        batch: dict[bytes, Write] = {}
        size = 0
        while self._queue and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
            write = self._queue[0]
            before = batch.get(write.id)
            if before is not None and not before.takes(write):
                break  # it comes first in the next batch
            self._queue.popleft()
            size += sum(map(len, write.events))
            if before is None:
                batch[write.id] = write
            else:
                before.add(write)
        return list(batch.values())

    async def _write_all(self, batch: list[Write]) -> None:
        maximum = self._retention.max_tasks
        if maximum is not None:
            batch = await self._admit(batch, maximum)
        if batch:
            try:
                await self._commit(batch)
            except BaseException as error:
                for write in batch:
                    _refuse(write, StoreUnavailableError())
                if not isinstance(error, StoreUnavailableError):
                    raise

    async def _commit(self, batch: list[Write]) -> None:
        """Write a batch, on a new connection if this one breaks; answers every write in it."""
        begun = time.monotonic()
        attempt = 0
        while True:
            try:
                connection = await self._connected()
                parameters = arguments(batch, self._known, self.replica, self._retention.now())
                rows = await connection.fetch(WRITE, *parameters)
                await self._answer(connection, batch, rows, is_repeated=attempt > 0)
                return
            except FAILURES as error:
                unavailable = self._condition.failed(error)
                self._known.clear()
                if not is_lost(error):
                    await self._commit_each(batch, error)
                    return
                self._drop_connection()
                waited = time.monotonic() - begun
                patience = PATIENCE_WHILE_DOWN if says_down(error) else PATIENCE
                if waited > patience:
                    raise unavailable from error
                if waited > PATIENCE_FOR_NEW:
                    batch = _refuse_new(batch)
                    self._queue = deque(_refuse_new(self._queue))
                    if not batch:
                        return
                await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
                attempt += 1

    async def _commit_each(self, batch: list[Write], error: BaseException) -> None:
        """The server refused a batch, and which write it was is not known: one by one, only that one fails."""
        if len(batch) > 1:
            for write in batch:
                await self._commit([write])
            return
        logger.warning("a write was refused by the database", exc_info=error)
        _refuse(batch[0], StoreUnavailableError())

    async def _answer(self, connection: Connection, batch: list[Write], rows: list[Any], *, is_repeated: bool) -> None:
        self._condition.succeeded()
        done = {row["place"]: row for row in rows}
        watched: dict[str, list[int]] = {}
        for place, write in enumerate(batch, 1):
            row = done.get(place)
            if row is None:
                await self._answer_refused(connection, write, is_repeated=is_repeated)
                continue
            self._remember(write)
            if write.runner(self.replica) == "":
                watched[ALL_REPLICAS] = []
            for watcher in row["watchers"]:
                if watcher != self.replica:
                    watched.setdefault(watcher, []).append(row["number"])
            _resolve(write)
        if watched:
            self._wake_watchers(watched)

    def _remember(self, write: Write) -> None:
        if write.is_new and self._count is not None:
            self._count += 1
        if write.is_rest:
            self._known.pop(write.id, None)
        else:
            self._known[write.id] = Known(write.memo, write.run)

    async def _answer_refused(self, connection: Connection, write: Write, *, is_repeated: bool) -> None:
        """Say why a write was not taken: it is stale, its key was used before, or it was made before."""
        self._known.pop(write.id, None)
        if is_repeated and write.events:
            found = await connection.fetchrow(FIND_WRITTEN, write.id, write.owner, write.version)
            if found is not None and found["body"] == write.events[-1]:
                _resolve(write)
                return
        earlier = None
        if write.is_new and write.key:
            earlier = await connection.fetchval(FIND_KEY, write.owner, write.key)
        if earlier is None:
            _refuse(write, StaleWriteError())
        else:
            _resolve(write, to_text(earlier))

    # ---- the connection ----------------------------------------------------------------------------------------------

    async def _connect(self) -> Connection:
        return await connect(self._address, **PLANNING)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._drop_connection()
            connection = await self._connect()
            if self._old_backend is not None:
                # What the old connection was told last must not be done after what this one will be told.
                await connection.fetchval("SELECT pg_terminate_backend($1)", self._old_backend)
                self._old_backend = None
            self._connection = connection
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._old_backend = self._connection.get_server_pid()
            self._connection.terminate()
            self._connection = None

    # ---- what leaves -------------------------------------------------------------------------------------------------

    async def _sweep_if_due(self) -> None:
        """Remove tasks that ended longer than the TTL ago, the oldest first. Never raises."""
        now = self._retention.now()
        clock = time.monotonic() if now is None else now
        if clock < self._next_sweep:
            return
        self._next_sweep = clock + min(SWEEP_INTERVAL, self._retention.ttl / 100)
        self._has_expired = False
        try:
            connection = await self._connected()
            status = await connection.execute(REMOVE_EXPIRED, now, self._retention.ttl, self._sweep_limit)
            self._count = None  # other replicas create and remove, too: counted anew from time to time
            if _count_of(status) == self._sweep_limit:
                self._sweep_soon(clock)
            else:
                self._sweep_limit = MAX_SWEPT
        except asyncpg.QueryCanceledError:  # it took too long
            self._sweep_limit = max(self._sweep_limit // 2, 1)
            self._sweep_soon(clock)
        except FAILURES as error:
            self._condition.failed(error)
            if is_lost(error):
                self._drop_connection()

    def _sweep_soon(self, clock: float) -> None:
        self._has_expired = True
        self._next_sweep = clock + SWEEP_PAUSE

    async def _admit(self, batch: list[Write], maximum: int) -> list[Write]:
        """Make room for the new tasks of a batch; those that have none are refused, and not in the answer."""
        admitted: list[Write] = []
        for write in batch:
            if write.is_new:
                try:
                    await self._make_room(write, maximum, admitted)
                except FAILURES as error:
                    _refuse(write, self._condition.failed(error))
                    self._drop_connection()
                    continue
                except OverloadedError as error:
                    _refuse(write, error)
                    continue
            admitted.append(write)
        return admitted

    async def _make_room(self, write: Write, maximum: int, others: list[Write]) -> None:
        connection = await self._connected()
        if self._count is None:
            self._count = int(await connection.fetchval("SELECT count(*) FROM task"))
        excess = self._count + sum(other.is_new for other in others) - maximum + 1
        if excess <= 0:
            return
        # A write that will be refused must not cost another task its place.
        in_use = "SELECT 1 FROM task WHERE id = $1 OR (owner = $2 AND key = $3 AND key <> '')"
        if await connection.fetchval(in_use, write.id, write.owner, write.key) is not None:
            return
        status = await connection.execute(REMOVE_OLDEST, min(excess, 2))
        removed = _count_of(status)
        self._count -= removed
        if not removed:
            raise OverloadedError("The agent is at its limit of unfinished tasks; try again later", retry_after=5)


def _count_of(status: str) -> int:
    """How many rows a statement has changed: "DELETE 2"."""
    return int(status.split()[-1])


def _resolve(write: Write, result: str | None = None) -> None:
    for future in write.futures:
        if not future.done():  # cancelled meanwhile
            future.set_result(result)


def _refuse_new(writes: Iterable[Write]) -> list[Write]:
    """What of these goes on waiting for the database. Whether a new task was stored is for its run to find out."""
    others: list[Write] = []
    for write in writes:
        if write.is_new:
            _refuse(write, StoreUnavailableError())
        else:
            others.append(write)
    return others


def _refuse(write: Write, error: Exception) -> None:
    for future in write.futures:
        if not future.done():
            future.set_exception(error)
