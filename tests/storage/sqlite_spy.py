"""Connections of the SQLite store that count bytes, and a clock that blocks its writer thread."""

import asyncio
import sqlite3
import threading
from collections.abc import Coroutine, Iterable
from typing import Any

from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.storage.contract import Clock


class Spy(sqlite3.Connection):
    """A connection that counts the bytes of all values passed to SQLite."""

    bytes = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self.bytes += _size(parameters)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        rows = list(rows)
        self.bytes += sum(map(_size, rows))
        return super().executemany(sql, rows)


def spies(opened: list[Spy]) -> type[Spy]:
    """Return a connection class whose instances add themselves to the list."""

    class ListedSpy(Spy):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            opened.append(self)

    return ListedSpy


def _size(parameters: Iterable[object]) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in parameters)


class Brake(Clock):
    """A clock that blocks the writer thread at its next reading, until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.released = threading.Event(), threading.Event()
        self.released.set()

    def __call__(self) -> float:
        if not self.released.is_set():
            self.reached.set()
            self.released.wait(5)
        return super().__call__()


async def in_one_batch(braked: tuple[SQLiteStore, Brake], *writes: Coroutine[Any, Any, object]) -> list[object]:
    """Return the result or the error of each write. All are submitted while the writer thread is blocked."""
    store, brake = braked
    brake.released.clear()
    held = asyncio.ensure_future(store.check())
    await asyncio.sleep(0)
    assert brake.reached.wait(5)
    tasks = [asyncio.ensure_future(write) for write in writes]
    await asyncio.sleep(0)  # each write is in the queue now
    brake.released.set()
    await asyncio.wait_for(held, 5)
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
