"""Options and conditions for tests that receive webhook notifications."""

import asyncio
from typing import Any

from apcore_a2a.testing.webhook import Delivery, WebhookReceiver
from tests.fakes import PATIENCE
from tests.interaction.wire_client import WireClient


def open_to(**options: Any) -> dict[str, Any]:
    return {"push_notifications": True, "allow_insecure_webhooks": True} | options


def state_of(got: Delivery) -> str:
    """Return the task state in a notification, with its name in 1.0, or "chunk" for an artifact."""
    body = got.json
    if "kind" in body:  # 0.3: the task itself
        return str(body["status"]["state"]).upper().replace("-", "_")
    event = body.get("task") or body.get("statusUpdate")
    if event is None:
        return "chunk"
    return str(event["status"]["state"]).removeprefix("TASK_STATE_")


async def until(hook: WebhookReceiver, last: str) -> list[Delivery]:
    """Return all notifications up to the first with this state."""
    got = [await hook.next()]
    while state_of(got[-1]) != last:
        got.append(await hook.next())
    return got


async def until_state(client: WireClient, task_id: str, state: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.http.get("/webhooks", params={"taskId": task_id}, headers=client.headers)
            (webhook,) = answer.json()["webhooks"]
            if webhook["state"] == state:
                return dict(webhook)


async def until_delivered(client: WireClient, task_id: str) -> bool:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.http.get("/webhooks", params={"taskId": task_id}, headers=client.headers)
            (webhook,) = answer.json()["webhooks"]
            if webhook["undelivered"] == 0:
                return True
