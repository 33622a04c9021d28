"""Fixtures: `store` is each store of `STORES` in turn, `sqlite` an SQLite store whose connections are spies."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from apcore_a2a.storage.contract import Store
from apcore_a2a.storage.sqlite.database import SQLiteTuning
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.storage.contract import STORES, TTL, Clock
from tests.storage.sqlite_spy import Spy, spies

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
def connections() -> list[Spy]:
    """Return the list of the connections that the fixture `sqlite` opens: the writer first, then the readers."""
    return []


@pytest.fixture
def tuning() -> SQLiteTuning:
    """Return the tuning of the fixture `sqlite`. A test that needs other values parametrizes it."""
    return SQLiteTuning()


@pytest.fixture
async def sqlite(
    tmp_path: Path, clock: Clock, connections: list[Spy], tuning: SQLiteTuning
) -> AsyncIterator[SQLiteStore]:
    tuning = replace(tuning, connection_class=spies(connections))
    store = SQLiteStore(tmp_path / "tasks.db", ttl=TTL, clock=clock, monotonic=clock, tuning=tuning)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def writer(sqlite: SQLiteStore, connections: list[Spy]) -> Spy:
    return connections[0]
