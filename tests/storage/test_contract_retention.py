"""The contract of stores with a TTL and a capacity: which tasks expire or are evicted, when, and which never."""

import pytest

from apcore_a2a.errors import OverloadedError, StaleWriteError
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import Query, Store
from tests.requirements import requirement
from tests.storage.conftest import MakeStore
from tests.storage.contract import ALICE, STORES, TTL, Author, Clock, append, assert_holds, ids, write_task

ALL = Query(owner=ALICE, limit=100)
RETAINING = [name for name, kind in STORES.items() if kind.retains]


@pytest.fixture(params=RETAINING)
async def store(request: pytest.FixtureRequest, make_store: MakeStore) -> Store:
    """Return a store of at most three tasks."""
    return await make_store(request.param, 3)


async def write_something(store: Store) -> None:
    """Make any two writes, after which expired tasks are gone."""
    await write_task(store, Author("something", owner="other"))
    await store.remove("something", "other")


@requirement("FR-STR-002")
@pytest.mark.parametrize("state", sorted(TERMINAL), ids=lambda state: state.name)
async def test_a_task_expires_one_ttl_after_its_end(store: Store, clock: Clock, state: TaskState) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    clock.now += 2 * TTL
    await append(store, author.status(state))
    clock.now += TTL - 1
    await write_something(store)
    await assert_holds(store, author)
    clock.now += 1
    await write_something(store)
    assert await store.load("t", ALICE) is None
    assert await store.events("t", ALICE, 0) is None
    assert (await store.page(ALL)).total == 0


@requirement("FR-STR-002")
@pytest.mark.parametrize("states", [[], ["WORKING"], ["WORKING", "INPUT_REQUIRED"], ["WORKING", "AUTH_REQUIRED"]])
async def test_a_task_that_has_not_ended_never_expires(store: Store, clock: Clock, states: list[str]) -> None:
    author = await write_task(store, Author("t"), *(TaskState[name] for name in states))
    clock.now += 1000 * TTL
    await write_something(store)
    await assert_holds(store, author)


@requirement("FR-CTX-004")
async def test_a_conversation_expires_with_the_last_of_its_tasks(store: Store, clock: Clock) -> None:
    talk = Query(owner=ALICE, limit=10, context_id="talk")
    await write_task(store, Author("early"), TaskState.WORKING, TaskState.COMPLETED)
    late = await write_task(store, Author("late"), TaskState.WORKING)
    clock.now += TTL
    await append(store, late.complete())
    await write_something(store)
    assert await ids(store, talk) == ["late"]
    clock.now += TTL
    await write_something(store)
    assert await ids(store, talk) == []


async def test_the_key_and_the_id_of_an_expired_task_can_be_reused(store: Store, clock: Clock) -> None:
    author = Author("t")
    await store.create(author.create(), key="k")
    for state in (TaskState.WORKING, TaskState.COMPLETED):
        await append(store, author.status(state))
    clock.now += TTL
    await write_something(store)
    assert await store.create(Author("t").create(), key="k") is None


@requirement("FR-STR-002")
async def test_a_full_store_evicts_the_task_that_ended_first(store: Store, clock: Clock) -> None:
    authors = [await write_task(store, Author(name), TaskState.WORKING) for name in ("a", "b", "c")]
    for author in (authors[1], authors[0], authors[2]):
        clock.now += 1
        await append(store, author.complete())
    await write_task(store, Author("d"))
    assert await ids(store, ALL) == ["d", "c", "a"]
    await write_task(store, Author("e"))
    assert await ids(store, ALL) == ["e", "d", "c"]


@requirement("FR-STR-002")
async def test_a_store_full_of_unfinished_tasks_rejects_new_ones_until_one_ends(store: Store) -> None:
    authors = [await write_task(store, Author(name), TaskState.WORKING) for name in ("a", "b", "c")]
    await append(store, authors[0].status(TaskState.INPUT_REQUIRED))
    with pytest.raises(OverloadedError) as caught:
        await store.create(Author("d").create())
    assert caught.value.retry_after > 0
    for author in authors:
        await assert_holds(store, author)
    await append(store, authors[2].complete())
    await write_task(store, Author("d"))
    assert await ids(store, ALL) == ["d", "a", "b"]


async def test_a_rejected_task_evicts_no_other(store: Store) -> None:
    authors = [
        await write_task(store, Author(name), TaskState.WORKING, TaskState.COMPLETED) for name in ("a", "b", "c")
    ]
    with pytest.raises(StaleWriteError):
        await store.create(Author("c").create())
    for author in authors:
        await assert_holds(store, author)


async def test_a_full_store_still_finds_its_keys(store: Store) -> None:
    assert await store.create(Author("a").create(), key="k") is None
    for name in ("b", "c"):
        await write_task(store, Author(name))
    assert await store.create(Author("d").create(), key="k") == "a"


async def test_removing_a_task_makes_room(store: Store) -> None:
    for name in ("a", "b", "c"):
        await write_task(store, Author(name))
    await store.remove("b", ALICE)
    await write_task(store, Author("d"))
    assert await ids(store, ALL) == ["d", "c", "a"]
