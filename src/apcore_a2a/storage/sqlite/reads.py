"""What is read from the database: functions over a connection. Rule: every query names the owner.

A document may be older than its task (`tables.MAX_DOCUMENT`), or not be there until the task first rests: then it is
made here from the events since, the first of which is the task as it was created.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from apcore_a2a.protocol.model import Document
from apcore_a2a.storage.contract import ALL, ALL_OWNERS, MAX_READ_BYTES, Page, Query, Record, Usage
from apcore_a2a.storage.cursor import Cursor, PageRoom, PageTokens
from apcore_a2a.storage.sql import CODES, STATES, rebuild_document
from apcore_a2a.storage.sqlite.schema import event_key

Row = tuple[Any, ...]  # Any: what SQLite answers

# LEFT JOIN: a task need not have a document, and few have anything private.
_COLUMNS: Final = "number, owner, state, status_time, task.version, epoch, document.version, body, memo, run"
_TABLES: Final = "LEFT JOIN document ON document.task = number LEFT JOIN private ON private.task = number"
_LOAD: Final = f"SELECT {_COLUMNS} FROM task {_TABLES} WHERE id = ? AND owner = ?"
_LOAD_ANY_OWNER: Final = f"SELECT {_COLUMNS} FROM task {_TABLES} WHERE id = ?"


class TaskRow(NamedTuple):
    """One task as it lies in the file: `_COLUMNS`."""

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
        """The task of today, if that is what lies there; else it is to be rebuilt from its events."""
        if self.body is None or self.document_version != self.version:
            return None
        return Document(self.body)


def find(database: sqlite3.Connection, task_id: str, owner: str) -> TaskRow | None:
    """One task as it lies in the file: a single look-up by key."""
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
    """One task, rebuilt from its events if need be."""
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
    """The task as it was after one of its events."""
    with ReadTransaction(database):
        row = find(database, task_id, owner)
        if row is None or version > row.version:
            return None
        if row.version == version:
            return _complete(database, row).document
        if row.document_version is None or row.document_version > version:
            row = row._replace(document_version=None, body=None)  # of a later time
        return _rebuild(database, row, version)


def usage(database: sqlite3.Connection, quota_key: str) -> Usage:
    """How much a quota key keeps under all its tenants, whose owners lie side by side; or everybody."""
    whose = "owner = :account OR (owner >= :account || char(10) AND owner < :account || char(11))"
    if quota_key == ALL_OWNERS:
        whose = "TRUE"
    # SQLite knows the length of a BLOB without reading it.
    sizes = """
        coalesce(length(body), 0) + coalesce(length(memo), 0)
        + CASE WHEN document.version IS task.version THEN 0 ELSE (
            SELECT coalesce(sum(length(event.body)), 0) FROM event
            WHERE key > number << 32 | coalesce(document.version, 0) AND key < number + 1 << 32
        ) END
    """
    counted = f"SELECT count(*), coalesce(sum({sizes}), 0) FROM task {_TABLES} WHERE {whose}"
    tasks, size = database.execute(counted, {"account": quota_key}).fetchone()
    return Usage(tasks, size)


def page(database: sqlite3.Connection, query: Query, tokens: PageTokens) -> Page:
    """One page of an owner's tasks, and how many there are.

    Raises:
        InvalidParamsError: the cursor is not one of ours.
    """
    order = "number DESC" if query.by_creation else "status_time DESC, number DESC"
    matching, parameters = _conditions(query)
    below, position = _below_cursor(tokens.parse(query))
    # Named, because without statistics SQLite cannot know that few tasks share a context.
    index = "task_context" if query.context_id else "task_status"
    source = f"FROM task INDEXED BY {index}"
    if query.owner == ALL_OWNERS:
        source = "FROM task"  # both indexes begin with the owner
    # The page is chosen by numbers alone, so that no document is read for a task that is not shown.
    chosen = f"SELECT number {source} WHERE {matching} AND {below} ORDER BY {order} LIMIT ?"
    # The tally knows owners and states. A context has few tasks to count, and a client that asks what has changed since
    # its last look has not many either.
    if query.context_id or query.changed_since:
        count = f"SELECT count(*) {source} WHERE {matching}"
    else:
        count = f"SELECT coalesce(sum(tasks), 0) FROM tally WHERE {matching}"
    with ReadTransaction(database):
        total: int = database.execute(count, parameters).fetchone()[0]
        rows = database.execute(
            f"SELECT {_COLUMNS} FROM task {_TABLES} WHERE number IN ({chosen}) ORDER BY {order}",
            (*parameters, *position, query.limit + 1),  # one more: if it is there, there is a next page
        )
        records, last = _read_page(database, rows, query)
    return Page(records, tokens.seal(last, query.owner), total)


def _read_page(database: sqlite3.Connection, rows: Iterable[Row], query: Query) -> tuple[list[Record], Cursor | None]:
    """The tasks that fit on a page, and where it ends if there is a next one."""
    records: list[Record] = []
    last = None
    room = PageRoom(query)
    for values in rows:  # one at a time: what does not fit is not read
        row = TaskRow._make(values)
        if not room.reserve(_size(database, row)):
            return records, last
        records.append(_complete(database, row))
        time = "" if query.by_creation else row.status_time
        last = Cursor(query.by_creation, time, row.number)
    return records, None


class ReadTransaction:
    """Statements inside see the same state of the database, whatever is committed meanwhile."""

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
    """About how large the task is: to know it, nothing of what is large is read."""
    document = row.document
    if document is not None:
        return len(document.body)
    size = "SELECT coalesce(sum(length(body)), 0) FROM event WHERE key > ? AND key < ?"
    (of_events,) = database.execute(size, _event_bounds(row.number, row.document_version or 0)).fetchone()
    return len(row.body or b"") + int(of_events)


def _rebuild(database: sqlite3.Connection, row: TaskRow, version: int | None = None) -> Document:
    """The task of today, or as of a version, made of an older document and the events since."""
    after = row.document_version or 0
    limit = ALL if version is None else version - after
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
    """Events up to a limit of their number, and of MAX_READ_BYTES after the first."""
    found: list[bytes] = []
    size = 0
    for body in _read_events(database, number, after, limit):
        size += len(body)
        if found and size > MAX_READ_BYTES:
            break
        found.append(body)
    return found


def _event_bounds(number: int, after: int) -> tuple[int, int]:
    """Between which keys the events of a task lie."""
    return event_key(number, max(after, 0)), event_key(number + 1, 0)


def _conditions(query: Query) -> tuple[str, list[object]]:
    """What a task must be to match, as SQL, and its parameters. No text of a client is ever part of the SQL."""
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
    """The condition that leaves out the earlier pages, and its parameters."""
    if cursor is None:
        return "TRUE", ()
    if cursor.by_creation:
        return "number < ?", (cursor.number,)
    return "(status_time, number) < (?, ?)", (cursor.status_time, cursor.number)
