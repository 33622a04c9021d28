"""Endless connections, and connections that send slowly: other clients are served, and the connections are released."""

import asyncio
import os
import sys
from collections import Counter
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from apcore_a2a.http.server.connection import ConnectionTimeouts, GuardedProtocol
from tests.fakes import COMPLETED, PATIENCE, ScriptedAgent
from tests.hostile.test_http_limits import until
from tests.interaction.serving import serving
from tests.processes import running

ATTEMPTS = int(os.environ.get("HOSTILE_CONNECTIONS", "2000"))  # 20,000 take 15 seconds
AT_ONCE = 250
ROOM = 100
SERVE = f"""
from apcore_a2a import Limits, serve

async def echo(text: str) -> str:
    return text

limits = Limits(max_connections={ROOM})
serve(echo, host="127.0.0.1", port=0, metrics=True, limits=limits, trusted_proxies=["127.0.0.1"])
"""


class ShortHeaders(GuardedProtocol):
    timeouts = ConnectionTimeouts(headers=0.3)


class Attack:
    """Opens many connections that send nothing. Those that the server does not answer stay open."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.seen: Counter[str] = Counter()
        self.open: set[asyncio.StreamWriter] = set()
        self.all_but_accepted = asyncio.Event()
        """Set when all connections but those for which the server has room have an answer."""

    async def attempt(self) -> None:
        async with self._gate:
            try:
                reader, writer = await asyncio.open_connection(self._host, self._port)
            except OSError:
                self._count("not connected")
                return
            self.open.add(writer)
            try:
                answer = await reader.read(12) or b"nothing"
            except OSError:
                answer = b"nothing"
            self.open.remove(writer)
            writer.transport.abort()
            self._count(answer.decode())

    def _count(self, answer: str) -> None:
        self.seen[answer] += 1
        if self.seen.total() >= ATTEMPTS - ROOM:
            self.all_but_accepted.set()


FEW_FILES = """
import resource
from apcore_a2a import Limits, serve

resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

async def echo(text: str) -> str:
    return text

serve(echo, host="127.0.0.1", port=0, metrics=True, trusted_proxies=["127.0.0.1"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a process may open any number of files there")
async def test_with_few_file_descriptors_a_connection_too_many_receives_503() -> None:
    async with running("-c", FEW_FILES) as process:
        where = urlsplit((await process.says(r"running on (http://[\d.:]+)"))[1])
        async with asyncio.timeout(PATIENCE):
            opened = [await asyncio.open_connection(where.hostname, where.port) for _ in range(97)]
            answer = await opened[-1][0].read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        await process.says("connection refused peer=127.0.0.1 reason=all 96 connections are taken")
    for _, writer in opened:
        writer.transport.abort()


async def test_open_connections_are_served_during_endless_connection_attempts() -> None:
    async with running("-c", SERVE) as process:
        url = (await process.says(r"running on (http://[\d.:]+)"))[1]
        where = urlsplit(url)
        attack = Attack(str(where.hostname), int(where.port or 0))
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE * 4) as client:
            assert (await client.get("/health")).status_code == 200  # this connection stays open
            async with asyncio.TaskGroup() as group:
                for number in range(ATTEMPTS):
                    group.create_task(attack.attempt())
                    if number % 500 == 0:
                        assert (await client.get("/health")).status_code == 200
                async with asyncio.timeout(PATIENCE * 4):
                    await attack.all_but_accepted.wait()
                assert (await client.get("/metrics")).json()["open_connections"] <= ROOM + AT_ONCE
                for writer in attack.open:
                    writer.transport.abort()
            await until(client, "open_connections", lambda left: left == 1)
        assert attack.seen["HTTP/1.1 503"] > ATTEMPTS // 2
        assert "HTTP/1.1 200" not in attack.seen
    assert "Traceback" not in process.said


@pytest.mark.parametrize(
    "piece",
    [b"", b"G", b"GET / HTTP/1.1\r\nX: y\r\n", b"POST / HTTP/1.1\r\nContent-Length: 5\r\nHost: localhost\r\n"],
    ids=["silence", "half a word", "headers without end", "all but the last line"],
)
async def test_slow_headers_are_closed_at_the_deadline_and_delay_no_other_client(
    piece: bytes,
) -> None:
    async with serving(ScriptedAgent(default=(COMPLETED,)), protocol=ShortHeaders) as url:
        where = urlsplit(url)

        async def send_slowly() -> bytes:
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(piece)
            try:
                while not reader.at_eof():
                    if piece:
                        writer.write(b"x")  # further bytes do not extend the deadline
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.transport.abort()
            return b""

        async with asyncio.timeout(PATIENCE), httpx.AsyncClient(base_url=url) as client:
            slow = [asyncio.create_task(send_slowly()) for _ in range(50)]
            for _ in range(20):
                assert (await client.get("/health")).status_code == 200
            answers = [await one for one in slow]
        assert set(answers) <= {b""} or all(answer.startswith(b"HTTP/1.1 400") for answer in answers)


@pytest.mark.parametrize("rest", [b"x", b"x" * 9], ids=["a byte of it", "all of it"])
async def test_an_unread_body_after_the_response_does_not_keep_the_connection_open(
    rest: bytes,
) -> None:
    async with serving(ScriptedAgent(default=(COMPLETED,)), protocol=ShortHeaders) as url:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx")
        try:
            async with asyncio.timeout(PATIENCE):
                await reader.readuntil(b'"healthy"')  # the server has not waited for the body
                writer.write(rest)
                await reader.read()
        finally:
            writer.transport.abort()
