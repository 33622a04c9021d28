"""A PostgreSQL store builds large documents on a thread, where it does not delay the event loop."""

import threading
from collections.abc import AsyncIterator

import pytest

from apcore_a2a.protocol.model import Document, TaskState
from apcore_a2a.storage import sql
from apcore_a2a.storage.contract import Query
from apcore_a2a.storage.postgres import reads
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.postgres_server import shared_server
from tests.storage.contract import ALICE, Author, append, write_task


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(shared_server().url())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """In which threads tasks were rebuilt."""
    rebuild = sql.rebuild_document
    seen: list[threading.Thread] = []

    def note_thread(body: bytes | None, events: list[bytes]) -> Document:
        seen.append(threading.current_thread())
        return rebuild(body, events)

    monkeypatch.setattr(sql, "rebuild_document", note_thread)
    return seen


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
async def test_a_large_task_is_not_rebuilt_on_the_loop(
    is_large: bool, store: PostgresStore, threads: list[threading.Thread]
) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    await append(store, author.chunk("x" * (reads.LARGE if is_large else 10)))
    assert await store.load("t", ALICE) is not None
    assert len((await store.page(Query(owner=ALICE, limit=10))).records) == 1
    assert await store.webhooks.task_at("t", ALICE, author.version) is not None
    assert [thread is threading.main_thread() for thread in threads] == [not is_large] * 3
