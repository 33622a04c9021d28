"""Push notification operations and deliveries on the wire, over both bindings and both versions."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from apcore_a2a.app.serve import build_app
from apcore_a2a.protocol.model import AuthenticationInfo, PushConfig, TaskState
from apcore_a2a.testing.webhook import WebhookReceiver
from tests.engine.fake_disk import FakeDisk
from tests.fakes import ASKS, COMPLETED, Gate, Keys, ScriptedAgent, chunk
from tests.interaction.conftest import Connect, Serve
from tests.interaction.webhook_conditions import open_to, state_of, until
from tests.interaction.wire_client import Refused, WireClient
from tests.requirements import requirement

NOT_FOUND, PUSH_NOT_SUPPORTED, INVALID_PARAMS = -32001, -32003, -32602


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as receiver:
        yield receiver


@requirement("FR-PSH-001", "FR-PSH-002")
async def test_a_webhook_gets_the_events_after_it_was_set(connect: Connect, hook: WebhookReceiver) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (gate, chunk("done", last=True), COMPLETED)}), **open_to())
    task = await client.send("hi", return_immediately=True)
    await gate.reached()
    config = await client.set_webhook(task.id, hook.url, token="t0ken")
    assert config.id
    assert (config.url, config.task_id, config.token) == (hook.url, task.id, "t0ken")
    gate.open()
    got = await until(hook, "COMPLETED")
    if client.version == "1.0":
        assert [state_of(each) for each in got] == ["chunk", "COMPLETED"]
        assert {each.headers["content-type"] for each in got} == {"application/a2a+json"}
        assert [each.headers["webhook-id"] for each in got] == [f"{task.id}/3", f"{task.id}/4"]
    else:
        assert [state_of(each) for each in got] == ["COMPLETED"]
        assert got[0].headers["content-type"] == "application/json"
        assert got[0].json["kind"] == "task"
        assert got[0].json["artifacts"][0]["parts"][0]["text"] == "done"
    assert {each.method for each in got} == {"POST"}
    assert {each.headers["x-a2a-notification-token"] for each in got} == {"t0ken"}
    assert {each.headers["a2a-notification-token"] for each in got} == {"t0ken"}
    assert "authorization" not in got[0].headers


@requirement("FR-PSH-002")
async def test_a_webhook_set_with_the_message_gets_every_state(connect: Connect, hook: WebhookReceiver) -> None:
    client = await connect(ScriptedAgent({"hi": (chunk("done", last=True), COMPLETED)}), **open_to())
    config = PushConfig(url=hook.url, authentication=AuthenticationInfo(scheme="Bearer", credentials="s3cret=="))
    task = await client.send("hi", task_push_notification_config=config)
    assert task.status.state is TaskState.COMPLETED
    got = await until(hook, "COMPLETED")
    seen = [state_of(each) for each in got]
    assert [state for state in seen if state != "chunk"] == ["SUBMITTED", "WORKING", "COMPLETED"]
    assert ("chunk" in seen) == (client.version == "1.0")
    assert {each.headers["authorization"] for each in got} == {"Bearer s3cret=="}
    (kept,) = await client.list_webhooks(task.id)
    assert (kept.url, kept.task_id) == (hook.url, task.id)


@requirement("FR-PSH-002")
async def test_a_webhook_gets_the_events_of_a_later_turn(connect: Connect, hook: WebhookReceiver) -> None:
    client = await connect(ScriptedAgent({"hi": (ASKS,), "more": (COMPLETED,)}), **open_to())
    task = await client.send("hi", task_push_notification_config=PushConfig(url=hook.url))
    assert [state_of(each) for each in await until(hook, "INPUT_REQUIRED")][-2:] == ["WORKING", "INPUT_REQUIRED"]
    await client.send("more", task_id=task.id)
    got = await until(hook, "COMPLETED")
    assert [state_of(each) for each in got] == ["WORKING", "COMPLETED"]
    assert all("message" not in each.json for each in got)


async def test_a_webhook_set_on_an_ended_task_gets_its_last_event(connect: Connect, hook: WebhookReceiver) -> None:
    client = await connect(ScriptedAgent({"hi": (COMPLETED,)}), **open_to())
    task = await client.send("hi")
    await client.set_webhook(task.id, hook.url)
    assert state_of(await hook.next()) == "COMPLETED"


@requirement("FR-PSH-004")
async def test_webhooks_are_read_listed_and_deleted(connect: Connect, hook: WebhookReceiver) -> None:
    gate = Gate()
    client = await connect(ScriptedAgent({"hi": (gate, COMPLETED)}), **open_to())
    task = await client.send("hi", return_immediately=True)
    await gate.reached()
    secret = AuthenticationInfo(scheme="Bearer", credentials="s3cret")
    await client.set_webhook(task.id, hook.url, id="first", token="t0ken", authentication=secret)
    await client.set_webhook(task.id, hook.url, id="second")
    got = await client.get_webhook(task.id, "first")
    assert (got.id, got.task_id, got.url, got.token) == ("first", task.id, hook.url, "t0ken")
    assert got.authentication is not None
    assert (got.authentication.scheme, got.authentication.credentials) == ("Bearer", "")
    assert [config.id for config in await client.list_webhooks(task.id)] == ["first", "second"]
    for name in ("first", "second"):
        await client.delete_webhook(task.id, name)
    assert await client.list_webhooks(task.id) == ()
    with pytest.raises(Refused) as refused:
        await client.get_webhook(task.id, "first")
    assert refused.value.code == NOT_FOUND
    gate.open()
    await client.get(task.id)
    if client.version == "1.0":
        await client.delete_webhook(task.id, "first")  # 1.0 §3.1.10: deleting is idempotent
    else:
        with pytest.raises(Refused) as refused:
            await client.delete_webhook(task.id, "first")
        assert refused.value.code == NOT_FOUND
    assert hook.received == []


@requirement("FR-PSH-001")
async def test_without_push_notifications_all_four_operations_are_rejected_and_the_card_says_so(
    connect: Connect,
) -> None:
    client = await connect(ScriptedAgent())
    task = await client.send("hi")
    url = "https://example.com/hook"
    for attempt in (
        client.set_webhook(task.id, url),
        client.get_webhook(task.id, "w"),
        client.list_webhooks(task.id),
        client.delete_webhook(task.id, "w"),
        client.send("hi", task_push_notification_config=PushConfig(url=url)),
    ):
        with pytest.raises(Refused) as refused:
            await attempt
        assert refused.value.code == PUSH_NOT_SUPPORTED
    card = (await client.http.get("/.well-known/agent-card.json")).json()
    assert not card["capabilities"].get("pushNotifications")
    assert (await client.http.get("/webhooks", headers=client.headers)).status_code == 404


async def test_the_card_says_that_there_are_push_notifications(serve: Serve, http: httpx.AsyncClient) -> None:
    url = await serve(ScriptedAgent(), **open_to())
    card = (await http.get(f"{url}/.well-known/agent-card.json")).json()
    assert card["capabilities"]["pushNotifications"] is True


@requirement("FR-PSH-001", "NFR-SEC-004")
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://example.com/hook", "Webhook URL must use HTTPS in production mode"),
        ("https://127.0.0.1/hook", "Webhook URL must not point to a loopback or private address in production mode"),
        ("https://localhost/hook", "Webhook URL must not point to a loopback or private address in production mode"),
        ("https://10.1.2.3/hook", "Webhook URL must not point to a loopback or private address in production mode"),
        ("not a url", "Webhook URL is not well-formed"),
        ("ftp://example.com/hook", "Webhook URL must be an absolute http or https URL"),
    ],
)
async def test_a_forbidden_webhook_url_is_rejected_before_a_task_exists(connect: Connect, url: str, text: str) -> None:
    client = await connect(ScriptedAgent(), push_notifications=True)
    task = await client.send("hi")
    with pytest.raises(Refused, match=text) as refused:
        await client.set_webhook(task.id, url)
    assert refused.value.code == INVALID_PARAMS
    with pytest.raises(Refused, match=text):
        await client.send("hi", task_push_notification_config=PushConfig(url=url))
    assert await client.list_webhooks(task.id) == ()
    if client.version == "1.0":
        assert (await client.list()).total_size == 1


@requirement("FR-PSH-001")
async def test_the_flat_push_configuration_of_the_requirements_is_accepted(serve: Serve, hook: WebhookReceiver) -> None:
    gate = Gate()
    url = await serve(ScriptedAgent({"hi": (gate, COMPLETED)}), **open_to())
    async with httpx.AsyncClient(base_url=url) as http:
        client = WireClient(http, rest=False, version="0.3")
        task = await client.send("hi", return_immediately=True)

        async def rpc(method: str, **params: Any) -> dict[str, Any]:
            body = {"jsonrpc": "2.0", "id": 1, "method": f"tasks/pushNotificationConfig/{method}", "params": params}
            return dict((await http.post("/", json=body)).json())

        made = await rpc("set", taskId=task.id, url=hook.url)
        assert made["result"]["taskId"] == task.id
        assert made["result"]["pushNotificationConfig"]["url"] == hook.url
        got = await rpc("get", taskId=task.id)
        assert got["result"] == made["result"]
        gate.open()
        assert state_of(await hook.next()) == "COMPLETED"
        assert (await rpc("delete", taskId=task.id))["result"] is None
        assert (await rpc("get", taskId=task.id))["error"]["code"] == NOT_FOUND
        assert (await rpc("delete", taskId=task.id))["error"]["code"] == NOT_FOUND


async def test_a_second_webhook_without_an_id_replaces_the_first_in_0_3_and_not_in_1_0(connect: Connect) -> None:
    client = await connect(ScriptedAgent({"hi": (ASKS,)}), **open_to())
    task = await client.send("hi")
    made = [await client.set_webhook(task.id, f"http://127.0.0.1:1/{name}") for name in ("a", "b")]
    kept = await client.list_webhooks(task.id)
    if client.version == "0.3":
        assert [config.url for config in kept] == ["http://127.0.0.1:1/b"]
        assert {config.id for config in made} == {"default"}
    else:
        assert {config.url for config in kept} == {"http://127.0.0.1:1/a", "http://127.0.0.1:1/b"}


async def test_webhooks_of_another_owner_are_answered_like_unknown_ones(
    connect: Connect, hook: WebhookReceiver
) -> None:
    client = await connect(ScriptedAgent({"hi": (ASKS,)}), auth=Keys(), **open_to())
    ada, eve = client.as_caller("ada"), client.as_caller("eve")
    task = await ada.send("hi")
    await ada.set_webhook(task.id, hook.url, id="w")
    calls = ["set_webhook", "get_webhook", "list_webhooks", "delete_webhook"]

    async def answers(task_id: str) -> list[tuple[int, int, str, str]]:
        received = []
        for name in calls:
            second = () if name == "list_webhooks" else (hook.url if name == "set_webhook" else "w",)
            with pytest.raises(Refused) as refused:
                await getattr(eve, name)(task_id, *second)
            said = refused.value
            received.append((said.code, said.status, said.message, str(said.data)))
        return received

    unknown = "00000000-0000-4000-8000-000000000000"
    foreign = [tuple(str(one).replace(task.id, unknown) for one in answer) for answer in await answers(task.id)]
    assert foreign == [tuple(map(str, answer)) for answer in await answers(unknown)]
    seen = await eve.http.get("/webhooks", params={"taskId": task.id}, headers=eve.headers)
    none = await eve.http.get("/webhooks", params={"taskId": unknown}, headers=eve.headers)
    assert (seen.status_code, seen.text.replace(task.id, unknown)) == (none.status_code, none.text)
    assert seen.status_code == 404


async def test_webhooks_are_found_by_id_and_listed_in_pages(serve: Serve, hook: WebhookReceiver) -> None:
    url = await serve(ScriptedAgent({"hi": (ASKS,)}), **open_to())
    async with httpx.AsyncClient(base_url=url, headers={"A2A-Version": "1.0"}) as http:
        client = WireClient(http, rest=True, version="1.0")
        task = await client.send("hi")
        for name in ("a", "b", "c"):
            await client.set_webhook(task.id, hook.url, id=name)
        assert (await client.get_webhook(task.id, "b")).id == "b"
        await client.delete_webhook(task.id, "b")
        path = f"/tasks/{task.id}/pushNotificationConfigs"
        first = (await http.get(path, params={"pageSize": 1})).json()
        assert [config["id"] for config in first["configs"]] == ["a"]
        rest = (await http.get(path, params={"pageSize": 5, "pageToken": first["nextPageToken"]})).json()
        assert [config["id"] for config in rest["configs"]] == ["c"]
        assert not rest.get("nextPageToken")


async def test_a_webhook_without_a_task_is_rejected(serve: Serve, http: httpx.AsyncClient) -> None:
    url = await serve(ScriptedAgent(), **open_to())
    params = {"url": "https://example.com/"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "CreateTaskPushNotificationConfig", "params": params}
    answer = (await http.post(url, json=body, headers={"A2A-Version": "1.0"})).json()
    assert (answer["error"]["code"], answer["error"]["message"]) == (-32602, "Missing required parameter: taskId")


async def test_a_later_message_may_set_a_webhook(connect: Connect, hook: WebhookReceiver) -> None:
    client = await connect(ScriptedAgent({"hi": (ASKS,), "more": (ASKS,), "last": (COMPLETED,)}), **open_to())
    task = await client.send("hi")
    await client.send("more", task_id=task.id)  # without a webhook
    await client.send("last", task_id=task.id, task_push_notification_config=PushConfig(url=hook.url))
    assert [state_of(each) for each in await until(hook, "COMPLETED")][-2:] == ["WORKING", "COMPLETED"]


async def test_a_redelivery_skips_webhooks_that_have_not_failed(serve: Serve, hook: WebhookReceiver) -> None:
    url = await serve(ScriptedAgent({"hi": (ASKS,)}), **open_to())
    async with httpx.AsyncClient(base_url=url) as http:
        client = WireClient(http, rest=False, version="1.0")
        task = await client.send("hi", task_push_notification_config=PushConfig(url=hook.url, id="w"))
        await client.set_webhook(task.id, hook.url, id="other")
        await until(hook, "INPUT_REQUIRED")
        answer = await http.post("/webhooks:redeliver", json={"taskId": task.id, "id": "w"})
        assert [webhook["id"] for webhook in answer.json()["webhooks"]] == ["w"]
        for wrong, status in (({"taskId": task.id, "id": "no"}, 404), ({"taskId": "no"}, 404), ({}, 400)):
            assert (await http.post("/webhooks:redeliver", json=wrong)).status_code == status
        assert (await http.post("/webhooks:redeliver", content=b"{}")).status_code == 415


def test_a_store_without_webhooks_is_rejected_at_start() -> None:
    with pytest.raises(TypeError, match="push_notifications needs a store that keeps webhooks, and FakeDisk does not"):
        build_app(ScriptedAgent(), task_store=FakeDisk(), push_notifications=True)
