"""Retries, dead letters and signatures of notifications, and the effects of a webhook on its task."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from apcore_a2a.agent import ANONYMOUS, Agent
from apcore_a2a.engine.context import Timing
from apcore_a2a.engine.webhooks import delivery
from apcore_a2a.engine.webhooks.delivery import DeliveryLimits
from apcore_a2a.protocol.model import PushConfig, TaskState
from apcore_a2a.storage.contract import Webhook
from apcore_a2a.storage.sqlite.store import SQLiteStore
from apcore_a2a.testing.webhook import WebhookReceiver
from apcore_a2a.webhooks import verify_webhook
from tests.fakes import ASKS, COMPLETED, Gate, ScriptedAgent, chunk
from tests.interaction.conftest import Connect, Serve
from tests.interaction.serving import listen, serving
from tests.interaction.webhook_conditions import open_to, state_of, until, until_delivered, until_state
from tests.interaction.wire_client import WireClient
from tests.postgres_server import shared_server
from tests.requirements import requirement
from tests.storage.contract import Author, DictStore, append
from tests.timing import use_timing
from tests.webhooks.test_sender import answering


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as receiver:
        yield receiver


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DEFAULT_LIMITS", DeliveryLimits(retry_delays=(0.01, 0.02, 0.04)))


@requirement("FR-PSH-003")
async def test_a_failed_delivery_is_retried_and_its_reason_logged(
    connect: Connect, quickly: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with WebhookReceiver((500, 404, 503, 200)) as hook:
        client = await connect(ScriptedAgent({"hi": (COMPLETED,)}), **open_to())
        with caplog.at_level(logging.WARNING):
            task = await client.send("hi")
            await client.set_webhook(task.id, hook.url)
            got = [await hook.next() for _ in range(4)]
    assert len({each.body for each in got}) == 1
    assert len({each.headers["webhook-id"] for each in got}) == 1
    retries = [record for record in caplog.records if record.message == "webhook will be retried"]
    assert [record.__dict__["reason"] for record in retries] == ["HTTP 500", "HTTP 404", "HTTP 503"]
    assert {record.levelname for record in retries} == {"WARNING"}


@requirement("FR-PSH-003")
async def test_after_three_retries_the_webhook_is_given_up_and_can_be_revived(connect: Connect, quickly: None) -> None:
    async with WebhookReceiver((500, 500, 500, 500, 200)) as hook:
        client = await connect(ScriptedAgent({"hi": (chunk("x"), COMPLETED)}), **open_to())
        task = await client.send("hi", task_push_notification_config=PushConfig(url=hook.url, id="w"))
        for _ in range(4):
            await hook.next()
        dead = await until_state(client, task.id, "failed")
        assert (dead["id"], dead["attempts"], dead["reason"]) == ("w", 4, "HTTP 500")
        assert (dead["delivered"], dead["undelivered"]) == (0, 4)
        assert len(hook.received) == 4
        letters = await client.http.get("/webhooks", headers=client.headers)
        assert [letter["taskId"] for letter in letters.json()["webhooks"]] == [task.id]
        revived = await client.http.post(
            "/webhooks:redeliver", json={"taskId": task.id, "id": "w"}, headers=client.headers
        )
        assert revived.json()["webhooks"][0]["state"] == "active"
        got = await until(hook, "COMPLETED")
        assert state_of(got[0]) == "SUBMITTED"
        assert await until_delivered(client, task.id)


@requirement("NFR-REL-004", "FR-PSH-002")
async def test_a_silent_webhook_delays_neither_the_task_nor_its_stream(connect: Connect) -> None:
    with listen() as silent:  # the connection is accepted, but nothing is read
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        client = await connect(ScriptedAgent({"hi": (chunk("x"), COMPLETED)}), **open_to())
        config = PushConfig(url=url)
        async with asyncio.timeout(5):  # half of the timeout of a post
            async with client.stream("hi", task_push_notification_config=config) as stream:
                events = await stream.rest()
            task = await client.send("hi", task_push_notification_config=config)
        assert task.status.state is TaskState.COMPLETED
        assert len(events) >= 3


@requirement("NFR-REL-004")
async def test_a_failing_webhook_does_not_fail_its_task(connect: Connect, quickly: None) -> None:
    client = await connect(ScriptedAgent({"hi": (COMPLETED,)}), **open_to())
    config = PushConfig(url="http://127.0.0.1:1/closed-port")
    task = await client.send("hi", task_push_notification_config=config)
    assert (await until_state(client, task.id, "failed"))["reason"] == "no connection"
    assert (await client.get(task.id)).status.state is TaskState.COMPLETED


# ---- signatures, stores and replicas -----------------------------------------------------------------------------


async def test_notifications_are_signed_with_the_secret(serve: Serve, hook: WebhookReceiver) -> None:
    secret, older = "whsec_" + "c2VjcmV0" * 4, "whsec_" + "b2xkb2xk" * 4
    url = await serve(ScriptedAgent({"hi": (COMPLETED,)}), **open_to(webhook_secret=f"{secret} {older}"))
    async with httpx.AsyncClient(base_url=url) as http:
        client = WireClient(http, rest=False, version="1.0")
        task = await client.send("hi", task_push_notification_config=PushConfig(url=hook.url))
    got = await hook.next()
    for known in (secret, older):
        assert verify_webhook(known, got.headers, got.body) == f"{task.id}/1"


async def test_a_task_with_a_webhook_outlives_its_streams(
    serve: Serve, hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_timing(monkeypatch, Timing(disconnect_grace=0.01))
    gate, other = Gate(), Gate()
    url = await serve(ScriptedAgent({"hi": (gate, COMPLETED), "lone": (other, COMPLETED)}), **open_to())
    async with httpx.AsyncClient(base_url=url) as http:
        client = WireClient(http, rest=False, version="0.3")
        async with client.stream("hi", task_push_notification_config=PushConfig(url=hook.url)):
            await gate.reached()
        async with client.stream("lone"):
            await other.reached()
        async with asyncio.timeout(5):
            while (
                await client.list(status=TaskState.CANCELED)
            ).total_size == 0:  # the task without a webhook is canceled
                pass
        gate.open()
        assert state_of((await until(hook, "COMPLETED"))[-1]) == "COMPLETED"


async def test_metrics_count_notifications(serve: Serve, hook: WebhookReceiver, quickly: None) -> None:
    url = await serve(ScriptedAgent({"hi": (COMPLETED,)}), **open_to(metrics=True))
    async with httpx.AsyncClient(base_url=url) as http:
        client = WireClient(http, rest=False, version="1.0")
        await client.send("hi", task_push_notification_config=PushConfig(url=hook.url))
        bad = await client.send("hi", task_push_notification_config=PushConfig(url="http://127.0.0.1:1/"))
        await until(hook, "COMPLETED")
        await until_state(client, bad.id, "failed")
        figures = (await http.get("/metrics")).json()
    assert figures["webhook_notifications_sent"] == 3
    assert figures["webhook_notifications_failed"] == 4
    assert figures["webhook_notifications_retried"] == 3
    assert (figures["webhooks_given_up"], figures["webhooks_failed"]) == (1, 1)
    assert figures["webhook_notifications_waiting"] == 0


async def test_a_custom_store_with_the_minimal_contract_supports_webhooks(hook: WebhookReceiver) -> None:
    store = DictStore()
    agent: Agent = ScriptedAgent({"hi": (ASKS,), "more": (COMPLETED,)})
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(agent, task_store=store, **open_to()))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        client = WireClient(http, rest=False, version="0.3")
        task = await client.send("hi", task_push_notification_config=PushConfig(url=hook.url))
        await until(hook, "INPUT_REQUIRED")
        assert store.push[task.id].url == hook.url
        await client.send("more", task_id=task.id)
        await until(hook, "COMPLETED")


async def test_replicas_that_share_a_database_share_the_deliveries(hook: WebhookReceiver) -> None:
    store = shared_server().url()
    gate = Gate()
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(2):
            agent = ScriptedAgent({"hi": (gate, chunk("x"), COMPLETED)})
            url = await stack.enter_async_context(serving(agent, store=store, **open_to()))
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
            clients.append(WireClient(http, rest=False, version="1.0"))
        here, there = clients
        task = await here.send("hi", return_immediately=True)
        await gate.reached()
        await there.set_webhook(task.id, hook.url)
        gate.open()
        assert [state_of(each) for each in await until(hook, "COMPLETED")] == ["chunk", "COMPLETED"]
        for client in clients:
            assert await until_delivered(client, task.id)
        assert len(hook.received) == 2


async def test_events_of_a_killed_process_are_delivered_with_the_end_of_its_task(
    tmp_path: Path, hook: WebhookReceiver
) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    await store.open()
    author = Author("t", owner=ANONYMOUS)
    change = author.create()
    change.webhook = Webhook(config=PushConfig(url=hook.url, id="w", task_id="t"), a2a_version="1.0")
    await store.create(change)
    await append(store, author.work())
    await store.close()
    async with serving(ScriptedAgent(), store=f"sqlite:///{tmp_path}/tasks.db", **open_to()):
        assert [state_of(each) for each in await until(hook, "FAILED")] == ["SUBMITTED", "WORKING", "FAILED"]


async def test_a_durable_custom_store_keeps_its_webhook_across_a_restart(hook: WebhookReceiver) -> None:
    class Durable(DictStore):
        durable = True

    store = Durable()
    scripts = {"hi": (ASKS,), "more": (COMPLETED,)}
    async with serving(ScriptedAgent(scripts), task_store=store, **open_to()) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            task = await WireClient(http, rest=False, version="0.3").send(
                "hi", task_push_notification_config=PushConfig(url=hook.url)
            )
            await until(hook, "INPUT_REQUIRED")
    async with serving(ScriptedAgent(scripts), task_store=store, **open_to()) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            client = WireClient(http, rest=False, version="1.0")
            assert [config.url for config in await client.list_webhooks(task.id)] == [hook.url]
            await client.send("more", task_id=task.id)
            got = await until(hook, "COMPLETED")
            assert got[-1].json["kind"] == "task"  # it was set in 0.3
            for config in await client.list_webhooks(task.id):
                await client.delete_webhook(task.id, config.id)
    assert store.push == {}


async def test_a_redelivery_does_not_repeat_a_post_in_progress(serve: Serve) -> None:
    asked = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with answering(answer) as (port, heads):
        url = await serve(ScriptedAgent({"hi": (COMPLETED,)}), **open_to())
        async with httpx.AsyncClient(base_url=url) as http:
            client = WireClient(http, rest=False, version="1.0")
            task = await client.send("hi")
            await client.set_webhook(task.id, f"http://127.0.0.1:{port}/")
            async with asyncio.timeout(5):
                while not heads:
                    await client.get(task.id)
            await http.post("/webhooks:redeliver", json={"taskId": task.id})
            asked.set()
            assert await until_delivered(client, task.id)
    assert len(heads) == 1


@requirement("FR-PSH-003", "FR-PSH-004")
async def test_a_push_config_shows_whether_it_failed_and_why(serve: Serve, quickly: None) -> None:
    """In 0.3 beside the config, as the requirements have it. In 1.0 in `metadata`, because A2A has no field for it."""
    target = "http://127.0.0.1:1/closed-port"
    url = await serve(ScriptedAgent({"hi": (ASKS,)}), **open_to())
    async with httpx.AsyncClient(base_url=url) as http:
        client = WireClient(http, rest=False, version="0.3")
        task = await client.send("hi")

        async def rpc(method: str, version: str, **params: Any) -> dict[str, Any]:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = (await http.post("/", json=body, headers={"A2A-Version": version})).json()
            return dict(answer["result"])

        made = await rpc("tasks/pushNotificationConfig/set", "0.3", taskId=task.id, url=target)
        assert made["status"] == "active"
        await until_state(client, task.id, "failed")
        old = await rpc("tasks/pushNotificationConfig/get", "0.3", taskId=task.id)
        assert (old["status"], old["reason"]) == ("failed", "no connection")
        assert old["pushNotificationConfig"]["url"] == target
        new = await rpc("GetTaskPushNotificationConfig", "1.0", taskId=task.id, id=old["pushNotificationConfig"]["id"])
        assert new["metadata"] == {"apcore.webhook": {"status": "failed", "reason": "no connection"}}
        rest = await http.get(f"/tasks/{task.id}/pushNotificationConfigs", headers={"A2A-Version": "1.0"})
        assert rest.json()["configs"][0]["metadata"] == new["metadata"]
