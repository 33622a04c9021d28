"""The contract of stores that report the usage of each account."""

from random import Random

import pytest

from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import ALL_OWNERS, ReportsUsage, Store, Usage, stored_quota_key
from apcore_a2a.storage.postgres import reads
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.storage.contract import ALICE, BOB, Author, append, write_task


async def usage_of(store: Store, quota_key: str) -> Usage:
    assert isinstance(store, ReportsUsage)
    return await store.usage(quota_key)


async def finish(store: Store, name: str, *, owner: str = ALICE, size: int = 10) -> int:
    """Write a finished task, and return its size."""
    author = await write_task(store, Author(name, owner=owner), TaskState.WORKING)
    await append(store, author.chunk(Random(name).randbytes(size).hex()))  # does not compress on disk
    await append(store, author.complete())
    return len(encode(author.task))


async def test_the_usage_of_an_account_is_the_size_of_its_tasks_as_json(store: Store) -> None:
    assert await usage_of(store, ALICE) == Usage(0, 0)
    size = await finish(store, "a") + await finish(store, "b", size=2_500)
    of_bob = await finish(store, "c", owner=BOB)
    assert await usage_of(store, ALICE) == Usage(2, size)
    assert await usage_of(store, BOB) == Usage(1, of_bob)
    assert await usage_of(store, ALL_OWNERS) == Usage(3, size + of_bob)


async def test_the_usage_of_an_account_includes_all_its_tenants(store: Store) -> None:
    owners = [ALICE, f"{ALICE}\nsales", f"{ALICE}\n", f"{ALICE}\nsales\n{BOB}", f"{ALICE}\n\u00fc\U0001f600"]
    assert {stored_quota_key(owner) for owner in owners} == {ALICE}
    size = 0
    for number, owner in enumerate(owners):
        size += await finish(store, f"t-{number}", owner=owner)
    for number, other in enumerate((f"{ALICE}a", f"{ALICE}\t", f"{ALICE}\x0b", f"x{ALICE}", BOB)):
        await finish(store, f"o-{number}", owner=other)
    assert await usage_of(store, ALICE) == Usage(len(owners), size)


async def test_a_running_task_counts_with_its_output_and_memo(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    before = await usage_of(store, ALICE)
    assert before.tasks == 1
    author.memo = b'"' + b"m" * 998 + b'"'
    await append(store, author.chunk("x" * 4_000))
    after = await usage_of(store, ALICE)
    assert 5_000 <= after.bytes - before.bytes < 6_000


async def test_a_task_too_large_for_a_document_counts_with_its_events(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.WORKING)
    for _ in range(5):
        await append(store, author.chunk("x" * 40_000))
    await append(store, author.complete())
    kept = await usage_of(store, ALICE)
    assert kept.tasks == 1
    assert 200_000 <= kept.bytes < 210_000


async def test_removed_tasks_do_not_count(store: Store) -> None:
    await finish(store, "a")
    size = await finish(store, "b")
    assert await store.remove("a", ALICE)
    assert await usage_of(store, ALICE) == Usage(1, size)
    assert await store.remove("b", ALICE)
    assert await usage_of(store, ALICE) == await usage_of(store, ALL_OWNERS) == Usage(0, 0)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_many_tasks_are_counted_by_a_sample(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):  # a database page has room for two or three
        await finish(store, f"t-{number}", size=500)
    exact = await store.usage(ALL_OWNERS)
    monkeypatch.setattr(reads, "SAMPLE", 6)
    looks = [await store.usage(ALL_OWNERS) for _ in range(200)]
    assert len(set(looks)) > 1  # a sample varies
    for what in ("tasks", "bytes"):
        mean = sum(getattr(look, what) for look in looks) / len(looks)
        assert mean == pytest.approx(getattr(exact, what), rel=0.3)
