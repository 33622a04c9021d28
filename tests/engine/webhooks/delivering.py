"""A scenario for tests of WebhookDelivery: a store that can fail, a fake sender, and a manual clock."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

from apcore_a2a.engine.context import Observer
from apcore_a2a.engine.webhooks.delivery import DeliveryLimits, Notification, PostFailure, Posting, WebhookDelivery
from apcore_a2a.protocol.model import PushConfig
from apcore_a2a.storage.contract import Webhook, WebhookStore
from apcore_a2a.storage.memory import InMemoryTaskStore
from apcore_a2a.webhooks.sender import FORMATS
from tests.fakes import PATIENCE, Gate
from tests.storage.contract import ALICE, Author, Clock, append

AT_ONCE = DeliveryLimits(pace=0.0)


class FakeSender:
    """A Sender with prepared results: for each target the reasons of its posts, or a gate at which a post waits.

    A reason that begins with HTTP is that of a response.
    """

    def __init__(self, **orders: Sequence[str | Gate]) -> None:
        self.orders = {to: list(some) for to, some in orders.items()}
        self.posts: asyncio.Queue[Notification] = asyncio.Queue()
        self.busy: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def check(self, config: PushConfig) -> None: ...

    async def send(self, notification: Notification) -> PostFailure | None:
        to = host(notification)
        self.busy[to] += 1
        self.most[to] = max(self.most[to], self.busy[to])
        self.posts.put_nowait(notification)
        try:
            order = self._next_order(to)
            if isinstance(order, Gate):
                await order.wait()
                return None
            return PostFailure(order, was_answered=order.startswith("HTTP")) if order else None
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


class FaultyWebhooks:
    """A WebhookStore whose methods call a hook first, which may raise, or find nothing."""

    def __init__(self, webhooks: WebhookStore) -> None:
        self._webhooks = webhooks
        self.before: dict[str, Callable[[], Any]] = {}
        self.finds_nothing: set[str] = set()

    def __getattr__(self, name: str) -> Any:  # Any: a method of the store
        method = getattr(self._webhooks, name)

        async def call(*arguments: Any) -> Any:
            if name in self.before:
                done = self.before[name]()
                if isawaitable(done):
                    await done
            if name in self.finds_nothing:
                return None
            return await method(*arguments)

        return call


def raising(*errors: BaseException) -> Callable[[], None]:
    """Return a hook that raises these errors, one for each call, and then nothing."""
    remaining = list(errors)

    def raise_next() -> None:
        if remaining:
            raise remaining.pop(0)

    return raise_next


class DeliveryScenario:
    """A store, a manual clock, and a delivery that looks for events when the test wakes it."""

    def __init__(self, sender: FakeSender, limits: DeliveryLimits = AT_ONCE) -> None:
        self.clock = Clock()
        self.store = InMemoryTaskStore(clock=self.clock)
        self.sender = sender
        self.webhooks = FaultyWebhooks(self.store.webhooks)
        posting = Posting(sender=sender, formats=FORMATS, limits=limits)
        store: Any = self.webhooks  # its methods are found by __getattr__
        self.delivery = WebhookDelivery(store, posting, observer=Observer(), clock=self.clock)

    async def task(
        self,
        name: str,
        to: str = "good",
        *,
        version: str = "1.0",
        events: int = 1,
        wake: bool = True,
        owner: str = ALICE,
    ) -> Author:
        """Store a task with a webhook, and wake the delivery."""
        author = Author(name, owner=owner)
        change = author.create()
        config = PushConfig(url=f"https://{to}/hook", id="w", task_id=name)
        change.webhook = Webhook(config=config, a2a_version=version)
        await self.store.create(change)
        for _ in range(events - 1):
            await append(self.store, author.chunk("x"))
        if wake:
            self.delivery.wake()
        return author

    async def later(self, seconds: float) -> None:
        """Advance the clock, and let the dispatcher run."""
        self.clock.now += seconds
        self.delivery.wake()
        for _ in range(20):
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[Webhook], bool], name: str, owner: str = ALICE) -> Webhook:
        async with asyncio.timeout(PATIENCE):
            while True:
                for webhook in await self.store.webhooks.of_task(name, owner) or ():
                    if condition(webhook):
                        return webhook
                await asyncio.sleep(0)


@asynccontextmanager
async def delivering(
    limits: DeliveryLimits = AT_ONCE, **orders: Sequence[str | Gate]
) -> AsyncIterator[DeliveryScenario]:
    made = DeliveryScenario(FakeSender(**orders), limits)
    made.delivery.start()
    try:
        yield made
    finally:
        await made.delivery.drain(0)
