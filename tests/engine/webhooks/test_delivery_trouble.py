"""WebhookDelivery when the store or the sender fails, limits are reached, or a claim waits for long."""

import asyncio

import pytest
from msgspec.structs import replace

from apcore_a2a.engine.event_log import EventLog
from apcore_a2a.engine.webhooks import delivery
from apcore_a2a.engine.webhooks.delivery import Notification
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.storage.contract import Claim, DeliveryReport
from tests.engine.webhooks.test_delivery import AT_ONCE, Postman, Yard, numbers, yard
from tests.fakes import Gate
from tests.storage.contract import ALICE


class Fails:
    """A method of the store that raises the given errors, and then works."""

    def __init__(self, works: object, *errors: BaseException) -> None:
        self.works, self.errors = works, list(errors)

    async def __call__(self, *arguments: object) -> object:
        if self.errors:
            raise self.errors.pop(0)
        return await self.works(*arguments)  # type: ignore[operator]  # a method of the store


async def test_polling_finds_events_without_a_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    async with yard(replace(AT_ONCE, poll=0.001)) as place:
        await place.later(0)
        monkeypatch.setattr(place.delivery, "wake", lambda: None)
        await place.task("t")
        assert (await place.postman.next()).event_id == "t/1"


async def test_following_a_closed_log_wakes_the_dispatcher() -> None:
    async with yard() as place:
        await place.later(0)
        wake = place.delivery.wake
        place.delivery.wake = lambda: None  # type: ignore[method-assign]  # as if no writer notified the delivery
        await place.task("t")
        place.delivery.wake = wake  # type: ignore[method-assign]
        log = EventLog(1)
        log.close()
        place.delivery.follow(log)
        assert (await place.postman.next()).event_id == "t/1"


async def test_the_number_of_claims_is_limited() -> None:
    gate = Gate()
    async with yard(replace(AT_ONCE, max_claimed=2), slow=[gate]) as place:
        for number in range(5):
            await place.task(f"t{number}", "slow")
        await gate.reached()
        await place.later(0)
        assert place.postman.posts.qsize() == 2
        gate.open()
        got = [await place.postman.next() for _ in range(5)]
        assert sorted(numbers(got)) == [f"t{number}/1" for number in range(5)]


@pytest.mark.parametrize("error", [RuntimeError("a custom store"), StoreUnavailableError()])
async def test_a_failed_claim_is_repeated(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    async with yard() as place:
        monkeypatch.setattr(place.store.webhooks, "claim", Fails(place.store.webhooks.claim, error))
        await place.task("t")
        await place.later(1)
        assert (await place.postman.next()).event_id == "t/1"


async def test_an_event_whose_delivery_was_not_stored_is_posted_again_after_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with yard() as place:
        away = StoreUnavailableError()
        monkeypatch.setattr(place.store.webhooks, "settle", Fails(place.store.webhooks.settle, away))
        await place.task("t")
        await place.postman.next()
        await place.later(delivery.LEASE)
        assert (await place.postman.next()).event_id == "t/1"
        await place.until(lambda webhook: webhook.delivered == 1, "t")


async def test_an_exception_of_the_sender_affects_no_other_webhook(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Postman):
        async def send(self, notification: Notification) -> str:
            if notification.config.task_id == "bad":
                raise RuntimeError("a bug")
            return await super().send(notification)

    place = Yard(Broken())
    place.delivery.start()
    await place.task("bad")
    await place.task("good")
    assert (await place.postman.next()).event_id == "good/1"
    assert "webhook failed" in caplog.messages
    await place.delivery.drain(0)


async def test_claims_that_cannot_be_released_expire_with_their_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    place = Yard(Postman(slow=[gate]))
    await place.task("t", "slow")
    place.delivery.start()
    await gate.reached()
    monkeypatch.setattr(place.store.webhooks, "of_task", Fails(place.store.webhooks.of_task, StoreUnavailableError()))
    await place.delivery.drain(0)
    assert "webhook claims not released" in caplog.messages
    assert not await place.store.webhooks.claim(1, delivery.LEASE)
    place.clock.now += delivery.LEASE
    assert await place.store.webhooks.claim(1, delivery.LEASE)


async def test_a_claim_that_cannot_be_postponed_is_due_again_after_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    one_waits = replace(AT_ONCE, max_workers=1, max_queued_per_target=1)
    async with yard(one_waits, slow=[gate]) as place:
        await place.task("posted", "slow")
        await gate.reached()
        await place.task("queued", "slow")
        await place.later(0)
        away = StoreUnavailableError()
        monkeypatch.setattr(place.store.webhooks, "settle", Fails(place.store.webhooks.settle, away))
        await place.task("put off", "slow")
        await place.later(0)
        gate.open()
        got = [await place.postman.next() for _ in range(2)]
        await place.later(0)
        assert place.postman.posts.empty()
        await place.later(delivery.LEASE)
        got.append(await place.postman.next())
        assert numbers(got) == ["posted/1", "queued/1", "put off/1"]


async def test_idle_targets_are_removed_when_there_are_too_many() -> None:
    gate = Gate()
    async with yard(replace(AT_ONCE, max_targets=2), bad=["no"], slow=[gate]) as place:
        await place.task("bad", "bad")
        await place.task("slow", "slow")
        await gate.reached()
        await place.until(lambda webhook: webhook.attempts == 1, "bad")
        for number in range(5):
            await place.task(f"t{number}", f"host{number}")
            await place.until(lambda webhook: webhook.delivered == 1, f"t{number}")
        gate.open()
        await place.until(lambda webhook: webhook.delivered == 1, "slow")


async def test_an_opening_circuit_releases_the_queued_claims() -> None:
    async with yard(replace(AT_ONCE, max_workers=1), bad=["no"] * 5 + [""]) as place:
        for number in range(8):
            await place.task(f"t{number}", "bad")
        tried = [await place.postman.next() for _ in range(5)]
        await place.later(0)
        assert place.postman.posts.empty()
        await place.later(1.0)
        rest = [await place.postman.next() for _ in range(8)]
        assert sorted(numbers(rest)) == [f"t{number}/1" for number in range(8)]
        assert set(numbers(tried)) < set(numbers(rest))


@pytest.mark.parametrize("saved_anew", [True, False])
async def test_a_claim_that_waited_long_is_renewed_or_dropped(saved_anew: bool) -> None:
    gate = Gate()
    async with yard(replace(AT_ONCE, max_workers=1), slow=[gate, ""]) as place:
        await place.task("first", "slow")
        await gate.reached()
        await place.task("second")
        await place.later(0)  # the webhook is claimed, and waits for the worker
        await place.later(delivery.FRESH)
        if saved_anew:
            (webhook,) = await place.store.webhooks.of_task("second", ALICE) or ()
            await place.store.webhooks.save(webhook, ALICE)
            await place.later(0)  # the webhook is claimed again
        gate.open()
        await place.until(lambda webhook: webhook.delivered == 1, "first")
        await place.until(lambda webhook: webhook.delivered == 1, "second")
        await place.later(0)
        assert place.postman.posts.qsize() == 2


async def test_deleted_events_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with yard() as place:
        monkeypatch.setattr(place.store.webhooks, "events", nothing)
        await place.task("t")
        await place.until(lambda webhook: webhook.delivered == 1, "t")
        assert place.postman.posts.empty()


async def test_a_deleted_task_is_skipped_in_0_3(monkeypatch: pytest.MonkeyPatch) -> None:
    async with yard() as place:
        monkeypatch.setattr(place.store.webhooks, "task_at", nothing)
        await place.task("t", version="0.3")
        await place.until(lambda webhook: webhook.delivered == 1, "t")
        assert place.postman.posts.empty()


async def nothing(*_: object) -> None:
    return None


@pytest.mark.parametrize("pauses", [(), (1.0,)])
async def test_a_webhook_removed_meanwhile_is_neither_retried_nor_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pauses: tuple[float, ...]
) -> None:
    settled: asyncio.Queue[bool] = asyncio.Queue()
    async with yard(replace(AT_ONCE, retry_delays=pauses), bad=["no"]) as place:
        settle = place.store.webhooks.settle

        async def remove_first(claim: Claim, report: DeliveryReport) -> bool:
            await place.store.webhooks.remove("t", ALICE, "w")
            settled.put_nowait(await settle(claim, report))
            return False

        monkeypatch.setattr(place.store.webhooks, "settle", remove_first)
        await place.task("t", "bad")
        assert not await settled.get()
        await place.later(10)
    assert place.postman.posts.qsize() == 1
    assert not caplog.messages


async def test_a_large_event_is_encoded_on_a_thread() -> None:
    async with yard(replace(AT_ONCE, large=10)) as place:
        author = await place.task("t")
        assert (await place.postman.next()).body == author.records[0]
        await place.task("old", version="0.3")
        assert b'"kind":"task"' in (await place.postman.next()).body
