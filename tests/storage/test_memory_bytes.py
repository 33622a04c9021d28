"""The byte limits of the store in memory, for all owners and for one, and the tasks that it evicts."""

import inspect

import pytest

from apcore_a2a.errors import LimitExceededError, OverloadedError, StoreUnavailableError
from apcore_a2a.protocol.model import Task, TaskState, TaskStatus
from apcore_a2a.storage.contract import DeliveryReport, Query, Usage
from apcore_a2a.storage.memory import InMemoryTaskStore
from tests.storage.contract import (
    ALICE,
    BOB,
    TTL,
    Author,
    Clock,
    append,
    assert_holds,
    create_with_webhook,
    hook,
    ids,
    timestamp,
    write_task,
)

KB = 1000
MAX = 100 * KB


def make(**limits: int) -> InMemoryTaskStore:
    return InMemoryTaskStore(max_bytes=MAX, max_bytes_per_owner=limits.get("of_one", MAX))


async def run(store: InMemoryTaskStore, name: str, size: int, *, owner: str = ALICE) -> Author:
    """Write a running task with an artifact of this size."""
    author = await write_task(store, Author(name, owner=owner), TaskState.WORKING)
    await append(store, author.chunk("x" * size))
    return author


async def finish(store: InMemoryTaskStore, name: str, size: int, *, owner: str = ALICE) -> Author:
    author = await run(store, name, size, owner=owner)
    await append(store, author.complete())
    return author


async def names(store: InMemoryTaskStore, owner: str = ALICE) -> list[str]:
    return await ids(store, Query(owner=owner, limit=100))


def test_by_default_there_is_room_for_256_mib_and_half_of_it_for_one_owner() -> None:
    limits = inspect.signature(InMemoryTaskStore).parameters
    assert limits["max_bytes"].default == 256 * 1024 * 1024
    assert limits["max_bytes_per_owner"].default is None


@pytest.mark.parametrize("limit", ["max_bytes", "max_bytes_per_owner", "max_tasks_per_owner"])
def test_a_limit_of_zero_is_rejected(limit: str) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        InMemoryTaskStore(**{limit: 0})  # type: ignore[arg-type]  # each of the options is a number


async def test_one_owner_may_use_half_of_the_bytes_by_default() -> None:
    store = InMemoryTaskStore(max_bytes=MAX)
    await run(store, "a", 45 * KB)
    with pytest.raises(OverloadedError):
        await run_with_message(store, "b", 10 * KB)
    await run_with_message(store, "c", 10 * KB, owner=BOB)


async def run_with_message(store: InMemoryTaskStore, name: str, size: int, *, owner: str = ALICE) -> Author:
    """Write a task whose request had this size."""
    author = Author(name, owner=owner)
    author.task.metadata = {"large": "x" * size}
    return await write_task(store, author)


async def test_when_the_bytes_run_out_the_tasks_that_ended_first_are_evicted() -> None:
    store = make()
    for name in ("a", "b", "c"):
        await finish(store, name, 30 * KB)
    await run_with_message(store, "d", 20 * KB)
    assert await names(store) == ["d", "c", "b"]
    await run_with_message(store, "e", 50 * KB)
    assert await names(store) == ["e", "d"]


async def test_tasks_of_other_owners_are_evicted_when_the_store_is_full() -> None:
    store = make()
    for name in ("a", "b"):
        await finish(store, name, 40 * KB)
    await run_with_message(store, "of-bob", 40 * KB, owner=BOB)
    assert await names(store) == ["b"]
    assert await names(store, BOB) == ["of-bob"]


async def test_a_growing_task_evicts_others_but_never_itself() -> None:
    store = make()
    for name in ("a", "b"):
        await finish(store, name, 30 * KB)
    growing = await run(store, "c", 30 * KB)
    await append(store, growing.chunk("x" * 30 * KB))
    assert await names(store) == ["c", "b"]
    await append(store, growing.chunk("x" * 60 * KB))  # more than the limit
    await append(store, growing.complete())
    await assert_holds(store, growing)
    assert await names(store) == ["c"]
    await write_task(store, Author("d"))
    assert await names(store) == ["d"]


async def test_a_store_full_of_unfinished_bytes_rejects_new_tasks_and_evicts_none() -> None:
    store = make()
    await finish(store, "ended", 5 * KB)
    running = await run(store, "running", 80 * KB)
    with pytest.raises(OverloadedError) as caught:
        await run_with_message(store, "new", 30 * KB)
    assert caught.value.retry_after > 0
    assert await names(store) == ["running", "ended"]
    await append(store, running.complete())
    await run_with_message(store, "new", 30 * KB)


async def test_unfinished_tasks_that_fill_the_store_can_end_but_not_grow() -> None:
    store = make()
    running = await run(store, "running", 80 * KB)
    waiting = await run(store, "waiting", 30 * KB)
    with pytest.raises(StoreUnavailableError, match="no memory left"):
        await append(store, running.rival().chunk("one more"))
    await append(store, waiting.complete())
    await append(store, running.chunk("goes on"))


async def test_an_owner_over_its_share_of_bytes_loses_its_own_tasks() -> None:
    store = make(of_one=50 * KB)
    await finish(store, "of-bob", 30 * KB, owner=BOB)
    for name in ("a", "b"):
        await finish(store, name, 20 * KB)
    await run_with_message(store, "c", 20 * KB)
    assert await names(store) == ["c", "b"]
    assert await names(store, BOB) == ["of-bob"]


async def test_an_owner_whose_unfinished_tasks_fill_its_share_is_rejected_alone() -> None:
    store = make(of_one=50 * KB)
    await run(store, "a", 45 * KB)
    with pytest.raises(LimitExceededError, match="You are at your limit"):
        await run_with_message(store, "b", 10 * KB)
    await run_with_message(store, "of-bob", 10 * KB, owner=BOB)


async def test_anonymous_callers_over_their_common_share_get_the_error_of_a_full_agent() -> None:
    store = make(of_one=50 * KB)
    await run_with_message(store, "a", 45 * KB, owner="anonymous")
    with pytest.raises(OverloadedError, match="The agent is at its limit") as caught:
        await run_with_message(store, "b", 10 * KB, owner="anonymous")
    assert not isinstance(caught.value, LimitExceededError)


async def test_an_owner_with_many_tenants_has_one_share() -> None:
    store = make(of_one=50 * KB)
    await run(store, "a", 20 * KB, owner=f"{ALICE}\nsales")
    await run(store, "b", 20 * KB, owner=f"{ALICE}\nhr")
    with pytest.raises(LimitExceededError, match="You are at your limit"):
        await run_with_message(store, "c", 20 * KB, owner=f"{ALICE}\nlegal")
    with pytest.raises(LimitExceededError, match="You are at your limit"):
        await run_with_message(store, "c", 20 * KB)
    with pytest.raises(OverloadedError, match="The agent is at its limit"):
        await run_with_message(store, "d", 60 * KB, owner="anonymous\nsales")


async def test_eviction_in_a_share_is_in_the_order_of_ends_across_tenants() -> None:
    store = make(of_one=50 * KB)
    await finish(store, "of-bob", 10 * KB, owner=BOB)
    for name, tenant in (("a", "hr"), ("b", "sales"), ("c", "hr")):
        await finish(store, name, 15 * KB, owner=f"{ALICE}\n{tenant}")
    await run_with_message(store, "d", 15 * KB, owner=f"{ALICE}\nlegal")
    assert await names(store, f"{ALICE}\nhr") == ["c"]
    assert await names(store, f"{ALICE}\nsales") == ["b"]
    await run_with_message(store, "e", 30 * KB)
    assert await names(store, f"{ALICE}\nhr") == []  # the index of a tenant without tasks is removed
    assert await names(store, f"{ALICE}\nsales") == []
    assert await names(store, BOB) == ["of-bob"]


async def test_an_owner_with_too_many_tasks_loses_its_own_that_ended_first() -> None:
    store = InMemoryTaskStore(max_tasks_per_owner=3)
    await finish(store, "of-bob", 10, owner=BOB)
    for name in ("a", "b", "c", "d"):
        await finish(store, name, 10, owner=f"{ALICE}\n{name}")
    assert await store.usage(ALICE) == Usage(3, (await store.usage(ALICE)).bytes)
    assert await names(store, f"{ALICE}\na") == []
    for name in ("e", "f", "g"):
        await run(store, name, 10)
    assert await names(store) == ["g", "f", "e"]
    with pytest.raises(LimitExceededError, match="You are at your limit"):
        await run(store, "h", 10)
    assert await names(store) == ["g", "f", "e"]
    assert await names(store, BOB) == ["of-bob"]


async def test_each_task_is_counted_and_evicted_once() -> None:
    """Includes tasks that leave the queue early: removed, expired, overwritten, or retained by a webhook."""
    clock = Clock()
    store = InMemoryTaskStore(ttl_seconds=TTL, max_tasks_per_owner=3, clock=clock)
    for name in ("a", "b", "c"):
        await finish(store, name, 10)
    assert await store.remove("a", ALICE)
    clock.now += TTL
    for number in range(10):  # more tasks than the limit
        author = await finish(store, f"n-{number}", 10)
        assert await store.webhooks.save(hook(author.task.id), ALICE) is not None
        assert await store.webhooks.remove(author.task.id, ALICE, "w")
    assert await names(store) == ["n-9", "n-8", "n-7"]
    for name in ("x", "y", "z"):
        await run(store, name, 10)
    with pytest.raises(LimitExceededError):
        await run(store, "one more", 10)
    for name in ("x", "y", "z"):
        assert await store.remove(name, ALICE)
    assert await store.usage(ALICE) == Usage(0, 0)


async def test_a_growing_task_evicts_other_tasks_of_its_owner() -> None:
    store = make(of_one=50 * KB)
    await finish(store, "a", 20 * KB)
    growing = await run(store, "b", 20 * KB)
    await append(store, growing.chunk("x" * 20 * KB))
    assert await names(store) == ["b"]


async def test_the_agent_s_memo_counts_against_the_limit() -> None:
    store = make()
    author = Author("t")
    author.memo = b"m" * 90 * KB
    await write_task(store, author)
    with pytest.raises(OverloadedError):
        await run_with_message(store, "u", 10 * KB)
    author.memo = b""
    await append(store, author.work())
    await run_with_message(store, "u", 10 * KB)


async def test_the_bytes_of_removed_and_expired_tasks_are_free_again() -> None:
    clock = Clock()
    store = InMemoryTaskStore(ttl=TTL, max_bytes=MAX, max_bytes_per_owner=MAX, clock=clock)
    for _ in range(5):
        await finish(store, "expires", 60 * KB)
        clock.now += TTL
        await run(store, "removed", 60 * KB)
        assert await store.remove("removed", ALICE)
        await finish(store, "removed", 60 * KB)
        assert await store.remove("removed", ALICE)
        author = await run(store, "rests", 60 * KB)
        await append(store, author.status(TaskState.INPUT_REQUIRED))
        await append(store, author.work())
        assert await store.remove("rests", ALICE)
    await run_with_message(store, "all", 95 * KB)
    with pytest.raises(OverloadedError):
        await run_with_message(store, "more", 5 * KB)


async def test_the_bytes_of_an_overwritten_task_count_once() -> None:
    store = make()
    for state in (TaskState.COMPLETED, TaskState.WORKING, TaskState.COMPLETED, TaskState.WORKING) * 3:
        status = TaskStatus(state=state, timestamp=timestamp())
        await store.save(Task(id="t", context_id="c", status=status, metadata={"large": "x" * 60 * KB}))
    await run_with_message(store, "u", 99 * KB, owner="other")


async def test_the_bytes_for_webhooks_are_free_again_after_delivery() -> None:
    store = InMemoryTaskStore(max_bytes=20_000, max_bytes_per_owner=20_000)
    for number in range(50):
        author = await create_with_webhook(store, Author(f"t{number}"), hook(f"t{number}"))
        await append(store, author.work())
        await append(store, author.chunk("x" * 2_000))
        await append(store, author.complete())
        (claim,) = await store.webhooks.claim(10, 30)
        assert await store.webhooks.settle(claim, DeliveryReport(delivered=4))
    remaining = (await store.page(Query(owner=ALICE, limit=100))).total
    assert 5 <= remaining <= 10


async def test_events_that_wait_for_a_webhook_count_against_the_limit() -> None:
    store = InMemoryTaskStore(max_bytes=20_000, max_bytes_per_owner=20_000)
    author = await create_with_webhook(store, Author("t"), hook())
    await append(store, author.work())
    await append(store, author.chunk("x" * 8_000))
    await append(store, author.complete())
    with pytest.raises(OverloadedError):
        await store.create(Author("y" * 4_000).create())
