"""A2A 0.3 responses, validated against the official JSON schema exactly as they left the socket."""

import json
from typing import Any

import httpx
import pytest
from jsonschema import Draft7Validator

from apcore_a2a.errors import AgentError
from tests.fakes import ASKS, COMPLETED, ScriptedAgent, chunk, says
from tests.interaction.conftest import Serve
from tests.requirements import requirement
from tests.sources import ROOT

DEFINITIONS = json.loads((ROOT / "tests/protocol/a2a-v0.3.0.schema.json").read_text(encoding="utf-8"))["definitions"]


def check(value: object, name: str) -> None:
    schema = {"$ref": f"#/definitions/{name}", "definitions": DEFINITIONS}
    assert [error.message for error in Draft7Validator(schema).iter_errors(value)] == []


@pytest.fixture
async def agent(serve: Serve, http: httpx.AsyncClient) -> httpx.AsyncClient:
    scripts = {
        "work": (chunk("a"), chunk("b", append=True, last=True), COMPLETED),
        "ask": (ASKS,),
        "fail": (AgentError("No paper"),),
        "talk": (says("hello"),),
    }
    http.base_url = httpx.URL(await serve(ScriptedAgent(scripts, may_reply=True)))
    return http


def call(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}


def message(text: str) -> dict[str, Any]:
    return {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": text}]}


@requirement("NFR-CMP-001")
@pytest.mark.parametrize("text", ["work", "ask", "fail", "talk"])
async def test_responses_to_a_message_conform_to_the_schema(agent: httpx.AsyncClient, text: str) -> None:
    answer = (await agent.post("/", json=call("message/send", message=message(text)))).json()
    check(answer, "SendMessageSuccessResponse")


@requirement("NFR-CMP-001")
@pytest.mark.parametrize("text", ["work", "ask", "fail", "talk"])
async def test_events_conform_to_the_schema(agent: httpx.AsyncClient, text: str) -> None:
    answer = await agent.post("/", json=call("message/stream", message=message(text)))
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events
    for event in events:
        check(event, "SendStreamingMessageSuccessResponse")


@requirement("NFR-CMP-001")
async def test_responses_about_a_task_conform_to_the_schema(agent: httpx.AsyncClient) -> None:
    task = (await agent.post("/", json=call("message/send", message=message("ask")))).json()["result"]
    check((await agent.post("/", json=call("tasks/get", id=task["id"]))).json(), "GetTaskSuccessResponse")
    check((await agent.post("/", json=call("tasks/cancel", id=task["id"]))).json(), "CancelTaskSuccessResponse")
    again = await agent.post("/", json=call("tasks/resubscribe", id=task["id"]))
    check(json.loads(again.text.splitlines()[1][6:]), "SendStreamingMessageSuccessResponse")


@requirement("NFR-CMP-001")
@pytest.mark.parametrize(
    ("body", "name"),
    [
        (call("tasks/get", id="unknown"), "TaskNotFoundError"),
        (call("tasks/get"), "InvalidParamsError"),
        (call("tasks/make"), "MethodNotFoundError"),
        ({"jsonrpc": "2.0", "id": "1"}, "InvalidRequestError"),
        (call("tasks/pushNotificationConfig/get", id="t"), "PushNotificationNotSupportedError"),
        (call("agent/getAuthenticatedExtendedCard"), "AuthenticatedExtendedCardNotConfiguredError"),
    ],
)
async def test_errors_conform_to_the_schema(agent: httpx.AsyncClient, body: dict[str, Any], name: str) -> None:
    answer = (await agent.post("/", json=body)).json()
    check(answer, "JSONRPCErrorResponse")
    check(answer["error"] | {"message": DEFINITIONS[name]["properties"]["message"].get("default", "")}, name)


@requirement("NFR-CMP-001", "FR-AGC-003")
async def test_the_card_conforms_to_the_schema(agent: httpx.AsyncClient) -> None:
    for path in ("/.well-known/agent.json", "/.well-known/agent-card.json"):
        check((await agent.get(path)).json(), "AgentCard")
