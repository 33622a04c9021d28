"""The writer thread: the only one that writes to the database, many writes in each transaction (group commit).

Rule: a write is answered after its commit. What is wrong with one write fails no other, and no error ends the thread.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, TypeVarTuple

from msgspec import Struct

from apcore_a2a.errors import A2AError, StoreUnavailableError
from apcore_a2a.storage.sqlite.schema import undo
from apcore_a2a.storage.sqlite.tables import Tables

logger = logging.getLogger(__name__)

MAX_BATCH: Final = 512  # writes in one transaction: bounds how long the first waits for the last
MAX_WAITING: Final = 20_000  # writes in the queue: beyond it the disk does not keep up, and more would only wait longer
SWEEP_INTERVAL: Final = 60.0  # seconds between looks for expired tasks while nothing is written
SWEEP_IDLE: Final = 16  # expired tasks removed at a time then; beside writes, two for each

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class _Write(Struct, gc=False):
    apply: Callable[..., object]
    arguments: tuple[Any, ...]  # Any: those of `apply`, whatever it is; `submit` has them checked
    future: "asyncio.Future[Any]"  # Any: of what `apply` returns


class Writer:
    """Calls methods of `Tables` in a thread of its own."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self._database = tables, tables.database
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._closed = False
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
        self._queue.put(_Write(apply, arguments, future))
        return future

    async def close(self) -> None:
        """Return when all that was submitted is written."""
        self._closed = True
        self._queue.put(None)
        await asyncio.shield(self._stopped)
        self._thread.join()  # at once: that future was its last word

    # ---- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        open_, patience = True, SWEEP_INTERVAL
        while open_:
            batch = self._take(patience)
            writes = [write for write in batch if write is not None]
            open_ = len(writes) == len(batch)
            results, more = self._commit(writes)
            patience = 0.0 if more else SWEEP_INTERVAL
            self._tell(_resolve, writes, results)
        self._tell(self._stopped.set_result, None)

    def _take(self, patience: float) -> list[_Write | None]:
        """What is waiting; if nothing is, the next to come in time. None marks the end."""
        batch: list[_Write | None] = []
        with suppress(queue.Empty):
            batch.append(self._queue.get(timeout=patience))
            while batch[-1] is not None and len(batch) < MAX_BATCH:
                batch.append(self._queue.get_nowait())
        return batch

    def _commit(self, writes: Sequence[_Write]) -> tuple[list[object], bool]:
        """The result or the error of each write, and whether there is more to sweep."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:  # nobody can write, so trying each on its own would only take longer
            return [_unavailable(error) for _ in writes], False
        try:
            results = [_attempt(write) for write in writes]
            more = self._tables.sweep(2 * len(writes) or SWEEP_IDLE)
            self._tables.settle()
            self._database.execute("COMMIT")
        except Exception as error:
            self._undo()
            if not writes:
                logger.warning("expired tasks not removed", exc_info=error)
            return [self._commit_alone(write) for write in writes], False
        return results, more

    def _commit_alone(self, write: _Write) -> object:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            result = _attempt(write)
            self._tables.settle()
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            return _unavailable(error)
        except Exception as error:  # whoever submitted this write gets the error
            self._undo()
            return error
        return result

    def _undo(self) -> None:
        self._tables.forget()
        with suppress(sqlite3.Error):
            undo(self._database)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is waiting
            self._loop.call_soon_threadsafe(callback, *arguments)


def _attempt(write: _Write) -> object:
    try:
        return write.apply(*write.arguments)
    except A2AError as error:  # a refusal, made before anything was changed
        return error


def _unavailable(error: sqlite3.Error) -> StoreUnavailableError:
    unavailable = StoreUnavailableError()
    unavailable.__cause__ = error
    return unavailable


def _resolve(writes: Sequence[_Write], results: Sequence[object]) -> None:
    for write, result in zip(writes, results, strict=True):
        if write.future.done():  # cancelled meanwhile
            continue
        if isinstance(result, Exception):
            write.future.set_exception(result)
        else:
            write.future.set_result(result)
