"""Expiry, memory and cost of the store in memory. Bytes and calls are counted, and the test sets the time."""

import tracemalloc
from collections.abc import Awaitable, Callable
from uuid import uuid4

from msgspec.structs import replace

from apcore_a2a.protocol.model import Task, TaskState, TaskStatus
from apcore_a2a.storage.contract import Query
from apcore_a2a.storage.memory import MAX_EXPIRED, MAX_SWEPT, InMemoryTaskStore
from tests.calls import count_calls
from tests.storage.contract import ALICE, TTL, Author, Clock, append, assert_holds, ids, timestamp, write_task

MANY = 3 * MAX_EXPIRED


async def finish(store: InMemoryTaskStore, author: Author, *, key: str = "") -> None:
    assert await store.create(author.create(), key=key) is None
    await append(store, author.work())
    await append(store, author.chunk("x" * 50))
    await append(store, author.complete())


async def grown(work: Callable[[int], Awaitable[None]], times: int) -> float:
    """Return the bytes that remain allocated per call of `work`."""
    tracemalloc.start()
    try:
        for n in range(times):
            await work(n)
        return tracemalloc.get_traced_memory()[0] / times
    finally:
        tracemalloc.stop()


async def test_tasks_that_expire_together_are_all_hidden_at_once() -> None:
    clock = Clock()
    store = InMemoryTaskStore(ttl=TTL, clock=clock)
    for n in range(MANY):
        await finish(store, Author(f"t{n}"), key=f"k{n}")
    running = await write_task(store, Author("running"), TaskState.WORKING)
    clock.now += TTL
    await write_task(store, Author("new"))  # removes only a few of them
    assert (await store.page(Query(owner=ALICE, limit=10))).total == 2
    assert [await store.load(f"t{n}", ALICE) for n in range(MANY)] == [None] * MANY
    await assert_holds(store, running)


async def test_one_listing_removes_at_most_max_swept_expired_tasks() -> None:
    clock = Clock()
    store = InMemoryTaskStore(ttl=TTL, clock=clock)
    for n in range(MAX_SWEPT + 30):
        await finish(store, Author(f"t{n}"))
    clock.now += TTL
    query = Query(owner=ALICE, limit=1)
    assert [(await store.page(query)).total for _ in range(2)] == [30, 0]


async def test_keys_and_ids_of_tasks_that_expire_together_can_be_reused_at_once() -> None:
    clock = Clock()
    store = InMemoryTaskStore(ttl=TTL, max_capacity=MANY, clock=clock)
    for n in range(MANY):
        await finish(store, Author(f"t{n}"), key=f"k{n}")
    clock.now += TTL
    assert await store.create(Author("new").create(), key=f"k{MANY - 1}") is None
    assert await store.create(Author(f"t{MANY - 2}").create()) is None
    assert await store.create(Author("newer").create(), key=f"k{MANY - 1}") == "new"
    for n in range(MANY - 2):  # each expired task is evicted once, including the one that was removed above
        assert await store.create(Author(f"more{n}").create()) is None
    assert (await store.page(Query(owner=ALICE, limit=1))).total == MANY


async def test_a_context_is_found_whether_it_has_one_task_or_more() -> None:
    store = InMemoryTaskStore()
    in_context = Query(owner=ALICE, limit=10, context_id="c")
    for n in range(3):
        await write_task(store, Author(f"t{n}", context_id="c"))
        assert await ids(store, in_context) == [f"t{each}" for each in reversed(range(n + 1))]
    for n in range(3):
        await store.remove(f"t{n}", ALICE)
        assert await ids(store, in_context) == [f"t{each}" for each in reversed(range(n + 1, 3))]
    await write_task(store, Author("again", context_id="c"))
    assert await ids(store, in_context) == ["again"]


class Moment(str):
    """A str whose comparisons are calls that can be counted."""

    def __le__(self, other: str) -> bool:
        return super().__le__(other)


async def test_a_listing_reads_little_more_than_it_shows() -> None:
    store = InMemoryTaskStore()
    for n in range(1_000):
        await finish(store, Author(f"t{n}"))
    newest = Query(owner=ALICE, limit=10)
    since = Moment((await store.page(newest)).records[-1].document.task().status.timestamp)
    cursor = (await store.page(newest)).next_cursor
    for query in (newest, replace(newest, cursor=cursor), replace(newest, changed_since=since)):
        calls, page = await count_calls(store.page(query))
        assert len(page.records) == 10
        assert calls < 300


async def test_a_finished_small_task_takes_little_more_than_its_json() -> None:
    store = InMemoryTaskStore()

    async def work(n: int) -> None:
        await finish(store, Author(str(uuid4()), context_id=str(uuid4())))

    each = await grown(work, 1_000)
    record = (await store.page(Query(owner=ALICE, limit=1))).records[0]
    assert each - len(record.document.body) < 710


async def test_removed_and_overwritten_tasks_free_all_of_their_memory() -> None:
    store = InMemoryTaskStore()
    for n in range(100):
        await write_task(store, Author(f"kept{n}"))
    status = TaskStatus(state=TaskState.COMPLETED, timestamp=timestamp())

    async def work(n: int) -> None:
        author = Author("t", context_id=f"c{n}")
        author.memo = b"x" * 10_000
        await finish(store, author, key=f"k{n}")
        for name in ("t", "beside"):
            task = Task(id=name, context_id=f"c{n}", status=status, metadata={"large": "x" * 10_000})
            await store.save(task)
        for name in ("t", "beside"):
            assert await store.delete(name)

    await work(0)  # allocates what is allocated only once
    assert await grown(work, 1_000) < 100


async def test_eviction_skips_tasks_that_were_removed() -> None:
    store = InMemoryTaskStore(max_capacity=3)
    for name in ("a", "b"):
        await finish(store, Author(name))
    await write_task(store, Author("c"))
    await store.remove("a", ALICE)
    for name in ("d", "e"):
        await write_task(store, Author(name))
    assert await ids(store, Query(owner=ALICE, limit=10)) == ["e", "d", "c"]


async def test_an_ended_task_is_still_evicted_after_many_others_were_removed() -> None:
    store = InMemoryTaskStore(max_capacity=2)
    await finish(store, Author("ended"))
    for n in range(10):  # more than there are tasks, so that stale entries are removed from the queue
        await finish(store, Author(f"t{n}"))
        await store.remove(f"t{n}", ALICE)
    for name in ("a", "b"):
        await write_task(store, Author(name))
    assert await ids(store, Query(owner=ALICE, limit=10)) == ["b", "a"]
