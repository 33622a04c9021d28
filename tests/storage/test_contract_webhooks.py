"""The contract of webhooks: cursors on the events of their tasks, claimed by one worker at a time."""

from pathlib import Path
from typing import Any

import pytest

from apcore_a2a.errors import InvalidParamsError, OverloadedError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.lifecycle import copy
from apcore_a2a.protocol.model import StatusUpdate, Task, TaskState, encode
from apcore_a2a.storage.contract import MAX_WEBHOOKS, Claim, DeliveryReport, WebhookStore
from apcore_a2a.storage.sqlite.store import SQLiteStore
from tests.storage.conftest import MakeStore
from tests.storage.contract import ALICE, BOB, STORES, TTL, Author, Clock, append, create_with_webhook, hook, write_task

TIMED = [name for name, kind in STORES.items() if kind.retains]
Store = Any  # Any: a Store with `webhooks`, as all of STORES
LEASE = 30.0


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, make_store: MakeStore) -> Store:
    return await make(make_store, request.param, 10_000)


async def make(make_store: MakeStore, name: str, capacity: int = 100) -> Store:
    store = await make_store(name, capacity)
    if not hasattr(store, "webhooks"):
        pytest.skip(f"{name} keeps no webhooks yet")
    return store


async def claim_one(store: Store) -> Claim:
    claims = await store.webhooks.claim(10, LEASE)
    assert len(claims) == 1
    claim: Claim = claims[0]
    return claim


async def deliver_all(store: Store) -> list[tuple[str, int]]:
    """Deliver every event that is due, as a worker does."""
    got: list[tuple[str, int]] = []
    for claim in await store.webhooks.claim(100, LEASE):
        webhook = claim.webhook
        task_id = webhook.config.task_id
        events = await store.webhooks.events(task_id, claim.owner, webhook.delivered)
        assert len(events) == webhook.latest - webhook.delivered
        got += [(webhook.config.id, webhook.delivered + 1 + index) for index in range(len(events))]
        assert await store.webhooks.settle(claim, DeliveryReport(delivered=webhook.latest))
    return got


def test_every_store_has_webhooks(store: Store) -> None:
    assert isinstance(store.webhooks, WebhookStore)


async def test_a_webhook_created_with_its_task_receives_every_event(store: Store) -> None:
    author = await create_with_webhook(store, Author("t"), hook())
    await append(store, author.work())
    claim = await claim_one(store)
    assert (claim.owner, claim.webhook.delivered, claim.webhook.latest) == (ALICE, 0, 2)
    assert claim.webhook.config == hook().config
    assert claim.webhook.a2a_version == "0.3"
    assert list(await store.webhooks.events("t", ALICE, 0)) == author.records
    assert list(await store.webhooks.events("t", ALICE, 1, 1)) == author.records[1:]


async def test_a_webhook_saved_later_receives_the_events_after_it(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    saved = await store.webhooks.save(hook(), ALICE)
    assert (saved.delivered, saved.latest, saved.is_waiting) == (2, 2, False)
    assert await store.webhooks.claim(10, LEASE) == []
    await append(store, author.chunk("a", "b"))
    claim = await claim_one(store)
    assert list(await store.webhooks.events("t", ALICE, claim.webhook.delivered)) == author.records[2:]


@pytest.mark.parametrize("end", [TaskState.COMPLETED, TaskState.INPUT_REQUIRED])
async def test_a_webhook_saved_when_the_task_rests_receives_the_last_event(store: Store, end: TaskState) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING, end)
    saved = await store.webhooks.save(hook(), ALICE)
    assert saved.is_waiting
    claim = await claim_one(store)
    (record,) = await store.webhooks.events("t", ALICE, claim.webhook.delivered)
    event, _ = v1.decode_record(record)
    assert isinstance(event, Task | StatusUpdate)
    assert event.status.state is end
    assert (await store.webhooks.task_at("t", ALICE, 3)).task() == author.task


async def test_task_at_returns_the_task_as_it_was_after_each_event(store: Store) -> None:
    author = await create_with_webhook(store, Author("t"), hook())
    seen: list[Task] = [copy(author.task)]
    for change in (author.work, lambda: author.chunk("a"), lambda: author.chunk("b"), author.complete):
        await append(store, change())
        seen.append(copy(author.task))
    for version, task in enumerate(seen, 1):
        assert encode((await store.webhooks.task_at("t", ALICE, version)).task()) == encode(task)
    assert await store.webhooks.task_at("t", BOB, 1) is None
    assert await store.webhooks.task_at("t", ALICE, 6) is None


async def test_task_at_works_for_a_webhook_saved_between_two_events(store: Store) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    await append(store, author.chunk("a"))
    await store.webhooks.save(hook(), ALICE)
    await append(store, author.chunk("b"))
    then = encode(copy(author.task))
    await append(store, author.complete())
    assert encode((await store.webhooks.task_at("t", ALICE, 4)).task()) == then


async def test_delivered_events_are_not_claimed_again(store: Store) -> None:
    author = await create_with_webhook(store, Author("t"), hook())
    assert await deliver_all(store) == [("w", 1)]
    assert await store.webhooks.claim(10, LEASE) == []
    await append(store, author.work())
    assert await deliver_all(store) == [("w", 2)]
    (listed,) = await store.webhooks.of_task("t", ALICE)
    assert (listed.delivered, listed.latest, listed.attempts) == (2, 2, 0)


async def test_each_webhook_of_a_task_has_its_own_cursor(store: Store) -> None:
    author = await create_with_webhook(store, Author("t"), hook(config_id="a"))
    assert await deliver_all(store) == [("a", 1)]
    await store.webhooks.save(hook(config_id="b"), ALICE)
    await append(store, author.work())
    assert sorted(await deliver_all(store)) == [("a", 2), ("b", 2)]
    assert [webhook.config.id for webhook in await store.webhooks.of_task("t", ALICE)] == ["a", "b"]


@pytest.mark.parametrize("name", TIMED)
async def test_a_claim_is_exclusive_until_its_lease_expires(name: str, make_store: MakeStore, clock: Clock) -> None:
    store = await make(make_store, name)
    await create_with_webhook(store, Author("t"), hook())
    first = await claim_one(store)
    clock.now += LEASE - 1
    assert await store.webhooks.claim(10, LEASE) == []
    clock.now += 1
    second = await claim_one(store)
    assert not await store.webhooks.settle(first, DeliveryReport(delivered=1))
    assert await store.webhooks.settle(second, DeliveryReport(delivered=1))


@pytest.mark.parametrize("name", TIMED)
async def test_a_worker_that_continues_keeps_its_claim(name: str, make_store: MakeStore, clock: Clock) -> None:
    store = await make(make_store, name)
    author = await create_with_webhook(store, Author("t"), hook())
    await append(store, author.work())
    claim = await claim_one(store)
    clock.now += LEASE - 1
    assert await store.webhooks.settle(claim, DeliveryReport(delivered=1, pause=LEASE))
    clock.now += LEASE - 1
    assert await store.webhooks.claim(10, LEASE) == []
    assert await store.webhooks.settle(claim, DeliveryReport(delivered=2))


@pytest.mark.parametrize("name", TIMED)
async def test_a_webhook_can_be_claimed_again_after_its_pause(name: str, make_store: MakeStore, clock: Clock) -> None:
    store = await make(make_store, name)
    await create_with_webhook(store, Author("t"), hook())
    await store.webhooks.settle(
        await claim_one(store), DeliveryReport(delivered=0, attempts=1, reason="HTTP 500", pause=2)
    )
    clock.now += 1.5
    assert await store.webhooks.claim(10, LEASE) == []
    clock.now += 0.5
    again = await claim_one(store)
    assert (again.webhook.delivered, again.webhook.attempts, again.webhook.reason) == (0, 1, "HTTP 500")


@pytest.mark.parametrize("name", TIMED)
async def test_the_longest_due_webhooks_are_claimed_first(name: str, make_store: MakeStore, clock: Clock) -> None:
    store = await make(make_store, name)
    for number in range(5):
        await create_with_webhook(store, Author(f"t{number}"), hook(f"t{number}"))
        clock.now += 1
    for claim in await store.webhooks.claim(2, LEASE):
        await store.webhooks.settle(claim, DeliveryReport(delivered=0, attempts=1, pause=1))
    clock.now += 2
    later = await store.webhooks.claim(10, LEASE)
    assert [claim.webhook.config.task_id for claim in later[3:]] == ["t0", "t1"]


async def test_a_failed_webhook_is_not_claimed_until_it_is_saved_again(store: Store) -> None:
    author = await create_with_webhook(store, Author("t"), hook())
    given_up = DeliveryReport(delivered=0, attempts=4, failed=True, reason="timeout")
    assert await store.webhooks.settle(await claim_one(store), given_up)
    await append(store, author.work())
    assert await store.webhooks.claim(10, LEASE) == []
    (dead,) = await store.webhooks.failed(ALICE, 10)
    assert (dead.failed, dead.attempts, dead.reason, dead.delivered, dead.latest) == (True, 4, "timeout", 0, 2)
    assert await store.webhooks.failed(BOB, 10) == []
    revived = await store.webhooks.save(hook(url="https://example.com/new"), ALICE)
    assert (revived.failed, revived.attempts, revived.reason, revived.delivered) == (False, 0, "", 0)
    assert await store.webhooks.failed(ALICE, 10) == []
    assert await deliver_all(store) == [("w", 1), ("w", 2)]


async def test_a_claim_is_void_after_its_webhook_is_saved_again_or_removed(store: Store) -> None:
    await create_with_webhook(store, Author("t"), hook())
    claim = await claim_one(store)
    await store.webhooks.save(hook(), ALICE)
    assert not await store.webhooks.settle(claim, DeliveryReport(delivered=1))
    claim = await claim_one(store)
    assert await store.webhooks.remove("t", ALICE, "w")
    assert not await store.webhooks.settle(claim, DeliveryReport(delivered=1))
    assert await store.webhooks.claim(10, LEASE) == []
    assert not await store.webhooks.remove("t", ALICE, "w")


async def test_removing_a_webhook_keeps_the_others(store: Store) -> None:
    author = await create_with_webhook(store, Author("t"), hook(config_id="a"))
    await store.webhooks.save(hook(config_id="b"), ALICE)
    assert await store.webhooks.remove("t", ALICE, "a")
    await append(store, author.work())
    assert await deliver_all(store) == [("b", 2)]


async def test_an_owner_cannot_access_webhooks_of_another_owner(store: Store) -> None:
    await create_with_webhook(store, Author("t"), hook())
    assert await store.webhooks.save(hook(config_id="theirs"), BOB) is None
    assert await store.webhooks.of_task("t", BOB) is None
    assert await store.webhooks.of_task("unknown", ALICE) is None
    assert not await store.webhooks.remove("t", BOB, "w")
    assert await store.webhooks.events("t", BOB, 0) is None
    (own,) = await store.webhooks.of_task("t", ALICE)
    assert own.config == hook().config


async def test_a_task_has_a_limited_number_of_webhooks(store: Store) -> None:
    await create_with_webhook(store, Author("t"), hook(config_id="0"))
    for number in range(1, MAX_WEBHOOKS):
        await store.webhooks.save(hook(config_id=str(number)), ALICE)
    with pytest.raises(InvalidParamsError, match="16 webhooks at most"):
        await store.webhooks.save(hook(config_id="more"), ALICE)
    assert await store.webhooks.save(hook(config_id="0"), ALICE) is not None


async def test_webhooks_are_removed_with_their_task(store: Store) -> None:
    await create_with_webhook(store, Author("t"), hook())
    assert await store.remove("t", ALICE)
    assert await store.webhooks.claim(10, LEASE) == []
    assert await store.webhooks.of_task("t", ALICE) is None
    await write_task(store, Author("t"), TaskState.WORKING)
    assert await store.webhooks.of_task("t", ALICE) == []


async def test_the_backlog_is_counted(store: Store, clock: Clock) -> None:
    author = await create_with_webhook(store, Author("t"), hook())
    await create_with_webhook(store, Author("u"), hook("u"))
    for claim in await store.webhooks.claim(10, LEASE):
        failed = claim.webhook.config.task_id == "u"
        await store.webhooks.settle(claim, DeliveryReport(delivered=0 if failed else 1, failed=failed))
    assert (await store.webhooks.backlog()).webhooks == 0
    await append(store, author.chunk("a", "b", "c"))
    clock.now += 7
    backlog = await store.webhooks.backlog()
    assert (backlog.webhooks, backlog.events, backlog.failed) == (1, 3, 1)


@pytest.mark.parametrize("name", TIMED)
async def test_the_backlog_reports_its_age(name: str, make_store: MakeStore, clock: Clock) -> None:
    store = await make(make_store, name)
    await create_with_webhook(store, Author("t"), hook())
    clock.now += 7
    assert (await store.webhooks.backlog()).oldest == 7
    await deliver_all(store)
    assert (await store.webhooks.backlog()).oldest == 0


@pytest.mark.parametrize("name", TIMED)
async def test_a_task_is_retained_while_a_webhook_waits_for_its_events(
    name: str, make_store: MakeStore, clock: Clock
) -> None:
    store = await make(make_store, name, 2)
    author = await create_with_webhook(store, Author("t"), hook())
    await append(store, author.work())
    await append(store, author.complete())
    other = await write_task(store, Author("other"), TaskState.WORKING)
    with pytest.raises(OverloadedError):
        await store.create(Author("no room").create())
    clock.now += TTL + 1
    await append(store, other.chunk("x"))
    assert await store.load("t", ALICE) is not None
    assert await deliver_all(store) == [("w", 1), ("w", 2), ("w", 3)]
    await write_task(store, Author("room"))
    assert await store.load("t", ALICE) is None


@pytest.mark.parametrize("name", TIMED)
async def test_a_failed_webhook_does_not_retain_its_task(name: str, make_store: MakeStore, clock: Clock) -> None:
    store = await make(make_store, name, 1)
    author = await create_with_webhook(store, Author("t"), hook())
    await append(store, author.work())
    await append(store, author.complete())
    await store.webhooks.settle(await claim_one(store), DeliveryReport(delivered=0, failed=True))
    await write_task(store, Author("next"))
    assert await store.load("t", ALICE) is None
    assert await store.webhooks.failed(ALICE, 10) == []


@pytest.mark.parametrize("name", TIMED)
async def test_a_new_webhook_retains_a_task_that_was_evictable(name: str, make_store: MakeStore, clock: Clock) -> None:
    store = await make(make_store, name, 1)
    await write_task(store, Author("t"), TaskState.WORKING, TaskState.COMPLETED)
    await store.webhooks.save(hook(), ALICE)
    with pytest.raises(OverloadedError):
        await store.create(Author("no room").create())
    assert await deliver_all(store) == [("w", 3)]
    await write_task(store, Author("room"))
    assert await store.load("t", ALICE) is None


async def test_sqlite_finds_undelivered_events_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    before: Store = SQLiteStore(tmp_path / "tasks.db", clock=clock, monotonic=clock)
    await before.open()
    author = await create_with_webhook(before, Author("t"), hook())
    await append(before, author.work())
    assert await before.webhooks.settle(await claim_one(before), DeliveryReport(delivered=1, attempts=2, pause=LEASE))
    await before.close()
    after: Store = SQLiteStore(tmp_path / "tasks.db", clock=clock, monotonic=lambda: 5.0)  # after a reboot
    await after.open()
    claim = await claim_one(after)
    assert (claim.webhook.delivered, claim.webhook.latest, claim.webhook.attempts) == (1, 2, 2)
    assert claim.webhook.config == hook().config
    await after.close()
