"""The one thread that writes, in groups, and what it writes to which table."""

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
from apcore_a2a.storage.contract import Change, Webhook
from apcore_a2a.storage.sql import CODES
from apcore_a2a.storage.sqlite.database import DatabaseFile, FileCondition, SQLiteTuning
from apcore_a2a.storage.sqlite.schema import event_key, roll_back

logger = logging.getLogger(__name__)

# ---- tables ---------------------------------------------------------------------------------------------------------
# What is written to the database, one method for each kind of change. Called in the writer thread, in a transaction.
#
# Rule: a method refuses (StaleWriteError, OverloadedError) before it changes anything; it costs the size of its events.

MAX_DOCUMENT: Final = 64 * 1024  # a larger document is not written again: readers rebuild it from the events
PROBE_SIZE: Final = 1024 * 1024  # more than most writes: room for a few bytes is no room

# Whether a webhook of the task still waits for an event: then the task stays, though it has ended.
_WEBHOOK_WAITS: Final = "EXISTS (SELECT 1 FROM webhook WHERE task = number AND failed = 0 AND delivered < latest)"
_RUNNING: Final = (CODES[TaskState.SUBMITTED], CODES[TaskState.WORKING])
_WAITING: Final = (CODES[TaskState.INPUT_REQUIRED], CODES[TaskState.AUTH_REQUIRED])


class ChangeSnapshot(Struct, frozen=True, kw_only=True, gc=False):
    """A `Change` as it was when it was handed over: the live task moves on before the thread gets to it."""

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


def take_snapshot(change: Change) -> ChangeSnapshot:
    """What of a change will be written."""
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
    )


class _CachedRow(Struct, gc=False):
    """What is known to be in the file about a running task, to write only what differs."""

    number: int
    state: int
    status_time: str
    has_webhooks: bool
    memo: bytes | None = None  # None: not known
    run: bytes | None = None


class AgeClock:
    """Tells how old a task is, and is not fooled when somebody sets the clock.

    The end of a task is stored in wall-clock time, because the file outlives the process. While the process runs, time
    passes for its tasks no faster than on the monotonic clock: were the clock set to next year, the tasks of a week
    would be gone at once. When it is set back, they are kept longer.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self._offset: float | None = None  # of the monotonic clock to what the wall clock said at first

    def now(self) -> float:
        wall = self.wall()
        monotonic = self.monotonic()
        if self._offset is None:
            self._offset = wall - monotonic
        return min(wall, monotonic + self._offset)


class Tables:
    """The tables, for the one thread that writes to them."""

    def __init__(self, database: sqlite3.Connection, *, ttl: float, max_tasks: int, clock: AgeClock) -> None:
        self.database = database
        self._ttl = ttl
        self._max_tasks = max_tasks
        self.clock = clock
        self._cache: dict[tuple[str, str], _CachedRow] = {}  # by id and owner: another owner finds nothing
        self._count: int | None = None  # of all tasks; None: not counted yet
        self._tally_changes: dict[tuple[str, int], int] = {}  # by owner and state: what the tally does not say yet

    def discard_cache(self) -> None:
        """The transaction came to nothing: what was learnt in it may be wrong."""
        self._cache.clear()
        self._count = None
        self._tally_changes.clear()

    def write_tally(self) -> None:
        """Before the commit: bring the tally up to date, once for all writes of the transaction."""
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
        """Write what a busy moment would, to see whether there is room for it; in transactions of its own."""
        # No task has the number 0, so nobody reads this row. Deleted after its commit: what is gone again before it
        # would not reach the disk.
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

    def add_webhook(self, number: int, webhook: Webhook, *, delivered: int, latest: int) -> None:
        config = webhook.config
        now = self.clock.wall()
        self.database.execute(
            "INSERT INTO webhook (task, id, config, a2a_version, delivered, latest, since)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, config.id, encode(config), webhook.a2a_version, delivered, latest, now),
        )

    def mark_webhooks(self, task_id: str, owner: str) -> None:
        """The task has got one, if it had none before: from now on its events are for it, too."""
        cached = self._cache.get((task_id, owner))
        if cached is not None:
            cached.has_webhooks = True

    def append(self, change: ChangeSnapshot) -> None:
        cached = self._cache.get((change.id, change.owner)) or self._find(change)
        code = CODES[change.state]
        values: tuple[object, ...] = (change.version, change.epoch)
        assignments = "version = ?, epoch = ?"
        # Most events are chunks, which change neither; then the indexes on them need no work.
        if code != cached.state or change.status_time != cached.status_time:
            assignments += ", state = ?, status_time = ?, ended = ?"
            values += (code, change.status_time, self._time_of_end(change))
        # The compare-and-set: it is refused if another has written since, or has claimed the task, or it has ended.
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
        """Write what is not in the task's row, which has been written: events, document, memo and run."""
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
        if change.state in AT_REST:
            self._cache.pop((change.id, change.owner), None)  # nothing follows soon, if anything does
        else:
            self._cache[change.id, change.owner] = cached

    def _advance_webhooks(self, number: int, version: int) -> None:
        """There are events to be delivered: this is all that is written for that, in the transaction of the events."""
        self.database.execute(
            "UPDATE webhook SET latest = ?, since = iif(delivered < latest, since, ?) WHERE task = ?",
            (version, self.clock.wall(), number),
        )

    def _write_private(self, change: ChangeSnapshot, cached: _CachedRow) -> None:
        if not change.memo and not change.run:
            self.database.execute("DELETE FROM private WHERE task = ?", (cached.number,))
        else:
            # Column by column: a memo may be large, and is not written again because the run changes.
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

    # ---- what leaves -------------------------------------------------------------------------------------------------

    def _task_count(self) -> int:
        if self._count is None:
            self._count = int(self.database.execute("SELECT coalesce(sum(tasks), 0) FROM tally").fetchone()[0])
        return self._count

    def _make_room(self, task_id: str) -> None:
        """Let ended tasks go until there is room for one more."""
        excess = self._task_count() - self._max_tasks + 1
        if excess <= 0:
            return
        # A write that will be refused must not cost another task its place.
        if self.database.execute("SELECT 1 FROM task WHERE id = ?", (task_id,)).fetchone() is not None:
            raise StaleWriteError
        # Two at most: a store that was opened with a lower limit comes down to it task by task, not in one long change.
        removable = f"SELECT number, owner, state FROM task WHERE ended IS NOT NULL AND NOT {_WEBHOOK_WAITS}"
        if not self._remove_ended(f"{removable} ORDER BY ended, number LIMIT ?", min(excess, 2)):
            raise OverloadedError("The agent is at its limit of unfinished tasks; try again later", retry_after=5)

    def sweep(self, limit: int) -> bool:
        """Remove tasks that ended longer than the TTL ago, the oldest first; answer whether more may be left."""
        now = self.clock.now()
        # A webhook keeps its task as long again: were webhooks switched off, nobody would ever deliver.
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
        # A trigger removes its events, document and the rest (`schema`).
        self.database.execute("DELETE FROM task WHERE number = ?", (number,))
        self._change_tally(owner, state, -1)
        if self._count is not None:
            self._count -= 1

    def claim_orphans(self) -> list[tuple[str, str]]:
        """Id and owner of each task that was running, which whoever ran it can now no longer write to."""
        # A task at rest is one only if there is something to run: an agent that waits for a login, or a message that
        # waits for its turn. Then `run` says what.
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
# The writer thread: the only one that writes to the database, many writes in each transaction (group commit).
#
# Rule: a write is answered after its commit, and when the file is still where its path leads. What is wrong with one
# write fails no other, and no error ends the thread.
#
# Two threads meet here. The event loop's thread puts writes in the queue (`submit`); the writer thread takes them out
# in batches, and hands the results of each batch back with one call into the loop. Nothing else is shared: only the
# writer thread touches `Tables` and its connection, only the loop's thread touches futures.

MAX_BATCH: Final = 512  # writes in one transaction: bounds how long the first waits for the last
SWEEP_IDLE: Final = 16  # expired tasks removed at a time then; beside writes, two for each

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class _PendingWrite(Struct, gc=False):
    apply: Callable[..., object]
    arguments: tuple[Any, ...]  # Any: those of `apply`, whatever it is; `submit` has them checked
    future: "asyncio.Future[Any]"  # Any: of what `apply` returns


class SQLiteWriter:
    """Calls methods of `Tables` in a thread of its own."""

    def __init__(self, tables: Tables, file: DatabaseFile, condition: FileCondition, tuning: SQLiteTuning) -> None:
        self._tables = tables
        self._file = file
        self._condition = condition
        self._tuning = tuning
        self._database = tables.database
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_PendingWrite | None] = queue.SimpleQueue()  # None is the last thing in it
        self._closed = False
        self._swept = 0  # expired tasks looked for in this interval, without a write
        self._next_interval = 0.0
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        # A daemon: a process that never calls close() must still end. What was answered is in the file by then.
        self._thread = threading.Thread(target=self._run, name="apcore-a2a-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, apply: Callable[[*Arguments], T], *arguments: *Arguments) -> "asyncio.Future[T]":
        """Have `apply` called in the next transaction; the future is done after its commit."""
        if self._closed:
            raise StoreUnavailableError("The task store is closed")
        if self._queue.qsize() >= self._tuning.max_waiting:
            raise StoreUnavailableError
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_PendingWrite(apply, arguments, future))
        return future

    def check(self) -> "asyncio.Future[None]":
        """A future that fails if a write would fail now."""
        return self.submit(self._check)

    async def close(self) -> None:
        """Return when all that was submitted is written."""
        self._closed = True
        self._queue.put(None)
        await asyncio.shield(self._stopped)
        self._thread.join()  # at once: that future was its last word

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
        """All that waits, or what comes first within `timeout` seconds, if anything; and whether it is the last."""
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
        """How long to wait for writes before there is something else to do."""
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
        if self._swept <= limit + SWEEP_IDLE:  # once in the interval
            logger.warning("many tasks have expired at once: is the clock right?", extra={"removed": limit})
        return False

    def _check(self) -> None:
        self._file.check_side_files_next()  # that is, after this transaction
        self._condition.check()

    def _probe_if_due(self) -> None:
        """See whether a disk that could not be written to can be now; due only while there is such trouble."""
        if not self._condition.start_probe():
            return
        try:
            self._tables.write_probe()
        except sqlite3.Error as error:
            self._condition.write_failed(error)
        else:
            self._condition.probe_succeeded()

    def _commit(self, writes: Sequence[_PendingWrite]) -> tuple[list[object], bool]:
        """The result or the error of each write, and whether there is more to sweep."""
        if not self._condition.is_gone:
            results, more = self._transact(writes)
            # After the commit: what is answered now was in a file that the next process will find.
            missing = self._file.find_missing()
            if not missing:
                return results, more
            self._condition.file_is_gone(missing)
        return [StoreUnavailableError() for _ in writes], False

    def _transact(self, writes: Sequence[_PendingWrite]) -> tuple[list[object], bool]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:  # nobody can write, so trying each on its own would only take longer
            return [self._condition.write_failed(error) for _ in writes], False
        self._condition.transaction_began()
        try:
            results = [_attempt(write) for write in writes]
            # Two for each write: tasks cannot come faster than they go.
            more = self._tables.sweep(2 * len(writes) or SWEEP_IDLE)
            self._tables.write_tally()
            self._database.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                self._condition.write_failed(error)
            elif not writes:
                logger.warning("expired tasks not removed", exc_info=error)
            # Which of them it was that failed is not known: one by one, only that one fails.
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
        except Exception as error:  # whoever submitted this write gets the error
            self._roll_back()
            return error
        return result

    def _roll_back(self) -> None:
        self._tables.discard_cache()
        with suppress(sqlite3.Error):  # a database that cannot even do that will say so at the next BEGIN
            roll_back(self._database)

    def _call_in_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is waiting
            self._loop.call_soon_threadsafe(callback, *arguments)


def _attempt(write: _PendingWrite) -> object:
    """The result of a write, or the error with which it is refused."""
    try:
        return write.apply(*write.arguments)
    except A2AError as error:  # a refusal, made before anything was changed
        return error


def _resolve(writes: Sequence[_PendingWrite], results: Sequence[object]) -> None:
    """Answer a batch; called in the event loop."""
    for write, result in zip(writes, results, strict=True):
        if write.future.done():  # cancelled meanwhile
            continue
        if isinstance(result, Exception):
            write.future.set_exception(result)
        else:
            write.future.set_result(result)
