"""gRPC behind nginx and Caddy, with the blocks of docs/grpc.md."""

import re
from pathlib import Path
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from grpc import aio

from apcore_a2a import A2AClient
from apcore_a2a.client.http2_transport import HTTP2Transport
from apcore_a2a.protocol.model import ArtifactUpdate, Task
from tests.deploy.balancers import DEADLINE, Balancer, find_balancer
from tests.fakes import COMPLETED, Gate, ScriptedAgent, chunk
from tests.interaction.serving import serving
from tests.sources import ROOT

BLOCKS = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "grpc.md").read_text(encoding="utf-8"), re.DOTALL)
ROUTES = {
    "nginx": next(block for block in BLOCKS if "grpc_pass" in block),
    "caddy": next(block for block in BLOCKS if "reverse_proxy" in block),
}


@pytest.fixture(params=["nginx", "caddy"])
def balancer(request: pytest.FixtureRequest, tmp_path: Path) -> Balancer:
    return find_balancer(request.param, tmp_path)


async def test_calls_and_streams_pass_a_proxy_with_the_block_of_the_page(balancer: Balancer) -> None:
    gate = Gate()
    script = (chunk("a"), gate, chunk("b", append=True), COMPLETED)
    routes = ROUTES[balancer.name].replace("127.0.0.1:8000", "AGENT")
    async with (
        serving(ScriptedAgent({"go": script}), trusted_proxies=["127.0.0.1"]) as agent,
        balancer.forwarding(agent.removeprefix("http://"), routes, http2=True) as url,
        aio.insecure_channel(url.removeprefix("http://")) as channel,
    ):
        stub: Any = A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        message = pb.Message(message_id="m", role=pb.ROLE_USER, parts=[pb.Part(text="hi")])
        sent = await stub.SendMessage(pb.SendMessageRequest(message=message), timeout=DEADLINE)
        assert sent.task.status.state == pb.TASK_STATE_COMPLETED

        transport = HTTP2Transport()
        async with A2AClient(url, binding="GRPC", http=transport) as client:
            assert (await client.interface).url == url
            seen: list[str] = []
            async for event in client.stream_message("go"):
                if isinstance(event, ArtifactUpdate):
                    seen.append(event.text)
                    gate.open()  # the first chunk has passed the proxy before the second one exists
            assert seen == ["a", "b"]
            page = await client.list_tasks()
            assert [type(task) for task in page.tasks] == [Task, Task]
        await transport.close()
