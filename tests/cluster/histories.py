"""Random histories of clients under random faults; storms of cancels; a million events to many readers at once."""

import asyncio
import json
import time
from collections import Counter
from contextlib import suppress
from random import Random
from typing import NamedTuple

import aiohttp

from tests.cluster.checker import check_database, check_received, is_stored, not_at_rest, read_events
from tests.cluster.replicas import AWAY, Client, Place, Replica, message, replicas
from tests.cluster.rounds import LEASE, Load, Outcome, conclude, kill_one, settle, stop_one

OPERATIONS = {
    "get": 8,
    "list": 2,
    "send": 3,
    "ask": 1,
    "answer": 1,
    "cancel": 1,
    "subscribe": 3,
}  # relative frequencies
REMEMBERED = 200  # latest tasks that requests refer to


class History(NamedTuple):
    operations: dict[str, int]
    faults: int
    tasks: int
    events: int


class Caller:
    """One of several clients that send random requests."""

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._dice = Random(seed)
        self.done: Counter[str] = Counter()

    async def act(self) -> None:
        names = list(OPERATIONS)
        (operation,) = self._dice.choices(names, weights=[OPERATIONS[name] for name in names])
        recent = self._client.created[-REMEMBERED:]
        if not recent:
            operation = "send"
        self.done[operation] += 1
        if operation == "send":
            numbers = self._dice.randrange(1, 20)
            kind = self._dice.choice(("safe", "unsafe"))
            await self._client.start(f"count {numbers} {self._dice.choice((0, 0.01, 0.1))} {kind}")
        elif operation == "ask":
            await self._client.start("ask")
        elif operation == "list":
            await self._client.persist("GET", "/tasks")
        else:
            await self._act_on(operation, self._dice.choice(recent))

    async def _act_on(self, operation: str, task_id: str) -> None:
        if operation == "get":
            await self._client.read(task_id)
        elif operation == "subscribe":
            await self._client.glance(task_id, self._dice.randrange(1, 20))
        elif operation == "answer":
            await self._client.persist("POST", "/message:send", message("go on", task_id=task_id))
        else:
            await self._client.persist("POST", f"/tasks/{task_id}:cancel")


async def inject_faults(found: list[Replica], dice: Random, lease: float, done: asyncio.Event) -> int:
    """Inject one fault after the other until the event is set. Return their number."""
    count = 0
    while not done.is_set():
        await asyncio.sleep(lease)
        count += 1
        if dice.random() < 0.5:
            await kill_one(found, dice)
            await asyncio.sleep(1)
            for replica in found:
                if not replica.is_up:
                    await replica.start()
        else:
            await stop_one(found, dice, 1.5 * lease)
    return count


async def until_no_task_runs(place: Place, seconds: float) -> None:
    """Wait until every task has ended, or waits for its user."""
    until = time.monotonic() + seconds
    running = [""]
    while running:
        await asyncio.sleep(0.2)
        left = await not_at_rest(place.dsn, place.schema)
        running = [task for task in left if "'runner': None" not in task]
        assert not running or time.monotonic() < until, running


async def history_round(place: Place, *, operations: int, seed: int, callers: int = 8, lease: float = LEASE) -> History:
    """Perform random operations of several clients under faults. Then check everything."""
    async with (
        replicas(*[f"{place.url}&lease={lease}"] * 3) as found,
        Client(found, seed) as client,
    ):
        actors = [Caller(client, seed + number) for number in range(callers)]
        left = operations

        async def act(caller: Caller) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await caller.act()

        done = asyncio.Event()
        injecting = asyncio.create_task(inject_faults(found, Random(seed), lease, done))
        async with asyncio.TaskGroup() as group:
            for caller in actors:
                group.create_task(act(caller))
        done.set()
        count = await injecting
        await until_no_task_runs(place, 10 * lease + 20)
        wrong = await check_database(place.dsn, place.schema)
        stored = await read_events(place.dsn, place.schema)
        wrong += check_received(client, stored)
        assert not wrong, "\n".join(wrong[:50])
        operations_done = sum((caller.done for caller in actors), Counter())
        return History(
            dict(operations_done), count, len(stored), sum(len(received.events) for received in client.received)
        )


class Storm(NamedTuple):
    outcome: Outcome
    cancels: int
    slowest_cancel: float


async def cancel_storm(place: Place, *, tasks: int, seed: int) -> Storm:
    """Cancel every task at every replica, at random times of its run."""
    took: list[float] = []
    async with (
        replicas(*[place.url] * 3) as found,
        Client(found, seed) as client,
        asyncio.TaskGroup() as group,
    ):
        load = Load(client, group)

        async def cancel(task_id: str, address: str, after: float) -> None:
            await asyncio.sleep(after)
            begun = time.monotonic()
            status, _ = await client.call("POST", f"/tasks/{task_id}:cancel", at=address)
            took.append(time.monotonic() - begun)
            assert status in (200, 400, 409), status

        await load.begin(tasks, numbers=20, pause=0.1)
        for task_id in list(load.kinds):
            for replica in found:
                group.create_task(cancel(task_id, replica.address, client.dice.random() * 2.2))
        slowest = await settle(load, place, 60, time.monotonic())
        outcome = await conclude(client, load, place, slowest)
        assert outcome.lost == 0
    return Storm(outcome, len(took), max(took))


class Reader:
    """Reads the events of one task as bytes, at one replica after the other, and notes errors."""

    def __init__(self, client: Client, task_id: str, shared: dict[int, bytes], seed: int) -> None:
        self._client = client
        self._task_id = task_id
        self._shared = shared  # the events that all readers of this task received, by number
        self._dice = Random(seed)
        self.count = 0
        self.streams = 0
        self.wrong: list[str] = []

    async def read(self, http: aiohttp.ClientSession) -> None:
        has_ended = False
        while not has_ended:
            has_ended = await self._read_once(http)
            await asyncio.sleep(0.01)

    async def _read_once(self, http: aiohttp.ClientSession) -> bool:
        """Read one stream. Return whether the task has ended."""
        self.streams += 1
        leave_after = self._dice.randrange(50, 2000)
        last = 0
        with suppress(*AWAY):
            async with http.get(f"{self._client.any_address()}/tasks/{self._task_id}:subscribe") as answer:
                if answer.status != 200:  # it has ended, and has no more events
                    return answer.status < 500
                seq = 0
                async for line in answer.content:
                    if line.startswith(b"id: "):
                        seq = int(line[4:])
                    elif line.startswith(b"data: "):
                        self._take(last, seq, line[6:].strip())
                        last = seq
                        leave_after -= 1
                        if not leave_after:
                            return False
        return False

    def _take(self, last: int, seq: int, data: bytes) -> None:
        self.count += 1
        if data.startswith(b'{"task"'):
            return
        if last and seq != last + 1:
            self.wrong.append(f"{self._task_id}: from {last} to {seq}")
        if self._shared.setdefault(seq, data) != data:
            self.wrong.append(f"{self._task_id}: two readers received different events {seq}")


class Ordering(NamedTuple):
    events: int
    streams: int
    seconds: float


async def ordering_round(place: Place, *, tasks: int, numbers: int, readers: int, seed: int) -> Ordering:
    """Many readers of each task subscribe and leave at all replicas: all receive the same events, in order."""
    begun = time.monotonic()
    async with (
        replicas(*[place.url] * 3) as found,
        Client(found, seed) as client,
        aiohttp.ClientSession(
            headers={"A2A-Version": "1.0"}, connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**18
        ) as http,
    ):
        received: dict[str, dict[int, bytes]] = {}
        all_readers: list[Reader] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                task_id = await client.start(f"count {numbers} 0.02 safe")
                received[task_id] = {}
                for _ in range(readers):
                    reader = Reader(client, task_id, received[task_id], seed + len(all_readers))
                    all_readers.append(reader)
                    group.create_task(reader.read(http))
        wrong = [what for reader in all_readers for what in reader.wrong]
        stored = await read_events(place.dsn, place.schema)
        for task_id, events in received.items():
            for seq, data in events.items():
                if not is_stored(json.loads(data), stored[task_id].get(seq)):
                    wrong.append(f"{task_id}: received event {seq} differs from the stored one")
        wrong += await check_database(place.dsn, place.schema)
        assert not wrong, "\n".join(wrong[:50])
        count = sum(reader.count for reader in all_readers)
        return Ordering(count, sum(reader.streams for reader in all_readers), time.monotonic() - begun)
