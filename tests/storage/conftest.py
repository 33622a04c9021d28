"""The fixtures: `store` is each of `STORES` in turn, `sqlite` the one whose connections are watched."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from apcore_a2a.storage.contract import Store
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.storage.contract import STORES, TTL, Clock
from tests.storage.sqlite_spy import Spy

MakeStore = Callable[[str, int], Awaitable[Store]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make_store(tmp_path: Path, clock: Clock) -> AsyncIterator[MakeStore]:
    async with AsyncExitStack() as stack:

        async def make(name: str, capacity: int) -> Store:
            store = STORES[name].make(tmp_path, clock, capacity)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield make


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, make_store: MakeStore) -> Store:
    return await make_store(request.param, 10_000)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Spy]:
    """Every connection opened from now on: the writer, the readers."""
    opened: list[Spy] = []
    connect = sqlite3.connect

    def spy(*arguments: Any, **options: Any) -> Spy:
        opened.append(connect(*arguments, factory=Spy, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", spy)
    return opened


@pytest.fixture
async def sqlite(tmp_path: Path, clock: Clock, connections: list[Spy]) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "tasks.db", ttl=TTL, clock=clock, monotonic=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def writer(sqlite: SQLiteStore, connections: list[Spy]) -> Spy:
    return connections[0]
