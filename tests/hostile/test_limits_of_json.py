"""Requests that are small on the wire and large when decoded, against a server in its own process."""

import json
import re
import signal
from typing import Any

import httpx
import pytest

from tests.processes import Process, running

# Prints at its exit its peak memory, minus the memory at its start.
SERVER = """
import resource, sys
from apcore_a2a import Limits, serve

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def start():
    global before
    before = peak()

def stop():
    print("peak:", (peak() - before) // 1024, "MB", file=sys.stderr)

async def echo(text: str) -> str:
    return text

serve(echo, host="127.0.0.1", port=0, on_startup=[start], on_shutdown=[stop])
"""
OLD = {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]}
NEW = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
PROTO = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}
V1 = {"A2A-Version": "1.0"}


def rpc(method: str, message: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"message": message}}


WAYS = {
    "JSON-RPC 1.0": ("/", V1, rpc("SendMessage", NEW)),
    "JSON-RPC 0.3": ("/", {}, rpc("message/send", OLD)),
    "REST 1.0": ("/message:send", V1, {"message": NEW}),
    "REST 0.3": ("/v1/message:send", {}, {"message": PROTO}),
}


def heavy(call: dict[str, Any]) -> bytes:
    """Return a call with ten megabytes of empty objects in the metadata of its message."""
    body = json.dumps(call, separators=(",", ":")).encode()
    metadata = b'"metadata":{"x":[' + b"{}," * 3_400_000 + b"{}]},"
    return body.replace(b'"messageId"', metadata + b'"messageId"', 1)


async def address(process: Process) -> str:
    return (await process.says(r"running on (http://[\d.]+:\d+)"))[1]


@pytest.mark.parametrize("way", WAYS)
async def test_ten_megabytes_of_empty_objects_are_rejected_before_they_use_memory(way: str) -> None:
    path, headers, call = WAYS[way]
    async with running("-c", SERVER) as process, httpx.AsyncClient(base_url=await address(process)) as client:
        sent = {**headers, "Content-Type": "application/json"}
        for _ in range(3):
            refused = await client.post(path, content=heavy(call), headers=sent)
            assert refused.status_code == (400 if "REST" in way else 200)
            assert "JSON with more than 100000 values" in refused.text
            if "JSON-RPC" in way:
                assert refused.json()["id"] == 7
                assert refused.json()["error"]["code"] == -32600
        taken = await client.post(path, json=call, headers=headers)
        assert "TASK_STATE_COMPLETED" in taken.text or '"completed"' in taken.text
        process.signal(signal.SIGTERM)
        await process.ends()
    peak = re.search(r"peak: (\d+) MB", process.said)
    assert peak is not None
    assert int(peak[1]) < 100  # the body and its slices; decoded objects would take 230 MB more


@pytest.mark.parametrize("way", WAYS)
async def test_the_maximum_number_of_json_values_can_be_set(way: str) -> None:
    path, headers, call = WAYS[way]
    server = SERVER.replace("port=0", "port=0, limits=Limits(max_json_values=50)")
    async with running("-c", server) as process, httpx.AsyncClient(base_url=await address(process)) as client:
        assert "values" not in (await client.post(path, json=call, headers=headers)).text
        refused = await client.post(path, json={**call, "more": [0] * 50}, headers=headers)
        assert "JSON with more than 50 values" in refused.text
