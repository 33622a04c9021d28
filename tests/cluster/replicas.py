"""Replicas as processes, and a client that calls any of them and records all that it receives."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import aiohttp

from tests.postgres_server import PostgresServer
from tests.processes import Process, running
from tests.sources import ROOT

ENDED = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
AWAY = (aiohttp.ClientError, TimeoutError, ConnectionError)
PATIENCE = 90.0  # seconds for which a client retries: three times the longest time without the database in any round


class Place(NamedTuple):
    """The database of a round: its URL for replicas, and its address for the checker."""

    url: str
    dsn: str
    schema: str
    server: PostgresServer


def new_place(server: PostgresServer) -> Place:
    url = server.url()
    schema = parse_qs(urlsplit(url).query)["schema"][0]
    return Place(url, server.dsn, schema, server)


class Replica:
    """One replica, which may be running or not."""

    def __init__(self, url: str, environment: dict[str, str]) -> None:
        self._url = url
        self._environment = environment
        self._stack = AsyncExitStack()
        self.process: Process | None = None
        self.address = ""
        self.working: set[str] = set()  # its runs that count at present
        self.output: list[str] = []  # its other lines since its last start
        self._reading: asyncio.Task[int] | None = None

    async def start(self, *, delay: float = 0) -> None:
        port = self.address.rpartition(":")[2] or "0"
        arguments = ("-m", "tests.cluster.replica", self._url, port, str(delay))
        process = await self._stack.enter_async_context(running(*arguments, **self._environment))
        self.address = (await process.says(r"running on (http://[\d.]+:\d+)"))[1]
        self.working.clear()
        self.output.clear()
        self._reading = asyncio.create_task(self._read(process))  # a full pipe would block it
        self.process = process

    async def _read(self, process: Process) -> int:
        async for line in process.lines():
            word, run, what = (*line.split(), "", "", "")[:3]
            if (word, what) == ("run", "begins"):
                self.working.add(run)
            elif (word, what) == ("run", "ends"):
                self.working.discard(run)
            else:
                self.output.append(line)
        return await process.ends()

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.signal(number)

    async def end(self, number: signal.Signals) -> int:
        """Send a signal that ends it. Return its exit code."""
        self.send(number)
        self.process = None
        assert self._reading is not None
        return await self._reading

    async def close(self) -> None:
        self.process = None
        await self._stack.aclose()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=5)


@asynccontextmanager
async def replicas(
    *urls: str, environments: Sequence[Mapping[str, str]] = ({}, {}, {}, {})
) -> AsyncIterator[list[Replica]]:
    """Start one replica for each URL."""
    found: list[Replica] = []
    for url, environment in zip(urls, environments, strict=False):
        found.append(Replica(url, {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment}))
    try:
        async with asyncio.TaskGroup() as group:
            for replica in found:
                group.create_task(replica.start())
        yield found
    finally:
        for replica in found:
            await replica.close()


class ReceivedStream:
    """The events of one stream, with their sequence numbers, in the order of arrival."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.begun = time.monotonic()
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.times: list[float] = []  # when each of them arrived


class Client:
    """Calls any replica that runs, and records what it receives, and when."""

    def __init__(self, found: list[Replica], seed: int) -> None:
        self.replicas = found
        self.dice = Random(seed)
        self.received: list[ReceivedStream] = []
        self.reads: list[tuple[float, float, str, str]] = []  # begun, ended, task, state
        self.created: list[str] = []
        self.internal_errors: list[str] = []  # requests that were answered with 500, which none may be
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> "Client":
        self._http = aiohttp.ClientSession(
            headers={"A2A-Version": "1.0"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=2, sock_read=20),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    def any_address(self) -> str:
        return self.dice.choice([replica for replica in self.replicas if replica.is_up]).address

    async def call(
        self, method: str, path: str, body: object = None, *, at: str = "", key: str = ""
    ) -> tuple[int, Any]:
        """Send one request, without a retry."""
        url = f"{at or self.any_address()}{path}"
        headers = {"Idempotency-Key": key} if key else {}
        async with self._http.request(method, url, json=body, headers=headers) as answer:
            if answer.status == 500:
                self.internal_errors.append(f"{method} {path}: 500 {await answer.text()}")
            return answer.status, await answer.json()

    async def persist(self, method: str, path: str, body: object = None, *, key: str = "") -> Any:
        """Retry a request until a replica answers it."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with suppress(*AWAY):
                status, answer = await self.call(method, path, body, key=key)
                if status < 500:
                    return answer
            await asyncio.sleep(0.1)
        raise AssertionError(f"no replica answered {method} {path}")

    async def start(self, text: str, *, wait: bool = False) -> str:
        """Create a task, and return its id. Retries send the same message, so they create one task."""
        body = message(text, now=not wait)
        answer = await self.persist("POST", "/message:send", body)
        task_id: str = answer["task"]["id"]
        self.created.append(task_id)
        return task_id

    async def read(self, task_id: str) -> str:
        """Return the state of a task, as one replica shows it."""
        begun = time.monotonic()
        answer = await self.persist("GET", f"/tasks/{task_id}")
        state = answer["status"]["state"].removeprefix("TASK_STATE_")
        self.reads.append((begun, time.monotonic(), task_id, state))
        return str(state)

    async def follow(self, task_id: str) -> None:
        """Read the events of a task to its end, at several replicas if needed."""
        while await self.read(task_id) not in ENDED:
            received = ReceivedStream(task_id)
            self.received.append(received)
            with suppress(*AWAY):
                await self._listen(received)
            await asyncio.sleep(0.05)

    async def glance(self, task_id: str, most: int) -> None:
        """Read a few events of a task, if they arrive soon, and leave."""
        received = ReceivedStream(task_id)
        self.received.append(received)
        with suppress(*AWAY):
            async with asyncio.timeout(0.5):
                await self._listen(received, most)

    async def _listen(self, received: ReceivedStream, most: int = -1) -> None:
        async with self._http.get(f"{self.any_address()}/tasks/{received.task_id}:subscribe") as answer:
            seq = 0
            async for line in answer.content:
                name, _, value = line.decode().rstrip("\r\n").partition(": ")
                if name == "id":
                    seq = int(value)
                elif name == "data" and seq:
                    received.events.append((seq, json.loads(value)))
                    received.times.append(time.monotonic())
                    if len(received.events) == most:
                        return


def message(text: str, *, now: bool = True, task_id: str = "") -> dict[str, Any]:
    sent = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    if task_id:
        sent["taskId"] = task_id
    return {"message": sent, "configuration": {"returnImmediately": now}}
