"""The webhooks of a `TaskStore` of yours: it keeps the first of each task, for that is all it has room for.

Rule: a webhook is added between two saves of its task, so that it misses no event and gets none twice.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from apcore_a2a.errors import A2AError
from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Document, PushConfig, encode
from apcore_a2a.storage.saved_task import SavedTask, ask, unpack
from apcore_a2a.storage.task_store import ALL, Backlog, Claim, Report, SavedPushConfig, TaskStore, Webhook
from apcore_a2a.storage.webhook_table import WebhookTable

MAX_SETTLED: Final = 10_000  # tasks whose webhooks have got everything, and are still remembered


class PendingWebhook(Struct):
    """A webhook that waits for the saves before it: it gets what comes after them."""

    webhook: Webhook
    owner: str
    future: "asyncio.Future[Webhook | None]"


class SimpleWebhooks:
    """A `WebhookStore`. `enqueue` has a webhook handed to `add` when the saves that wait are made."""

    def __init__(
        self,
        tasks: TaskStore,
        table: WebhookTable,
        *,
        durable: bool,
        enqueue: Callable[[str, PendingWebhook], None],
    ) -> None:
        self._tasks = tasks
        self._table = table
        self._durable = durable
        self._enqueue = enqueue

    async def save(self, webhook: Webhook, owner: str) -> Webhook | None:
        pending = PendingWebhook(webhook, owner, asyncio.get_running_loop().create_future())
        self._enqueue(webhook.config.task_id, pending)
        if len(self._table.tasks) >= MAX_SETTLED:
            self._table.drop_settled()
        saved = await pending.future
        if saved is not None:
            await self.keep_first(webhook.config.task_id)
        return saved

    def add(self, pending: PendingWebhook, saved: SavedTask | None) -> None:
        """To the task as it was last saved: what is saved next is for the webhook."""
        if pending.future.done():
            return
        if saved is None or saved.bookkeeping.owner != pending.owner:
            pending.future.set_result(None)
            return
        try:
            added = self._table.save(
                pending.webhook,
                pending.owner,
                document=encode(saved.task),
                state=saved.state,
                version=saved.bookkeeping.version,
            )
        except A2AError as error:
            pending.future.set_exception(error)
        else:
            pending.future.set_result(added)

    async def keep_first(self, task_id: str) -> None:
        for webhook in self._table.listed(task_id)[:1]:
            fields = {name: getattr(webhook.config, name) for name in PushConfig.__struct_fields__}
            saved = SavedPushConfig(**fields, a2a_version=webhook.a2a_version)
            await ask(self._tasks.save_push_config, task_id, saved)

    async def adopt(self, saved: SavedTask) -> None:
        """Take up what an earlier process has kept: the events that come now are for it."""
        task_id = saved.task.id
        found = await ask(self._tasks.get_push_config, task_id)
        if found is None or task_id in self._table.tasks:
            return
        config = PushConfig(**{name: getattr(found, name) for name in PushConfig.__struct_fields__})
        webhook = Webhook(config=config, a2a_version=getattr(found, "a2a_version", "1.0"))
        self.add(PendingWebhook(webhook, saved.bookkeeping.owner, asyncio.get_running_loop().create_future()), saved)

    async def of_task(self, task_id: str, owner: str) -> Sequence[Webhook] | None:
        saved = unpack(await ask(self._tasks.get, task_id))
        if saved is None or saved.bookkeeping.owner != owner:
            return None
        if self._durable and saved.state not in TERMINAL:
            await self.adopt(saved)
        return self._table.listed(task_id)

    async def remove(self, task_id: str, owner: str, config_id: str) -> bool:
        if await self.of_task(task_id, owner) is None or not self._table.remove(task_id, config_id):
            return False
        await ask(self._tasks.delete_push_config, task_id)
        await self.keep_first(task_id)
        return True

    async def failed(self, owner: str, limit: int) -> Sequence[Webhook]:
        return self._table.failed(owner, limit)

    async def claim(self, limit: int, lease: float) -> Sequence[Claim]:
        return self._table.claim(limit, lease)

    async def settle(self, claim: Claim, report: Report) -> bool:
        return self._table.settle(claim, report)

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL) -> Sequence[bytes] | None:
        kept = self._table.tasks.get(task_id)
        if kept is None or kept.owner != owner:
            return None
        return kept.read(after, limit)

    async def task_at(self, task_id: str, owner: str, version: int) -> Document | None:
        kept = self._table.tasks.get(task_id)
        if kept is None or kept.owner != owner:
            return None
        return kept.task_at(version)

    async def backlog(self) -> Backlog:
        return self._table.backlog()
