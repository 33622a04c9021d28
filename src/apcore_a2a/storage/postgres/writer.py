"""The writer of a replica: one connection, on which one statement after the other writes all queued writes.

Invariant: a write is acknowledged after its commit. A rejected write fails alone. If the connection breaks, or the
server cannot execute writes for a time, no write fails unless that takes longer than RETRY_TIMEOUT.

A row that another transaction has locked would stop all writes of the replica. So after LOCK_TIME, the writes of the
locked tasks are set aside, in their order, until the lock is released. The other writes go on.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import asyncpg

from apcore_a2a.errors import OverloadedError, StaleWriteError, StoreUnavailableError
from apcore_a2a.storage.postgres.connection import (
    APPLICATION_NAME,
    Address,
    Connection,
    ServerCondition,
    SessionSettings,
    close_quietly,
    connect,
    execute,
    fetch,
    fetch_value,
    terminate,
)
from apcore_a2a.storage.postgres.failures import DatabaseFailure, classify, is_starting_or_stopping
from apcore_a2a.storage.postgres.statements import (
    FIND_KEY,
    FIND_LOCKED,
    FIND_WRITTEN,
    REMOVE_EXPIRED,
    REMOVE_OLDEST,
    WRITE,
    LastWritten,
    Write,
    arguments,
    to_text,
)

logger = logging.getLogger(__name__)

MAX_BATCH: Final = 512  # writes in one statement, because the first waits for the last
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
MAX_WAITING: Final = 20_000  # writes in the queue: with more, the database does not keep up
RETRY_TIMEOUT: Final = 20.0  # seconds for which writes that the server cannot execute are repeated: more than a lease
RETRY_TIMEOUT_WHILE_DOWN: Final = 120.0  # the same while the server starts up, which takes long after a crash
RETRY_TIMEOUT_FOR_NEW: Final = 4.0  # the same for new tasks, whose senders can retry
LOCK_TIME: Final = 0.25  # seconds for which all writes wait for a locked row
LOCKED_PAUSE: Final = 0.2  # seconds between checks whether a locked row is free; doubled if it seemed so before
LONGEST_LOCKED_PAUSE: Final = 2.0
PAUSES: Final = (0.0, 0.05, 0.2, 0.5, 1.0)  # seconds between attempts to connect; the last one repeats
SWEEP_INTERVAL: Final = 10.0  # seconds between removals of expired tasks
MAX_SWEPT: Final = 100  # expired tasks removed at once, with all their events, because writes wait meanwhile
SWEEP_PAUSE: Final = 0.1  # seconds between removals while there are more
# The plan is made once, perhaps for empty tables, and must also be fast for a million tasks: rows found by index,
# joined by hash. A nested loop compares every pair of a group, which for 256 writes took most of the statement's time.
PLANNING: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    "enable_nestloop": "off",
}

ALL_REPLICAS: Final = ""  # as the name of a replica

Wake = Callable[[dict[str, list[int]]], None]
"""Called after a commit with the numbers of the written tasks, for each replica that follows them."""


class RetentionRule:
    """How long ended tasks are kept, and how many tasks there may be. `clock` is for tests, None is the server's."""

    def __init__(self, *, ttl: float, max_tasks: int | None, clock: Callable[[], float] | None) -> None:
        self.ttl = ttl
        self.max_tasks = max_tasks
        self.clock = clock

    def now(self) -> float | None:
        """Return the time by the test's clock, or None for the server's."""
        if self.clock is None:
            return None
        return self.clock()


class LockedTask:
    """The writes of a task whose row another transaction has locked, in their order."""

    def __init__(self, write: Write, due: float) -> None:
        self.writes = [write]
        self.due = due  # when to check the lock, by the monotonic clock

    def is_given_up(self, now: float) -> bool:
        timeout = RETRY_TIMEOUT_FOR_NEW if self.writes[0].is_new else RETRY_TIMEOUT
        return now - self.writes[0].locked_since > timeout


class PostgresWriter:
    """Writes submitted changes in their order, and removes expired tasks."""

    def __init__(self, address: Address, condition: ServerCondition, retention: RetentionRule, *, wake: Wake) -> None:
        self.replica = ""  # the present name of this replica
        self._address = address
        self._settings = SessionSettings(address, **PLANNING, lock_timeout=f"{LOCK_TIME * 1000:.0f}")
        self._condition = condition
        self._retention = retention
        self._wake_followers = wake
        self._queue: deque[Write] = deque()
        self._locked: dict[bytes, LockedTask] = {}  # by the id of the task
        self._last_written: dict[bytes, LastWritten] = {}
        self._arrived = asyncio.Event()
        self._closed = False
        self._connection: Connection | None = None
        self._name = ""  # of the connection, as the server shows it
        self._old_name = ""  # of a broken connection, whose statement the server may still execute
        self._count: int | None = None  # number of all tasks, None until counted
        self._next_sweep = float("-inf")
        self._sweep_limit = MAX_SWEPT  # halved while a removal takes too long, because tasks have many events
        self._has_expired = False  # whether more tasks may have expired
        self._work: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, and start to write."""
        self._connection = await self._connect()
        self._work = asyncio.get_running_loop().create_task(self._run(), name="postgres writer")

    async def close(self) -> None:
        """Stop when all submitted writes are committed, or have failed. If this is cancelled, stop at once."""
        self._closed = True
        self._arrived.set()
        try:
            if self._work is not None:
                await asyncio.wait({self._work})
        finally:
            if self._work is not None:
                self._work.cancel()
            await close_quietly(self._connection)

    def submit(self, write: Write) -> None:
        """Queue a write for the next group. Its futures are done after the commit.

        Raises:
            StoreUnavailableError: the writer is closed, or its queue is full.
        """
        if self._closed:
            raise StoreUnavailableError("The task store is closed")
        waiting = len(self._queue)
        if self._locked:
            waiting += sum(len(locked.writes) for locked in self._locked.values())
        if waiting >= MAX_WAITING:
            raise StoreUnavailableError
        self._queue.append(write)
        self._arrived.set()

    def forget(self, task_id: bytes) -> None:
        """Discard the cached memo and run of a task, because another replica may write them."""
        self._last_written.pop(task_id, None)

    def note_removal(self) -> None:
        """Subtract one from the number of tasks."""
        if self._count is not None:
            self._count -= 1

    # ---- the loop ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._closed or self._queue or self._locked:
            try:
                async with asyncio.timeout(self._longest_pause()):
                    await self._arrived.wait()
            except TimeoutError:
                logger.debug("no writes are queued")
            self._arrived.clear()
            try:
                await self._sweep_if_due()
                await self._retry_locked()
                while self._queue:
                    await self._write_all(self._next_batch())
                    await self._retry_locked()
                    # Callers that waited for these writes often submit the next ones now, for the next group.
                    await asyncio.sleep(0)
            except Exception:  # the loop must continue, and the writes of this group have been answered
                logger.exception("writing to the task store failed")

    def _longest_pause(self) -> float:
        if self._locked:
            return LOCKED_PAUSE
        if self._has_expired:
            return SWEEP_PAUSE
        return SWEEP_INTERVAL

    def _next_batch(self) -> list[Write]:
        """Return queued writes in order, each task once. Successive writes of a task are merged."""
        batch: dict[bytes, Write] = {}
        size = 0
        while self._queue and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
            write = self._queue[0]
            locked = self._locked.get(write.id)
            if locked is not None:
                locked.writes.append(self._queue.popleft())
                continue
            before = batch.get(write.id)
            if before is not None and not before.can_merge(write):
                break  # this write is the first of the next batch
            self._queue.popleft()
            size += sum(map(len, write.events))
            if write.conversation is not None:
                size += len(write.conversation.tail)
            if before is None:
                batch[write.id] = write
            else:
                before.merge(write)
        return list(batch.values())

    async def _write_all(self, batch: list[Write]) -> None:
        maximum = self._retention.max_tasks
        if maximum is not None:
            batch = await self._admit(batch, maximum)
        try:
            await self._commit(batch)
        except BaseException:
            for write in batch:
                _reject(write, StoreUnavailableError())
            raise

    async def _commit(self, batch: list[Write]) -> None:
        """Write a batch, and answer each of its writes. Write it again while the server cannot execute it."""
        begun = time.monotonic()
        attempt = 0
        while batch:
            try:
                connection = await self._connected()
                parameters = arguments(batch, self._last_written, self.replica, self._retention.now())
                rows = await self._settings.run(connection, fetch, WRITE, *parameters)
                await self._answer(connection, batch, rows)
                return
            except Exception as error:  # no list of the exceptions of a driver is complete
                self._last_written.clear()
                for write in batch:
                    write.is_repeated = True
                if isinstance(error, asyncpg.LockNotAvailableError) and await self._isolate_locked(batch, error):
                    return
                unavailable = self._condition.failed(error)
                failure = classify(error)
                if failure in (DatabaseFailure.REFUSED, DatabaseFailure.BUG):
                    await self._commit_each(batch, error)
                    return
                if failure is DatabaseFailure.LOST:
                    self._drop_connection()
                waited = time.monotonic() - begun
                timeout = RETRY_TIMEOUT_WHILE_DOWN if is_starting_or_stopping(error) else RETRY_TIMEOUT
                if waited > timeout:
                    _reject_all(batch, unavailable)
                    return
                if waited > RETRY_TIMEOUT_FOR_NEW or isinstance(error, TimeoutError):
                    batch = _reject_new(batch)
                    self._queue = deque(_reject_new(self._queue))
                await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
                attempt += 1

    async def _commit_each(self, batch: list[Write], error: BaseException) -> None:
        """Retry the writes of a rejected batch one by one, so that only the write that caused the error fails."""
        if len(batch) > 1:
            for write in batch:
                await self._commit([write])
            return
        logger.warning("the database rejected a write", exc_info=error)
        _reject(batch[0], StoreUnavailableError())

    # ---- locked rows -------------------------------------------------------------------------------------------------

    async def _isolate_locked(self, batch: list[Write], error: Exception) -> bool:
        """Set aside the writes that wait for a lock, and write the others. Return False if no write can be executed."""
        try:
            locked = await self._find_locked(batch)
        except Exception:  # also this statement waits: another transaction has locked a whole table
            return False
        if not locked and len(batch) > 1:  # another row, for example of the memory of a conversation
            middle = len(batch) // 2
            await self._commit(batch[:middle])
            await self._commit(batch[middle:])
            return True
        if not locked:
            self._condition.failed(error)
        others: list[Write] = []
        for write in batch:
            if write.id in locked or not locked:
                self._set_aside(write)
            else:
                others.append(write)
        await self._commit(others)
        return True

    async def _find_locked(self, writes: Iterable[Write]) -> set[bytes]:
        """Return the ids of the tasks of these writes that another transaction has locked."""
        connection = await self._connected()
        rows = await self._settings.run(connection, fetch, FIND_LOCKED, [write.id for write in writes])
        return {row["id"] for row in rows}

    def _set_aside(self, write: Write) -> None:
        now = time.monotonic()
        if not write.locked_since:
            logger.warning("the row of a task is locked, its writes wait", extra={"task_id": to_text(write.id)})
            write.locked_since = now
        pause = min(LOCKED_PAUSE * 2**write.locks, LONGEST_LOCKED_PAUSE)
        write.locks += 1
        self._locked[write.id] = LockedTask(write, now + pause)

    async def _retry_locked(self) -> None:
        """Queue the writes of tasks that are no longer locked. Reject those that have waited too long. Never raises."""
        now = time.monotonic()
        due = [task for task in self._locked.values() if task.due <= now]
        if not due:
            return
        try:
            locked = await self._find_locked([task.writes[0] for task in due])
        except Exception as error:  # no list of the exceptions of a driver is complete
            self._condition.failed(error)
            if classify(error) is DatabaseFailure.LOST:
                self._drop_connection()
            locked = {task.writes[0].id for task in due}
        for task in due:
            first = task.writes[0]
            if task.is_given_up(now):
                del self._locked[first.id]
                _reject_all(task.writes, StoreUnavailableError())
            elif first.id in locked:
                task.due = now + LOCKED_PAUSE
            else:
                del self._locked[first.id]
                self._queue.extendleft(reversed(task.writes))

    # ---- answers -----------------------------------------------------------------------------------------------------

    async def _answer(self, connection: Connection, batch: list[Write], rows: list[Any]) -> None:
        self._condition.succeeded()
        done = {row["place"]: row for row in rows}
        watched: dict[str, list[int]] = {}
        for place, write in enumerate(batch, 1):
            row = done.get(place)
            if row is None:
                await self._answer_rejected(connection, write)
                continue
            self._remember(write)
            if write.runner(self.replica) == "":
                watched[ALL_REPLICAS] = []
            for watcher in row["watchers"]:
                if watcher != self.replica:
                    watched.setdefault(watcher, []).append(row["number"])
            _resolve(write)
        if watched:
            self._wake_followers(watched)

    def _remember(self, write: Write) -> None:
        if write.is_new and self._count is not None:
            self._count += 1
        if write.is_rest:
            self._last_written.pop(write.id, None)
        else:
            self._last_written[write.id] = LastWritten(write.memo, write.run)

    async def _answer_rejected(self, connection: Connection, write: Write) -> None:
        """Answer a rejected write: it is stale, its key was used before, or an earlier attempt was committed."""
        self._last_written.pop(write.id, None)
        if write.is_repeated and write.events:
            key = write.id, write.owner, write.version
            found = await self._settings.run(connection, fetch_value, FIND_WRITTEN, *key)
            if found == write.events[-1]:
                _resolve(write)
                return
        earlier = None
        if write.is_new and write.key:
            earlier = await self._settings.run(connection, fetch_value, FIND_KEY, write.owner, write.key)
        if earlier is None:
            _reject(write, StaleWriteError())
        else:
            _resolve(write, to_text(earlier))

    # ---- the connection ----------------------------------------------------------------------------------------------

    async def _connect(self) -> Connection:
        name = f"{APPLICATION_NAME} writer {secrets.token_hex(8)}"
        connection = await connect(self._address, self._settings, name)
        # A statement of the old connection must not be executed after those of the new one. In a shared session it is
        # not, because its commit is another message.
        if self._old_name and not self._address.shares_sessions:
            try:
                await terminate(connection, self._old_name)
            except BaseException:
                connection.terminate()
                raise
        self._old_name = ""
        self._name = name
        return connection

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._drop_connection()
            self._connection = await self._connect()
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._old_name = self._name
            self._connection.terminate()
            self._connection = None

    # ---- removal of tasks --------------------------------------------------------------------------------------------

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
            rule = now, self._retention.ttl, self._sweep_limit
            removed = await self._settings.run(connection, execute, REMOVE_EXPIRED, *rule)
            self._count = None  # to be counted again, because other replicas also create and remove tasks
            if removed == self._sweep_limit:
                self._sweep_soon(clock)
            else:
                self._sweep_limit = MAX_SWEPT
        except asyncpg.QueryCanceledError:  # the removal took too long
            self._sweep_limit = max(self._sweep_limit // 2, 1)
            self._sweep_soon(clock)
        except Exception as error:  # no list of the exceptions of a driver is complete
            self._condition.failed(error)
            if classify(error) is DatabaseFailure.LOST:
                self._drop_connection()

    def _sweep_soon(self, clock: float) -> None:
        self._has_expired = True
        self._next_sweep = clock + SWEEP_PAUSE

    async def _admit(self, batch: list[Write], maximum: int) -> list[Write]:
        """Make room for the new tasks of a batch. Reject those without room, and return the other writes."""
        admitted: list[Write] = []
        for write in batch:
            if write.is_new:
                try:
                    await self._make_room(write, maximum, admitted)
                except OverloadedError as error:
                    _reject(write, error)
                    continue
                except Exception as error:  # no list of the exceptions of a driver is complete
                    _reject(write, self._condition.failed(error))
                    self._drop_connection()
                    continue
            admitted.append(write)
        return admitted

    async def _make_room(self, write: Write, maximum: int, others: list[Write]) -> None:
        connection = await self._connected()
        if self._count is None:
            self._count = int(await self._settings.run(connection, fetch_value, "SELECT count(*) FROM task"))
        excess = self._count + sum(other.is_new for other in others) - maximum + 1
        if excess <= 0:
            return
        # No task is removed for a write that will be rejected.
        in_use = "SELECT 1 FROM task WHERE id = $1 OR (owner = $2 AND key = $3 AND key <> '')"
        key = write.id, write.owner, write.key
        if await self._settings.run(connection, fetch_value, in_use, *key) is not None:
            return
        removed = await self._settings.run(connection, execute, REMOVE_OLDEST, min(excess, 2))
        self._count -= removed
        if not removed:
            raise OverloadedError("The agent is at its limit of unfinished tasks; try again later", retry_after=5)


def _resolve(write: Write, result: str | None = None) -> None:
    for future in write.futures:
        if not future.done():  # otherwise it was cancelled
            future.set_result(result)


def _reject_all(writes: Iterable[Write], error: Exception) -> None:
    for write in writes:
        _reject(write, error)


def _reject_new(writes: Iterable[Write]) -> list[Write]:
    """Reject new tasks, and return the other writes. The run of a new task finds out whether the task was stored."""
    others: list[Write] = []
    for write in writes:
        if write.is_new:
            _reject(write, StoreUnavailableError())
        else:
            others.append(write)
    return others


def _reject(write: Write, error: Exception) -> None:
    for future in write.futures:
        if not future.done():
            future.set_exception(error)
