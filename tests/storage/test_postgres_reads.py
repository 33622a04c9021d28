"""A PostgreSQL store builds large documents on a thread, where it does not delay the event loop."""

import threading
from collections.abc import AsyncIterator

import pytest

from apcore_a2a.protocol.model import Document, TaskState
from apcore_a2a.storage import sql
from apcore_a2a.storage.contract import Query
from apcore_a2a.storage.postgres import reads
from apcore_a2a.storage.postgres.connection import execute
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


async def test_many_tasks_are_estimated_in_listings_and_limits(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        await write_task(store, Author(f"t{number}"), TaskState.WORKING, TaskState.COMPLETED)
    exact = await store.usage(ALICE)
    await store.database.call(execute, "ANALYZE task")
    monkeypatch.setattr(reads, "MAX_COUNTED", 10)
    monkeypatch.setattr(reads, "SAMPLED_TASKS", 10)
    page = await store.page(Query(owner=ALICE, limit=5))
    assert (len(page.records), page.total) == (5, 40)  # the planner has just read all of them
    assert (await store.page(Query(owner=ALICE, limit=5, context_id="talk"))).total > 10
    usage = await store.usage(ALICE)
    assert usage.tasks == exact.tasks == 40
    assert abs(usage.bytes - exact.bytes) < exact.bytes / 10  # tasks of about the same size
