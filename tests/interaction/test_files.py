"""Files by value, with official clients on a socket: what the agent receives, and what the client gets back.

Over REST of 0.3 the field is `bytes` of a protocol buffer, in base64 once (docs/decisions/0044).
"""

import base64
from collections.abc import AsyncGenerator

import httpx
import pytest

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.protocol.model import Artifact, ArtifactUpdate
from tests.fakes import COMPLETED
from tests.interaction.conftest import Serve
from tests.interaction.peers.js import Js, ask_js
from tests.interaction.peers.process import Process
from tests.interaction.peers.sdk03 import Sdk03
from tests.requirements import requirement

# Binary data, text, and texts that are valid base64, which must not be decoded a second time.
CONTENTS = [b"\x89PNG\x00\xff", b"plain text", b"hello123", b"aGVsbG8=", b""]


class EchoesFiles:
    """Answers with the parts that it receives, and keeps their contents."""

    may_reply = False

    def __init__(self) -> None:
        self.seen: list[object] = []

    async def admit(self, call: Call) -> Admission:
        return Admission()

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        self.seen.extend(part.raw for part in call.message.parts)
        yield ArtifactUpdate(artifact=Artifact(artifact_id="a", parts=[*call.message.parts]), last_chunk=True)
        yield COMPLETED


@pytest.fixture
def agent() -> EchoesFiles:
    return EchoesFiles()


@requirement("NFR-CMP-005", "FR-MSG-003")
@pytest.mark.parametrize("content", CONTENTS)
async def test_bytes_are_base64_encoded_once_over_rest(
    serve: Serve, http: httpx.AsyncClient, agent: EchoesFiles, content: bytes
) -> None:
    url = await serve(agent)
    encoded = base64.b64encode(content).decode()
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"file": {"fileWithBytes": encoded}}]}
    answer = (await http.post(f"{url}/v1/message:send", json={"message": message})).json()
    assert agent.seen == [content]
    assert answer["task"]["artifacts"][0]["parts"] == [{"file": {"fileWithBytes": encoded}}]


@pytest.mark.parametrize("encoded", ["-_-_", "-_8", "-_8=", "+/8"])
async def test_both_base64_alphabets_are_accepted_and_the_standard_one_is_returned(
    serve: Serve, http: httpx.AsyncClient, agent: EchoesFiles, encoded: str
) -> None:
    url = await serve(agent)
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"file": {"fileWithBytes": encoded}}]}
    answer = (await http.post(f"{url}/v1/message:send", json={"message": message})).json()
    content = base64.urlsafe_b64decode(encoded + "==")
    if "+" in encoded:
        content = base64.b64decode(encoded + "==")
    assert agent.seen == [content]
    written = answer["task"]["artifacts"][0]["parts"][0]["file"]["fileWithBytes"]
    assert written == base64.b64encode(content).decode()


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("content", [b"\x89PNG\x00\xff", b"hello123"])
async def test_the_javascript_client_gets_its_file_back(
    serve: Serve, agent: EchoesFiles, binding: str, content: bytes
) -> None:
    encoded = base64.b64encode(content).decode()
    assert await ask_js(await serve(agent), binding, "file", encoded) == encoded
    assert agent.seen == [content]


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
@pytest.mark.parametrize("content", [b"\x89PNG\x00\xff", b"hello123"])
async def test_the_javascript_client_gets_its_file_back_over_1_0(
    serve: Serve, js1: Process, agent: EchoesFiles, binding: str, content: bytes
) -> None:
    encoded = base64.b64encode(content).decode()
    assert await Js(js1, await serve(agent), binding).send_file(encoded) == encoded
    assert agent.seen == [content]


@requirement("NFR-CMP-005")
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
@pytest.mark.parametrize("content", [b"\x89PNG\x00\xff", b"hello123"])
async def test_the_python_client_gets_its_file_back(
    serve: Serve, sdk03: Process, agent: EchoesFiles, binding: str, content: bytes
) -> None:
    encoded = base64.b64encode(content).decode()
    assert await Sdk03(sdk03, await serve(agent), binding).send_file(encoded) == encoded
    # Over REST this client writes the base64 text into the bytes field, and reads it again as text. The agent receives
    # the content of the field.
    seen = encoded.encode() if binding == "HTTP+JSON" else content
    assert agent.seen == [seen]
