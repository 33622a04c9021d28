"""Reads of tasks, events, pages and usage: functions over a connection.

A stored document may be older than its task (`statements.MAX_DOCUMENT`), and it is missing until the task first rests.
Then the document is rebuilt here from the events since. The first event is the task as it was created.

Invariant: every query names the owner.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import asyncpg
from msgspec import json

from apcore_a2a.protocol.model import Document
from apcore_a2a.storage import sql
from apcore_a2a.storage.contract import (
    ALL_OWNERS,
    MAX_READ_BYTES,
    ConversationMemory,
    Page,
    Query,
    Record,
    Usage,
    join_pieces,
)
from apcore_a2a.storage.cursor import Cursor, PageRoom, PageTokens
from apcore_a2a.storage.postgres.connection import Connection, one_snapshot
from apcore_a2a.storage.postgres.statements import FIND_KEY, to_bytes, to_text
from apcore_a2a.storage.sql import CODES, STATES

MAX_COUNTED: Final = 10_000  # tasks that are counted for a listing; reading them takes a few milliseconds
LARGE: Final = 256 * 1024  # bytes of events above which a task is rebuilt in a thread, not on the event loop
_COLUMNS: Final = "number, owner, state, status_time, version, epoch, runner, memo, run, document, document_version"
# The events since an older document, in the same statement, so that both are of one state of the database.
_EVENTS_SINCE: Final = """
    CASE WHEN document_version IS DISTINCT FROM version THEN (
        SELECT array_agg(body ORDER BY sequence) FROM event
        WHERE event.task = number AND sequence > coalesce(document_version, 0)
    ) END AS events
"""
LOAD: Final = f"SELECT {_COLUMNS}, {_EVENTS_SINCE} FROM task WHERE id = $1 AND owner = $2"
_LOAD_ANY_OWNER: Final = f"SELECT {_COLUMNS}, {_EVENTS_SINCE} FROM task WHERE id = $1"
_TASK_AT: Final = """
    SELECT version, document, document_version, document_version <= $3 AS is_older, (
        SELECT array_agg(body ORDER BY sequence) FROM event
        WHERE event.task = number AND sequence <= $3
            AND sequence > CASE WHEN document_version <= $3 THEN document_version ELSE 0 END
    ) AS events
    FROM task WHERE id = $1 AND owner = $2 AND version >= $3
"""
# `total` is the cumulative size of the events, each with those before it. PostgreSQL knows the length of a body without
# reading it.
_EVENTS: Final = """
    SELECT body FROM task LEFT JOIN LATERAL (
        SELECT sequence, body FROM (
            SELECT sequence, body, sum(length(body)) OVER (ORDER BY sequence) AS total
            FROM event WHERE event.task = number AND sequence > $3 ORDER BY sequence LIMIT $4
        ) AS found WHERE total <= $5 OR total = length(body)
    ) AS next ON TRUE
    WHERE id = $1 AND owner = $2 ORDER BY sequence
"""


async def _to_records(rows: Sequence[asyncpg.Record]) -> list[Record]:
    """Return rows of `LOAD` as records. They are made in a thread if there is much to rebuild."""
    size = sum(len(event) for row in rows for event in row["events"] or ())
    if size > LARGE:
        return await asyncio.to_thread(_make_records, rows)
    return _make_records(rows)


def _make_records(rows: Sequence[asyncpg.Record]) -> list[Record]:
    return [_to_record(row) for row in rows]


def _to_record(row: asyncpg.Record) -> Record:
    return Record(
        document=_document(row),
        owner=to_text(row["owner"]),
        state=STATES[row["state"]],
        version=row["version"],
        epoch=row["epoch"],
        memo=row["memo"],
        run=row["run"],
        runner=row["runner"],
    )


def _document(row: asyncpg.Record) -> Document:
    if row["document_version"] == row["version"]:
        return Document(row["document"])
    return sql.rebuild_document(row["document"], row["events"] or [])


async def find_key(connection: Connection, key: str, owner: str) -> str | None:
    """Return the id of the task that this owner created with the key."""
    found = await connection.fetchval(FIND_KEY, to_bytes(owner), to_bytes(key))
    if found is None:
        return None
    return to_text(found)


async def load(connection: Connection, task_id: str, owner: str) -> Record | None:
    """Return one task of this owner, or of any owner for ALL_OWNERS."""
    if owner == ALL_OWNERS:
        row = await connection.fetchrow(_LOAD_ANY_OWNER, to_bytes(task_id))
    else:
        row = await connection.fetchrow(LOAD, to_bytes(task_id), to_bytes(owner))
    if row is None:
        return None
    (record,) = await _to_records([row])
    return record


async def events(connection: Connection, task_id: str, owner: str, after: int, limit: int) -> Sequence[bytes] | None:
    """Return the next events of a task, or None if this owner has no such task."""
    key = to_bytes(task_id), to_bytes(owner)
    rows = await connection.fetch(_EVENTS, *key, max(after, 0), limit, MAX_READ_BYTES)
    if not rows:
        return None
    return [row["body"] for row in rows if row["body"] is not None]  # NULL: there are no further events


async def conversation(connection: Connection, owner: str, context_id: str) -> ConversationMemory:
    """Return the agent's memory of a context."""
    query = "SELECT number, keep, body FROM conversation WHERE owner = $1 AND context_id = $2 ORDER BY number"
    rows = await connection.fetch(query, to_bytes(owner), to_bytes(context_id))
    return join_pieces([(row["number"], row["keep"], row["body"]) for row in rows])


async def task_at(connection: Connection, task_id: str, owner: str, version: int) -> Document | None:
    """Return the task as it was after one of its events."""
    row = await connection.fetchrow(_TASK_AT, to_bytes(task_id), to_bytes(owner), version)
    if row is None:
        return None
    if row["version"] == row["document_version"] == version:
        return Document(row["document"])
    body = row["document"] if row["is_older"] else None  # a later document cannot be rolled back to `version`
    events = row["events"] or []
    if sum(map(len, events)) > LARGE:
        return await asyncio.to_thread(sql.rebuild_document, body, events)
    return sql.rebuild_document(body, events)


async def page(connection: Connection, query: Query, tokens: PageTokens) -> Page:
    """Return one page of an owner's tasks, and their total number.

    Raises:
        InvalidParamsError: the cursor was not issued to this owner.
    """
    start = tokens.parse(query)
    matching, parameters = _conditions(query)
    below, position = _below_cursor(start, len(parameters))
    order = "number DESC" if query.by_creation else "status_time DESC, number DESC"
    limit = len(parameters) + len(position) + 1
    size = """
        coalesce(length(document), 0) + CASE WHEN document_version IS DISTINCT FROM version THEN (
            SELECT sum(length(body)) FROM event WHERE event.task = number AND sequence > coalesce(document_version, 0)
        ) ELSE 0 END AS size
    """
    async with one_snapshot(connection):
        total = await _count(connection, matching, parameters)
        rows = await connection.fetch(
            f"SELECT number, status_time, {size} FROM task WHERE {matching} AND {below}"
            f" ORDER BY {order} LIMIT ${limit}",
            *parameters,
            *position,
            query.limit + 1,  # one more, which shows that there is a next page
        )
        records, last = await _read_page(connection, rows, query)
    return Page(records, tokens.seal(last, query.owner), total)


async def _count(connection: Connection, matching: str, parameters: Sequence[object]) -> int:
    """Return the number of tasks that match. It is counted up to MAX_COUNTED, and above estimated by the planner."""
    some = f"SELECT 1 FROM task WHERE {matching} LIMIT {MAX_COUNTED + 1}"
    count = int(await connection.fetchval(f"SELECT count(*) FROM ({some}) AS found", *parameters))
    if count <= MAX_COUNTED:
        return count
    plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) SELECT 1 FROM task WHERE {matching}", *parameters)
    return max(count, int(json.decode(plan)[0]["Plan"]["Plan Rows"]))


async def _read_page(connection: Connection, rows: list[Any], query: Query) -> tuple[list[Record], Cursor | None]:
    """Return the tasks that fit on a page, and the position of the last one if there is a next page."""
    room = PageRoom(query)
    shown: list[asyncpg.Record] = []
    for row in rows:
        if not room.reserve(int(row["size"])):
            break
        shown.append(row)
    found = await connection.fetch(
        f"SELECT {_COLUMNS}, {_EVENTS_SINCE} FROM task WHERE {_owned(query)} AND number = ANY($2)",
        to_bytes(query.owner),
        [row["number"] for row in shown],
    )
    numbers = [row["number"] for row in found]
    records = dict(zip(numbers, await _to_records(found), strict=True))
    last = None
    if len(shown) < len(rows):
        time = "" if query.by_creation else shown[-1]["status_time"]
        last = Cursor(query.by_creation, time, shown[-1]["number"])
    return [records[row["number"]] for row in shown], last


def _owned(query: Query) -> str:
    """Return the condition on the owner, which is the first parameter."""
    if query.owner == ALL_OWNERS:
        return "$1::bytea IS NOT NULL"
    return "owner = $1"


def _conditions(query: Query) -> tuple[str, list[object]]:
    """Return the conditions of a query as SQL, and their parameters. The SQL contains no text of a client."""
    conditions = [_owned(query)]
    parameters: list[object] = [to_bytes(query.owner)]
    if query.context_id:
        parameters.append(to_bytes(query.context_id))
        conditions.append(f"context_id = ${len(parameters)}")
    if query.state is not None:
        # Not a parameter, because the planner must know whether the index for rare states has all of these tasks.
        conditions.append(f"state = {CODES[query.state]}")
    if query.changed_since:
        parameters.append(query.changed_since)
        conditions.append(f"status_time >= ${len(parameters)}")
    return " AND ".join(conditions), parameters


def _below_cursor(cursor: Cursor | None, used: int) -> tuple[str, tuple[object, ...]]:
    """Return the condition that excludes earlier pages, and its parameters. `used` counts the parameters before."""
    if cursor is None:
        return "TRUE", ()
    if cursor.by_creation:
        return f"number < ${used + 1}", (cursor.number,)
    return f"(status_time, number) < (${used + 1}, ${used + 2})", (cursor.status_time, cursor.number)


# ---- usage ----------------------------------------------------------------------------------------------------------
# How much data the database stores for a quota key. Invariant: a write counts nothing, so no writer waits for a count.
#
# A row with the usage of an owner would be updated by every write of that owner at any replica, one after the other. So
# tasks are counted on request: their rows and documents, and the events since the document of a task that
# is larger (`statements.MAX_DOCUMENT`) or still runs. PostgreSQL knows the length of long values without reading them.

SAMPLE: Final = 4_000  # pages that are read to estimate the usage of all tasks: 32 MB
SAMPLED_TASKS: Final = 4_000  # tasks that are read to estimate the bytes of a quota key that has more

_COUNT: Final = """
    SELECT count(*) AS tasks, coalesce(sum(
        coalesce(octet_length(document), 0) + octet_length(memo)
        + CASE WHEN document_version IS NOT DISTINCT FROM version THEN 0 ELSE (
            SELECT coalesce(sum(octet_length(body)), 0) FROM event
            WHERE event.task = number AND sequence > coalesce(document_version, 0)
        ) END
    ), 0)::bigint AS bytes FROM task
"""
# The owners of a quota key are adjacent in the index: the key itself, then the key, a newline and a tenant.
_OF_ACCOUNT: Final = "owner = $1 OR (owner >= $1 || '\\x0a'::bytea AND owner < $1 || '\\x0b'::bytea)"
_OF_QUOTA_KEY: Final = f"{_COUNT} WHERE {_OF_ACCOUNT}"
# Not `OR`, with which the planner reads the rows. These numbers are in an index, so only the rows of a sample are read.
_NUMBERS: Final = """
    SELECT number FROM task WHERE owner = $1
    UNION ALL
    SELECT number FROM task WHERE owner >= $1 || '\\x0a'::bytea AND owner < $1 || '\\x0b'::bytea
"""
_TASKS_OF_QUOTA_KEY: Final = f"SELECT count(*) FROM ({_NUMBERS}) AS owned"
_SAMPLE_OF_QUOTA_KEY: Final = f"""
    {_COUNT} WHERE number = ANY(ARRAY(SELECT number FROM ({_NUMBERS}) AS owned WHERE number % $2 = 0))
"""
_REMEMBERED: Final = "SELECT coalesce(sum(octet_length(body)), 0)::bigint FROM conversation"
_PAGES: Final = "SELECT pg_relation_size('task') / current_setting('block_size')::bigint"


async def usage_of_quota_key(connection: Connection, quota_key: str) -> Usage:
    """Return the usage of a quota key under all its tenants. If it has many tasks, the bytes are an estimate."""
    key = to_bytes(quota_key)
    tasks = int(await connection.fetchval(_TASKS_OF_QUOTA_KEY, key))
    if tasks <= SAMPLED_TASKS:
        row = await connection.fetchrow(_OF_QUOTA_KEY, key)
    else:
        row = await connection.fetchrow(_SAMPLE_OF_QUOTA_KEY, key, -(-tasks // SAMPLED_TASKS))
    assert row is not None  # a count is always one row
    size = int(row["bytes"])
    if row["tasks"]:
        size = size * max(tasks, row["tasks"]) // row["tasks"]
    remembered = await connection.fetchval(f"{_REMEMBERED} WHERE {_OF_ACCOUNT}", key)
    return Usage(tasks, size + remembered)


async def total_usage(connection: Connection) -> Usage:
    """Return the usage of all tasks. If there are many, it is an estimate from a sample of the pages."""
    pages = int(await connection.fetchval(_PAGES))
    if pages <= SAMPLE:
        row = await connection.fetchrow(_COUNT)
        share = 1.0
    else:
        share = SAMPLE / pages
        row = await connection.fetchrow(f"{_COUNT} TABLESAMPLE SYSTEM ($1)", 100 * share)
    assert row is not None  # a count is always one row
    return Usage(round(row["tasks"] / share), round(row["bytes"] / share))
