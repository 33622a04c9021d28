"""What an agent of ours tells of its webhooks: an addition to A2A, of which other agents know nothing."""

from typing import Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from apcore_a2a.client.binding import ChosenInterface, decode_answer
from apcore_a2a.client.rest import RestExchange
from apcore_a2a.client.transport import HttpRequest, HttpResponse
from apcore_a2a.errors import UnsupportedOperationError
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.decoding import decode
from apcore_a2a.protocol.model import PushConfigRef, Value, encode
from apcore_a2a.protocol.operations import Operation

_PATH: Final = "/webhooks"


class WebhookStatus(Value, frozen=True):
    """How far a webhook has got with the events of its task."""

    task_id: str
    id: str
    url: str
    state: str
    """"active", or "failed": then its events are dead letters, until it is set again or redelivered."""
    a2a_version: str = "1.0"
    delivered: int = 0
    undelivered: int = 0
    attempts: int = 0
    reason: str = ""


class _Answer(Struct, frozen=True):
    webhooks: list[WebhookStatus]


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class WebhookExchange(Struct, frozen=True):
    request: HttpRequest
    task_id: str

    def result(self, response: HttpResponse) -> list[WebhookStatus]:
        if response.status != 200:
            if response.status in (404, 405) and b'"TASK_NOT_FOUND"' not in response.body:
                raise UnsupportedOperationError("The agent tells nothing of its webhooks: it has none, or is not ours")
            RestExchange(self.request, Operation.GET_PUSH, v1, self.task_id).result(response)
        return decode_answer(decode, response.body, _ANSWER).webhooks


def ask_status(interface: ChosenInterface, task_id: str) -> WebhookExchange:
    """Those of a task, or with no task the dead ones of the caller."""
    query: dict[str, str] = {}
    if task_id:
        query["taskId"] = task_id
    if interface.tenant:
        query["tenant"] = interface.tenant
    url = f"{interface.url.rstrip('/')}{_PATH}"
    if query:
        url += "?" + urlencode(query)
    return WebhookExchange(HttpRequest("GET", url, {"Accept": "application/json"}), task_id)


def ask_redelivery(interface: ChosenInterface, task_id: str, config_id: str) -> WebhookExchange:
    body = encode(PushConfigRef(task_id=task_id, id=config_id, tenant=interface.tenant))
    url = f"{interface.url.rstrip('/')}{_PATH}:redeliver"
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    return WebhookExchange(HttpRequest("POST", url, headers, body), task_id)
