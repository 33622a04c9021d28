"""A reader is judged by whether it reads, not by how much is left."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from apcore_a2a.http.server.connection import CHECKS, ConnectionTimeouts, GuardedProtocol
from apcore_a2a.http.traffic import KEY, Traffic
from tests.fakes import COMPLETED, PATIENCE, ScriptedAgent, chunk
from tests.interaction.serving import serving

SIZE = 40_000_000
V1 = {"A2A-Version": "1.0"}


class Watched(GuardedProtocol):
    """Says when the server looks whether a reader has read."""

    timeouts = ConnectionTimeouts(unread=0.2)
    looks: asyncio.Queue[int]

    def unread(self) -> int:
        left = super().unread()
        self.looks.put_nowait(left)
        return left


@pytest.fixture
async def url() -> AsyncIterator[str]:
    Watched.looks = asyncio.Queue()
    async with serving(ScriptedAgent({"hi": (chunk("x" * SIZE), COMPLETED)}), metrics=True, protocol=Watched) as url:
        yield url


async def make_large_task(url: str, http: httpx.AsyncClient) -> str:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    answer = await http.post(f"{url}/message:send", json={"message": message}, headers=V1)
    task_id: str = answer.json()["task"]["id"]
    return task_id


async def open_unread(url: str, task_id: str) -> tuple[asyncio.StreamReader, Any]:
    address = httpx.URL(url)
    # A small buffer in the kernel: what the client reads is what leaves the server's.
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (address.host, address.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=2**16)
    request = f"GET /tasks/{task_id} HTTP/1.1\r\nHost: localhost\r\nA2A-Version: 1.0\r\nConnection: close\r\n\r\n"
    writer.write(request.encode())
    return reader, writer


async def test_a_client_that_reads_slowly_but_steadily_gets_its_whole_answer(url: str) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        task_id = await make_large_task(url, http)
    while not Watched.looks.empty():  # those of the client that made the task
        Watched.looks.get_nowait()
    reader, writer = await open_unread(url, task_id)
    got = 0
    looks = 0
    async with asyncio.timeout(PATIENCE * 4):
        left = await Watched.looks.get()  # it begins to wait
        while left > 2**22:  # the kernel takes the rest in one go
            left = await Watched.looks.get()
            looks += 1  # at each, the client has read a little more
            got += len(await reader.readexactly(2**20))
        got += len(await reader.read())
    writer.transport.abort()
    assert looks > 3 * CHECKS  # many times as long as one may read nothing
    assert got > SIZE


async def test_a_client_that_stops_reading_is_let_go(url: str) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        task_id = await make_large_task(url, http)
        _, writer = await open_unread(url, task_id)
        async with asyncio.timeout(PATIENCE):
            while True:
                figures = (await http.get(f"{url}/metrics")).json()
                if figures["open_connections"] == 1 and figures["total_requests"] > 3:
                    break
                await asyncio.sleep(0.05)
        assert figures["answer_bytes_in_flight"] == 0
        assert figures["cut_off_readers"] == 1
        writer.transport.abort()


class Stuck(asyncio.Transport):
    """A connection whose client leaves the last bytes unread."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.left = 10
        self.closed = False
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.left

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted.set()

    def write(self, data: Any) -> None: ...


class Impatient(GuardedProtocol):
    timeouts = ConnectionTimeouts(unread=0.01)


def connect(traffic: Traffic) -> tuple[GuardedProtocol, Stuck]:
    config = uvicorn.Config(ScriptedAgent({}), log_level="warning")  # type: ignore[arg-type]  # it gets no request
    config.load()
    connection = Impatient(config, ServerState(), {KEY: traffic}, asyncio.get_running_loop())
    transport = Stuck()
    connection.connection_made(transport)
    return connection, transport


@pytest.mark.parametrize("how", ["nearly all is read", "kept alive"])
async def test_who_leaves_the_last_bytes_unread_is_let_go_too(how: str) -> None:
    traffic = Traffic()
    connection, transport = connect(traffic)
    if how == "kept alive":
        connection.timeout_keep_alive_handler()
    else:
        transport.left = 2**17
        connection.pause_writing()
        transport.left = 10
        connection.resume_writing()
    assert traffic.answer_bytes == 10
    async with asyncio.timeout(PATIENCE):
        await transport.aborted.wait()
    connection.connection_lost(None)
    assert (traffic.answer_bytes, traffic.connections) == (0, 0)


async def test_who_has_read_the_last_bytes_is_looked_at_no_more() -> None:
    traffic = Traffic()
    connection, transport = connect(traffic)
    connection.timeout_keep_alive_handler()
    transport.left = 0
    async with asyncio.timeout(PATIENCE):
        while traffic.answer_bytes:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.001)
    assert not transport.aborted.is_set()
    connection.connection_lost(None)
