"""Reads from the database, as functions over a connection.

Invariant: every query names the owner.

A document may be older than its task (`writer.MAX_DOCUMENT`), and a task has none before it first rests. In both cases
the document is rebuilt here from the later events. The first event of a task is the task as it was created.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from apcore_a2a.protocol.model import Document
from apcore_a2a.storage.contract import (
    ALL_EVENTS,
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
from apcore_a2a.storage.sql import CODES, STATES, rebuild_document
from apcore_a2a.storage.sqlite.schema import event_key

Row = tuple[Any, ...]  # Any: values of SQLite

# LEFT JOIN: a task may have no document, and few have private data.
_COLUMNS: Final = "number, owner, state, status_time, task.version, epoch, document.version, body, memo, run"
_TABLES: Final = "LEFT JOIN document ON document.task = number LEFT JOIN private ON private.task = number"
_LOAD: Final = f"SELECT {_COLUMNS} FROM task {_TABLES} WHERE id = ? AND owner = ?"
_LOAD_ANY_OWNER: Final = f"SELECT {_COLUMNS} FROM task {_TABLES} WHERE id = ?"


class TaskRow(NamedTuple):
    """The stored columns of one task: `_COLUMNS`."""

    number: int
    owner: str
    state: int
    status_time: str
    version: int
    epoch: int
    document_version: int | None
    body: bytes | None
    memo: bytes | None
    run: bytes | None

    @property
    def document(self) -> Document | None:
        """The stored document, or None if it is missing or older than the task, which must be rebuilt from events."""
        if self.body is None or self.document_version != self.version:
            return None
        return Document(self.body)


def find(database: sqlite3.Connection, task_id: str, owner: str) -> TaskRow | None:
    """Return the stored columns of one task, by a single lookup of its key."""
    if owner == ALL_OWNERS:
        found = database.execute(_LOAD_ANY_OWNER, (task_id,))
    else:
        found = database.execute(_LOAD, (task_id, owner))
    row: Row | None = found.fetchone()
    if row is None:
        return None
    return TaskRow._make(row)


def to_record(row: TaskRow, document: Document) -> Record:
    return Record(
        document=document,
        owner=row.owner,
        state=STATES[row.state],
        version=row.version,
        epoch=row.epoch,
        memo=row.memo or b"",
        run=row.run or b"",
    )


def load(database: sqlite3.Connection, task_id: str, owner: str) -> Record | None:
    """Return one task, rebuilt from its events if necessary."""
    with ReadTransaction(database):
        row = find(database, task_id, owner)
        if row is None:
            return None
        return _complete(database, row)


def events(database: sqlite3.Connection, task_id: str, owner: str, after: int, limit: int) -> list[bytes] | None:
    with ReadTransaction(database):
        row = database.execute("SELECT number FROM task WHERE id = ? AND owner = ?", (task_id, owner)).fetchone()
        if row is None:
            return None
        (number,) = row
        return _next_events(database, number, after, limit)


def task_at(database: sqlite3.Connection, task_id: str, owner: str, version: int) -> Document | None:
    """Return the task as it was after one of its events."""
    with ReadTransaction(database):
        row = find(database, task_id, owner)
        if row is None or version > row.version:
            return None
        if row.version == version:
            return _complete(database, row).document
        if row.document_version is None or row.document_version > version:
            row = row._replace(document_version=None, body=None)  # the document is of a later version
        return _rebuild(database, row, version)


def conversation(database: sqlite3.Connection, owner: str, context_id: str) -> ConversationMemory:
    """Return the agent's memory of a context."""
    query = "SELECT number, keep, body FROM conversation WHERE owner = ? AND context_id = ? ORDER BY number"
    return join_pieces(database.execute(query, (owner, context_id)).fetchall())


def usage(database: sqlite3.Connection, quota_key: str) -> Usage:
    """Return the usage of a quota key in all its tenants, or of ALL_OWNERS."""
    # The owners of a quota key are adjacent in the index: the key itself, then the key, a newline and a tenant.
    condition = "owner = :account OR (owner >= :account || char(10) AND owner < :account || char(11))"
    if quota_key == ALL_OWNERS:
        condition = "TRUE"
    # SQLite knows the length of a BLOB without reading it.
    sizes = """
        coalesce(length(body), 0) + coalesce(length(memo), 0)
        + CASE WHEN document.version IS task.version THEN 0 ELSE (
            SELECT coalesce(sum(length(event.body)), 0) FROM event
            WHERE key > number << 32 | coalesce(document.version, 0) AND key < number + 1 << 32
        ) END
    """
    count = f"SELECT count(*), coalesce(sum({sizes}), 0) FROM task {_TABLES} WHERE {condition}"
    memories = f"SELECT coalesce(sum(length(body)), 0) FROM conversation WHERE {condition}"
    with ReadTransaction(database):
        tasks, size = database.execute(count, {"account": quota_key}).fetchone()
        (remembered,) = database.execute(memories, {"account": quota_key}).fetchone()
    return Usage(tasks, size + remembered)


def page(database: sqlite3.Connection, query: Query, tokens: PageTokens) -> Page:
    """Return one page of an owner's tasks, and the number of matching tasks.

    Raises:
        InvalidParamsError: the cursor is not a valid page token.
    """
    order = "number DESC" if query.by_creation else "status_time DESC, number DESC"
    matching, parameters = _conditions(query)
    below, position = _below_cursor(tokens.parse(query))
    # The index is named, because without statistics SQLite cannot know that few tasks share a context.
    index = "task_context" if query.context_id else "task_status"
    source = f"FROM task INDEXED BY {index}"
    if query.owner == ALL_OWNERS:
        source = "FROM task"  # both indexes begin with the owner
    # The subquery selects only numbers, so that no document is read for a task that is not shown.
    chosen = f"SELECT number {source} WHERE {matching} AND {below} ORDER BY {order} LIMIT ?"
    # The tally counts by owner and state. A context has few tasks to count, and few tasks have changed since a client's
    # last request.
    if query.context_id or query.changed_since:
        count = f"SELECT count(*) {source} WHERE {matching}"
    else:
        count = f"SELECT coalesce(sum(tasks), 0) FROM tally WHERE {matching}"
    with ReadTransaction(database):
        total: int = database.execute(count, parameters).fetchone()[0]
        rows = database.execute(
            f"SELECT {_COLUMNS} FROM task {_TABLES} WHERE number IN ({chosen}) ORDER BY {order}",
            (*parameters, *position, query.limit + 1),  # one more, which shows that there is a next page
        )
        records, last = _read_page(database, rows, query)
    return Page(records, tokens.seal(last, query.owner), total)


def _read_page(database: sqlite3.Connection, rows: Iterable[Row], query: Query) -> tuple[list[Record], Cursor | None]:
    """Return the tasks that fit on a page, and the cursor of the next page if there is one."""
    records: list[Record] = []
    last = None
    room = PageRoom(query)
    for values in rows:  # one at a time, so that tasks which do not fit are not read
        row = TaskRow._make(values)
        if not room.reserve(_size(database, row)):
            return records, last
        records.append(_complete(database, row))
        time = "" if query.by_creation else row.status_time
        last = Cursor(query.by_creation, time, row.number)
    return records, None


class ReadTransaction:
    """A transaction in which all statements see the same state of the database, whatever is committed meanwhile."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN")

    def __exit__(self, *_: object) -> None:
        self._database.execute("COMMIT")


def _complete(database: sqlite3.Connection, row: TaskRow) -> Record:
    document = row.document
    if document is None:
        document = _rebuild(database, row)
    return to_record(row, document)


def _size(database: sqlite3.Connection, row: TaskRow) -> int:
    """Return the approximate size of the task, without reading its large columns."""
    document = row.document
    if document is not None:
        return len(document.body)
    query = "SELECT coalesce(sum(length(body)), 0) FROM event WHERE key > ? AND key < ?"
    (of_events,) = database.execute(query, _event_bounds(row.number, row.document_version or 0)).fetchone()
    return len(row.body or b"") + int(of_events)


def _rebuild(database: sqlite3.Connection, row: TaskRow, version: int | None = None) -> Document:
    """Return the present task, or the task as of a version, from an older document and the later events."""
    after = row.document_version or 0
    limit = ALL_EVENTS if version is None else version - after
    events = list(_read_events(database, row.number, after, limit))
    return rebuild_document(row.body, events)


def _read_events(database: sqlite3.Connection, number: int, after: int, limit: int) -> Iterator[bytes]:
    bounds = (*_event_bounds(number, after), limit)
    rows: Iterable[Row] = database.execute(
        "SELECT body FROM event WHERE key > ? AND key < ? ORDER BY key LIMIT ?", bounds
    )
    for (body,) in rows:
        yield body


def _next_events(database: sqlite3.Connection, number: int, after: int, limit: int) -> list[bytes]:
    """Return at most `limit` events, and at most MAX_READ_BYTES unless the first event is larger."""
    found: list[bytes] = []
    size = 0
    for body in _read_events(database, number, after, limit):
        size += len(body)
        if found and size > MAX_READ_BYTES:
            break
        found.append(body)
    return found


def _event_bounds(number: int, after: int) -> tuple[int, int]:
    """Return the keys between which the events of a task are."""
    return event_key(number, max(after, 0)), event_key(number + 1, 0)


def _conditions(query: Query) -> tuple[str, list[object]]:
    """Return the SQL condition of a query and its parameters. Text from a client is only ever a parameter."""
    conditions = ["owner = ?"]
    parameters: list[object] = [query.owner]
    if query.owner == ALL_OWNERS:
        conditions = ["? IS NOT NULL"]
    if query.context_id:
        conditions.append("context_id = ?")
        parameters.append(query.context_id)
    if query.state is not None:
        conditions.append("state = ?")
        parameters.append(CODES[query.state])
    if query.changed_since:
        conditions.append("status_time >= ?")
        parameters.append(query.changed_since)
    return " AND ".join(conditions), parameters


def _below_cursor(cursor: Cursor | None) -> tuple[str, tuple[object, ...]]:
    """Return the SQL condition that excludes the earlier pages, and its parameters."""
    if cursor is None:
        return "TRUE", ()
    if cursor.by_creation:
        return "number < ?", (cursor.number,)
    return "(status_time, number) < (?, ?)", (cursor.status_time, cursor.number)
