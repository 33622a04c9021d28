"""Rounds of faults under load, and the checks afterwards."""

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.cluster.checker import check_database, check_received, not_at_rest, read_events
from tests.cluster.clocks import Clocks
from tests.cluster.replicas import Client, Place, Replica, message, replicas
from tests.postgres_server import PostgresServer

LEASE = 3.0  # seconds, in short rounds; on a loaded machine shorter leases expire without a fault

NUMBERS = 30  # that a task counts to


class Outcome(NamedTuple):
    tasks: int
    running: int
    """Tasks that ran at the time of the fault."""
    events: int
    """Events that clients received."""
    reads: int
    completed: int
    lost: int
    canceled: int
    slowest: float
    """Seconds from the fault until the last task had ended."""
    reasons: dict[str, int]
    """Why tasks failed, and how many."""


class Load:
    """Counting tasks, each with one reader."""

    def __init__(self, client: Client, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._group = group
        self.kinds: dict[str, str] = {}
        self.followers: list[asyncio.Task[None]] = []

    async def begin(self, count: int, *, numbers: int, pause: float) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(count):
                kind = "safe" if index % 3 else "unsafe"
                group.create_task(self._begin_one(f"count {numbers} {pause} {kind}", kind))

    async def _begin_one(self, text: str, kind: str) -> None:
        task_id = await self._client.start(text)
        self.kinds[task_id] = kind
        self.followers.append(self._group.create_task(self._client.follow(task_id)))


async def settle(load: Load, place: Place, seconds: float, since: float) -> float:
    """Wait until every task has ended. Return the seconds since the fault."""
    _, late = await asyncio.wait(load.followers, timeout=seconds)
    if late:
        raise AssertionError(f"{len(late)} followers wait; not at rest: {await not_at_rest(place.dsn, place.schema)}")
    return time.monotonic() - since


async def conclude(client: Client, load: Load, place: Place, slowest: float, running: int = 0) -> Outcome:
    """Check everything. Raise AssertionError with all violations."""
    states = {task_id: await client.read(task_id) for task_id in load.kinds}
    wrong = await check_database(place.dsn, place.schema)
    wrong += check_received(client, await read_events(place.dsn, place.schema))
    for task_id, state in states.items():
        if load.kinds[task_id] == "safe" and state == "FAILED":
            wrong.append(f"{task_id}: it is repeatable, and has FAILED")
    if wrong:
        raise AssertionError("\n".join(wrong))
    return Outcome(
        tasks=len(states),
        running=running,
        events=sum(len(received.events) for received in client.received),
        reads=len(client.reads),
        completed=sum(state == "COMPLETED" for state in states.values()),
        lost=sum(state == "FAILED" for state in states.values()),
        canceled=sum(state == "CANCELED" for state in states.values()),
        slowest=slowest,
        reasons=await why_failed(client, states),
    )


async def why_failed(client: Client, states: dict[str, str]) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    for task_id, state in states.items():
        if state == "FAILED":
            task = await client.persist("GET", f"/tasks/{task_id}")
            reasons[task["status"]["message"]["parts"][0]["text"]] += 1
    return dict(reasons)


async def kill_one(found: list[Replica], dice: Random) -> None:
    """Kill a replica with SIGKILL. The client calls the others."""
    victim = dice.choice([replica for replica in found if replica.is_up])
    await victim.end(signal.SIGKILL)


async def stop_one(found: list[Replica], dice: Random, seconds: float) -> None:
    """Suspend a replica for longer than its lease, and let it go on: a zombie."""
    victim = dice.choice([replica for replica in found if replica.is_up])
    victim.send(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    victim.send(signal.SIGCONT)


async def restart_database(server: PostgresServer, away: float) -> None:
    """Crash the database, and start it again after a time shorter than a lease."""
    await asyncio.to_thread(server.stop, signal.SIGQUIT)
    await asyncio.sleep(away)
    await asyncio.to_thread(server.start)


async def cancel_some(client: Client, load: Load, count: int) -> None:
    """Cancel tasks, each from two replicas at once."""
    chosen = client.dice.sample(sorted(load.kinds), count)
    async with asyncio.TaskGroup() as group:
        for task_id in chosen:
            for _ in range(2):
                group.create_task(client.persist("POST", f"/tasks/{task_id}:cancel"))


async def keep_reading(client: Client, load: Load) -> None:
    """Read tasks at random, at random replicas, until it is cancelled."""
    while True:
        if load.kinds:
            await client.read(client.dice.choice(sorted(load.kinds)))
        await asyncio.sleep(0.02)


async def fault_round(
    place: Place, *, tasks: int, seed: int, fault: str, lease: float = LEASE, seconds: float = 0
) -> Outcome:
    """Inject one fault in the middle of running tasks of so many seconds, with readers, and cancels at all replicas."""
    dice = Random(seed)
    seconds = seconds or 2 * lease
    async with (
        replicas(*[f"{place.url}&lease={lease}"] * 3) as found,
        Client(found, seed) as client,
        asyncio.TaskGroup() as group,
    ):
        load = Load(client, group)
        await load.begin(tasks, numbers=NUMBERS, pause=seconds / NUMBERS)
        reading = group.create_task(keep_reading(client, load))
        since = time.monotonic()
        running = sum(len(replica.working) for replica in found)
        if fault == "kill":
            await kill_one(found, dice)
            await cancel_some(client, load, tasks // 8)
        elif fault == "stop":
            await stop_one(found, dice, 1.5 * lease)
        elif fault == "database":
            await restart_database(place.server, lease / 4)
        else:
            raise ValueError(fault)
        slowest = await settle(load, place, 10 * lease + 20, since)
        reading.cancel()
        return await conclude(client, load, place, slowest, running)


async def clock_round(place: Place, folder: Path, *, tasks: int, seed: int, lease: float = LEASE) -> Outcome:
    """Run three replicas with clocks that are ten minutes fast, ten minutes slow, and changed meanwhile. Then kill one.

    The clocks must have no effect: every task of the first half completes, and no replica loses its lease.
    """
    clocks = Clocks(folder)
    urls = [f"{place.url}&lease={lease}"] * 3
    async with (
        replicas(*urls, environments=clocks.environments()) as found,
        Client(found, seed) as client,
        asyncio.TaskGroup() as group,
    ):
        load = Load(client, group)
        reading = group.create_task(keep_reading(client, load))
        await load.begin(tasks // 2, numbers=NUMBERS, pause=2 * lease / NUMBERS)
        clocks.set_one()
        await settle(load, place, 10 * lease + 20, time.monotonic())
        lost = [task_id for task_id in load.kinds if await client.read(task_id) != "COMPLETED"]
        output = [line for replica in found for line in replica.output if "lease" in line]
        assert (lost, output) == ([], []), "a task or a lease was lost by a wrong clock"
        await load.begin(tasks // 2, numbers=NUMBERS, pause=2 * lease / NUMBERS)
        since = time.monotonic()
        running = sum(len(replica.working) for replica in found)
        await kill_one(found, Random(seed))
        slowest = await settle(load, place, 10 * lease + 20, since)
        reading.cancel()
        return await conclude(client, load, place, slowest, running)


class Traffic:
    """Requests with one retry at most, and streams that are followed from replica to replica."""

    def __init__(self, client: Client, requests: int) -> None:
        self._client = client
        self._requests = requests
        self.sent = 0
        self.rejected: list[str] = []
        self.is_over = False  # whether no replica is restarted any more

    @property
    def is_enough(self) -> bool:
        return self.is_over and self.sent >= self._requests

    async def send(self) -> None:
        while not self.is_enough:
            self.sent += 1
            await self._send_one(message("hello", now=False))

    async def _send_one(self, body: dict[str, object]) -> None:
        for attempt in range(2):
            try:
                status, answer = await self._client.call("POST", "/message:send", body)
            except Exception as error:  # any error that a client may see
                status, answer = 0, repr(error)
            if status == 200:
                self._client.created.append(answer["task"]["id"])
                return
            if attempt:
                self.rejected.append(f"{status} {answer}")
            await asyncio.sleep(0.1)

    async def stream(self, load: Load) -> None:
        """Follow one task after the other, each shorter than the shutdown timeout of a replica."""
        while not self.is_enough:
            task_id = await self._client.start("count 20 0.1 safe")
            load.kinds[task_id] = "safe"
            await self._client.follow(task_id)


async def rolling_round(place: Place, *, requests: int, streams: int, seed: int) -> Outcome:
    """Restart the replicas in turn under load. A client whose request is rejected retries once."""
    async with replicas(*[place.url] * 3) as found, Client(found, seed) as client, asyncio.TaskGroup() as group:
        load = Load(client, group)
        traffic = Traffic(client, requests)
        load.followers += [group.create_task(traffic.send()) for _ in range(4)]
        load.followers += [group.create_task(traffic.stream(load)) for _ in range(streams)]
        restarts = 0
        while not restarts or traffic.sent < requests:
            for replica in found:
                await restart(replica)
                restarts += 1
        traffic.is_over = True
        slowest = await settle(load, place, 60, time.monotonic())
        rejected = traffic.rejected
        assert rejected == [], f"{len(rejected)} of {traffic.sent} requests failed twice: {rejected[:3]}"
        outcome = await conclude(client, load, place, slowest)
        assert outcome.lost == 0, "a replica that shut down gracefully failed a task shorter than its timeout"
        return outcome._replace(events=traffic.sent, running=restarts)


async def restart(replica: Replica) -> None:
    """Shut a replica down gracefully, as a deployment does, and start the next one."""
    replica.send(signal.SIGTERM)
    code = await replica.end(signal.SIGCONT)  # a signal without effect: it is shutting down
    assert code == 0, code
    await replica.start()
