"""The four A2A operations on webhooks, and the owner's operations on dead letters.

Invariant: a webhook belongs to the owner of its task. For other callers it does not exist. A URL to which the sender
would not post is rejected when the webhook is set.
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
from apcore_a2a.protocol.model import ListPushConfigs, PushConfig, PushConfigPage, PushConfigRef, PushConfigWithState
from apcore_a2a.storage.contract import Webhook, WebhookStore

STATE: Final = "apcore.webhook"
"""The key in the metadata of a push config for the state of its deliveries."""
MAX_FAILED: Final = 100  # webhooks in one list of dead letters


def check_inline(webhooks: "Webhooks | None", config: PushConfig, context: CallContext) -> Webhook:
    """Return the webhook of a message's configuration, with an id.

    Raises:
        PushNotificationNotSupportedError: The engine has no webhooks.
        InvalidParamsError: The sender would not post to this URL.
    """
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
        return _with_state(saved.config, saved)

    async def get(self, ref: PushConfigRef, context: CallContext) -> PushConfig:
        for webhook in await self.of_task(ref.task_id, context):
            if ref.id in ("", webhook.config.id):
                return _shown(webhook)
        raise TaskNotFoundError(ref.task_id)

    async def list(self, request: ListPushConfigs, context: CallContext) -> PushConfigPage:
        webhooks = await self.of_task(request.task_id, context)
        after = [webhook for webhook in webhooks if webhook.config.id > request.page_token]
        shown = after[: request.page_size or None]
        next_page = ""
        if len(shown) < len(after):
            next_page = shown[-1].config.id
        configs = tuple(map(_shown, shown))
        return PushConfigPage(configs=configs, next_page_token=next_page)

    async def delete(self, ref: PushConfigRef, context: CallContext) -> None:
        """Delete one webhook, or without an id all of a task. The version decides whether a missing one is an error."""
        removed = False
        for webhook in await self.of_task(ref.task_id, context):
            if ref.id in ("", webhook.config.id):
                removed |= await self._store.remove(ref.task_id, context.owner, webhook.config.id)
        if not removed and context.rules.deleted_push_must_exist:
            raise TaskNotFoundError(ref.task_id)

    # ---- a webhook in a message -----------------------------------------------------------------------------------

    def check(self, config: PushConfig, context: CallContext) -> Webhook:
        """Return the webhook in the form in which it is stored, with an id.

        Raises:
            InvalidParamsError: The sender would not post to this URL.
        """
        self._sender.check(config)
        return Webhook(
            config=replace(config, id=config.id or context.rules.unnamed_push or new_id()),
            a2a_version=context.rules.version,
        )

    def follow(self, live: LiveTask) -> None:
        if not live.has_webhook:
            with live.held():  # stops the timer that cancels a task without subscribers
                live.expect_webhook(None)
            self.delivery.follow(live.log)

    def attach(self, webhook: Webhook, live: LiveTask) -> None:
        """Store a new task together with a webhook."""
        live.expect_webhook(_of_task(webhook, live.task.id))
        self.delivery.follow(live.log)

    async def resume(self, live: LiveTask, webhook: Webhook | None = None) -> None:
        """Save the webhook of a message to an existing task, and let the events of the task wake the delivery."""
        if webhook is not None:
            await self._store.save(_of_task(webhook, live.task.id), live.owner)
        if not live.has_webhook and await self._store.of_task(live.task.id, live.owner):
            self.follow(live)

    # ---- the state of deliveries ----------------------------------------------------------------------------------

    async def of_task(self, task_id: str, context: CallContext) -> Sequence[Webhook]:
        """Return the webhooks of a task, with their cursors."""
        webhooks = await self._store.of_task(task_id, context.owner)
        if webhooks is None:
            raise TaskNotFoundError(task_id)
        return webhooks

    async def failed(self, context: CallContext) -> Sequence[Webhook]:
        """Return the webhooks of a caller that were given up. Their undelivered events are dead letters."""
        return await self._store.failed(context.owner, MAX_FAILED)

    async def redeliver(self, ref: PushConfigRef, context: CallContext) -> Sequence[Webhook]:
        """Retry a failed webhook of a task, or all of them, from the cursor on."""
        revived: list[Webhook] = []
        for webhook in await self.of_task(ref.task_id, context):
            if ref.id not in ("", webhook.config.id):
                continue
            saved = None
            if webhook.attempts:  # otherwise nothing has failed, and the event being posted would be posted twice
                saved = await self._store.save(webhook, context.owner)
            revived.append(saved or webhook)
        if ref.id and not revived:
            raise TaskNotFoundError(ref.task_id)
        self.delivery.wake()
        return revived


def _of_task(webhook: Webhook, task_id: str) -> Webhook:
    return replace(webhook, config=replace(webhook.config, task_id=task_id))


def _shown(webhook: Webhook) -> PushConfig:
    """Return the configuration without its credentials. They are not shown again after the webhook was set."""
    config = webhook.config
    if config.authentication is not None:
        config = replace(config, authentication=replace(config.authentication, credentials=""))
    return _with_state(config, webhook)


def _with_state(config: PushConfig, webhook: Webhook) -> PushConfig:
    """Return the configuration with the state of its deliveries."""
    state = {"status": "failed" if webhook.failed else "active"}
    if webhook.reason:
        state["reason"] = webhook.reason
    fields = {name: getattr(config, name) for name in PushConfig.__struct_fields__}
    return PushConfigWithState(**fields, metadata={STATE: state})
