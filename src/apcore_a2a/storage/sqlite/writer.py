"""The writer thread: the only one that writes to the database, many writes in each transaction (group commit).

Rule: a write is answered after its commit, and when the file is still where its path leads. What is wrong with one
write fails no other, and no error ends the thread.

Two threads meet here. The event loop's thread puts writes in the queue (`submit`); the writer thread takes them out in
batches, and hands the results of each batch back with one call into the loop. Nothing else is shared: only the writer
thread touches `Tables` and its connection, only the loop's thread touches futures.
"""

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

from apcore_a2a.errors import A2AError, StoreUnavailableError
from apcore_a2a.storage.sqlite.condition import PROBE_INTERVAL, Condition
from apcore_a2a.storage.sqlite.database_file import DatabaseFile
from apcore_a2a.storage.sqlite.schema import roll_back
from apcore_a2a.storage.sqlite.tables import Tables

logger = logging.getLogger(__name__)

MAX_BATCH: Final = 512  # writes in one transaction: bounds how long the first waits for the last
MAX_WAITING: Final = 20_000  # writes in the queue: beyond it the disk does not keep up, and more would only wait longer
SWEEP_INTERVAL: Final = 60.0  # seconds between looks for expired tasks while nothing is written
SWEEP_IDLE: Final = 16  # expired tasks removed at a time then; beside writes, two for each
MAX_SWEPT: Final = 1_000  # expired tasks removed in one interval then: if the clock is wrong, there is time to notice

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class _PendingWrite(Struct, gc=False):
    apply: Callable[..., object]
    arguments: tuple[Any, ...]  # Any: those of `apply`, whatever it is; `submit` has them checked
    future: "asyncio.Future[Any]"  # Any: of what `apply` returns


class Writer:
    """Calls methods of `Tables` in a thread of its own."""

    def __init__(self, tables: Tables, file: DatabaseFile, condition: Condition) -> None:
        self._tables = tables
        self._file = file
        self._condition = condition
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
        if self._queue.qsize() >= MAX_WAITING:
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
        patience = SWEEP_INTERVAL
        while not is_last:
            writes, is_last = self._next_batch(patience)
            self._probe_if_due()
            results, more_expired = self._commit(writes)
            patience = self._patience(more_expired)
            self._call_in_loop(_resolve, writes, results)
        self._call_in_loop(self._stopped.set_result, None)

    def _next_batch(self, patience: float) -> tuple[list[_PendingWrite], bool]:
        """All that waits, or what comes first within `patience` seconds, if anything; and whether it is the last."""
        batch: list[_PendingWrite] = []
        with suppress(queue.Empty):
            write = self._queue.get(timeout=patience)
            while write is not None:
                batch.append(write)
                if len(batch) == MAX_BATCH:
                    return batch, False
                write = self._queue.get_nowait()
            return batch, True
        return batch, False

    def _patience(self, more_expired: bool) -> float:
        """How long to wait for writes before there is something else to do."""
        if more_expired and self._may_sweep_on():
            return 0.0
        if self._condition.needs_probe:
            return PROBE_INTERVAL
        return SWEEP_INTERVAL

    def _may_sweep_on(self) -> bool:
        now = time.monotonic()
        if now >= self._next_interval:
            self._next_interval = now + SWEEP_INTERVAL
            self._swept = 0
        self._swept += SWEEP_IDLE
        if self._swept <= MAX_SWEPT:
            return True
        if self._swept <= MAX_SWEPT + SWEEP_IDLE:  # once in the interval
            logger.warning("many tasks have expired at once: is the clock right?", extra={"removed": MAX_SWEPT})
        return False

    def _check(self) -> None:
        self._file.look_beside_next_time()  # that is, after this transaction
        self._condition.check()

    def _probe_if_due(self) -> None:
        """See whether a disk that could not be written to can be now; due only while there is such trouble."""
        if not self._condition.take_probe():
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
        self._tables.forget()
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
