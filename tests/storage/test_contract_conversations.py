"""The memory of a conversation: its owner, its pieces, and its end, in every store."""

import pytest

from apcore_a2a.errors import StaleWriteError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import ConversationMemory, ConversationWrite, ReportsUsage, Store
from tests.storage.contract import ALICE, BOB, STORES, TTL, Author, Clock, append, write_task

S = TaskState


def piece(tail: bytes, *, keep: int = 0, base: int | None = None) -> ConversationWrite:
    return ConversationWrite(base=base, keep=keep, tail=tail)


async def remember(store: Store, author: Author, write: ConversationWrite, *, end: bool = True) -> None:
    """Write the next event of a task together with a memory."""
    change = author.complete() if end else author.chunk("x")
    change.conversation = write
    await append(store, change)


async def test_there_is_no_memory_before_the_first_write(store: Store) -> None:
    await write_task(store, Author("t"), S.WORKING)
    assert await store.conversation(ALICE, "talk") == ConversationMemory()


async def test_a_memory_is_of_its_owner_and_context(store: Store) -> None:
    alices = await write_task(store, Author("a"), S.WORKING)
    bobs = await write_task(store, Author("b", owner=BOB), S.WORKING)
    others = await write_task(store, Author("c", context_id="other"), S.WORKING)

    await remember(store, alices, piece(b'"alice"'))
    await remember(store, bobs, piece(b'"bob"'))
    await remember(store, others, piece(b'"other"'))

    contexts = ((ALICE, "talk"), (BOB, "talk"), (ALICE, "other"), (BOB, "other"))
    found = [(await store.conversation(*each)).body for each in contexts]
    assert found == [b'"alice"', b'"bob"', b'"other"', b""]


async def test_a_memory_is_written_in_pieces(store: Store) -> None:
    author = await write_task(store, Author("t"), S.WORKING)
    body = b""
    for tail in (b'["one"]', b',"two"]', b',"three"]'):
        memory = await store.conversation(ALICE, "talk")
        keep = max(len(body) - 1, 0)
        await remember(store, author, piece(tail, keep=keep, base=memory.number), end=False)
        body = body[:keep] + tail
        assert (await store.conversation(ALICE, "talk")).body == body
    assert body == b'["one","two","three"]'
    last = (await store.conversation(ALICE, "talk")).number
    await remember(store, author, piece(b"[]", base=last))
    memory = await store.conversation(ALICE, "talk")
    assert (memory.body, memory.pieces, memory.number > last) == (b"[]", 1, True)


async def test_a_piece_that_is_based_on_an_older_memory_is_void_and_its_events_are_stored(store: Store) -> None:
    first = await write_task(store, Author("a"), S.WORKING)
    second = await write_task(store, Author("b"), S.WORKING)
    base = (await store.conversation(ALICE, "talk")).number

    await remember(store, first, piece(b'"first"', base=base))
    await remember(store, second, piece(b'"second"', base=base))

    assert (await store.conversation(ALICE, "talk")).body == b'"first"'
    record = await store.load("b", ALICE)
    assert record is not None and record.state is S.COMPLETED


async def test_a_write_without_a_base_replaces_any_memory(store: Store) -> None:
    for task_id in ("a", "b"):
        await remember(store, await write_task(store, Author(task_id), S.WORKING), piece(f'"{task_id}"'.encode()))
    assert (await store.conversation(ALICE, "talk")).body == b'"b"'


async def test_two_writes_of_one_batch_are_both_applied(store: Store) -> None:
    author = await write_task(store, Author("t"), S.WORKING)
    futures = []
    for write in (piece(b"[1]", base=0), piece(b",2]", keep=2, base=1)):
        change = author.chunk("x")
        change.conversation = write
        futures.append(store.append(change))
    for future in futures:
        if future is not None:
            await future

    assert (await store.conversation(ALICE, "talk")).body == b"[1,2]"


async def test_a_rejected_write_leaves_the_memory(store: Store) -> None:
    author = await write_task(store, Author("t"), S.WORKING)
    rival = author.rival()
    await remember(store, author, piece(b'"kept"'))
    with pytest.raises(StaleWriteError):
        await remember(store, rival, piece(b'"lost"'))
    assert (await store.conversation(ALICE, "talk")).body == b'"kept"'


@pytest.mark.parametrize("writer", ["first", "last"])
async def test_a_memory_is_removed_with_the_last_task_of_its_context(store: Store, writer: str) -> None:
    for task_id in ("first", "last"):
        author = await write_task(store, Author(task_id), S.WORKING)
        if task_id == writer:
            await remember(store, author, piece(b'"kept"'))
        else:
            await append(store, author.complete())
    bobs = await write_task(store, Author("b", owner=BOB), S.WORKING)
    await remember(store, bobs, piece(b'"bob"'))

    assert await store.remove("first", ALICE)
    is_custom = type(store).__name__ == "TaskStoreAdapter"  # it stores a memory with the task that wrote it
    kept = b"" if is_custom and writer == "first" else b'"kept"'
    assert (await store.conversation(ALICE, "talk")).body == kept
    assert await store.remove("last", ALICE)
    assert await store.conversation(ALICE, "talk") == ConversationMemory()
    assert (await store.conversation(BOB, "talk")).body == b'"bob"'


@pytest.mark.parametrize("store", [name for name, kind in STORES.items() if kind.retains], indirect=True)
async def test_a_memory_expires_with_the_last_task_of_its_context(store: Store, clock: Clock) -> None:
    await remember(store, await write_task(store, Author("t"), S.WORKING), piece(b'"kept"'))
    clock.now += TTL / 2
    late = await write_task(store, Author("late"), S.WORKING, S.COMPLETED)
    for moment, kept in ((TTL * 0.75, b'"kept"'), (TTL * 2, b"")):
        clock.now += moment
        await write_task(store, Author(f"sweeps {moment}", context_id="other"))  # removes what has expired
        await write_task(store, Author(f"again {moment}", context_id="other"))
        assert (await store.conversation(ALICE, "talk")).body == kept
    assert await store.load(late.task.id, ALICE) is None


async def test_a_memory_counts_as_stored_bytes(store: Store) -> None:
    assert isinstance(store, ReportsUsage)
    author = await write_task(store, Author("t"), S.WORKING)
    before = (await store.usage(ALICE)).bytes
    await remember(store, author, piece(b'"' + b"x" * 10_000 + b'"'))
    if type(store).__name__ != "TaskStoreAdapter":  # it does not count what the user's store holds beside the tasks
        assert 9_000 < (await store.usage(ALICE)).bytes - before < 11_000
