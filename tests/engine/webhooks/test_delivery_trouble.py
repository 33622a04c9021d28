"""WebhookDelivery when the store or the sender fails, limits are reached, or a claim waits for long."""

import asyncio

import pytest
from msgspec.structs import replace

from apcore_a2a.engine.event_log import EventLog
from apcore_a2a.engine.webhooks import delivery
from apcore_a2a.engine.webhooks.delivery import Notification, PostFailure
from apcore_a2a.errors import StoreUnavailableError
from tests.engine.webhooks.delivering import AT_ONCE, DeliveryScenario, FakeSender, delivering, numbers, raising
from tests.fakes import PATIENCE, Gate
from tests.storage.contract import ALICE


async def test_polling_finds_events_without_a_notification() -> None:
    async with delivering(replace(AT_ONCE, poll=0.001)) as scenario:
        await scenario.later(0)
        await scenario.task("t", wake=False)
        assert (await scenario.sender.next()).event_id == "t/1"


async def test_following_a_closed_log_wakes_the_dispatcher() -> None:
    async with delivering(replace(AT_ONCE, poll=PATIENCE)) as scenario:
        await scenario.later(0)
        await scenario.task("t", wake=False)
        log = EventLog(1)
        log.close()
        scenario.delivery.follow(log)
        assert (await scenario.sender.next()).event_id == "t/1"


async def test_the_number_of_claims_is_limited() -> None:
    gate = Gate()
    async with delivering(replace(AT_ONCE, max_claimed=2), slow=[gate]) as scenario:
        for number in range(5):
            await scenario.task(f"t{number}", "slow")
        await gate.reached()
        await scenario.later(0)
        assert scenario.sender.posts.qsize() == 2
        gate.open()
        got = [await scenario.sender.next() for _ in range(5)]
        assert sorted(numbers(got)) == [f"t{number}/1" for number in range(5)]


@pytest.mark.parametrize("error", [RuntimeError("a custom store"), StoreUnavailableError()])
async def test_a_failed_claim_is_repeated(error: BaseException) -> None:
    async with delivering() as scenario:
        scenario.webhooks.before["claim"] = raising(error)
        await scenario.task("t")
        await scenario.later(1)
        assert (await scenario.sender.next()).event_id == "t/1"


async def test_an_event_whose_delivery_was_not_stored_is_posted_again_after_the_lease() -> None:
    async with delivering() as scenario:
        scenario.webhooks.before["settle"] = raising(StoreUnavailableError())
        await scenario.task("t")
        await scenario.sender.next()
        await scenario.later(delivery.LEASE)
        assert (await scenario.sender.next()).event_id == "t/1"
        await scenario.until(lambda webhook: webhook.delivered == 1, "t")


async def test_an_exception_of_the_sender_affects_no_other_webhook(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeSender):
        async def send(self, notification: Notification) -> PostFailure | None:
            if notification.config.task_id == "bad":
                raise RuntimeError("a bug")
            return await super().send(notification)

    scenario = DeliveryScenario(Broken())
    scenario.delivery.start()
    await scenario.task("bad")
    await scenario.task("good")
    assert (await scenario.sender.next()).event_id == "good/1"
    assert "webhook failed" in caplog.messages
    await scenario.delivery.drain(0)


async def test_claims_that_cannot_be_released_expire_with_their_lease(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    scenario = DeliveryScenario(FakeSender(slow=[gate]))
    await scenario.task("t", "slow")
    scenario.delivery.start()
    await gate.reached()
    scenario.webhooks.before["of_task"] = raising(StoreUnavailableError())
    await scenario.delivery.drain(0)
    assert "webhook claims not released" in caplog.messages
    assert not await scenario.store.webhooks.claim(1, delivery.LEASE)
    scenario.clock.now += delivery.LEASE
    assert await scenario.store.webhooks.claim(1, delivery.LEASE)


async def test_a_claim_that_cannot_be_postponed_is_due_again_after_its_lease() -> None:
    gate = Gate()
    one_waits = replace(AT_ONCE, max_workers=1, max_queued_per_target=1)
    async with delivering(one_waits, slow=[gate]) as scenario:
        await scenario.task("posted", "slow")
        await gate.reached()
        await scenario.task("queued", "slow")
        await scenario.later(0)
        scenario.webhooks.before["settle"] = raising(StoreUnavailableError())
        await scenario.task("put off", "slow")
        await scenario.later(0)
        gate.open()
        got = [await scenario.sender.next() for _ in range(2)]
        await scenario.later(0)
        assert scenario.sender.posts.empty()
        await scenario.later(delivery.LEASE)
        got.append(await scenario.sender.next())
        assert numbers(got) == ["posted/1", "queued/1", "put off/1"]


async def test_idle_targets_are_removed_when_there_are_too_many() -> None:
    gate = Gate()
    async with delivering(replace(AT_ONCE, max_targets=2), bad=["no"], slow=[gate]) as scenario:
        await scenario.task("bad", "bad")
        await scenario.task("slow", "slow")
        await gate.reached()
        await scenario.until(lambda webhook: webhook.attempts == 1, "bad")
        for number in range(5):
            await scenario.task(f"t{number}", f"host{number}")
            await scenario.until(lambda webhook: webhook.delivered == 1, f"t{number}")
        gate.open()
        await scenario.until(lambda webhook: webhook.delivered == 1, "slow")


async def test_an_opening_circuit_releases_the_queued_claims() -> None:
    async with delivering(replace(AT_ONCE, max_workers=1), bad=["no"] * 5 + [""]) as scenario:
        for number in range(8):
            await scenario.task(f"t{number}", "bad")
        tried = [await scenario.sender.next() for _ in range(5)]
        await scenario.later(0)
        assert scenario.sender.posts.empty()
        await scenario.later(1.0)
        rest = [await scenario.sender.next() for _ in range(8)]
        assert sorted(numbers(rest)) == [f"t{number}/1" for number in range(8)]
        assert set(numbers(tried)) < set(numbers(rest))


@pytest.mark.parametrize("saved_again", [True, False])
async def test_a_claim_that_waited_long_is_renewed_or_dropped(saved_again: bool) -> None:
    gate = Gate()
    async with delivering(replace(AT_ONCE, max_workers=1), slow=[gate, ""]) as scenario:
        await scenario.task("first", "slow")
        await gate.reached()
        await scenario.task("second")
        await scenario.later(0)  # the webhook is claimed, and waits for the worker
        await scenario.later(delivery.RENEW_AFTER)
        if saved_again:
            (webhook,) = await scenario.store.webhooks.of_task("second", ALICE) or ()
            await scenario.store.webhooks.save(webhook, ALICE)
            await scenario.later(0)  # the webhook is claimed again
        gate.open()
        await scenario.until(lambda webhook: webhook.delivered == 1, "first")
        await scenario.until(lambda webhook: webhook.delivered == 1, "second")
        await scenario.later(0)
        assert scenario.sender.posts.qsize() == 2


async def test_deleted_events_are_skipped() -> None:
    async with delivering() as scenario:
        scenario.webhooks.finds_nothing.add("events")
        await scenario.task("t")
        await scenario.until(lambda webhook: webhook.delivered == 1, "t")
        assert scenario.sender.posts.empty()


async def test_a_deleted_task_is_skipped_in_0_3() -> None:
    async with delivering() as scenario:
        scenario.webhooks.finds_nothing.add("task_at")
        await scenario.task("t", version="0.3")
        await scenario.until(lambda webhook: webhook.delivered == 1, "t")
        assert scenario.sender.posts.empty()


@pytest.mark.parametrize("pauses", [(), (1.0,)])
async def test_a_webhook_removed_meanwhile_is_neither_retried_nor_given_up(
    caplog: pytest.LogCaptureFixture, pauses: tuple[float, ...]
) -> None:
    removed = asyncio.Event()
    async with delivering(replace(AT_ONCE, retry_delays=pauses), bad=["no"]) as scenario:

        async def remove() -> None:
            assert await scenario.store.webhooks.remove("t", ALICE, "w")
            removed.set()

        scenario.webhooks.before["settle"] = remove
        await scenario.task("t", "bad")
        async with asyncio.timeout(PATIENCE):
            await removed.wait()
        await scenario.later(10)
    assert scenario.sender.posts.qsize() == 1
    assert not caplog.messages


async def test_a_large_event_is_encoded_on_a_thread() -> None:
    async with delivering(replace(AT_ONCE, large=10)) as scenario:
        author = await scenario.task("t")
        assert (await scenario.sender.next()).body == author.records[0]
        await scenario.task("old", version="0.3")
        assert b'"kind":"task"' in (await scenario.sender.next()).body
