"""Faults of the database that pass: what runs meanwhile completes, and no request is answered with 500."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import uuid4

import asyncpg

from tests.cluster.conversations import Conversation
from tests.cluster.replicas import AWAY, Client, Place, message, replicas
from tests.cluster.rounds import NUMBERS, Load, Outcome, conclude, settle
from tests.pgbouncer import PgBouncer
from tests.postgres_server import PostgresServer

LEASE = 15  # seconds, the store's default
TERMINATE_EVERY = 0.25  # seconds between two terminations of all connections
OURS = "application_name LIKE 'apcore-a2a%'"


class Sender:
    """Sends new messages, one after the other, and waits for the results."""

    def __init__(self, client: Client, size: int) -> None:
        self._client = client
        self._size = size
        self._answer = asyncio.Event()
        self.seconds: list[float] = []  # that each answered message took
        self.rejected = 0
        self.is_over = False

    async def send(self) -> None:
        while not self.is_over:
            begun = time.monotonic()
            with suppress(*AWAY):
                body = message(f"hello {secrets.token_hex(self._size)}", now=False)
                status, answer = await self._client.call("POST", "/message:send", body, key=str(uuid4()))
                if status == 200:
                    self._client.created.append(answer["task"]["id"])
                    self.seconds.append(time.monotonic() - begun)
                else:
                    self.rejected += 1
                self._answer.set()
            await asyncio.sleep(0.02)

    @property
    def p99(self) -> float:
        return sorted(self.seconds)[len(self.seconds) * 99 // 100]

    async def until_rejected(self, count: int) -> None:
        """Wait until so many more messages have been rejected."""
        wanted = self.rejected + count
        while self.rejected < wanted:
            self._answer.clear()
            await self._answer.wait()

    async def until_answered(self, count: int) -> None:
        """Wait until so many more messages have been answered."""
        wanted = len(self.seconds) + count
        while len(self.seconds) < wanted:
            self._answer.clear()
            await self._answer.wait()


class Scene(NamedTuple):
    """What a fault works on."""

    place: Place
    admin: "asyncpg.Connection[asyncpg.Record]"
    load: Load
    sender: Sender
    dice: Random


Fault = Callable[[Scene], Awaitable[None]]


async def terminate(scene: Scene) -> None:
    """Terminate all connections of all replicas, again and again."""
    for _ in range(16):
        await scene.admin.fetch(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
        await asyncio.sleep(TERMINATE_EVERY)


async def lock_row(scene: Scene) -> None:
    """Hold the rows of three running tasks in a forgotten transaction, until 60 other messages were answered."""
    ids = [task_id.encode() for task_id in scene.dice.sample(sorted(scene.load.kinds), 3)]
    async with scene.admin.transaction():
        await scene.admin.fetch("SELECT 1 FROM task WHERE id = ANY($1::bytea[]) FOR UPDATE", ids)
        await scene.sender.until_answered(60)


async def lock_tables(scene: Scene) -> None:
    """Lock each table in turn, and all of them together."""
    tables = ["task", "event", "webhook", "replica", "command", "conversation"]
    for names in (*tables, ", ".join(tables)):
        async with scene.admin.transaction():
            await scene.admin.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
            await asyncio.sleep(4)
        await asyncio.sleep(0.5)


async def cancel_statements(scene: Scene) -> None:
    """Cancel the statements that are being executed, as an administrator or a timeout does."""
    for _ in range(100):
        await scene.admin.fetch(
            f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {OURS} AND state = 'active'"
        )
        await asyncio.sleep(0.04)


async def read_only(scene: Scene) -> None:
    """Make every new connection read-only, as after a failover to a standby that is not promoted yet."""
    await scene.admin.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
    await scene.admin.fetch(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
    await asyncio.sleep(4)
    await scene.admin.execute("SET default_transaction_read_only = off")
    await scene.admin.execute("ALTER DATABASE postgres RESET default_transaction_read_only")


async def take_connections(scene: Scene) -> None:
    """Leave no connection for the user of the replicas, and terminate those that it has."""
    role = limited_role(scene.place)
    await scene.admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    await scene.admin.fetch(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}")
    await asyncio.sleep(5)
    await scene.admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")


def limited_role(place: Place) -> str:
    return f"limited_{place.schema}"


async def limited_url(place: Place) -> str:
    """Return the store's URL of a user whose connections can be limited, unlike those of an administrator."""
    role = limited_role(place)
    admin = await asyncpg.connect(place.dsn)
    await admin.execute(f"CREATE ROLE {role} LOGIN")
    await admin.execute(f"GRANT CREATE ON DATABASE postgres TO {role}")
    await admin.close()
    return place.url.replace("postgres@", f"{role}@")


def fill_disk(folder: Path) -> Fault:
    """Return the fault of a disk that is full: that of a tablespace in this folder."""

    async def fill(scene: Scene) -> None:
        file = folder / "other data"
        with suppress(OSError), file.open("wb", buffering=0) as full:
            while full.write(bytes(8192)):
                pass
        await scene.sender.until_rejected(3)
        await asyncio.sleep(4)
        file.unlink()

    return fill


def restart_pooler(pooler: PgBouncer) -> Fault:
    async def restart(scene: Scene) -> None:
        for _ in range(3):
            await asyncio.to_thread(pooler.kill)
            await asyncio.sleep(1)
            await asyncio.to_thread(pooler.start)
            await asyncio.sleep(2)

    return restart


@asynccontextmanager
async def small_disk(server: PostgresServer, megabytes: int) -> AsyncIterator[Path]:
    """Mount a file system of this size, where the tables of the server will be."""
    folder = server.folder / "small"
    folder.mkdir()
    await execute("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "tmpfs", str(folder))
    try:
        tablespace = folder / "tables"
        tablespace.mkdir()
        tablespace.chmod(0o777)
        if os.geteuid() == 0:
            os.chown(tablespace, 65534, 65534)
        admin = await asyncpg.connect(server.dsn)
        await admin.execute(f"CREATE TABLESPACE small LOCATION '{tablespace}'")
        await admin.execute("ALTER DATABASE postgres SET default_tablespace = small")
        await admin.close()
        yield folder
    finally:
        server.stop()
        await execute("umount", "--lazy", str(folder))


async def execute(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0, command


class Passed(NamedTuple):
    """The outcome of a fault that passed."""

    outcome: Outcome
    messages: int
    """Messages of conversations, each sent twice."""
    answered: int
    rejected: int
    """Other messages that were answered, and that were rejected with 503."""
    p99: float
    """Seconds that an answer to one of them took."""


async def database_round(
    place: Place, fault: Fault, *, tasks: int, seed: int, urls: Sequence[str] = (), seconds: float = 20
) -> Passed:
    """Inject one fault in the middle of running tasks of so many seconds, conversations, and other messages."""
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(replicas(*(urls or [f"{place.url}&lease={LEASE}"] * 3)))
        client = await stack.enter_async_context(Client(found, seed))
        admin = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
        stack.push_async_callback(admin.close)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        load = Load(client, group)
        sender = Sender(client, 4000)
        sending = [group.create_task(sender.send()) for _ in range(3)]
        talks = begin_talks(client, load, group, tasks // 4 + 1)
        await load.begin(tasks, numbers=NUMBERS, pause=seconds / NUMBERS)
        since = time.monotonic()
        running = sum(len(replica.working) for replica in found)
        await fault(Scene(place, admin, load, sender, Random(seed)))
        await sender.until_answered(20)
        slowest = await settle(load, place, 10 * LEASE + 20, since)
        sender.is_over = True
        await asyncio.wait(sending)
        wrong = [line for talk in talks for line in await talk.check()]
        assert wrong == [], "\n".join(wrong)
        outcome = await conclude(client, load, place, slowest, running)
        assert outcome.lost == 0, outcome
        return Passed(outcome, sum(len(talk.sent) for talk in talks), len(sender.seconds), sender.rejected, sender.p99)


async def pooler_round(place: Place, mode: str, *, tasks: int, seed: int, seconds: float = 20) -> Passed:
    """Kill and restart a pooler in this mode, which all replicas use, in the middle of running tasks."""
    pooler = PgBouncer(place.server, mode)
    pooler.start()
    try:
        url = pooler.url(place.url, lease=LEASE, pool_mode=mode, listen_url=place.dsn)
        fault = restart_pooler(pooler)
        return await database_round(place, fault, tasks=tasks, seed=seed, urls=[url] * 3, seconds=seconds)
    finally:
        pooler.kill()


def begin_talks(client: Client, load: Load, group: asyncio.TaskGroup, count: int) -> list[Conversation]:
    """Begin so many conversations of six messages each. A third of them may not be repeated."""
    talks: list[Conversation] = []
    for index in range(count):
        talk = Conversation(client, "safe" if index % 3 else "unsafe", numbers=20, pause=0.1)
        talks.append(talk)
        load.followers.append(group.create_task(talk.hold(6)))
    return talks
