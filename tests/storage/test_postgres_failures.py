"""Errors of the database for which nothing may fail: each is raised by a real server, and passes after a while."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import asyncpg
import pytest

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.postgres.failures import DatabaseFailure, classify
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.postgres_server import shared_server
from tests.storage.contract import ALICE, Author, append, assert_holds, write_task

Admin = asyncpg.Connection  # type parameters exist only in the stubs
_roles = count(1)

# A trigger that lets every write of an event fail with the SQLSTATE in its argument.
FAIL = """
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'by the test' USING ERRCODE = TG_ARGV[0]; END
    $$;
    CREATE TRIGGER fail BEFORE INSERT ON event FOR EACH STATEMENT EXECUTE FUNCTION fail('{state}');
"""


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(shared_server().url())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def admin(store: PostgresStore) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection of the test itself."""
    settings = {"search_path": store.address.schema, "application_name": "admin"}
    connection = await asyncpg.connect(shared_server().dsn, server_settings=settings)
    yield connection
    await connection.close()


async def until_trouble(store: PostgresStore) -> None:
    async with asyncio.timeout(10):
        while not store.trouble():  # noqa: ASYNC110  # a store has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (asyncpg.AdminShutdownError("terminating connection due to administrator command"), DatabaseFailure.LOST),
        (
            asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
            DatabaseFailure.LOST,
        ),
        (asyncpg.InterfaceError("connection is closed"), DatabaseFailure.LOST),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute UPDATE in a read-only transaction"), DatabaseFailure.LOST),
        (ConnectionResetError(), DatabaseFailure.LOST),
        (TimeoutError(), DatabaseFailure.LOST),
        (AssertionError(), DatabaseFailure.LOST),
        (asyncpg.exceptions.DataCorruptedError("invalid page in block 7"), DatabaseFailure.LOST),
        (asyncpg.DiskFullError("could not extend file"), DatabaseFailure.BUSY),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), DatabaseFailure.BUSY),
        (asyncpg.LockNotAvailableError("canceling statement due to lock timeout"), DatabaseFailure.BUSY),
        (asyncpg.QueryCanceledError("canceling statement due to user request"), DatabaseFailure.BUSY),
        (asyncpg.SerializationError("could not serialize access"), DatabaseFailure.BUSY),
        (asyncpg.DeadlockDetectedError("deadlock detected"), DatabaseFailure.BUSY),
        (asyncpg.NumericValueOutOfRangeError("integer out of range"), DatabaseFailure.REFUSED),
        (asyncpg.InsufficientPrivilegeError("permission denied for table task"), DatabaseFailure.REFUSED),
        (asyncpg.UndefinedTableError('relation "task" does not exist'), DatabaseFailure.BUG),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.name,
)
def test_every_error_has_one_meaning_and_an_unknown_one_is_a_lost_connection(
    error: Exception, failure: DatabaseFailure
) -> None:
    assert classify(error) is failure


@pytest.mark.parametrize(
    "state",
    ["08006", "25006", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "57P01", "57P02", "XX000"],
)
async def test_a_write_waits_until_the_server_can_execute_it(store: PostgresStore, admin: Admin, state: str) -> None:
    author = await write_task(store, Author("t"), TaskState.WORKING)
    await admin.execute(FAIL.format(state=state))
    writing = [store.append(author.chunk("x")), store.append(author.chunk("y"))]
    creating = asyncio.create_task(store.create(Author("new").create()))
    await until_trouble(store)
    assert not creating.done()
    assert not any(future.done() for future in writing)
    await admin.execute("DROP FUNCTION fail CASCADE")
    async with asyncio.timeout(10):
        for future in writing:
            await future
        await creating
    await assert_holds(store, author)
    assert store.trouble() == ""


async def test_no_write_fails_when_all_connections_are_terminated_under_load(
    store: PostgresStore, admin: Admin
) -> None:
    authors = [await write_task(store, Author(f"t{number}"), TaskState.WORKING) for number in range(20)]
    terminated = 0

    async def work(author: Author) -> None:
        for number in range(30):
            await append(store, author.chunk(str(number)))
            assert await store.load(author.task.id, ALICE) is not None

    async with asyncio.TaskGroup() as group:
        working = [group.create_task(work(author)) for author in authors]
        while not all(task.done() for task in working):
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'apcore-a2a%'"
            terminated += len(await admin.fetch(others))
            await asyncio.sleep(0.1)
    for author in authors:
        await assert_holds(store, author)
    assert terminated > 10


async def test_notifications_resume_after_an_unknown_error(store: PostgresStore, admin: Admin) -> None:
    other = PostgresStore(f"{shared_server().dsn}&schema={store.address.schema}")
    await other.open()
    author = await write_task(store, Author("t"), TaskState.WORKING)
    await other.replicas.watch.follow("t", ALICE)
    for _ in range(5):
        await admin.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'apcore-a2a%'"
        )
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        while True:
            await append(store, author.chunk("x"))
            woken = await other.replicas.watch.until_woken(1)
            if woken.tasks:
                break
    await other.close()


async def test_reads_answer_while_a_locked_table_is_released_in_time(store: PostgresStore, admin: Admin) -> None:
    await write_task(store, Author("t"), TaskState.WORKING)
    async with admin.transaction():
        await admin.execute("LOCK TABLE task IN ACCESS EXCLUSIVE MODE")
        reading = asyncio.create_task(store.load("t", ALICE))
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND state = 'active'"
        async with asyncio.timeout(5):
            while not await admin.fetchval(blocked):
                await admin.execute("SELECT pg_stat_clear_snapshot()")
            while await admin.fetchval(blocked):  # its lock timeout
                await admin.execute("SELECT pg_stat_clear_snapshot()")
    assert await reading is not None


async def open_as_new_role(store: PostgresStore, admin: Admin) -> tuple[PostgresStore, str]:
    """Open the tables of a store as a user whose connections the test can change. Return the new store and the user."""
    role = f"limited{next(_roles)}"
    await admin.execute(f"CREATE ROLE {role} LOGIN")
    await admin.execute(f"GRANT USAGE ON SCHEMA {store.address.schema} TO {role}")
    tables = f"ALL TABLES IN SCHEMA {store.address.schema}"
    await admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}")
    limited = PostgresStore(
        f"postgresql://{role}@/postgres?host={shared_server().folder}&schema={store.address.schema}"
    )
    await limited.open()
    return limited, role


async def test_connections_that_were_opened_while_the_server_was_read_only_are_replaced(
    store: PostgresStore, admin: Admin
) -> None:
    limited, role = await open_as_new_role(store, admin)
    await admin.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    await admin.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role)
    assert await limited.load("t", ALICE) is None
    with pytest.raises(StoreUnavailableError):
        await limited.replicas.lease.renew()
    await admin.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
    assert await limited.replicas.lease.renew() is not None
    await limited.close()


async def test_a_replica_that_gets_no_connection_for_a_while_loses_no_write(store: PostgresStore, admin: Admin) -> None:
    limited, role = await open_as_new_role(store, admin)
    author = await write_task(limited, Author("t"), TaskState.WORKING)
    await admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    await admin.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role)
    writing = limited.append(author.chunk("x"))
    await until_trouble(limited)
    assert not writing.done()
    await admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
    async with asyncio.timeout(10):
        await writing
    await assert_holds(limited, author)
    await limited.close()
