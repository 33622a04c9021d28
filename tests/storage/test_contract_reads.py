"""The contract of every store, part 2: reads, listings and removals, always for one owner."""

from base64 import b64decode, urlsafe_b64encode

import pytest
from msgspec.structs import replace

from apcore_a2a.errors import InvalidParamsError
from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import ALL_OWNERS, MAX_READ_BYTES, Query, Store, trouble_of
from apcore_a2a.storage.cursor import MAX_PAGE_BYTES
from tests.storage.conftest import MakeStore
from tests.storage.contract import ALICE, BOB, STORES, Author, append, assert_holds, ids, pages, timestamp, write_task

ALL = Query(owner=ALICE, limit=100)


async def test_a_task_of_another_owner_is_treated_as_unknown(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING, TaskState.INPUT_REQUIRED)
    for task_id, owner in (("t", BOB), ("unknown", ALICE), ("t", ""), ("", ALICE)):
        assert await store.load(task_id, owner) is None
        assert await store.events(task_id, owner, 0) is None
        assert await store.remove(task_id, owner) is False
    page = await store.page(Query(owner=BOB, limit=10, context_id="talk"))
    assert (list(page.records), page.total, page.next_cursor) == ([], 0, "")
    await assert_holds(store, author)


@pytest.mark.parametrize("by_creation", [False, True])
async def test_an_administrator_reads_and_lists_the_tasks_of_all_owners(store: Store, by_creation: bool) -> None:
    for n in range(3):
        await write_task(store, Author(f"a{n}"), TaskState.WORKING, TaskState.COMPLETED)
        await write_task(store, Author(f"b{n}", owner=BOB, context_id=f"c{n}"), TaskState.WORKING)
    record = await store.load("b1", ALL_OWNERS)
    assert record is not None and record.owner == BOB
    assert await store.load("unknown", ALL_OWNERS) is None
    query = Query(owner=ALL_OWNERS, limit=2, by_creation=by_creation)
    shown: list[str] = []
    for _ in range(3):
        page = await store.page(query)
        assert page.total == 6
        shown += [record.document.task().id for record in page.records]
        query = replace(query, cursor=page.next_cursor)
    assert page.next_cursor == ""
    assert shown == ["b2", "a2", "b1", "a1", "b0", "a0"]
    for filters, found in [({"context_id": "c1"}, ["b1"]), ({"state": TaskState.COMPLETED}, ["a2", "a1", "a0"])]:
        page = await store.page(Query(owner=ALL_OWNERS, limit=10, by_creation=by_creation, **filters))  # type: ignore[arg-type]  # a Query's own parameters
        assert [record.document.task().id for record in page.records] == found
        assert page.total == len(found)
    assert await store.remove("b1", ALL_OWNERS) is False
    assert await store.events("b1", ALL_OWNERS, 0) is None


async def test_a_removed_task_is_gone(store: Store) -> None:
    await write_task(store, Author("t1"), TaskState.WORKING)
    kept = await write_task(store, Author("t2"), TaskState.WORKING)
    assert await store.remove("t1", ALICE) is True
    assert await store.load("t1", ALICE) is None
    assert await store.events("t1", ALICE, 0) is None
    assert await store.remove("t1", ALICE) is False
    assert await ids(store, ALL) == ["t2"]
    await assert_holds(store, kept)


@pytest.mark.parametrize("name", STORES)
async def test_events_are_replayed_from_any_position_or_not_at_all(name: str, make_store: MakeStore) -> None:
    store = await make_store(name, 100)
    before, author = (
        await write_task(store, Author("t0", owner=BOB)),
        await write_task(store, Author("t1"), TaskState.WORKING),
    )
    await append(store, author.chunk("a", "b", "c"))
    await write_task(store, Author("t2", owner=BOB), TaskState.WORKING)
    await append(store, author.complete())
    for after in range(-2, len(author.records) + 2):
        replayed = await store.events("t1", ALICE, after)
        assert replayed == (author.records[max(after, 0) :] if STORES[name].replays else None)
    if STORES[name].replays:
        assert await store.events("t0", BOB, 0) == before.records


@pytest.mark.parametrize("name", [name for name, kind in STORES.items() if kind.replays])
async def test_events_that_are_large_together_are_read_in_pieces(name: str, make_store: MakeStore) -> None:
    store = await make_store(name, 100)
    author = await write_task(store, Author("t"), TaskState.WORKING)
    part = "x" * (MAX_READ_BYTES // 3)
    await append(store, author.chunk(part, part, part, part * 4, part, part))
    read: list[bytes] = []
    sizes: list[int] = []
    while len(read) < author.version:
        piece = await store.events("t", ALICE, len(read), 100)
        assert piece
        read += piece
        sizes.append(len(piece))
    assert read == author.records
    assert sizes == [
        4,
        1,
        1,
        2,
    ]  # the task, its status and two parts; one part; the large part alone; the rest


async def test_an_open_store_passes_its_check(store: Store) -> None:
    await store.check()


async def test_a_healthy_store_reports_no_trouble(store: Store) -> None:
    await write_task(store, Author("t"), TaskState.WORKING)
    assert trouble_of(store) == ""


async def test_a_new_store_has_no_orphans(store: Store) -> None:
    assert await store.orphans() == []


# ---- listing -------------------------------------------------------------------------------------------------------


async def test_a_listing_is_newest_first_by_status_time_or_by_creation(store: Store) -> None:
    first = await write_task(store, Author("first"))
    for name in ("second", "third"):
        await write_task(store, Author(name))
    await append(store, first.work())
    await append(store, first.chunk("not a change of status"))
    await write_task(store, Author("fourth"))
    assert await ids(store, ALL) == ["fourth", "first", "third", "second"]
    assert await ids(store, replace(ALL, by_creation=True)) == ["fourth", "third", "second", "first"]


async def at_times(store: Store, ended: bool, **times: int) -> None:
    """Create tasks with these status times, in this order."""
    for name, tick in times.items():
        author = await write_task(store, Author(name, at=timestamp(tick)))
        if ended:
            await append(store, author.status(TaskState.CANCELED, at=timestamp(tick)))


@pytest.mark.parametrize("ended", [False, True])
async def test_listings_are_by_status_time_even_if_times_are_out_of_order(store: Store, ended: bool) -> None:
    await at_times(store, ended, b=20, c=30, a=10)
    assert await ids(store, ALL) == ["c", "b", "a"]
    assert await ids(store, replace(ALL, limit=1)) == ["c", "b", "a"]
    assert await ids(store, replace(ALL, changed_since=timestamp(15))) == ["c", "b"]


async def test_a_listing_mixes_ended_and_unfinished_tasks_by_status_time(store: Store) -> None:
    await at_times(store, True, b=20, d=40, f=60)
    await at_times(store, False, a=10, e=50)
    await at_times(store, True, g=70)
    for limit in range(1, 7):
        assert await ids(store, replace(ALL, limit=limit)) == ["g", "f", "e", "d", "b", "a"]
    assert await ids(store, replace(ALL, changed_since=timestamp(45))) == ["g", "f", "e"]


async def test_a_listing_shows_tasks_that_match_all_filters(store: Store) -> None:
    for name, context, done in (("a", "x", True), ("b", "x", False), ("c", "y", True), ("d", "y", False)):
        author = await write_task(store, Author(name, context_id=context), TaskState.WORKING)
        if done:
            await append(store, author.complete())
        await write_task(store, Author(f"{name}-of-bob", owner=BOB, context_id=context), TaskState.WORKING)
    in_x = replace(ALL, context_id="x")
    completed = replace(ALL, state=TaskState.COMPLETED)
    assert await ids(store, in_x) == ["b", "a"]
    assert await ids(store, completed) == ["c", "a"]
    assert await ids(store, replace(in_x, state=TaskState.COMPLETED)) == ["a"]
    assert await ids(store, replace(in_x, state=TaskState.FAILED)) == []
    assert await ids(store, replace(ALL, context_id="unknown")) == []
    assert [(await store.page(query)).total for query in (ALL, in_x, completed)] == [4, 2, 2]


@pytest.mark.parametrize("ended", [False, True])
async def test_changed_since_is_inclusive(store: Store, ended: bool) -> None:
    await at_times(store, ended, t1=1, t2=2, t3=3)
    since = replace(ALL, changed_since=timestamp(2))
    assert await ids(store, since) == ["t3", "t2"]
    assert (await store.page(since)).total == 2
    assert await ids(store, replace(ALL, changed_since=timestamp(4))) == []


@pytest.mark.parametrize("by_creation", [False, True])
@pytest.mark.parametrize("context_id", ["", "talk"])
@pytest.mark.parametrize("ended", [False, True])
async def test_pages_show_every_task_once_even_with_equal_status_times(
    store: Store, by_creation: bool, context_id: str, ended: bool
) -> None:
    for n in range(7):
        await at_times(store, ended, **{f"t{n}": n // 3})
        await write_task(store, Author(f"of-bob-{n}", owner=BOB, at=timestamp(n // 3)))
    query = Query(owner=ALICE, limit=2, by_creation=by_creation, context_id=context_id)
    found = await pages(store, query)
    assert [len(page.records) for page in found] == [2, 2, 2, 1]
    assert {page.total for page in found} == {7}
    shown = await ids(store, query)
    assert sorted(shown) == [f"t{n}" for n in range(7)]
    assert shown == await ids(store, replace(query, limit=100))


async def test_tasks_with_equal_status_times_are_listed_by_creation(store: Store) -> None:
    authors = [await write_task(store, Author(f"t{n}")) for n in range(6)]
    for n in (2, 5, 0, 4, 1, 3):
        await append(store, authors[n].status(TaskState.CANCELED, at=timestamp(10**6)))
    for limit in (1, 2, 6):
        assert await ids(store, replace(ALL, limit=limit)) == ["t5", "t4", "t3", "t2", "t1", "t0"]


async def test_a_full_last_page_is_the_last(store: Store) -> None:
    for n in range(4):
        await write_task(store, Author(f"t{n}"))
    assert [len(page.records) for page in await pages(store, Query(owner=ALICE, limit=2))] == [2, 2]


@pytest.mark.parametrize("by_creation", [False, True])
async def test_changes_between_two_pages_do_not_shift_the_listing(store: Store, by_creation: bool) -> None:
    authors = [await write_task(store, Author(f"t{n}")) for n in range(6)]
    query = Query(owner=ALICE, limit=2, by_creation=by_creation)
    first = await store.page(query)
    await write_task(store, Author("new"))
    await append(store, authors[5].work())
    await store.remove("t4", ALICE)
    assert await ids(store, replace(query, cursor=first.next_cursor)) == ["t3", "t2", "t1", "t0"]


async def test_a_listing_shows_tasks_as_they_are_now(store: Store) -> None:
    running = await write_task(store, Author("running"), TaskState.WORKING)
    await append(store, running.chunk("half an answer"))
    ended = await write_task(store, Author("ended"), TaskState.WORKING)
    await append(store, ended.complete())
    records = {record.document.body: record for record in (await store.page(ALL)).records}
    for author in (running, ended):
        record = records[encode(author.task)]
        assert record == await store.load(author.task.id, ALICE)


GARBAGE = ["x", "!", "é", "-1", "0x10", "null", "A" * 5000, " ", "99999999999999999999999", "MTIz", "\x00"]
FORGED = [[False, "", -1], [False, "", 2**63], [0, "", 1], [False, None, 1], [False, "", 1.5], [False], {}]


@pytest.mark.parametrize("cursor", [*GARBAGE, *(urlsafe_b64encode(encode(each)).decode() for each in FORGED)])
async def test_an_invented_cursor_is_an_error_that_names_the_field(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidParamsError, match="pageToken") as caught:
        await store.page(replace(ALL, cursor=cursor))
    assert [violation.field for violation in caught.value.violations] == ["pageToken"]


async def test_a_cursor_of_the_other_order_is_an_error(store: Store) -> None:
    for n in range(2):
        await write_task(store, Author(f"t{n}"))
    page = await store.page(replace(ALL, limit=1))
    with pytest.raises(InvalidParamsError):
        await store.page(replace(ALL, cursor=page.next_cursor, by_creation=True))


async def test_a_cursor_is_valid_only_for_its_owner(store: Store) -> None:
    for n in range(4):
        await write_task(store, Author(f"t{n}"))
        await write_task(store, Author(f"b{n}", owner=BOB))
    page = await store.page(replace(ALL, limit=2))
    for owner in (BOB, "", "unknown"):
        with pytest.raises(InvalidParamsError, match="pageToken"):
            await store.page(Query(owner=owner, limit=10, cursor=page.next_cursor))


@pytest.mark.parametrize("by_creation", [False, True])
async def test_a_cursor_is_opaque_and_tamper_proof(store: Store, by_creation: bool) -> None:
    query = Query(owner=ALICE, limit=1, by_creation=by_creation)
    await at_times(store, False, a=10, b=20, c=30)
    before = b64decode((await store.page(query)).next_cursor, altchars=b"-_")
    for n in range(300):
        await write_task(store, Author(f"of-bob-{n}", owner=BOB))
    await at_times(store, False, d=30)
    token = (await store.page(query)).next_cursor
    sealed = b64decode(token, altchars=b"-_")
    assert len(sealed) == len(before)
    assert b"2026" not in sealed
    alike = sum(left == right for left, right in zip(sealed, before, strict=True))
    assert alike < 5  # the positions differ only in their numbers: by chance, one byte in 256 is equal
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(InvalidParamsError, match="pageToken"):
            await store.page(replace(query, cursor=urlsafe_b64encode(changed).decode()))
    assert await ids(store, replace(query, cursor=token)) == ["c", "b", "a"]


# ---- pages in bytes --------------------------------------------------------------------------------------------------


async def large_task(store: Store, name: str, size: int, *, ended: bool) -> None:
    author = await write_task(store, Author(name), TaskState.WORKING)
    await append(store, author.chunk("x" * size))
    if ended:
        await append(store, author.complete())


@pytest.mark.parametrize("by_creation", [False, True])
@pytest.mark.parametrize("ended", [False, True])
async def test_a_page_ends_before_it_gets_too_large_and_the_next_continues_there(
    store: Store, by_creation: bool, ended: bool
) -> None:
    third = MAX_PAGE_BYTES // 3
    for name, size in (("a", third), ("b", third), ("c", 2 * MAX_PAGE_BYTES), ("d", 10), ("e", third), ("f", third)):
        await large_task(store, name, size, ended=ended)
    found = await pages(store, Query(owner=ALICE, limit=5, by_creation=by_creation))
    shown = [[record.document.task().id for record in page.records] for page in found]
    assert shown == [["f", "e", "d"], ["c"], ["b", "a"]]
    assert {page.total for page in found} == {6}


async def test_a_page_that_ends_with_the_last_task_is_the_last(store: Store) -> None:
    await large_task(store, "a", MAX_PAGE_BYTES, ended=True)
    assert [len(page.records) for page in await pages(store, ALL)] == [1]
