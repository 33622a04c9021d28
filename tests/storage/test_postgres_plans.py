"""Every statement finds its rows by an index, however many there are; asked of the server's planner, which knows."""

import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.contract import ALL_OWNERS, Query
from apcore_a2a.storage.postgres import reads, replicas, schema, statements, writer
from apcore_a2a.storage.postgres import store as store_module
from apcore_a2a.storage.postgres.store import PostgresStore
from apcore_a2a.storage.sql import CODES
from tests.postgres_server import shared_server

TASK = (b"t", b"alice")
ALL_TASKS = f"""
    SELECT number FROM task WHERE {reads._owned(Query(owner=ALL_OWNERS, limit=50))}
    ORDER BY status_time DESC, number DESC LIMIT 50
"""
TASKS_IN_A_STATE = f"""
    SELECT number FROM task WHERE {reads._conditions(Query(owner=ALL_OWNERS, limit=50, state=TaskState.FAILED))[0]}
    ORDER BY status_time DESC, number DESC LIMIT 50
"""
STATEMENTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "load": (reads.LOAD, TASK),
    "events": (reads._EVENTS, (*TASK, 0, 100, 1000)),
    "task at": (reads._TASK_AT, (*TASK, 1)),
    "renewal": (replicas.RENEW, ("here", 15.0)),
    "claim orphans": (replicas.CLAIM_ORPHANS, ("here", 100)),
    "claim queued": (replicas.CLAIM_QUEUED, ("here", 100)),
    "count queued": (replicas.COUNT_QUEUED, (100,)),
    "claim one": (replicas.CLAIM_ONE, (*TASK, "here")),
    "delete dead": (replicas.DELETE_DEAD, (60.0,)),
    "restore deleted": (replicas.RESTORE_DELETED, ()),
    "follow": (replicas.FOLLOW, (*TASK, "here")),
    "unfollow": (replicas.UNFOLLOW, ("here", [b"t"])),
    "is followed": (replicas.IS_FOLLOWED, (*TASK, "here")),
    "updates": (replicas.READ_UPDATES, ([b"t"], [b"alice"], [1], 100, 1000)),
    "post": (replicas.POST, (*TASK, "there", b"do it", "here")),
    "written": (statements.FIND_WRITTEN, (*TASK, 1)),
    "key": (statements.FIND_KEY, (b"alice", b"k")),
    "claim webhooks": (store_module._CLAIM, (None, 30.0, 10, "here")),
    "find locked": (statements.FIND_LOCKED, ([b"t"],)),
    "settle": (store_module._SETTLE, (None, 1, 0, False, "", 0.0, *TASK, b"w", 1)),
    "webhooks": (store_module._OF_TASK, TASK),
    "failed webhooks": (store_module._FAILED, (b"alice", 10)),
    "backlog": (store_module._BACKLOG, (None,)),
    "tasks of all owners": (ALL_TASKS, (b"",)),
    "tasks of a quota key": (reads._TASKS_OF_QUOTA_KEY, (b"alice",)),
    "sample of a quota key": (reads._SAMPLE_OF_QUOTA_KEY, (b"alice", 10)),
}


@pytest.fixture
async def planner() -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection as the writer has it: it reads a whole table only where nothing else can be done."""
    store = PostgresStore(shared_server().url())
    await store.open()
    settings = {"search_path": store.address.schema, **writer.PLANNING}
    connection = await asyncpg.connect(shared_server().dsn, server_settings=settings)
    yield connection
    await connection.close()
    await store.close()


async def explain(planner: "asyncpg.Connection[asyncpg.Record]", statement: str, *values: object) -> str:
    return "\n".join(row[0] for row in await planner.fetch(f"EXPLAIN {statement}", *values))


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_statement_reads_no_table_as_a_whole(planner: "asyncpg.Connection[asyncpg.Record]", name: str) -> None:
    await planner.execute("SET enable_nestloop = on")  # as where these are asked
    statement, values = STATEMENTS[name]
    plan = await explain(planner, statement, *values)
    assert not re.search(r"Seq Scan on (task|event|webhook)\b", plan), plan


@pytest.mark.parametrize(
    "statement, values",
    [(statements.REMOVE_EXPIRED, (None, 600.0, 1_000)), (statements.REMOVE_OLDEST, (2,))],
    ids=["expired", "oldest"],
)
async def test_what_leaves_is_found_without_a_look_at_what_stays(
    planner: "asyncpg.Connection[asyncpg.Record]", statement: str, values: tuple[object, ...]
) -> None:
    plan = await explain(planner, statement, *values)
    assert re.search(r"Index Cond: \(ended (<=|IS NOT NULL)", plan), plan
    assert "Index Cond: (number = ANY" in plan, plan


async def test_tasks_in_a_rare_state_are_found_by_the_index_for_them(
    planner: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    for common in (TaskState.SUBMITTED, TaskState.WORKING, TaskState.COMPLETED):
        assert f"state <> {CODES[common]}" in schema.INDEXES["task_rare_state"]
    plan = await explain(planner, TASKS_IN_A_STATE, b"")
    assert "task_rare_state" in plan, plan
