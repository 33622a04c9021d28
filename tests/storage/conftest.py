"""The fixtures `store` (each of `STORES` in turn) and `make_store` (for a capacity of your choice)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from apcore_a2a.storage.task_store import Store
from tests.storage.contract import STORES, Clock

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
