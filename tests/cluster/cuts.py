"""A replica that is cut off from the database while the others reach it: what it does, and what it answers."""

import asyncio
import time
from contextlib import AsyncExitStack
from random import Random
from typing import NamedTuple

import aiohttp

from tests.cluster.replicas import Client, Place, Replica, message, replicas
from tests.cluster.rounds import LEASE, NUMBERS, Load, Outcome, conclude, keep_reading, settle
from tests.postgres_proxy import Network, Proxy

EVERY = 0.2  # seconds between two requests to the replica that is cut off
DEADLINE = 5.5  # seconds in which a request is answered: five, and some for a loaded machine
CANCEL_DEADLINE = 6.5  # the same for a cancel, whose agent has five seconds to end


class Answer(NamedTuple):
    """One answer of the replica that is cut off."""

    operation: str
    status: int
    retry_after: str | None
    seconds: float

    @property
    def deadline(self) -> float:
        return CANCEL_DEADLINE if self.operation.endswith(":cancel") else DEADLINE


class Cut(NamedTuple):
    """The observations of a replica that was cut off."""

    stopped_after: float
    """Seconds until the last of its runs had ended."""
    answers: list[Answer]

    @property
    def wrong(self) -> list[Answer]:
        """Answers that were neither served from memory under a valid lease, nor rejected with 503 and Retry-After."""
        rejected = [answer for answer in self.answers if answer.status != 200]
        return [answer for answer in rejected if answer.status != 503 or answer.retry_after is None]

    @property
    def late(self) -> list[Answer]:
        """Answers that took too long."""
        return [answer for answer in self.answers if answer.seconds > answer.deadline]

    @property
    def slowest(self) -> float:
        return max(answer.seconds for answer in self.answers)


async def cut_round(
    place: Place, *, tasks: int, seed: int, network: Network, lease: float = LEASE
) -> tuple[Outcome, Cut]:
    """One of three replicas is cut off for twice its lease, in the middle of running tasks."""
    dice = Random(seed)
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy(place.server.folder)) for _ in range(3)]
        urls = [proxy.url(f"{place.url}&lease={lease}") for proxy in proxies]
        found = await stack.enter_async_context(replicas(*urls))
        client = await stack.enter_async_context(Client(found, seed))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        load = Load(client, group)
        await load.begin(tasks, numbers=NUMBERS, pause=3 * lease / NUMBERS)
        reading = group.create_task(keep_reading(client, load))
        since = time.monotonic()
        running = sum(len(replica.working) for replica in found)
        chosen = dice.randrange(3)
        assert found[chosen].working, "it runs no task"
        await proxies[chosen].set(network)
        cut = await watch(found[chosen], sorted(load.kinds), dice, seconds=2 * lease)
        await proxies[chosen].set(Network.WELL)
        slowest = await settle(load, place, 10 * lease + 20, since)
        reading.cancel()
        status, _ = await client.call("POST", "/message:send", message("hello", now=False), at=found[chosen].address)
        assert status == 200, "it is connected again, and accepts work"
        return await conclude(client, load, place, slowest, running), cut


async def recovery_round(place: Place, *, tasks: int, seed: int, lease: float = LEASE) -> Outcome:
    """The database reports to all replicas that it is starting up, for twice a lease, while tasks run."""
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy(place.server.folder)) for _ in range(3)]
        urls = [proxy.url(f"{place.url}&lease={lease}") for proxy in proxies]
        found = await stack.enter_async_context(replicas(*urls))
        client = await stack.enter_async_context(Client(found, seed))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        load = Load(client, group)
        await load.begin(tasks, numbers=NUMBERS, pause=3 * lease / NUMBERS)
        since = time.monotonic()
        running = sum(len(replica.working) for replica in found)
        for proxy in proxies:
            await proxy.set(Network.STARTS)
        await asyncio.sleep(2 * lease)
        for proxy in proxies:
            await proxy.set(Network.WELL)
        slowest = await settle(load, place, 10 * lease + 20, since)
        return await conclude(client, load, place, slowest, running)


async def watch(victim: Replica, tasks: list[str], dice: Random, seconds: float) -> Cut:
    """Send requests of all kinds to a replica that is cut off, and observe how long its runs go on."""
    begun = time.monotonic()
    stopped_after = float("inf")
    asking: list[asyncio.Task[Answer]] = []
    timeout = aiohttp.ClientTimeout(total=4 * DEADLINE)
    async with aiohttp.ClientSession(victim.address, headers={"A2A-Version": "1.0"}, timeout=timeout) as http:
        while time.monotonic() - begun < seconds:
            asking.append(asyncio.create_task(ask(http, dice.choice(tasks), len(asking))))
            await asyncio.sleep(EVERY)
            if not victim.working and stopped_after == float("inf"):
                stopped_after = time.monotonic() - begun
        answers = [await each for each in asking]
    return Cut(stopped_after, answers)


async def ask(http: aiohttp.ClientSession, task_id: str, number: int) -> Answer:
    requests = (
        ("GET", f"/tasks/{task_id}", None),
        ("GET", "/tasks", None),
        ("POST", "/message:send", message("hello")),
        ("POST", "/message:send", message("hello", now=False)),
        ("POST", f"/tasks/{task_id}:cancel", None),
    )
    method, path, body = requests[number % len(requests)]
    begun = time.monotonic()
    async with http.request(method, path, json=body) as answer:
        await answer.read()
        retry_after = answer.headers.get("retry-after")
    return Answer(f"{method} {path}".replace(task_id, "{id}"), answer.status, retry_after, time.monotonic() - begun)
