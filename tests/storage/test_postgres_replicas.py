"""Who lives, by the database: leases that are renewed, that are over, and whose replicas are taken for dead."""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import asyncpg
import pytest

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import DeliveryReport
from apcore_a2a.storage.postgres import replicas
from apcore_a2a.storage.postgres.connection import READERS, Connection
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.postgres_server import shared_server
from tests.storage.contract import ALICE, Author, append, create_with_webhook, hook, write_task
from tests.storage.test_postgres_writes import until_blocked


@pytest.fixture
async def stores() -> AsyncIterator[list[PostgresStore]]:
    """Three replicas."""
    url = shared_server().url()
    async with AsyncExitStack() as stack:
        found = [PostgresStore(url) for _ in range(3)]
        for store in found:
            await store.open()
            stack.push_async_callback(store.close)
        yield found


@pytest.fixture
async def admin(stores: list[PostgresStore]) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    settings = {"search_path": stores[0].address.schema, "application_name": "admin"}
    connection = await asyncpg.connect(shared_server().dsn, server_settings=settings)
    yield connection
    await connection.close()


async def expire(admin: "asyncpg.Connection[asyncpg.Record]", store: PostgresStore, seconds: int = 1) -> None:
    """The lease of a replica was over so many seconds ago."""
    statement = "UPDATE replica SET until = clock_timestamp() - make_interval(secs => $2) WHERE name = $1"
    await admin.execute(statement, store.replicas.lease.name, seconds)


async def test_an_expired_lease_is_renewed_until_another_replica_marks_it_dead(
    stores: list[PostgresStore], admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    late, heir, _ = stores
    author = await write_task(late, Author("t"), TaskState.WORKING)
    await expire(admin, late)
    assert await late.replicas.lease.renew() is not None
    assert await heir.replicas.claims.claim_orphans(10) == []
    await append(late, author.chunk("still mine"))
    await expire(admin, late)
    claimed = await heir.replicas.claims.claim_orphans(10)
    assert [record.document.task().id for record in claimed] == ["t"]
    assert await late.replicas.lease.renew() is None
    old = late.replicas.lease.name
    await late.replicas.lease.join()
    assert late.replicas.lease.name != old
    assert await late.replicas.lease.renew() is not None


async def test_a_webhook_that_a_dead_replica_has_claimed_is_due_at_once(
    stores: list[PostgresStore], admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    late, heir, _ = stores
    author = Author("t")
    await create_with_webhook(late, author, hook())
    await append(late, author.work())
    await append(late, author.status(TaskState.COMPLETED))
    (claim,) = await late.webhooks.claim(10, 600)
    report = DeliveryReport(delivered=1, pause=600)  # it goes on with the next event
    assert await late.webhooks.settle(claim, report)
    assert await heir.webhooks.claim(10, 600) == []
    await expire(admin, late)
    remaining = await heir.replicas.lease.renew()
    assert remaining is not None
    assert remaining <= 0  # though the replica runs no task
    assert await heir.replicas.claims.claim_orphans(10) == []
    (again,) = await heir.webhooks.claim(10, 600)
    assert again.webhook.delivered == 1
    assert not await late.webhooks.settle(claim, report)
    assert await heir.webhooks.settle(again, DeliveryReport(delivered=again.webhook.latest))
    await expire(admin, heir)
    remaining = await stores[2].replicas.lease.renew()
    assert remaining is not None
    assert remaining > 0  # nothing is left to release


async def test_the_parent_of_a_dead_process_declares_its_replica_dead(
    stores: list[PostgresStore], admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    late, heir, _ = stores
    await write_task(late, Author("t"), TaskState.WORKING)
    listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%a2a_all_' || current_schema() || '%'"
    async with asyncio.timeout(10):
        while await admin.fetchval(listening) < len(stores):  # noqa: ASYNC110  # the server has no event for it
            await asyncio.sleep(0.01)
    await late.report_dead_process(os.getpid() + 1)
    assert await late.replicas.lease.renew() is not None
    await late.report_dead_process(os.getpid())  # only the one that was launched together with it
    assert await late.replicas.lease.renew() is None
    assert await heir.replicas.lease.renew() is not None
    async with asyncio.timeout(10):
        while not (await heir.replicas.watch.until_woken(10)).orphans:
            pass
    assert len(await heir.replicas.claims.claim_orphans(10)) == 1


async def test_a_lease_is_renewed_though_every_reader_waits(
    stores: list[PostgresStore], admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    async def wait_for_admin(connection: Connection) -> None:
        await connection.execute("SELECT pg_advisory_xact_lock(1)")

    async with asyncio.TaskGroup() as group:
        async with admin.transaction():
            await admin.execute("SELECT pg_advisory_xact_lock(1)")
            for _ in range(2 * READERS):
                group.create_task(stores[0].database.call(wait_for_admin))
            await until_blocked(admin, READERS)
            assert await stores[0].replicas.lease.renew() is not None


async def test_a_replica_that_renews_while_it_is_marked_dead_learns_of_it(
    stores: list[PostgresStore], admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    late, heir, _ = stores
    await write_task(late, Author("t"), TaskState.WORKING)
    await expire(admin, late)
    async with admin.transaction():
        await admin.execute("SELECT 1 FROM task FOR UPDATE")
        # The claim waits for no row lock, so the test marks the replica for it, and has not committed yet.
        await admin.execute("UPDATE replica SET is_dead = TRUE WHERE name = $1", late.replicas.lease.name)
        beating = asyncio.create_task(late.replicas.lease.renew())
        await until_blocked(admin)
    assert await beating is None
    assert len(await heir.replicas.claims.claim_orphans(10)) == 1


async def test_nothing_is_claimed_from_a_replica_that_renews_its_lease_at_that_moment(
    stores: list[PostgresStore], admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    late, heir, _ = stores
    await write_task(late, Author("t"), TaskState.WORKING)
    await expire(admin, late)
    async with admin.transaction():
        renewed = "UPDATE replica SET until = clock_timestamp() + interval '1 minute' WHERE name = $1"
        await admin.execute(renewed, late.replicas.lease.name)
        claiming = asyncio.create_task(heir.replicas.claims.claim_orphans(10))  # it sees the lease that is over
        await until_blocked(admin)
    assert await claiming == []
    assert await late.replicas.lease.renew() is not None


async def test_a_beat_says_when_the_next_lease_of_another_replica_is_over(
    stores: list[PostgresStore], admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    one, other, third = stores
    soon = await one.replicas.lease.renew()
    assert soon is not None and 0 < soon <= 15
    await expire(admin, third)  # it left no task, so no replica looks for one
    assert await one.replicas.lease.renew() == pytest.approx(soon, abs=5)
    await write_task(other, Author("t"), TaskState.WORKING)
    await expire(admin, other)
    late = await one.replicas.lease.renew()
    assert late is not None and late < 0
    assert len(await one.replicas.claims.claim_orphans(10)) == 1
    assert await one.replicas.lease.renew() == math.inf


async def test_a_replica_that_leaves_is_dead_at_once_and_for_good(stores: list[PostgresStore]) -> None:
    leaving, staying, _ = stores
    await write_task(leaving, Author("t"), TaskState.WORKING)
    await leaving.replicas.lease.leave()
    assert await leaving.replicas.lease.renew() is None
    assert len(await staying.replicas.claims.claim_orphans(10)) == 1


async def test_a_task_that_a_forgotten_replica_makes_when_it_wakes_up_is_taken_over(
    stores: list[PostgresStore], admin: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    asleep, heir, _ = stores
    await expire(admin, asleep, 3600)
    await heir.replicas.lease.clean_up()  # nothing is left of it
    assert await admin.fetchval("SELECT count(*) FROM replica") == 2
    await write_task(asleep, Author("t"), TaskState.WORKING)  # it does not know
    assert await heir.replicas.claims.claim_orphans(10) == []
    await heir.replicas.lease.clean_up()
    claimed = await heir.replicas.claims.claim_orphans(10)
    assert [(record.document.task().id, record.owner) for record in claimed] == [("t", ALICE)]
    assert await asleep.replicas.lease.renew() is None


# ---- answers that get lost -----------------------------------------------------------------------------------------


@pytest.fixture
def lose_next_answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The connection breaks when the server has done what it is asked next with that function of the module."""

    def lose(name: str) -> None:
        ask = getattr(replicas, name)
        broken: list[object] = []

        async def ask_in_vain(connection: "asyncpg.Connection[asyncpg.Record]", *what: object) -> object:
            answer = await ask(connection, *what)
            if broken:
                return answer
            broken.append(connection)
            connection.terminate()
            raise ConnectionResetError

        monkeypatch.setattr(replicas, name, ask_in_vain)

    return lose


async def test_a_replica_whose_claim_was_not_answered_learns_of_it(
    stores: list[PostgresStore], admin: "asyncpg.Connection[asyncpg.Record]", lose_next_answer: Callable[[str], None]
) -> None:
    late, heir, _ = stores
    await write_task(late, Author("left"), TaskState.WORKING)
    queued = Author("queued").create()
    queued.hand_on = True
    await late.create(queued)
    await expire(admin, late)
    for claim in (heir.replicas.claims.claim_orphans, heir.replicas.claims.claim_queued):
        lose_next_answer("fetch")
        with pytest.raises(StoreUnavailableError):
            await claim(10)
    assert sorted(await heir.replicas.claims.own_tasks()) == [("left", ALICE), ("queued", ALICE)]


async def test_a_command_is_posted_once_though_the_answer_is_lost(
    stores: list[PostgresStore], lose_next_answer: Callable[[str], None]
) -> None:
    asking, runs, _ = stores
    await write_task(runs, Author("t"), TaskState.WORKING)
    lose_next_answer("fetch_value")
    number = await asking.replicas.mailbox.post("t", ALICE, runs.replicas.lease.name, b"once")
    other = await asking.replicas.mailbox.post("t", ALICE, runs.replicas.lease.name, b"another")
    taken = await runs.replicas.mailbox.take()
    assert sorted((command.number, command.body) for command in taken) == [(number, b"once"), (other, b"another")]


async def test_a_command_is_not_lost_with_the_answer_that_brings_it(
    stores: list[PostgresStore], lose_next_answer: Callable[[str], None]
) -> None:
    asking, runs, _ = stores
    await write_task(runs, Author("t"), TaskState.WORKING)
    number = await asking.replicas.mailbox.post("t", ALICE, runs.replicas.lease.name, b"do it")
    assert number is not None
    lose_next_answer("fetch")
    taken = await runs.replicas.mailbox.take()
    assert [command.number for command in taken] == [number]
    assert await runs.replicas.mailbox.take() == []  # it is being done
    assert not await asking.replicas.mailbox.withdraw(number)
    await runs.replicas.mailbox.finish(number)
    assert await runs.replicas.mailbox.take() == []
    assert await asking.replicas.mailbox.answer(number) == ""
