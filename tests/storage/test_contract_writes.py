"""The contract of every store, part 1: the effect of writes, and their rejection."""

import asyncio
import random

import pytest

from apcore_a2a.errors import StaleWriteError
from apcore_a2a.protocol.lifecycle import copy
from apcore_a2a.protocol.model import Message, Part, Role, StatusUpdate, TaskState, TaskStatus
from apcore_a2a.storage.contract import Query, Store, as_deferring
from tests.requirements import requirement
from tests.storage.contract import ALICE, BOB, Author, append, assert_holds, timestamp, write_task

S = TaskState


async def test_a_new_task_can_be_loaded_once_create_returns(store: Store) -> None:
    author = Author("t")
    author.memo = b'{"step":1}'
    assert await store.create(author.create()) is None
    await assert_holds(store, author)


async def test_each_event_updates_the_stored_task(store: Store) -> None:
    author = await write_task(store, Author("t"))
    for change in (author.work, lambda: author.chunk("a"), lambda: author.chunk("b", "c"), author.complete):
        await append(store, change())
        await assert_holds(store, author)


@pytest.mark.parametrize("end", [TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.COMPLETED])
async def test_a_new_task_may_come_with_the_first_events_of_its_agent(store: Store, end: TaskState) -> None:
    author = Author("t")
    author.memo = b"1"
    working, last = (StatusUpdate(status=TaskStatus(state=each, timestamp=timestamp())) for each in (S.WORKING, end))
    change = author.change([copy(author.task), working, author.piece("result"), last])
    deferring = as_deferring(store)
    if deferring is None:
        assert await store.create(change) is None
    else:
        deferring.check_room(author.owner, 1_000)
        saving = deferring.begin_create(change)
        if saving is not None:
            await asyncio.wait_for(saving, 5)
    await assert_holds(store, author)
    page = await store.page(Query(owner=ALICE, limit=10, state=end))
    assert [record.version for record in page.records] == [4]
    if end is S.WORKING:
        await append(store, author.complete())
        await assert_holds(store, author)


async def test_a_deferred_creation_and_its_next_write_are_made_in_order(store: Store) -> None:
    deferring = as_deferring(store)
    author = Author("t")
    if deferring is None:
        await write_task(store, author)
    else:
        first = deferring.begin_create(author.create())
        second = store.append(author.work())
        for saving in (first, second):
            if saving is not None:
                await asyncio.wait_for(saving, 5)
    await assert_holds(store, author)


async def test_the_message_that_caused_an_event_is_stored_with_it(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING, TaskState.INPUT_REQUIRED)
    said = Message(message_id="m2", role=Role.USER, parts=(Part(text="42"),))
    resumed = StatusUpdate(status=TaskStatus(state=TaskState.WORKING, timestamp=timestamp()))
    await append(store, author.change([resumed], said=said))
    await assert_holds(store, author)
    record = await store.load("t", ALICE)
    assert record is not None
    assert record.document.task().history[-1] == said


async def test_memo_and_run_are_those_of_the_last_write(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    for author.memo, author.run in ((b"1", b"\x00\xff"), (b"1", b"r2"), (b"", b"r2"), (b"2", b"")):
        await append(store, author.chunk("x"))
        await assert_holds(store, author)
    await append(store, author.status(TaskState.INPUT_REQUIRED))
    await assert_holds(store, author)
    author.memo, author.run = b"3", b"r3"
    await append(store, author.work())
    await assert_holds(store, author)


async def test_a_task_of_hundreds_of_kilobytes_is_read_as_it_was_written(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    for _ in range(3):
        await append(store, author.chunk(*["x" * 1000] * 70))
        await assert_holds(store, author)
        await append(store, author.status(TaskState.INPUT_REQUIRED))
        await assert_holds(store, author)
        await append(store, author.work())
    await append(store, author.complete())
    await assert_holds(store, author)


@pytest.mark.parametrize("text", ["", "Ünïcödé 🎈", "a\x00b", "'; DROP TABLE task; --", "\n%_*", "x" * 250])
async def test_ids_and_owners_can_be_any_text(store: Store, text: str) -> None:
    author = await write_task(store, Author(f"t{text}", owner=f"o{text}", context_id=text), TaskState.WORKING)
    await assert_holds(store, author)
    query = Query(owner=author.owner, limit=10, context_id=text)
    assert [record.version for record in (await store.page(query)).records] == [2]


# ---- rejections ----------------------------------------------------------------------------------------------------


async def refused(store: Store, author: Author, rival: Author) -> None:
    """Assert that a write of two events by the rival is rejected and changes nothing."""
    key = author.task.id, author.owner
    before = await store.load(*key), await store.events(*key, 0)
    with pytest.raises(StaleWriteError):
        await append(store, rival.chunk("stale", "stale"))
    assert (
        await store.load(author.task.id, author.owner),
        await store.events(author.task.id, author.owner, 0),
    ) == before


@requirement("FR-TSK-003")
async def test_a_write_with_an_old_version_changes_nothing(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    rival = author.rival()
    await append(store, author.chunk("first"))
    await refused(store, author, rival)
    await assert_holds(store, author)


async def test_a_write_with_a_future_version_changes_nothing(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    rival = author.rival()
    rival.chunk("never sent")
    await refused(store, author, rival)
    await assert_holds(store, author)


async def test_a_write_with_an_older_epoch_changes_nothing(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    author.epoch = 3
    await append(store, author.chunk("claimed"))
    await assert_holds(store, author)
    rival = author.rival()
    rival.epoch = 2
    await refused(store, author, rival)
    await append(store, author.chunk("goes on"))
    await assert_holds(store, author)


async def test_an_owner_cannot_write_to_a_task_of_another_owner(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    rival = author.rival()
    rival.owner = BOB
    await refused(store, author, rival)
    assert await store.load("t", BOB) is None


async def test_a_task_that_was_never_created_rejects_events(store: Store) -> None:
    author = Author("t")
    author.create()
    with pytest.raises(StaleWriteError):
        await append(store, author.work())
    assert await store.load("t", ALICE) is None


@pytest.mark.parametrize(
    "state",
    [TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED],
    ids=lambda state: state.name,
)
async def test_a_task_that_has_ended_rejects_events(store: Store, state: TaskState) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    rival = author.rival()
    await append(store, author.status(state))
    rival.version += 1
    await refused(store, author, rival)
    await assert_holds(store, author)


@pytest.mark.parametrize("owner", [ALICE, BOB])
async def test_an_id_can_be_used_only_once(store: Store, owner: str) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    with pytest.raises(StaleWriteError):
        await store.create(Author("t", owner=owner).create())
    await assert_holds(store, author)
    assert (await store.page(Query(owner=BOB, limit=10))).total == 0


# ---- idempotency keys ----------------------------------------------------------------------------------------------


async def test_a_used_key_returns_the_task_created_with_it(store: Store) -> None:
    author = Author("t1")
    assert await store.create(author.create(), key="k") is None
    await append(store, author.work())
    assert await store.create(Author("t2").create(), key="k") == "t1"
    assert await store.find_key("k", ALICE) == "t1"
    assert await store.find_key("another", ALICE) is None
    assert await store.find_key("k", BOB) is None
    assert await store.load("t2", ALICE) is None
    await assert_holds(store, author)


async def test_a_key_belongs_to_its_owner(store: Store) -> None:
    assert await store.create(Author("t1").create(), key="k") is None
    assert await store.create(Author("t2", owner=BOB).create(), key="k") is None
    assert await store.create(Author("t3", owner=BOB).create(), key="k") == "t2"


async def test_tasks_without_a_key_are_never_duplicates(store: Store) -> None:
    assert await store.create(Author("t1").create(), key="") is None
    assert await store.create(Author("t2").create(), key="") is None


async def test_a_key_is_removed_with_its_task(store: Store) -> None:
    assert await store.create(Author("t1").create(), key="k") is None
    assert await store.remove("t1", ALICE)
    assert await store.create(Author("t2").create(), key="k") is None


async def test_concurrent_creations_with_one_key_create_one_task(store: Store) -> None:
    async with asyncio.TaskGroup() as group:
        tries = {f"t{n}": group.create_task(store.create(Author(f"t{n}").create(), key="k")) for n in range(20)}
    made = [name for name, attempt in tries.items() if attempt.result() is None]
    assert len(made) == 1
    assert {attempt.result() for attempt in tries.values()} == {None, made[0]}
    assert (await store.page(Query(owner=ALICE, limit=10))).total == 1


# ---- many at once --------------------------------------------------------------------------------------------------


async def test_writes_are_made_in_the_order_of_the_calls(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    futures = [store.append(author.chunk(str(n))) for n in range(100)]
    for future in futures:
        if future is not None:
            await asyncio.wait_for(future, 5)
    await assert_holds(store, author)


async def test_a_rejected_write_fails_no_other_write(store: Store) -> None:
    authors = [await write_task(store, Author(f"t{n}"), TaskState.WORKING) for n in range(5)]
    stale = authors[2].rival()
    await append(store, authors[2].chunk("first"))
    async with asyncio.TaskGroup() as group:  # all in one batch, if the store makes batches
        for author in authors:
            group.create_task(append(store, author.chunk("x")))
        refusal = group.create_task(_refusal(store, stale))
    assert refusal.result()
    for author in authors:
        await assert_holds(store, author)


async def _refusal(store: Store, author: Author) -> bool:
    try:
        await append(store, author.chunk("stale"))
    except StaleWriteError:
        return True
    return False


@requirement("FR-TSK-003")
async def test_two_hundred_concurrent_writers_and_readers_are_isolated(store: Store) -> None:
    chance = random.Random(7)
    authors = [Author(f"t{n}", owner=f"o{n % 3}", context_id=f"c{n % 5}") for n in range(200)]

    async def write(author: Author) -> None:
        await write_task(store, author, TaskState.WORKING)
        for n in range(chance.randrange(6)):
            await append(store, author.chunk(f"{author.task.id}: {n}"))
            await assert_holds(store, author)
        await append(store, author.complete())

    async with asyncio.TaskGroup() as group:
        for author in authors:
            group.create_task(write(author))
    for author in authors:
        await assert_holds(store, author)
    totals = [(await store.page(Query(owner=f"o{n}", limit=1))).total for n in range(3)]
    assert totals == [67, 67, 66]
