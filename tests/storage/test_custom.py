"""The adapter for a user's store: which tasks the store receives, how often, and how its failures are handled."""

import asyncio
from typing import Any

import pytest

from apcore_a2a.errors import StaleWriteError, StoreUnavailableError
from apcore_a2a.protocol.model import PushConfig, Task, TaskState, TaskStatus
from apcore_a2a.storage import custom
from apcore_a2a.storage.contract import Query, TaskListResult, Webhook, trouble_of
from apcore_a2a.storage.custom import RESERVED, TaskStoreAdapter
from tests.fakes import PATIENCE
from tests.requirements import requirement
from tests.storage.contract import ALICE, Author, Clock, DictStore, append, assert_holds, ids, timestamp, write_task


class GatedStore(DictStore):
    """A store that counts saves, blocks them while its gate is closed, and fails them while it is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.saves = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken = False

    async def save(self, task: Task) -> None:
        self.saves += 1
        await self.gate.wait()
        if self.broken:
            raise OSError("the secret reason")
        await super().save(task)


class DurableStore(DictStore):
    durable = True


@requirement("FR-STR-003")
async def test_a_store_receives_tasks_as_clients_see_them_plus_one_metadata_entry() -> None:
    tasks = DictStore()
    store = TaskStoreAdapter(tasks)
    author = Author("t")
    author.task.metadata = {"mine": 1}
    await write_task(store, author, TaskState.WORKING)
    kept = tasks.tasks["t"]
    assert (kept.id, kept.context_id, kept.status, kept.history) == (
        "t",
        "talk",
        author.task.status,
        author.task.history,
    )
    assert kept.metadata is not None
    assert kept.metadata.keys() == {"mine", RESERVED}
    record = await store.load("t", ALICE)
    assert record is not None
    assert record.document.task().metadata == {"mine": 1}


async def test_waiting_saves_are_coalesced() -> None:
    tasks = GatedStore()
    store = TaskStoreAdapter(tasks)
    author = await write_task(store, Author("t"), TaskState.WORKING)
    saves = tasks.saves
    tasks.gate.clear()
    futures = [store.append(author.chunk("first"))]
    await asyncio.sleep(0)
    futures += [store.append(author.chunk(str(n))) for n in range(50)]
    await asyncio.sleep(0)
    assert not any(future.done() for future in futures)
    tasks.gate.set()
    await asyncio.wait_for(asyncio.gather(*futures), 5)
    assert tasks.saves == saves + 2
    await assert_holds(store, author)


async def test_a_slow_save_of_one_task_delays_no_other_task() -> None:
    tasks = GatedStore()
    store = TaskStoreAdapter(tasks)
    slow, other = await write_task(store, Author("slow")), await write_task(store, Author("other"))
    opened, shut = tasks.gate, asyncio.Event()
    tasks.gate = shut
    future = store.append(slow.work())
    await asyncio.sleep(0)  # the save waits at the gate
    tasks.gate = opened
    await append(store, other.work())
    assert not future.done()
    shut.set()
    await asyncio.wait_for(future, 5)


async def test_a_save_in_progress_does_not_restore_a_removed_task() -> None:
    tasks = GatedStore()
    store = TaskStoreAdapter(tasks)
    author = await write_task(store, Author("t"), TaskState.WORKING)
    tasks.gate.clear()
    future = store.append(author.chunk("x"))
    removing = asyncio.ensure_future(store.remove("t", ALICE))
    await asyncio.sleep(0)
    tasks.gate.set()
    assert await asyncio.wait_for(removing, 5) is True
    assert future.done()
    assert tasks.tasks == {}


async def test_close_waits_for_the_saves_in_progress() -> None:
    tasks = GatedStore()
    store = TaskStoreAdapter(tasks)
    author = await write_task(store, Author("t"), TaskState.WORKING)
    tasks.gate.clear()
    future = store.append(author.chunk("last"))
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    assert not closing.done()
    tasks.gate.set()
    await asyncio.wait_for(closing, 5)
    assert future.done()
    assert tasks.tasks["t"].artifacts == author.task.artifacts


async def test_close_waits_for_a_limited_time(caplog: pytest.LogCaptureFixture) -> None:
    tasks = GatedStore()
    store = TaskStoreAdapter(tasks, close_timeout=0.01)
    author = await write_task(store, Author("t"), TaskState.WORKING)
    tasks.gate.clear()
    future = store.append(author.chunk("last"))
    async with asyncio.timeout(PATIENCE):
        await store.close()
        assert "tasks not saved: the store does not answer" in caplog.messages
        tasks.gate.set()
        await future


async def test_the_task_is_saved_as_it_was_at_the_call_even_if_it_changes_later() -> None:
    tasks = DictStore()
    store = TaskStoreAdapter(tasks)
    author = await write_task(store, Author("t"), TaskState.WORKING)
    future = store.append(author.chunk("written"))
    author.chunk("never written")
    await future
    assert len(tasks.tasks["t"].artifacts[0].parts) == 1


async def test_a_failing_store_is_unavailable_without_revealing_the_reason() -> None:
    tasks = GatedStore()
    store = TaskStoreAdapter(tasks)
    author = await write_task(store, Author("t"), TaskState.WORKING)
    rival = author.rival()
    tasks.broken = True
    for attempt in (append(store, rival.chunk("lost")), store.create(Author("t2").create())):
        with pytest.raises(StoreUnavailableError) as caught:
            await attempt
        assert "secret" not in caught.value.message
    assert trouble_of(store) == "the task store fails to save tasks"
    tasks.broken = False
    await assert_holds(store, author)
    await append(store, author.chunk("kept"))
    await assert_holds(store, author)
    assert trouble_of(store) == ""


async def test_a_store_that_failed_once_becomes_healthy_without_another_save() -> None:
    """While it is unhealthy, a load balancer sends no message, so nothing would be saved."""
    clock = Clock()
    tasks = GatedStore()
    store = TaskStoreAdapter(tasks, clock=clock)
    author = await write_task(store, Author("t"), TaskState.WORKING)
    tasks.broken = True
    with pytest.raises(StoreUnavailableError):
        await append(store, author.chunk("lost"))
    clock.now += custom.UNHEALTHY_TIME - 0.1
    assert trouble_of(store)
    clock.now += 0.1
    assert trouble_of(store) == ""


async def test_webhooks_are_found_after_a_restart_in_any_store_that_has_them() -> None:
    tasks = DictStore()
    assert not hasattr(tasks, "durable")
    before = TaskStoreAdapter(tasks)
    author = await write_task(before, Author("t"), TaskState.WORKING)
    config = PushConfig(url="https://hooks.example/", id="w", task_id="t")
    assert await before.webhooks.save(Webhook(config=config, a2a_version="1.0"), author.owner)
    (found,) = await TaskStoreAdapter(tasks).webhooks.of_task("t", author.owner) or ()
    assert found.config == config


async def test_the_key_of_a_failed_creation_can_be_used_again() -> None:
    tasks = GatedStore()
    store = TaskStoreAdapter(tasks)
    tasks.broken = True
    with pytest.raises(StoreUnavailableError):
        await store.create(Author("t1").create(), key="k")
    tasks.broken = False
    assert await store.create(Author("t2").create(), key="k") is None


async def test_only_the_last_keys_are_kept_in_memory() -> None:
    store = TaskStoreAdapter(DictStore(), max_keys=2)
    for n in range(3):
        assert await store.create(Author(f"t{n}").create(), key=f"k{n}") is None
    assert await store.create(Author("again").create(), key="k2") == "t2"
    assert await store.create(Author("again").create(), key="k1") == "t1"
    assert await store.create(Author("again").create(), key="k0") is None


async def test_a_store_that_fails_to_read_is_unavailable() -> None:
    class Unreadable(DictStore):
        async def get(self, task_id: str) -> Task | None:
            raise ConnectionError

        async def list(self, context_id: str | None, cursor: str | None, limit: int) -> TaskListResult:
            raise ConnectionError

    store = TaskStoreAdapter(Unreadable())
    for attempt in (store.check(), store.load("t", ALICE), store.page(Query(owner=ALICE, limit=1))):
        with pytest.raises(StoreUnavailableError):
            await attempt


@pytest.mark.parametrize("metadata", [None, {}, {RESERVED: "mine"}, {RESERVED: {"owner": ALICE}}])
async def test_a_task_that_the_engine_did_not_save_has_no_owner(metadata: dict[str, object] | None) -> None:
    tasks = DictStore()
    store = TaskStoreAdapter(tasks)
    status = TaskStatus(state=TaskState.WORKING, timestamp=timestamp())
    await tasks.save(Task(id="t", context_id="talk", status=status, metadata=metadata))
    assert await store.load("t", ALICE) is None
    assert await ids(store, Query(owner=ALICE, limit=10)) == []
    assert await store.remove("t", ALICE) is False


async def test_listings_read_every_page_of_the_store() -> None:
    tasks = DictStore()
    store = TaskStoreAdapter(tasks)
    for n in range(450):
        await write_task(store, Author(f"t{n}"))
    assert len(await ids(store, Query(owner=ALICE, limit=100))) == 450


async def test_a_repeated_cursor_ends_the_listing() -> None:
    class Stuck(DictStore):
        async def list(self, context_id: str | None, cursor: str | None, limit: int) -> TaskListResult:
            return TaskListResult([], "again")

    page = await TaskStoreAdapter(Stuck()).page(Query(owner=ALICE, limit=1))
    assert (page.total, page.next_cursor) == (0, "")


# ---- after a restart -------------------------------------------------------------------------------------------------


def test_a_store_is_durable_if_its_attribute_is_true() -> None:
    assert TaskStoreAdapter(DurableStore()).durable is True
    assert TaskStoreAdapter(DictStore()).durable is False


async def test_a_durable_store_returns_its_running_tasks_as_orphans() -> None:
    tasks = DurableStore()
    before = TaskStoreAdapter(tasks)
    author = Author("running")
    await before.create(author.create(), key="k")
    await append(before, author.work())
    await write_task(before, Author("ended"), TaskState.WORKING, TaskState.COMPLETED)
    await write_task(before, Author("waiting"), TaskState.WORKING, TaskState.INPUT_REQUIRED)
    await before.close()

    after = TaskStoreAdapter(tasks)
    [orphan] = await after.orphans()
    assert (orphan.document.task().id, orphan.epoch, orphan.run) == ("running", 2, author.run)
    assert await after.create(Author("again").create(), key="k") == "running"
    with pytest.raises(StaleWriteError):
        await append(after, author.rival().chunk("from beyond"))
    author.epoch = 2
    await append(after, author.complete())
    await assert_holds(after, author)


async def test_a_store_that_is_not_durable_has_no_orphans() -> None:
    store = TaskStoreAdapter(DictStore())
    await write_task(store, Author("t"), TaskState.WORKING)
    assert await store.orphans() == []


class WrongAnswers(DictStore):
    async def get(self, task_id: str) -> Any:
        return {"id": task_id}


class NoCoroutines(DictStore):
    def get(self, task_id: str) -> Any:
        raise OSError("the secret reason")


@pytest.mark.parametrize("tasks", [WrongAnswers(), NoCoroutines()], ids=["no task", "no coroutine"])
async def test_invalid_results_of_a_store_are_errors_and_never_block(tasks: DictStore) -> None:
    store = TaskStoreAdapter(tasks)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StoreUnavailableError):
            await write_task(store, Author("t"), TaskState.WORKING)
        with pytest.raises(StoreUnavailableError):
            await store.load("t", ALICE)
        await store.close()
