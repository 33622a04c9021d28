"""What a PostgreSQL store removes: all that has expired, in steps that are small enough."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.postgres import connection as connection_module
from apcore_a2a.storage.postgres import writer
from apcore_a2a.storage.postgres.store import PostgresStore
from tests.postgres_server import shared_server
from tests.storage.contract import Author, write_task


@pytest.fixture
def url() -> str:
    return shared_server().url()


@pytest.fixture
async def admin(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    schema = PostgresStore(url).address.schema
    connection = await asyncpg.connect(shared_server().dsn, server_settings={"search_path": schema})
    yield connection
    await connection.close()


async def leave_expired(admin: "asyncpg.Connection[asyncpg.Record]", url: str, count: int) -> None:
    """A replica makes tasks that were to be removed long ago, and leaves before it looks for such."""
    store = PostgresStore(url)
    await store.open()
    for number in range(count):
        await write_task(store, Author(f"t{number}"), TaskState.WORKING, TaskState.COMPLETED)
    await store.close()
    await admin.execute("UPDATE task SET ended = 0")


async def until_alone(admin: "asyncpg.Connection[asyncpg.Record]", task_id: str) -> None:
    async with asyncio.timeout(30):
        while True:
            left = await admin.fetch("SELECT id FROM task")
            if [row["id"].decode() for row in left] == [task_id]:
                return
            await asyncio.sleep(0.005)


async def test_expired_tasks_are_removed_a_few_at_a_time_until_there_are_none(
    admin: "asyncpg.Connection[asyncpg.Record]", url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_SWEPT", 2)
    await leave_expired(admin, url, 7)
    another = PostgresStore(url)
    await another.open()
    await write_task(another, Author("new"))  # it looks with its first write
    await until_alone(admin, "new")
    await another.close()


async def test_tasks_with_too_many_events_to_be_removed_at_once_are_removed_in_smaller_numbers(
    admin: "asyncpg.Connection[asyncpg.Record]", url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_SWEPT", 8)
    await leave_expired(admin, url, 8)
    await admin.execute("""
        CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.1); RETURN OLD; END';
        CREATE TRIGGER slowly BEFORE DELETE ON task FOR EACH ROW EXECUTE FUNCTION take_long()
    """)
    monkeypatch.setitem(connection_module.LIMITS, "statement_timeout", "300")  # in which two can be removed, not four
    another = PostgresStore(url)
    await another.open()
    await write_task(another, Author("new"))
    await until_alone(admin, "new")
    assert another.trouble() == ""
    await another.close()
