"""Errors of 0.3, read by the official clients of all languages, which read different parts of them."""

from typing import Any

import httpx
import msgspec
import pytest

from apcore_a2a.errors import DOMAIN
from tests.fakes import PATIENCE, ScriptedAgent
from tests.interaction.conftest import Serve
from tests.interaction.peers.js import ask_js
from tests.requirements import requirement

GET = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "unknown"}}
SEND: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": {"role": "user"}}}
NEWER = {"A2A-Version": "0.3"}  # a 1.0 client that uses 0.3, because the card offers nothing newer


# The types as a2a-go declares them. encoding/json rejects the whole response if a value does not fit.


class GoError(msgspec.Struct):
    """a2a-go 0.3, internal/jsonrpc."""

    code: int
    message: str
    data: dict[str, Any] = {}


class GoErrorV2(msgspec.Struct):
    """a2a-go v2, internal/jsonrpc: each of the details is an object."""

    code: int
    message: str
    data: list[dict[str, Any]] = []


class GoRestErrorBody(msgspec.Struct):
    code: int
    status: str
    message: str
    details: list[dict[str, Any]]


class GoRestError(msgspec.Struct):
    """a2a-go v2, internal/rest, also for 0.3: the reason in an ErrorInfo identifies the error."""

    error: GoRestErrorBody

    @property
    def reason(self) -> str:
        for detail in self.error.details:
            if detail["@type"].endswith("ErrorInfo") and detail["domain"] == DOMAIN:
                return str(detail["reason"])
        return ""


@pytest.fixture
async def url(serve: Serve) -> str:
    return await serve(ScriptedAgent())


async def post(url: str, body: object, headers: dict[str, str]) -> Any:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return (await client.post(url, json=body, headers=headers)).json()["error"]


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("call", [GET, SEND])
async def test_both_go_clients_read_a_jsonrpc_error(url: str, call: object) -> None:
    msgspec.convert(await post(url, call, {}), GoError)
    newer = msgspec.convert(await post(url, call, NEWER), GoErrorV2)
    assert newer.data[0]["@type"].endswith("ErrorInfo")


@requirement("FR-ERR-002")
async def test_a_0_3_client_gets_the_error_object_of_the_requirements(url: str) -> None:
    data = (await post(url, SEND, {}))["data"]
    assert data["type"] == "InvalidParamsError"
    assert data["errors"] == [{"field": "message.parts", "code": "required", "message": "is required"}]


@pytest.mark.parametrize("headers", [{}, NEWER], ids=["old", "new"])
async def test_every_client_reads_a_rest_error(url: str, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        response = await client.get(f"{url}/v1/tasks/unknown", headers=headers)
    body = response.json()
    assert response.headers["content-type"] == "application/json"  # a2a-go accepts no other
    if headers:
        assert msgspec.convert(body, GoRestError).reason == "TASK_NOT_FOUND"
    else:
        assert body["error"] == "TaskNotFoundError"  # read by the conformance kit
    assert (body["code"], body["message"]) == (-32001, "Task not found: unknown")  # read by the JavaScript client
    assert body["type"] == "TaskNotFoundError"  # read by the Python client


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_the_javascript_client_recognizes_the_error(url: str, binding: str) -> None:
    received = await ask_js(url, binding, "error")
    assert received.removeprefix("JsonRpc") == "TaskNotFoundError: Task not found: unknown"
