"""Extensions of the protocol, from the card to the agent and back: requested, activated, required."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import a2a_pb2 as pb

from apcore_a2a import A2AClient, AgentExtension, Call, ExtensionSupportRequiredError, Task
from apcore_a2a.agents.as_agent import as_agent
from tests.fakes import PATIENCE
from tests.interaction.conftest import Serve

CITATIONS: Final = "https://example.com/ext/citations/v1"
LANGUAGE: Final = "https://example.com/ext/language/v2"
DECLARED: Final = [AgentExtension(uri=CITATIONS), AgentExtension(uri=LANGUAGE, params={"default": "en"})]
REQUIRED: Final = [AgentExtension(uri=CITATIONS, required=True)]
HEADERS: Final = {"1.0": "A2A-Extensions", "0.3": "X-A2A-Extensions"}
VERSIONS: Final[tuple[Literal["1.0", "0.3"], ...]] = ("1.0", "0.3")


async def activated(text: str, call: Call) -> str:
    """Says which extensions the request asks for."""
    return " ".join(sorted(call.extensions))


@asynccontextmanager
async def posting(url: str, version: str, extensions: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {HEADERS[version]: extensions} | ({"A2A-Version": version} if version == "1.0" else {})
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as http:
        yield http


def message(version: str) -> dict[str, Any]:
    said: dict[str, Any] = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    if version == "0.3":
        said = {"kind": "message", "messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
    return {"message": said}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("stream", [False, True], ids=["send", "stream"])
async def test_the_response_names_what_was_activated(serve: Serve, version: str, stream: bool) -> None:
    url = await serve(as_agent(activated), card=None, extensions=DECLARED)
    methods = {"1.0": ("SendMessage", "SendStreamingMessage"), "0.3": ("message/send", "message/stream")}
    call = {"jsonrpc": "2.0", "id": 1, "method": methods[version][stream], "params": message(version)}
    async with posting(url, version, f"urn:unknown, {LANGUAGE},{CITATIONS}") as http:
        answer = await http.post("/", json=call)
    assert answer.headers[HEADERS[version]] == f"{CITATIONS}, {LANGUAGE}"
    assert f"{CITATIONS} {LANGUAGE}" in answer.text


@pytest.mark.parametrize("path", ["/message:send", "/message:stream"])
async def test_a_rest_response_names_what_was_activated(serve: Serve, path: str) -> None:
    url = await serve(as_agent(activated), card=None, extensions=DECLARED)
    async with posting(url, "1.0", LANGUAGE) as http:
        assert (await http.post(path, json=message("1.0"))).headers["A2A-Extensions"] == LANGUAGE


@pytest.mark.parametrize("asked", ["urn:unknown", "", ","])
async def test_a_response_without_activated_extensions_has_no_header(serve: Serve, asked: str) -> None:
    url = await serve(as_agent(activated), card=None, extensions=DECLARED)
    async with posting(url, "1.0", asked) as http:
        answer = await http.post("/message:send", json=message("1.0"))
    assert answer.status_code == 200
    assert "A2A-Extensions" not in answer.headers


async def test_an_error_activates_nothing(serve: Serve) -> None:
    url = await serve(as_agent(activated), card=None, extensions=DECLARED)
    async with posting(url, "1.0", LANGUAGE) as http:
        answer = await http.get("/tasks/unknown")
    assert answer.status_code == 404
    assert "A2A-Extensions" not in answer.headers


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_required_extension_must_be_declared(serve: Serve, version: Any, binding: Any) -> None:
    url = await serve(as_agent(activated), card=None, extensions=REQUIRED)
    async with A2AClient(url, version=version, binding=binding) as client:
        with pytest.raises(ExtensionSupportRequiredError, match="citations"):
            await client.send_message("hi")
    async with A2AClient(url, version=version, binding=binding, extensions=[CITATIONS]) as client:
        task = await client.send_message("hi")
        assert isinstance(task, Task)
        assert task.text == CITATIONS


async def test_a_server_rejects_a_request_without_a_required_extension(serve: Serve) -> None:
    url = await serve(as_agent(activated), card=None, extensions=REQUIRED)
    async with posting(url, "1.0", "urn:unknown") as http:
        answer = await http.post("/message:send", json=message("1.0"))
        assert answer.status_code == 400
        assert answer.json()["error"]["details"][0]["reason"] == "EXTENSION_SUPPORT_REQUIRED"
        assert (await http.get("/tasks", headers={"A2A-Extensions": CITATIONS})).json()["tasks"] == []


async def test_the_official_client_activates_a_required_extension(serve: Serve) -> None:
    url = await serve(as_agent(activated), card=None, extensions=REQUIRED)
    async with httpx.AsyncClient(timeout=PATIENCE, headers={"A2A-Extensions": CITATIONS}) as http:
        client = await create_client(url, ClientConfig(httpx_client=http, streaming=False))
        parts = [pb.Part(text="hi")]
        request = pb.SendMessageRequest(message=pb.Message(message_id="1", role=pb.Role.ROLE_USER, parts=parts))
        async for event in client.send_message(request):
            assert event.task.artifacts[0].parts[0].text == CITATIONS
