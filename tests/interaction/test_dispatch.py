"""Each JSON-RPC method reaches its operation, shown by an effect that only this operation has."""

import json
from typing import Any

import httpx

from tests.fakes import COMPLETED, WORKING, Gate, ScriptedAgent, chunk
from tests.interaction.conftest import Serve
from tests.interaction.test_jsonrpc_wire import OLD_MESSAGE, call
from tests.requirements import requirement


def message(text: str) -> dict[str, Any]:
    return {"message": OLD_MESSAGE | {"parts": [{"kind": "text", "text": text}]}}


async def ask(http: httpx.AsyncClient, url: str, method: str, params: object) -> dict[str, Any]:
    response = await http.post(url + "/", json=call(method, params))
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    result: dict[str, Any] = response.json()["result"]
    return result


async def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "text/event-stream"
    lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: "))["result"] for line in lines]


@requirement("FR-SRV-004")
async def test_send_get_and_stream_reach_their_operations(serve: Serve, http: httpx.AsyncClient) -> None:
    url = await serve(ScriptedAgent({"hi": (chunk("done"), COMPLETED)}))
    sent = await ask(http, url, "message/send", message("hi"))
    assert (sent["kind"], sent["status"]["state"]) == ("task", "completed")
    assert await ask(http, url, "tasks/get", {"id": sent["id"]}) == sent
    async with http.stream("POST", url + "/", json=call("message/stream", message("hi"))) as response:
        events = await events_of(response)
    assert events[0]["kind"] == "task" and events[0]["id"] != sent["id"]
    assert (events[-1]["kind"], events[-1]["status"]["state"]) == ("status-update", "completed")


@requirement("FR-SRV-004", "FR-TSK-002")
async def test_resubscribe_follows_the_task_and_cancel_ends_it(serve: Serve, http: httpx.AsyncClient) -> None:
    gate = Gate()
    url = await serve(ScriptedAgent({"wait": (WORKING, gate, COMPLETED)}))
    at_once = message("wait") | {"configuration": {"blocking": False}}
    task = await ask(http, url, "message/send", at_once)
    assert task["artifacts"] == []
    await gate.reached()
    async with http.stream("POST", url + "/", json=call("tasks/resubscribe", {"id": task["id"]})) as response:
        canceled = await ask(http, url, "tasks/cancel", {"id": task["id"]})
        assert (canceled["id"], canceled["status"]["state"]) == (task["id"], "canceled")
        events = await events_of(response)
    assert {event.get("taskId", event.get("id")) for event in events} == {task["id"]}
    assert (events[-1]["kind"], events[-1]["status"]["state"]) == ("status-update", "canceled")
