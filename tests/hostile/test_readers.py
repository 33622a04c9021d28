"""Many subscribers of a large task or a long replay that read nothing: other clients are served, memory stays small."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from apcore_a2a import A2AClient
from apcore_a2a.protocol.model import SendConfiguration, Task
from tests.processes import PATIENCE, Process, running

AT_ONCE = SendConfiguration(return_immediately=True)
MEGABYTE = 1024 * 1024
LIMIT = 600 * MEGABYTE  # bytes of resident memory, in each test

# "hold 60" makes an artifact of 60 MB and waits; "count 5" makes five events and ends.
SERVER = """
import asyncio, sys
from apcore_a2a import serve

async def agent(text: str):
    word, number = text.split()
    for _ in range(int(number)):
        yield "x" * (1024 * 1024) if word == "hold" else "x"
        await asyncio.sleep(0)
    if word == "hold":
        await asyncio.Event().wait()

serve(agent, host="127.0.0.1", port=0, metrics=True, store=sys.argv[1] if len(sys.argv) > 1 else None)
"""


@asynccontextmanager
async def server(*arguments: str) -> AsyncIterator[tuple[Process, A2AClient, int]]:
    async with running("-c", SERVER, *arguments) as process:
        url = (await process.says(r"running on (http://[\d.]+:(\d+))"))[1]
        async with A2AClient(url) as client:
            yield process, client, int(url.rpartition(":")[2])


def peak_memory(process: Process) -> int:
    """Return the peak memory of the process in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


async def subscribe(port: int, task_id: str, version: str, last: int | None = None) -> asyncio.StreamWriter:
    """Open a subscription that sends a request and then reads nothing."""
    method = "SubscribeToTask" if version == "1.0" else "tasks/resubscribe"
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": task_id}})
    lines = [
        "POST / HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        f"A2A-Version: {version}",
        f"Content-Length: {len(body)}",
    ]
    if last is not None:
        lines.append(f"Last-Event-ID: {last}")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write("\r\n".join([*lines, "", body]).encode())
    await writer.drain()
    async with asyncio.timeout(PATIENCE):
        await reader.readline()  # the status line: the response has begun
    return writer


async def large_task(client: A2AClient, text: str, size: int) -> Task:
    """Return a running task whose artifact has grown to that size."""
    task = await client.send_message(text, configuration=AT_ONCE)
    assert isinstance(task, Task)
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await client.get_task(task.id)
            if sum(len(str(part.text)) for artifact in found.artifacts for part in artifact.parts) >= size:
                return found
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_many_subscribers_of_a_large_task_that_disconnect(version: str) -> None:
    async with server() as (process, client, port):
        task = await large_task(client, "hold 20", 20 * MEGABYTE)
        for _ in range(2):
            crowd = [await subscribe(port, task.id, version) for _ in range(50)]
            for writer in crowd:
                writer.transport.abort()
        assert (await client.get_task(task.id, history_length=0)).id == task.id
        assert peak_memory(process) < LIMIT


async def test_a_long_replay_to_a_subscriber_that_does_not_read(tmp_path: Path) -> None:
    async with server(f"sqlite:///{tmp_path / 'tasks.db'}") as (process, client, port):
        task = await client.send_message("count 50000")
        assert isinstance(task, Task)
        before = peak_memory(process)
        writers = [await subscribe(port, task.id, "0.3", last=0) for _ in range(20)]
        assert (await client.get_task(task.id, history_length=0)).id == task.id
        assert peak_memory(process) < before + 100 * MEGABYTE
        for writer in writers:
            writer.transport.abort()
