"""A server that drains: it listens, reports the shutdown and rejects new messages, then exits."""

import signal
from typing import Any

import httpx

from apcore_a2a import A2AClient
from tests.processes import running
from tests.requirements import requirement

SCRIPT = """
from apcore_a2a import serve

async def echo(text: str) -> str:
    return text

serve(echo, host="127.0.0.1", port=0, drain_delay={delay})
"""
MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
V1 = {"A2A-Version": "1.0"}


@requirement("FR-SRV-005", "FR-OPS-001")
async def test_while_draining_new_messages_receive_503() -> None:
    async with running("-c", SCRIPT.format(delay=600)) as process:
        url = (await process.says(r"running on (http://[\d.:]+)"))[1]
        async with A2AClient(url) as client:
            task: Any = await client.send_message("before")
        process.signal(signal.SIGTERM)
        await process.says("Draining")
        async with httpx.AsyncClient(base_url=url) as late:
            health = await late.get("/health")
            assert (health.status_code, health.json()["reason"]) == (503, "shutting down")
            assert (await late.get("/health/ready")).status_code == 503
            assert (await late.get("/health/live")).status_code == 200
            refused = await late.post("/message:send", json=MESSAGE, headers=V1)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert (await late.get(f"/tasks/{task.id}", headers=V1)).status_code == 200  # reads still succeed
        process.signal(signal.SIGTERM)
        assert await process.ends() == 1  # immediately, and with an error


async def test_after_the_drain_delay_the_server_exits_with_0() -> None:
    async with running("-c", SCRIPT.format(delay=0.3)) as process:
        await process.says("running on")
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    assert process.said.index("Draining") < process.said.index("Shutting down")
