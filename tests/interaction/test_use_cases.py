"""The use cases of the requirements, step by step as clients of 0.3 see them. UC-006 is in tests/auth/test_oidc.py."""

import json
from typing import Any

import httpx
import pytest

from apcore_a2a import A2AClient, A2AConnectionError, A2ADiscoveryError
from apcore_a2a.protocol.model import Task
from apcore_a2a.testing.webhook import WebhookReceiver
from tests.agents.apcore.running import Add, Counts, Raises, registry_of
from tests.client.scripted import CARD, OLD_CARD, ScriptedServer
from tests.fakes import COMPLETED, Gate, Keys, ScriptedAgent, chunk
from tests.interaction.conftest import Serve
from tests.modules import Pay
from tests.requirements import requirement


class Caller:
    """Sends the requests of the use cases."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.http = http
        self.url = f"{url}/"

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
        answer: dict[str, Any] = (await self.http.post(self.url, json=body)).json()
        return answer

    async def send(
        self, part: dict[str, Any], skill: str = "", *, extra: dict[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        message = {"role": "user", "parts": [part], **more}
        metadata = dict(extra or {})
        if skill:
            metadata["skillId"] = skill
        return await self.call("message/send", {"message": message, "metadata": metadata})


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def data(**values: Any) -> dict[str, Any]:
    return {"type": "data", "data": values}


@requirement("UC-001")
async def test_uc_001_a_message_is_sent_and_its_task_completed(serve: Serve, http: httpx.AsyncClient) -> None:
    caller = Caller(http, await serve(registry_of(math__add=Add(), a__fails=Raises(ValueError("secret"))), card=None))

    task = (await caller.send(data(a=1, b=2), "math.add"))["result"]

    assert (task["status"]["state"], task["artifacts"][0]["parts"][0]["data"]) == ("completed", {"total": 3})
    assert task["contextId"]
    stored = (await caller.call("tasks/get", {"id": task["id"]}))["result"]
    assert stored["status"] == task["status"]
    unknown = (await caller.send(data(a=1, b=2), "math.sub"))["error"]
    assert (unknown["code"], unknown["message"]) == (-32601, "Skill not found: math.sub")
    invalid = (await caller.send(data(a="x"), "math.add"))["error"]
    assert (invalid["code"], {error["field"] for error in invalid["data"]["errors"]}) == (-32602, {"a", "b"})
    unnamed = (await caller.send(data(a=1, b=2)))["error"]
    assert unnamed["code"] == -32602
    assert unnamed["message"].startswith("Missing required parameter: metadata.skillId")
    failed = (await caller.send(text("go"), "a.fails"))["result"]
    assert failed["status"]["state"] == "failed"
    assert "secret" not in json.dumps(failed)


@requirement("UC-002")
async def test_uc_002_a_stream_has_every_event_with_its_number(serve: Serve, http: httpx.AsyncClient) -> None:
    caller = Caller(http, await serve(registry_of(a__counts=Counts({"n": 1}, {"n": 2})), card=None))
    message = {"role": "user", "parts": [data()]}
    body = {"jsonrpc": "2.0", "id": "1", "method": "message/stream", "params": {"message": message}}

    async with caller.http.stream("POST", caller.url, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines()]

    numbers = [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]
    events = [json.loads(line.removeprefix("data: "))["result"] for line in lines if line.startswith("data: ")]
    assert numbers == list(range(1, len(events) + 1))
    assert events[0]["status"]["state"] == "submitted"
    kinds = [event["kind"] for event in events]
    assert kinds.count("artifact-update") >= 2
    assert (kinds[-1], events[-1]["status"]["state"], events[-1]["final"]) == ("status-update", "completed", True)


@requirement("UC-003")
async def test_uc_003_an_approval_is_given_in_the_same_context(serve: Serve, http: httpx.AsyncClient) -> None:
    caller = Caller(http, await serve(registry_of(bank__pay=Pay()), card=None))

    waiting = (await caller.send(data(a=1, b=2), "bank.pay"))["result"]
    assert waiting["status"]["state"] == "input-required"
    approved = data(approved=True)
    context = waiting["contextId"]
    done = (await caller.send(approved, "bank.pay", contextId=context, taskId=waiting["id"]))["result"]

    assert (done["id"], done["status"]["state"]) == (waiting["id"], "completed")
    listed = (await caller.call("tasks/list", {"contextId": context}))["result"]
    tasks = listed["tasks"] if isinstance(listed, dict) else listed
    assert [task["id"] for task in tasks] == [waiting["id"]]
    elsewhere = (await caller.send(data(a=1, b=2), "bank.pay", contextId="another"))["result"]
    assert elsewhere["id"] != waiting["id"]
    canceled = (await caller.call("tasks/cancel", {"id": elsewhere["id"]}))["result"]
    assert canceled["status"]["state"] == "canceled"


@requirement("UC-004")
async def test_uc_004_a_client_discovers_an_agent_and_calls_it(serve: Serve) -> None:
    script = (chunk("done"), COMPLETED)
    async with A2AClient(await serve(ScriptedAgent({"hi": script}))) as client:
        card = await client.agent_card
        assert [skill.id for skill in card.skills] == ["play"]
        assert await client.agent_card is card
        task = await client.send_message("hi")
        assert isinstance(task, Task)
        assert (str(task.status.state), task.text) == ("completed", "done")
        assert [event async for event in client.stream_message("hi")]
        assert (await client.get_task(task.id)).id == task.id


@requirement("UC-004")
async def test_uc_004_an_agent_that_is_not_there_or_has_no_card_is_an_error() -> None:
    async with ScriptedServer() as server:
        server.on(CARD, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{[}").on(OLD_CARD, b"")
        async with A2AClient(server.url) as client:
            with pytest.raises(A2ADiscoveryError):
                await client.agent_card
        port = server.port
    async with A2AClient(f"http://127.0.0.1:{port}", timeout=2.0) as client:
        with pytest.raises(A2AConnectionError):
            await client.send_message("hi")


@requirement("UC-005")
async def test_uc_005_a_webhook_receives_each_change_of_the_state(serve: Serve, http: httpx.AsyncClient) -> None:
    gate = Gate()
    options: dict[str, Any] = {"push_notifications": True, "allow_insecure_webhooks": True}
    async with WebhookReceiver() as hook:
        caller = Caller(http, await serve(ScriptedAgent({"hi": (gate, COMPLETED)}), **options))
        configuration = {"blocking": False}
        message = {"role": "user", "parts": [text("hi")]}
        task = (await caller.call("message/send", {"message": message, "configuration": configuration}))["result"]
        await gate.reached()
        wanted = {"taskId": task["id"], "url": hook.url}
        stored = (await caller.call("tasks/pushNotificationConfig/set", wanted))["result"]
        asked = (await caller.call("tasks/pushNotificationConfig/get", {"id": task["id"]}))["result"]
        assert asked == stored
        gate.open()
        delivered = (await hook.next()).json
        assert delivered["status"]["state"] == "completed"
        await caller.call("tasks/pushNotificationConfig/delete", {"id": task["id"]})

    disabled = Caller(http, await serve(ScriptedAgent()))
    wanted = {"taskId": task["id"], "url": "https://hooks.example/"}
    error = (await disabled.call("tasks/pushNotificationConfig/set", wanted))["error"]
    assert error["code"] in (-32003, -32601)


@requirement("UC-006")
async def test_uc_006_the_record_of_states_names_the_caller(serve: Serve, http: httpx.AsyncClient) -> None:
    http.headers["X-API-Key"] = "key of ada"
    caller = Caller(http, await serve(ScriptedAgent(), auth=Keys(), state_history=True))

    task = (await caller.send(text("hi"), extra={"apcore.caller": "made up"}))["result"]

    assert task["metadata"]["apcore.caller"] == "ada"
    assert [passed["state"] for passed in task["metadata"]["apcore.stateTransitions"]] == ["submitted", "working"]


@requirement("UC-003")
async def test_a_canceled_task_that_waited_is_counted_under_the_names_of_the_requirements(
    serve: Serve, http: httpx.AsyncClient
) -> None:
    url = await serve(registry_of(bank__pay=Pay()), card=None, metrics=True)
    caller = Caller(http, url)
    waiting = (await caller.send(data(a=1, b=2)))["result"]

    await caller.call("tasks/cancel", {"id": waiting["id"]})

    figures = (await http.get(f"{url}/metrics")).json()
    assert (figures["active_tasks"], figures["canceled_tasks"], figures["completed_tasks"]) == (0, 1, 0)
    assert {"failed_tasks", "total_requests", "uptime_seconds"} <= figures.keys()
    assert (figures["sse_active_streams"], figures["push_notifications_sent"]) == (0, 0)
    assert figures["push_notifications_failed"] == 0
