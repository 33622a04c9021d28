"""One client that opens streams without end, against a server in its own process."""

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.processes import Process, running

SERVER = """
import asyncio
from apcore_a2a import Limits, serve

async def wait(text: str) -> str:
    await asyncio.Event().wait()

serve(wait, host="127.0.0.1", port=0, limits=Limits(max_streams_per_caller=3))
"""
V1 = {"A2A-Version": "1.0"}
MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}


V03 = {"A2A-Version": "0.3", "Accept": "text/event-stream"}
MESSAGE_03 = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}


def rpc(tenant: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    params = {"message": MESSAGE, "tenant": tenant}
    return "/", {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": params}, V1


def rpc_03(tenant: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    return "/", {"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": {"message": MESSAGE_03}}, V03


def rest(tenant: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    return f"/{tenant}/message:stream", {"message": MESSAGE}, V1


async def address(process: Process) -> str:
    return (await process.says(r"running on (http://[\d.]+:\d+)"))[1]


@pytest.mark.parametrize("ask", [rpc, rpc_03, rest])
async def test_invented_tenants_share_one_stream_limit_and_addresses_do_not(ask: Any) -> None:
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(running("-c", SERVER))
        url = await address(process)

        async def from_address(host: str) -> httpx.AsyncClient:
            transport = httpx.AsyncHTTPTransport(local_address=host)
            return await stack.enter_async_context(httpx.AsyncClient(base_url=url, transport=transport))

        async def open_stream(client: httpx.AsyncClient, tenant: str) -> httpx.Response:
            path, body, headers = ask(tenant)
            return await stack.enter_async_context(client.stream("POST", path, json=body, headers=headers))

        client = await from_address("127.0.0.1")
        for number in range(3):
            opened = await open_stream(client, f"tenant{number}")
            assert opened.headers["content-type"] == "text/event-stream"
        refused = await open_stream(client, "another")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        said = json.loads(await refused.aread())["error"]["message"]
        assert said == "You are at your limit of open streams; close one or try again later"
        neighbour = await open_stream(await from_address("127.0.0.2"), "tenant0")
        assert neighbour.headers["content-type"] == "text/event-stream"
