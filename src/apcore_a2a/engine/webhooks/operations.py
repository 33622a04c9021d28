"""The four operations on webhooks, and what else an owner may ask of them.

Rule: a webhook belongs to its task. What is another's is answered like what is not there, and a URL that would never be
posted to is refused when it is set.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from apcore_a2a.engine.context import CallContext
from apcore_a2a.engine.runs import Runs
from apcore_a2a.engine.task import LiveTask
from apcore_a2a.engine.webhooks.delivery import Sender, WebhookDelivery
from apcore_a2a.errors import InvalidParamsError, PushNotificationNotSupportedError, TaskNotFoundError, Violation
from apcore_a2a.ids_and_time import new_id
from apcore_a2a.protocol.model import ListPushConfigs, PushConfig, PushConfigPage, PushConfigRef
from apcore_a2a.storage.contract import Webhook, WebhookStore

MAX_FAILED: Final = 100  # that are listed at once


def check_inline(webhooks: "Webhooks | None", config: PushConfig, context: CallContext) -> Webhook:
    """The webhook that a message brings, or why not."""
    if webhooks is None:
        raise PushNotificationNotSupportedError
    return webhooks.check(config, context)


class Webhooks:
    """The webhooks of an engine's tasks."""

    def __init__(self, store: WebhookStore, sender: Sender, delivery: WebhookDelivery, runs: Runs) -> None:
        self._store = store
        self._sender = sender
        self._runs = runs
        self.delivery = delivery

    # ---- the operations -------------------------------------------------------------------------------------------

    async def create(self, config: PushConfig, context: CallContext) -> PushConfig:
        webhook = self.check(config, context)
        if not config.task_id:
            raise InvalidParamsError("Missing required parameter: taskId", [Violation("taskId", "is required")])
        saved = await self._store.save(webhook, context.owner)
        if saved is None:
            raise TaskNotFoundError(config.task_id)
        live = self._runs.find(config.task_id, context.owner)
        if live is not None:
            self.follow(live)
        self.delivery.wake()
        return saved.config

    async def get(self, ref: PushConfigRef, context: CallContext) -> PushConfig:
        for webhook in await self.of_task(ref.task_id, context):
            if ref.id in ("", webhook.config.id):
                return _without_credentials(webhook.config)
        raise TaskNotFoundError(ref.task_id)

    async def list(self, request: ListPushConfigs, context: CallContext) -> PushConfigPage:
        webhooks = await self.of_task(request.task_id, context)
        after = [webhook for webhook in webhooks if webhook.config.id > request.page_token]
        shown = after[: request.page_size or None]
        next_page = ""
        if len(shown) < len(after):
            next_page = shown[-1].config.id
        configs = tuple(_without_credentials(webhook.config) for webhook in shown)
        return PushConfigPage(configs=configs, next_page_token=next_page)

    async def delete(self, ref: PushConfigRef, context: CallContext) -> None:
        """One, or with no id all of a task; that there is none is an error or not, by the version's rules."""
        removed = False
        for webhook in await self.of_task(ref.task_id, context):
            if ref.id in ("", webhook.config.id):
                removed |= await self._store.remove(ref.task_id, context.owner, webhook.config.id)
        if not removed and context.rules.deleted_push_must_exist:
            raise TaskNotFoundError(ref.task_id)

    # ---- inline, with a message -----------------------------------------------------------------------------------

    def check(self, config: PushConfig, context: CallContext) -> Webhook:
        """A webhook as it is stored, with an id.

        Raises:
            InvalidParamsError: nothing would ever be posted to it.
        """
        self._sender.check(config)
        return Webhook(
            config=replace(config, id=config.id or context.rules.unnamed_push or new_id()),
            a2a_version=context.rules.version,
        )

    def follow(self, live: LiveTask) -> None:
        if not live.kept.has_webhook:
            with live.held():  # which also stops the clock, should it be about to be canceled for want of streams
                live.kept.expect_webhook(None)
            self.delivery.follow(live.log)

    def attach(self, webhook: Webhook, live: LiveTask) -> None:
        """Have a new task stored with a webhook."""
        live.kept.expect_webhook(_of_task(webhook, live.task.id))
        self.delivery.follow(live.log)

    async def resume(self, live: LiveTask, webhook: Webhook | None = None) -> None:
        """A stored task is gone on with, by a message that may bring a webhook: its events wake their delivery."""
        if webhook is not None:
            await self._store.save(_of_task(webhook, live.task.id), live.owner)
        if not live.kept.has_webhook and await self._store.of_task(live.task.id, live.owner):
            self.follow(live)

    # ---- what has become of it -----------------------------------------------------------------------------------

    async def of_task(self, task_id: str, context: CallContext) -> Sequence[Webhook]:
        """Those of a task, with how far they have got."""
        webhooks = await self._store.of_task(task_id, context.owner)
        if webhooks is None:
            raise TaskNotFoundError(task_id)
        return webhooks

    async def failed(self, context: CallContext) -> Sequence[Webhook]:
        """Those of a caller that were given up: what they wait for are dead letters."""
        return await self._store.failed(context.owner, MAX_FAILED)

    async def redeliver(self, ref: PushConfigRef, context: CallContext) -> Sequence[Webhook]:
        """Try again what was given up, from where it stopped; of one webhook, or of all of a task."""
        revived: list[Webhook] = []
        for webhook in await self.of_task(ref.task_id, context):
            if ref.id not in ("", webhook.config.id):
                continue
            saved = None
            if webhook.attempts:  # else nothing has gone wrong, and what is under way would be posted twice
                saved = await self._store.save(webhook, context.owner)
            revived.append(saved or webhook)
        if ref.id and not revived:
            raise TaskNotFoundError(ref.task_id)
        self.delivery.wake()
        return revived


def _of_task(webhook: Webhook, task_id: str) -> Webhook:
    return replace(webhook, config=replace(webhook.config, task_id=task_id))


def _without_credentials(config: PushConfig) -> PushConfig:
    """They were given to be used, not to be shown: nobody has to be told what they have said."""
    if config.authentication is None:
        return config
    return replace(config, authentication=replace(config.authentication, credentials=""))
