"""A receiver of webhooks for development: what the agent posts here, the Explorer shows.

It is there only with the Explorer, webhooks, and `allow_insecure_webhooks`, which says that this is development. It
stands behind the same door as the agent: with authentication, the page gives its own token to the webhook, and whoever
posts is the caller whose inbox it is.

Rule: in memory, bounded in bytes and counts; the oldest goes first.
"""

import time
from collections import OrderedDict, deque
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from apcore_a2a.errors import A2AError
from apcore_a2a.http.asgi import HTTPError, inbound, read_body, refuse, respond
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import encode

MAX_OWNERS: Final = 100
MAX_DELIVERIES: Final = 100  # for each of them
MAX_BODY: Final = 64 * 1024
# What a sender proves itself with is not shown, not even to whom it belongs: pages end up on screens.
SHOWN_HEADERS: Final = (b"content-type", b"webhook-id", b"webhook-timestamp", b"user-agent")
PROOFS: Final = (b"authorization", b"x-a2a-notification-token", b"webhook-signature")


class Inbox:
    """POST takes a notification, GET shows those of the caller, the newest first, DELETE forgets them."""

    def __init__(self) -> None:
        self._deliveries: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()  # Any: JSON, by owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = inbound(scope).caller.owner
        try:
            match scope["method"]:
                case "POST":
                    await self._take(owner, scope, receive)
                case "DELETE":
                    self._deliveries.pop(owner, None)
        except HTTPError as refused:
            await refuse(refused, v1.encode_rest_error(refused.error, refused.status), receive, send)
        except A2AError as error:
            await respond(send, 400, v1.encode_rest_error(error, 400))
        else:
            shown = list(self._deliveries.get(owner, ()))
            await respond(send, 200, encode({"deliveries": shown}))

    async def _take(self, owner: str, scope: Scope, receive: Receive) -> None:
        request = inbound(scope)
        body = await read_body(request, receive, limit=MAX_BODY)
        headers = {name.decode(): request.text(name) for name in SHOWN_HEADERS if name in request.headers}
        proofs = [name.decode() for name in PROOFS if name in request.headers]
        if owner not in self._deliveries:
            self._deliveries[owner] = deque(maxlen=MAX_DELIVERIES)
        self._deliveries.move_to_end(owner)
        while len(self._deliveries) > MAX_OWNERS:
            self._deliveries.popitem(last=False)
        text = body.decode("utf-8", "replace")
        self._deliveries[owner].appendleft({"at": time.time(), "headers": headers, "proofs": proofs, "body": text})
