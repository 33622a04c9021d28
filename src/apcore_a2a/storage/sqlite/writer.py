"""The writer thread with its group commit, and the writes to each table."""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, TypeVarTuple

from msgspec import Struct

from apcore_a2a.errors import A2AError, OverloadedError, StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import Change, ConversationWrite, Webhook
from apcore_a2a.storage.sql import CODES
from apcore_a2a.storage.sqlite.database import DatabaseFile, FileCondition, SQLiteTuning
from apcore_a2a.storage.sqlite.schema import event_key, roll_back

logger = logging.getLogger(__name__)

# ---- tables ---------------------------------------------------------------------------------------------------------
# The writes to the database, one method for each kind. Called in the writer thread, in a transaction.
#
# Invariant: a method rejects a change (StaleWriteError, OverloadedError) before it writes anything. The cost of a write
# is proportional to the size of its events.

MAX_DOCUMENT: Final = 64 * 1024  # a larger document is not written again, but rebuilt from the events by readers
PROBE_SIZE: Final = 1024 * 1024  # larger than most writes, because space for a few bytes is not enough

# Whether a webhook of the task waits for an event. Such a task is not removed, although it has ended.
_WEBHOOK_WAITS: Final = "EXISTS (SELECT 1 FROM webhook WHERE task = number AND failed = 0 AND delivered < latest)"
_RUNNING: Final = (CODES[TaskState.SUBMITTED], CODES[TaskState.WORKING])
_WAITING: Final = (CODES[TaskState.INPUT_REQUIRED], CODES[TaskState.AUTH_REQUIRED])


class ChangeSnapshot(Struct, frozen=True, kw_only=True, gc=False):
    """A copy of a `Change`, because the live task changes before the writer thread reads it."""

    id: str
    owner: str
    context_id: str
    state: TaskState
    status_time: str
    expected: int
    version: int
    epoch: int
    events: Sequence[bytes]
    document: bytes | None
    memo: bytes
    run: bytes
    webhook: Webhook | None = None
    conversation: ConversationWrite | None = None


def take_snapshot(change: Change) -> ChangeSnapshot:
    """Return a snapshot of the values of a change that will be written."""
    task = change.task
    document = change.document
    body = None
    if document is not None and len(document.body) <= MAX_DOCUMENT:
        body = document.body
    return ChangeSnapshot(
        id=task.id,
        owner=change.owner,
        context_id=task.context_id,
        state=task.status.state,
        status_time=task.status.timestamp,
        expected=change.expected,
        version=change.version,
        epoch=change.epoch,
        events=tuple(change.events),
        document=body,
        memo=change.memo,
        run=change.run,
        webhook=change.webhook,
        conversation=change.conversation,
    )


class _CachedRow(Struct, gc=False):
    """The known columns of a running task in the file, so that only differences are written."""

    number: int
    state: int
    status_time: str
    has_webhooks: bool
    memo: bytes | None = None  # None if not known
    run: bytes | None = None


class AgeClock:
    """A clock for the age of tasks that tolerates changes of the wall clock.

    The end of a task is stored in wall-clock time, because the file outlives the process. While the process runs, tasks
    age no faster than on the monotonic clock. Otherwise, setting the wall clock to next year would remove the tasks of
    a week at once. If the wall clock is set back, tasks are stored longer.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self._offset: float | None = None  # the wall-clock time minus the monotonic time, at the first call

    def now(self) -> float:
        wall = self.wall()
        monotonic = self.monotonic()
        if self._offset is None:
            self._offset = wall - monotonic
        return min(wall, monotonic + self._offset)


class Tables:
    """The tables, for use by the writer thread only."""

    def __init__(self, database: sqlite3.Connection, *, ttl: float, max_tasks: int, clock: AgeClock) -> None:
        self.database = database
        self._ttl = ttl
        self._max_tasks = max_tasks
        self.clock = clock
        self._cache: dict[
            tuple[str, str], _CachedRow
        ] = {}  # by id and owner, so that it never yields the task of another owner
        self._count: int | None = None  # number of all tasks, None until counted
        self._tally_changes: dict[tuple[str, int], int] = {}  # by owner and state: not yet written to the tally

    def discard_cache(self) -> None:
        """Discard all cached values after a rollback, because the transaction may have changed them."""
        self._cache.clear()
        self._count = None
        self._tally_changes.clear()

    def write_tally(self) -> None:
        """Write the changes of the tally, once for all writes of the transaction. Called before the commit."""
        rows: list[tuple[str, int, int]] = []
        for (owner, state), difference in self._tally_changes.items():
            if difference:  # many tasks enter WORKING and leave it in one transaction
                rows.append((owner, state, difference))
        self.database.executemany(
            "INSERT INTO tally VALUES (?, ?, ?)"
            " ON CONFLICT (owner, state) DO UPDATE SET tasks = tasks + excluded.tasks",
            rows,
        )
        self._tally_changes.clear()

    def _change_tally(self, owner: str, state: int, difference: int) -> None:
        self._tally_changes[owner, state] = self._tally_changes.get((owner, state), 0) + difference

    def write_probe(self) -> None:
        """Write and delete a row of PROBE_SIZE bytes, each in its own transaction, to test for space on the disk."""
        # No task has the number 0, so the row is never read. It is deleted in a second transaction, because a row that
        # is deleted before the commit would not be written to the disk.
        self.database.execute("REPLACE INTO document VALUES (0, 0, zeroblob(?))", (PROBE_SIZE,))
        self.database.execute("DELETE FROM document WHERE task = 0")

    def find_key(self, key: str, owner: str) -> str | None:
        found = self.database.execute("SELECT id FROM task WHERE owner = ? AND key = ?", (owner, key)).fetchone()
        if found is None:
            return None
        return str(found[0])

    def create(self, change: ChangeSnapshot, key: str) -> str | None:
        execute = self.database.execute
        if key:
            earlier = self.find_key(key, change.owner)
            if earlier is not None:
                return earlier
        self._make_room(change.id)
        code = CODES[change.state]
        values = (
            change.id,
            change.owner,
            change.context_id,
            key,
            code,
            change.status_time,
            change.version,
            change.epoch,
            self._time_of_end(change),
        )
        try:
            number = execute(
                "INSERT INTO task (id, owner, context_id, key, state, status_time, version, epoch, ended)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            ).lastrowid
        except sqlite3.IntegrityError as error:
            raise StaleWriteError from error  # the id is in use
        assert number is not None  # an INSERT has one
        self._count = self._task_count() + 1
        self._change_tally(change.owner, code, 1)
        if change.webhook is not None:
            self.add_webhook(number, change.webhook, delivered=0, latest=0)
        has_webhooks = change.webhook is not None
        self._write_contents(change, _CachedRow(number, code, change.status_time, has_webhooks, b"", b""))
        return None

    def create_without_key(self, change: ChangeSnapshot) -> None:
        self.create(change, "")

    def add_webhook(self, number: int, webhook: Webhook, *, delivered: int, latest: int) -> None:
        config = webhook.config
        now = self.clock.wall()
        self.database.execute(
            "INSERT INTO webhook (task, id, config, a2a_version, delivered, latest, since)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, config.id, encode(config), webhook.a2a_version, delivered, latest, now),
        )

    def mark_webhooks(self, task_id: str, owner: str) -> None:
        """Record in the cache that the task has webhooks, so that later events advance them."""
        cached = self._cache.get((task_id, owner))
        if cached is not None:
            cached.has_webhooks = True

    def append(self, change: ChangeSnapshot) -> None:
        cached = self._cache.get((change.id, change.owner)) or self._find(change)
        code = CODES[change.state]
        values: tuple[object, ...] = (change.version, change.epoch)
        assignments = "version = ?, epoch = ?"
        # Most events are chunks, which change neither column. Then the indexes on them need no update.
        if code != cached.state or change.status_time != cached.status_time:
            assignments += ", state = ?, status_time = ?, ended = ?"
            values += (code, change.status_time, self._time_of_end(change))
        # Compare-and-set: rejected if another writer has appended or claimed the task, or if the task has ended.
        updated = self.database.execute(
            f"UPDATE task SET {assignments} WHERE number = ? AND version = ? AND epoch <= ? AND ended IS NULL",
            (*values, cached.number, change.expected, change.epoch),
        )
        if updated.rowcount != 1:
            raise StaleWriteError
        if code != cached.state:
            self._change_tally(change.owner, cached.state, -1)
            self._change_tally(change.owner, code, 1)
        cached.state = code
        cached.status_time = change.status_time
        self._write_contents(change, cached)

    def _write_contents(self, change: ChangeSnapshot, cached: _CachedRow) -> None:
        """Write the data outside of the task's row: events, document, memo and run."""
        number = cached.number
        keys = range(event_key(number, change.expected + 1), event_key(number, change.version + 1))
        self.database.executemany(
            "INSERT INTO event (key, body) VALUES (?, ?)", list(zip(keys, change.events, strict=True))
        )
        if cached.has_webhooks and change.events:
            self._advance_webhooks(number, change.version)
        if change.document is not None:
            self.database.execute("REPLACE INTO document VALUES (?, ?, ?)", (number, change.version, change.document))
        if change.memo != cached.memo or change.run != cached.run:
            self._write_private(change, cached)
        if change.conversation is not None:
            self._write_conversation(change.owner, change.context_id, change.conversation)
        if change.state in AT_REST:
            self._cache.pop((change.id, change.owner), None)  # further events are unlikely to follow soon
        else:
            self._cache[change.id, change.owner] = cached

    def _advance_webhooks(self, number: int, version: int) -> None:
        """Make the new events due for delivery. This is the only write for it, in the transaction of the events."""
        self.database.execute(
            "UPDATE webhook SET latest = ?, since = iif(delivered < latest, since, ?) WHERE task = ?",
            (version, self.clock.wall(), number),
        )

    def _write_private(self, change: ChangeSnapshot, cached: _CachedRow) -> None:
        if not change.memo and not change.run:
            self.database.execute("DELETE FROM private WHERE task = ?", (cached.number,))
        else:
            # Column by column, so that a change of the run does not write a large memo again.
            if change.memo != cached.memo:
                self._write_private_column("memo", cached.number, change.memo)
            if change.run != cached.run:
                self._write_private_column("run", cached.number, change.run)
        cached.memo = change.memo
        cached.run = change.run

    def _write_private_column(self, column: str, number: int, value: bytes) -> None:
        self.database.execute(
            f"INSERT INTO private (task, {column}) VALUES (?, ?)"
            f" ON CONFLICT (task) DO UPDATE SET {column} = excluded.{column}",
            (number, value),
        )

    def _write_conversation(self, owner: str, context_id: str, write: ConversationWrite) -> None:
        key = (owner, context_id)
        query = "SELECT coalesce(max(number), 0) FROM conversation WHERE owner = ? AND context_id = ?"
        (last,) = self.database.execute(query, key).fetchone()
        if write.base not in (None, last):
            return
        if write.keep == 0:
            self.database.execute("DELETE FROM conversation WHERE owner = ? AND context_id = ?", key)
        values = (*key, last + 1, write.keep, write.tail)
        self.database.execute("INSERT INTO conversation VALUES (?, ?, ?, ?, ?)", values)

    def _find(self, change: ChangeSnapshot) -> _CachedRow:
        found = self.database.execute(
            "SELECT number, state, status_time, EXISTS (SELECT 1 FROM webhook WHERE task = number)"
            " FROM task WHERE id = ? AND owner = ?",
            (change.id, change.owner),
        ).fetchone()
        if found is None:
            raise StaleWriteError
        number, state, status_time, has_webhooks = found
        return _CachedRow(number, state, status_time, bool(has_webhooks))

    def _time_of_end(self, change: ChangeSnapshot) -> float | None:
        if change.state in TERMINAL:
            return self.clock.wall()
        return None

    # ---- expiry and removal ------------------------------------------------------------------------------------------

    def _task_count(self) -> int:
        if self._count is None:
            self._count = int(self.database.execute("SELECT coalesce(sum(tasks), 0) FROM tally").fetchone()[0])
        return self._count

    def _make_room(self, task_id: str) -> None:
        """Remove ended tasks until there is room for one more."""
        excess = self._task_count() - self._max_tasks + 1
        if excess <= 0:
            return
        # A write that will be rejected must not evict another task.
        if self.database.execute("SELECT 1 FROM task WHERE id = ?", (task_id,)).fetchone() is not None:
            raise StaleWriteError
        # At most two: a store that is opened with a lower limit shrinks with each new task, not in one long
        # transaction.
        removable = f"SELECT number, owner, state FROM task WHERE ended IS NOT NULL AND NOT {_WEBHOOK_WAITS}"
        if not self._remove_ended(f"{removable} ORDER BY ended, number LIMIT ?", min(excess, 2)):
            raise OverloadedError("The agent is at its limit of unfinished tasks; try again later", retry_after=5)

    def sweep(self, limit: int) -> bool:
        """Remove at most `limit` expired tasks in the order of their ends. Return whether more may be left."""
        now = self.clock.now()
        # A waiting webhook extends the TTL of its task only once, because webhooks may have been disabled meanwhile.
        removed = self._remove_ended(
            "SELECT number, owner, state FROM task"
            f" WHERE ended <= ? AND (ended <= ? OR NOT {_WEBHOOK_WAITS}) ORDER BY ended, number LIMIT ?",
            now - self._ttl,
            now - 2 * self._ttl,
            limit,
        )
        return removed == limit

    def _remove_ended(self, query: str, *parameters: float) -> int:
        ended = self.database.execute(query, parameters).fetchall()
        for row in ended:
            self._remove(*row)
        return len(ended)

    def remove(self, task_id: str, owner: str) -> bool:
        found = self.database.execute(
            "SELECT number, owner, state FROM task WHERE id = ? AND owner = ?", (task_id, owner)
        ).fetchone()
        if found is None:
            return False
        self._cache.pop((task_id, owner), None)
        self._remove(*found)
        return True

    def _remove(self, number: int, owner: str, state: int) -> None:
        # A trigger removes its events, its document and its other data (`schema`).
        self.database.execute("DELETE FROM task WHERE number = ?", (number,))
        self._change_tally(owner, state, -1)
        if self._count is not None:
            self._count -= 1

    def claim_orphans(self) -> list[tuple[str, str]]:
        """Raise the epoch of each orphan, so that no earlier process can write it, and return their ids and owners."""
        # A task at rest is an orphan only if it has a run: an agent that waits for a login, or a message in the task's
        # queue. Then the column `run` is not empty.
        orphans = self.database.execute(
            "SELECT number, id, owner FROM task LEFT JOIN private ON private.task = number"
            " WHERE ended IS NULL AND state IN (?, ?, ?, ?) AND (state IN (?, ?) OR run <> x'') ORDER BY number",
            (*_RUNNING, *_WAITING, *_RUNNING),
        ).fetchall()
        claimed: list[tuple[str, str]] = []
        for number, task_id, owner in orphans:
            self.database.execute("UPDATE task SET epoch = epoch + 1 WHERE number = ?", (number,))
            claimed.append((task_id, owner))
        return claimed


# ---- writer ---------------------------------------------------------------------------------------------------------
# The writer thread is the only one that writes to the database, with many writes in each transaction (group commit).
#
# Invariant: a write is acknowledged after its commit, if the path still leads to the file. An error in one write fails
# no other write, and no error ends the thread.
#
# Two threads cooperate here. The event loop's thread puts writes in the queue (`submit`). The writer thread takes them
# out in batches, and returns the results of each batch with one call into the loop. Nothing else is shared: only the
# writer thread uses `Tables` and its connection, and only the loop's thread uses futures.

MAX_BATCH: Final = 512  # writes in one transaction: bounds the time for which the first write waits for the last
SWEEP_IDLE: Final = 16  # expired tasks removed at a time while nothing is written; otherwise two with each write

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class _PendingWrite(Struct, gc=False):
    apply: Callable[..., object]
    arguments: tuple[Any, ...]  # Any: the arguments of `apply`, type-checked by `submit`
    future: "asyncio.Future[Any]"  # Any: the result of `apply`


class SQLiteWriter:
    """The writer thread, which calls methods of `Tables`."""

    def __init__(self, tables: Tables, file: DatabaseFile, condition: FileCondition, tuning: SQLiteTuning) -> None:
        self._tables = tables
        self._file = file
        self._condition = condition
        self._tuning = tuning
        self._database = tables.database
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_PendingWrite | None] = queue.SimpleQueue()  # None is the last item
        self._closed = False
        self._swept = 0  # upper bound of the expired tasks removed in this interval while nothing was written
        self._next_interval = 0.0
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        # A daemon thread, so that a process which never calls close() can exit. Acknowledged writes are in the file.
        self._thread = threading.Thread(target=self._run, name="apcore-a2a-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, apply: Callable[[*Arguments], T], *arguments: *Arguments) -> "asyncio.Future[T]":
        """Call `apply` in the next transaction. Return a future that is done after its commit."""
        if self._closed:
            raise StoreUnavailableError("The task store is closed")
        if self._queue.qsize() >= self._tuning.max_waiting:
            raise StoreUnavailableError
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_PendingWrite(apply, arguments, future))
        return future

    def check(self) -> "asyncio.Future[None]":
        """Return a future that fails if a write would fail now."""
        return self.submit(self._check)

    async def close(self) -> None:
        """Wait until all submitted writes are done."""
        self._closed = True
        self._queue.put(None)
        await asyncio.shield(self._stopped)
        self._thread.join()  # returns at once: completing the future was the thread's last action

    # ---- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_last = False
        timeout = self._tuning.sweep_interval
        while not is_last:
            writes, is_last = self._next_batch(timeout)
            self._probe_if_due()
            results, more_expired = self._commit(writes)
            timeout = self._wait_time(more_expired)
            self._call_in_loop(_resolve, writes, results)
        self._call_in_loop(self._stopped.set_result, None)

    def _next_batch(self, timeout: float) -> tuple[list[_PendingWrite], bool]:
        """Return the waiting writes, or the first within `timeout` seconds, and whether it is the last batch."""
        batch: list[_PendingWrite] = []
        with suppress(queue.Empty):
            write = self._queue.get(timeout=timeout)
            while write is not None:
                batch.append(write)
                if len(batch) == MAX_BATCH:
                    return batch, False
                write = self._queue.get_nowait()
            return batch, True
        return batch, False

    def _wait_time(self, more_expired: bool) -> float:
        """Return the seconds to wait for writes before other work is due."""
        if more_expired and self._may_continue_sweep():
            return 0.0
        if self._condition.needs_probe:
            return self._tuning.probe_interval
        return self._tuning.sweep_interval

    def _may_continue_sweep(self) -> bool:
        now = time.monotonic()
        limit = self._tuning.max_swept
        if now >= self._next_interval:
            self._next_interval = now + self._tuning.sweep_interval
            self._swept = 0
        self._swept += SWEEP_IDLE
        if self._swept <= limit:
            return True
        if self._swept <= limit + SWEEP_IDLE:  # logged once per interval
            logger.warning("many tasks have expired at once: check the system clock", extra={"removed": limit})
        return False

    def _check(self) -> None:
        self._file.check_side_files_next()  # after this transaction
        self._condition.check()

    def _probe_if_due(self) -> None:
        """Probe whether a failing disk can be written again. A probe is due only during such trouble."""
        if not self._condition.start_probe():
            return
        try:
            self._tables.write_probe()
        except sqlite3.Error as error:
            self._condition.write_failed(error)
        else:
            self._condition.probe_succeeded()

    def _commit(self, writes: Sequence[_PendingWrite]) -> tuple[list[object], bool]:
        """Return the result or the error of each write, and whether more expired tasks may be left."""
        if not self._condition.is_gone:
            results, more = self._transact(writes)
            # Checked after the commit, so that acknowledged writes are in a file that the next process will find.
            missing = self._file.find_missing()
            if not missing:
                return results, more
            self._condition.file_is_gone(missing)
        return [StoreUnavailableError() for _ in writes], False

    def _transact(self, writes: Sequence[_PendingWrite]) -> tuple[list[object], bool]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:  # no write can succeed, so retrying each alone would only take longer
            return [self._condition.write_failed(error) for _ in writes], False
        self._condition.transaction_began()
        try:
            results = [_attempt(write) for write in writes]
            # Two tasks for each write, so that expired tasks are removed faster than new ones are created.
            more = self._tables.sweep(2 * len(writes) or SWEEP_IDLE)
            self._tables.write_tally()
            self._database.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                self._condition.write_failed(error)
            elif not writes:
                logger.warning("expired tasks not removed", exc_info=error)
            # The failing write is not known. Retried one by one, only that one fails.
            return [self._commit_alone(write) for write in writes], False
        return results, more

    def _commit_alone(self, write: _PendingWrite) -> object:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            result = _attempt(write)
            self._tables.write_tally()
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            return self._condition.write_failed(error)
        except Exception as error:  # broad, because the error is passed to the caller of `submit`
            self._roll_back()
            return error
        return result

    def _roll_back(self) -> None:
        self._tables.discard_cache()
        with suppress(sqlite3.Error):  # if the rollback fails, the next BEGIN fails, too, and reports the error
            roll_back(self._database)

    def _call_in_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no caller is waiting
            self._loop.call_soon_threadsafe(callback, *arguments)


def _attempt(write: _PendingWrite) -> object:
    """Return the result of a write, or the error with which it is rejected."""
    try:
        return write.apply(*write.arguments)
    except A2AError as error:  # a rejection, before anything was written
        return error


def _resolve(writes: Sequence[_PendingWrite], results: Sequence[object]) -> None:
    """Complete the futures of a batch. Called in the event loop."""
    for write, result in zip(writes, results, strict=True):
        if write.future.done():  # cancelled by its caller
            continue
        if isinstance(result, Exception):
            write.future.set_exception(result)
        else:
            write.future.set_result(result)
