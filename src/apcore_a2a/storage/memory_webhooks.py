"""The webhooks of tasks in memory: a `WebhookTable`, and the tasks they belong to.

Rule: whenever what is kept for a task's webhooks changes, the store counts it anew: bytes are its budget.
"""

from collections.abc import Callable, Sequence

from apcore_a2a.protocol.model import Document
from apcore_a2a.storage.owner_index import StoredTask
from apcore_a2a.storage.task_store import ALL, Backlog, Claim, Report, Webhook
from apcore_a2a.storage.webhook_table import WebhookTable


class MemoryWebhooks:
    """A `WebhookStore`. `find` gives a task of an owner, `count_kept` is told of one for which more or less is kept."""

    def __init__(
        self,
        table: WebhookTable,
        *,
        find: Callable[[str, str], StoredTask | None],
        count_kept: Callable[[StoredTask], None],
    ) -> None:
        self._table = table
        self._find = find
        self._count_kept = count_kept

    async def save(self, webhook: Webhook, owner: str) -> Webhook | None:
        stored = self._find(webhook.config.task_id, owner)
        if stored is None:
            return None
        document = stored.document().body
        saved = self._table.save(webhook, owner, document=document, state=stored.state, version=stored.version)
        self._count_kept(stored)
        return saved

    async def of_task(self, task_id: str, owner: str) -> Sequence[Webhook] | None:
        if self._find(task_id, owner) is None:
            return None
        return self._table.listed(task_id)

    async def remove(self, task_id: str, owner: str, config_id: str) -> bool:
        stored = self._find(task_id, owner)
        if stored is None or not self._table.remove(task_id, config_id):
            return False
        self._count_kept(stored)
        return True

    async def failed(self, owner: str, limit: int) -> Sequence[Webhook]:
        return self._table.failed(owner, limit)

    async def claim(self, limit: int, lease: float) -> Sequence[Claim]:
        return self._table.claim(limit, lease)

    async def settle(self, claim: Claim, report: Report) -> bool:
        stored = self._find(claim.webhook.config.task_id, claim.owner)
        if stored is None or not self._table.settle(claim, report):
            return False
        self._count_kept(stored)
        return True

    async def events(self, task_id: str, owner: str, after: int, limit: int = ALL) -> Sequence[bytes] | None:
        if self._find(task_id, owner) is None:
            return None
        return self._table.read(task_id, after, limit)

    async def task_at(self, task_id: str, owner: str, version: int) -> Document | None:
        stored = self._find(task_id, owner)
        if stored is None:
            return None
        if version == stored.version:
            return stored.document()
        return self._table.task_at(task_id, version)

    async def backlog(self) -> Backlog:
        return self._table.backlog()
