"""Routes for the owner of a task's webhooks: the state of deliveries, dead letters, and redelivery.

A2A does not define these operations, so they are two JSON routes outside the protocol, behind the same authentication.
Invariant: no secret is shown, and webhooks of other owners are answered like unknown ones.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from apcore_a2a.engine.webhooks.operations import Webhooks
from apcore_a2a.errors import A2AError, wire
from apcore_a2a.http.asgi import (
    A2A_JSON,
    JSON,
    HTTPError,
    error_headers,
    inbound,
    internal,
    media_type,
    read_body,
    refuse,
    respond,
    wrong_media_type,
)
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.decoding import LooseDecoder, check
from apcore_a2a.protocol.model import PushConfigRef
from apcore_a2a.storage.contract import Webhook

PATH: Final = "/webhooks"
REDELIVER_PATH: Final = "/webhooks:redeliver"
MAX_BODY: Final = 16 * 1024
_REF: Final = LooseDecoder(PushConfigRef)


class WebhooksEndpoint:
    """GET /webhooks lists the webhooks of ?taskId=, or without it the caller's webhooks that were given up.

    POST /webhooks:redeliver with {"taskId", "id"} retries a webhook that was given up. Without `id`, it retries all of
    the task.
    """

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] == "POST":
                found = await self._redeliver(scope, receive)
            else:
                found = await self._list(scope)
        except HTTPError as refused:
            await refuse(refused, v1.encode_rest_error(refused.error, refused.status), receive, send)
        except A2AError as error:
            await _refuse(error, send)
        except Exception as error:  # the outermost handler
            await _refuse(internal(error), send)
        else:
            await respond(send, 200, msgspec.json.encode({"webhooks": [to_json(webhook) for webhook in found]}))

    async def _list(self, scope: Scope) -> Sequence[Webhook]:
        request = inbound(scope)
        query = QueryParams(request.query)
        context = request.context(v1, query.get("tenant", ""))
        task_id = query.get("taskId", "")
        if task_id:
            return await self._webhooks.of_task(task_id, context)
        return await self._webhooks.failed(context)

    async def _redeliver(self, scope: Scope, receive: Receive) -> Sequence[Webhook]:
        request = inbound(scope)
        body = await read_body(request, receive, limit=MAX_BODY)
        if media_type(request) not in (JSON, A2A_JSON):
            raise wrong_media_type("Content-Type must be application/json")
        check(body)
        ref: PushConfigRef = _REF.decode(body)
        return await self._webhooks.redeliver(ref, request.context(v1, ref.tenant))


def to_json(webhook: Webhook) -> dict[str, Any]:  # Any: JSON
    """Return a webhook as JSON for its owner: its URL and the state of its deliveries, without secrets."""
    config = webhook.config
    state = "active"
    if webhook.failed:
        state = "failed"
    return {
        "taskId": config.task_id,
        "id": config.id,
        "url": config.url,
        "state": state,
        "a2aVersion": webhook.a2a_version,
        "delivered": webhook.delivered,
        "undelivered": webhook.latest - webhook.delivered,
        "attempts": webhook.attempts,
        "reason": webhook.reason,
    }


async def _refuse(error: A2AError, send: Send) -> None:
    status = wire(error).http
    await respond(send, status, v1.encode_rest_error(error, status), headers=error_headers(error))
