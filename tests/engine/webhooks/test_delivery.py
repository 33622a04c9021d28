"""WebhookDelivery: order, retries, circuits, limits and the drain."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from apcore_a2a.engine.context import Observer
from apcore_a2a.engine.webhooks import delivery
from apcore_a2a.engine.webhooks.delivery import (
    DEFAULT_LIMITS,
    DeliveryLimits,
    Notification,
    Posting,
    WebhookDelivery,
)
from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import PushConfig, TaskState
from apcore_a2a.storage.contract import Webhook
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.webhooks.formats import FORMATS
from tests.fakes import PATIENCE, Gate
from tests.requirements import requirement
from tests.storage.contract import ALICE, Author, Clock, append

AT_ONCE = DeliveryLimits(pace=0.0)


class Postman:
    """A Sender with prepared results: for each target the reasons of its posts, or a gate at which a post waits."""

    def __init__(self, **orders: Sequence[str | Gate]) -> None:
        self.orders = {to: list(some) for to, some in orders.items()}
        self.posts: asyncio.Queue[Notification] = asyncio.Queue()
        self.busy: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def check(self, config: PushConfig) -> None: ...

    async def send(self, notification: Notification) -> str:
        to = host(notification)
        self.busy[to] += 1
        self.most[to] = max(self.most[to], self.busy[to])
        self.posts.put_nowait(notification)
        try:
            order = self._next_order(to)
            if isinstance(order, Gate):
                await order.stand()
                return ""
            return order
        finally:
            self.busy[to] -= 1

    def _next_order(self, to: str) -> str | Gate:
        orders = self.orders.get(to, [""])
        if len(orders) > 1:
            return orders.pop(0)
        return orders[0]

    async def close(self) -> None: ...

    async def next(self) -> Notification:
        async with asyncio.timeout(PATIENCE):
            return await self.posts.get()


def host(notification: Notification) -> str:
    return notification.config.url.split("/")[2]


def numbers(posts: list[Notification]) -> list[str]:
    return [post.event_id for post in posts]


class Yard:
    """A store, a manual clock, and a delivery that looks for events when the test wakes it."""

    def __init__(self, postman: Postman, limits: DeliveryLimits = AT_ONCE) -> None:
        self.clock = Clock()
        self.store = InMemoryTaskStore(clock=self.clock)
        self.postman = postman
        posting = Posting(sender=postman, formats=FORMATS, limits=limits)
        self.delivery = WebhookDelivery(self.store.webhooks, posting, observer=Observer(), clock=self.clock)

    async def task(self, name: str, to: str = "good", *, version: str = "1.0", events: int = 1) -> Author:
        author = Author(name)
        change = author.create()
        config = PushConfig(url=f"https://{to}/hook", id="w", task_id=name)
        change.webhook = Webhook(config=config, a2a_version=version)
        await self.store.create(change)
        for _ in range(events - 1):
            await append(self.store, author.chunk("x"))
        self.delivery.wake()
        return author

    async def later(self, seconds: float) -> None:
        """Advance the clock, and let the dispatcher run."""
        self.clock.now += seconds
        self.delivery.wake()
        for _ in range(20):
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[Webhook], bool], name: str) -> Webhook:
        async with asyncio.timeout(PATIENCE):
            while True:
                for webhook in await self.store.webhooks.of_task(name, ALICE) or ():
                    if condition(webhook):
                        return webhook
                await asyncio.sleep(0)


@asynccontextmanager
async def yard(limits: DeliveryLimits = AT_ONCE, **orders: Sequence[str | Gate]) -> AsyncIterator[Yard]:
    made = Yard(Postman(**orders), limits)
    made.delivery.start()
    try:
        yield made
    finally:
        await made.delivery.drain(0)


@requirement("FR-PSH-003")
async def test_a_webhook_is_given_up_after_retries_in_one_two_and_four_seconds() -> None:
    async with yard(bad=["HTTP 500"]) as place:
        await place.task("t", "bad", events=2)
        await place.postman.next()
        for pause in (1.0, 2.0, 4.0):
            await place.until(lambda webhook: webhook.attempts > 0, "t")
            await place.later(pause - 0.01)
            assert place.postman.posts.empty()
            await place.later(0.01)
            assert (await place.postman.next()).event_id == "t/1"
        webhook = await place.until(lambda webhook: webhook.failed, "t")
        assert (webhook.attempts, webhook.delivered, webhook.reason) == (4, 0, "HTTP 500")
        await place.later(1_000)
        assert place.postman.posts.empty()


async def test_a_delivered_event_resets_the_attempts() -> None:
    async with yard(bad=["no", "no", "", "no", ""]) as place:
        await place.task("t", "bad", events=2)
        got = [await place.postman.next()]
        for pause in (1.0, 2.0):
            await place.until(lambda webhook: webhook.attempts > 0, "t")
            await place.later(pause)
            got.append(await place.postman.next())
        got.append(await place.postman.next())
        webhook = await place.until(lambda webhook: webhook.delivered == 1, "t")
        await place.until(lambda webhook: webhook.attempts == 1, "t")
        await place.later(1.0)
        got.append(await place.postman.next())
        webhook = await place.until(lambda webhook: webhook.delivered == 2, "t")
        assert (webhook.attempts, webhook.failed) == (0, False)
        assert numbers(got) == ["t/1", "t/1", "t/1", "t/2", "t/2"]


async def test_events_are_posted_in_order_and_one_at_a_time() -> None:
    async with yard() as place:
        await place.task("t", events=120)
        got = [await place.postman.next() for _ in range(120)]
        assert numbers(got) == [f"t/{number}" for number in range(1, 121)]
        assert place.postman.most["good"] == 1


async def test_a_webhook_that_hangs_delays_no_other() -> None:
    gate = Gate()
    async with yard(slow=[gate]) as place:
        for number in range(100):
            await place.task(f"slow{number}", "slow")
        for number in range(20):
            await place.task(f"t{number}")
        got = [await place.postman.next() for _ in range(20 + DEFAULT_LIMITS.max_workers_per_target)]
        assert Counter(host(post) for post in got) == {"good": 20, "slow": DEFAULT_LIMITS.max_workers_per_target}
        gate.open()
        rest = [await place.postman.next() for _ in range(64 - DEFAULT_LIMITS.max_workers_per_target)]
        assert {host(post) for post in rest} == {"slow"}
        assert place.postman.most["slow"] == DEFAULT_LIMITS.max_workers_per_target


async def test_the_number_of_workers_is_limited() -> None:
    gate = Gate()
    async with yard(AT_ONCE, **{f"slow{number}": [gate] for number in range(8)}) as place:
        for number in range(8 * 16):
            await place.task(f"t{number}", f"slow{number % 8}")
        for _ in range(DEFAULT_LIMITS.max_workers):
            await place.postman.next()
        await place.later(0)
        assert place.postman.posts.empty()
        gate.open()


async def test_the_circuit_of_a_failing_target_opens_and_one_trial_closes_it() -> None:
    async with yard(bad=["no"] * delivery.OPENS_AFTER + [""]) as place:
        for number in range(delivery.OPENS_AFTER):
            await place.task(f"t{number}", "bad")
            await place.postman.next()
            await place.until(lambda webhook: webhook.attempts == 1, f"t{number}")
        await place.task("late", "bad")
        await place.later(0.5)
        assert place.postman.posts.empty()
        assert (await place.until(lambda webhook: True, "late")).attempts == 0  # it was not posted
        await place.later(0.5)
        await place.postman.next()  # the trial succeeds, and the circuit closes
        await place.later(1.0)
        for _ in range(delivery.OPENS_AFTER):
            await place.postman.next()
        await place.until(lambda webhook: webhook.delivered == 1, "late")


async def test_only_one_webhook_tries_a_target_with_an_open_circuit() -> None:
    gate = Gate()
    async with yard(bad=[*["no"] * delivery.OPENS_AFTER, gate]) as place:
        for number in range(delivery.OPENS_AFTER):
            await place.task(f"t{number}", "bad")
            await place.postman.next()
            await place.until(lambda webhook: webhook.attempts == 1, f"t{number}")
        for pause in (1.0, 1.0):
            await place.later(pause)
        await gate.reached()
        assert place.postman.busy["bad"] == 1
        gate.open()
        await place.later(1.0)
        for number in range(delivery.OPENS_AFTER):
            await place.until(lambda webhook: webhook.delivered == 1, f"t{number}")


async def test_webhooks_of_a_target_that_stays_down_are_given_up_eventually() -> None:
    async with yard(bad=["no connection"]) as place:
        for number in range(50):
            await place.task(f"t{number}", "bad")
        for _ in range(400):
            await place.later(0.5)
        for number in range(50):
            webhook = await place.until(lambda webhook: webhook.failed, f"t{number}")
            assert webhook.reason == "no connection"


async def test_0_3_gets_the_task_as_it_was_at_each_status_and_nothing_for_chunks() -> None:
    async with yard() as place:
        author = await place.task("t", version="0.3")
        first = await place.postman.next()
        await append(place.store, author.work())
        await append(place.store, author.chunk("a", "b"))
        await append(place.store, author.complete())
        place.delivery.wake()
        got = [first, await place.postman.next(), await place.postman.next()]
        assert numbers(got) == ["t/1", "t/2", "t/5"]
        bodies = [json.loads(post.body) for post in got]
        assert [body["status"]["state"] for body in bodies] == ["submitted", "working", "completed"]
        assert [len(body.get("artifacts", [])) for body in bodies] == [0, 0, 1]
        assert {post.media_type for post in got} == {"application/json"}
        await place.until(lambda webhook: webhook.delivered == 5, "t")


async def test_a_removed_webhook_gets_no_further_events() -> None:
    gate = Gate()
    async with yard(slow=[gate, ""]) as place:
        await place.task("t", "slow", events=3)
        await gate.reached()
        assert await place.store.webhooks.remove("t", ALICE, "w")
        gate.open()
        await place.later(100)
        assert place.postman.posts.qsize() == 1  # the post in progress


async def test_an_unavailable_store_is_polled_again(monkeypatch: pytest.MonkeyPatch) -> None:

    async with yard() as place:
        claim = place.store.webhooks.claim
        broken = True

        async def sometimes(limit: int, lease: float) -> object:
            if broken:
                raise StoreUnavailableError
            return await claim(limit, lease)

        monkeypatch.setattr(place.store.webhooks, "claim", sometimes)
        await place.task("t")
        await place.later(1)
        assert place.postman.posts.empty()
        broken = False
        await place.later(1)
        assert (await place.postman.next()).event_id == "t/1"


async def test_a_drain_delivers_the_remaining_events() -> None:
    postman = Postman()
    place = Yard(postman)
    for number in range(100):
        author = await place.task(f"t{number}", f"host{number}", events=3)
        await append(place.store, author.work())
        await append(place.store, author.status(TaskState.COMPLETED))
    place.delivery.start()
    await place.delivery.drain(PATIENCE)
    assert postman.posts.qsize() == 500
    assert (await place.store.webhooks.backlog()).events == 0


async def test_a_drain_does_not_wait_for_a_silent_receiver() -> None:
    gate = Gate()
    place = Yard(Postman(slow=[gate]))
    await place.task("t", "slow")
    place.delivery.start()
    await gate.reached()
    async with asyncio.timeout(PATIENCE):
        await place.delivery.drain(0.01)
    assert (await place.store.webhooks.backlog()).events == 1


async def test_a_drain_releases_claims_with_their_cursors() -> None:
    gate = Gate()
    place = Yard(Postman(slow=["", gate]), replace(AT_ONCE, max_workers_per_target=1))
    await place.task("long", "slow", events=3)
    await place.task("queued", "slow")
    second = PushConfig(url="https://other/hook", id="a", task_id="long")
    await place.store.webhooks.save(Webhook(config=second, a2a_version="1.0"), ALICE)
    place.delivery.start()
    await gate.reached()
    await place.delivery.drain(0.01)
    claims = await place.store.webhooks.claim(10, delivery.LEASE)  # another replica, before the leases expire
    got = {claim.webhook.config.task_id: claim.webhook for claim in claims}
    assert {name: webhook.delivered for name, webhook in got.items()} == {"long": 1, "queued": 0}


async def test_a_drain_starts_no_further_worker() -> None:
    gate = Gate()
    place = Yard(Postman(slow=[gate]))
    for number in range(2 * DEFAULT_LIMITS.max_workers_per_target):
        await place.task(f"t{number}", "slow")
    place.delivery.start()
    await gate.reached()
    await place.later(0)
    await place.delivery.drain(0.01)
    assert place.postman.posts.qsize() == DEFAULT_LIMITS.max_workers_per_target
    assert place.postman.busy.total() == 0


async def test_a_task_with_many_events_shares_its_worker() -> None:
    async with yard(replace(AT_ONCE, max_workers_per_target=1)) as place:
        await place.task("long", events=10 * delivery.AT_A_TIME)
        await place.task("short")
        got = [await place.postman.next() for _ in range(3 * delivery.AT_A_TIME)]
        assert "short/1" in numbers(got)
        rest = [await place.postman.next() for _ in range(7 * delivery.AT_A_TIME + 1)]
        told = [post for post in numbers(got + rest) if post.startswith("long")]
        assert told == [f"long/{number}" for number in range(1, 10 * delivery.AT_A_TIME + 1)]


async def test_the_bytes_posted_at_once_are_limited() -> None:
    size = len(Author("t0").create().events[0])
    gate = Gate()
    async with yard(replace(AT_ONCE, max_bytes=2 * size + size // 2), slow=[gate]) as place:
        for number in range(6):
            await place.task(f"t{number}", "slow")
        await gate.reached()
        await place.later(0)
        assert place.postman.busy["slow"] == 2
        gate.open()
        assert len([await place.postman.next() for _ in range(6)]) == 6
        assert place.postman.most["slow"] == 2
