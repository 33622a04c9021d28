"""What is read from the database: functions over a connection. Rule: every query names the owner.

A document may be older than its task (`sqlite_tables.MAX_DOCUMENT`), or not be there until the task first rests: then
it is made here from the events since, the first of which is the task as it was created.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

from apcore_a2a.protocol import v1
from apcore_a2a.protocol.model import Document, Task, decode_task, encode
from apcore_a2a.storage.cursor import Cursor, parse_cursor
from apcore_a2a.storage.sqlite.schema import CODES, STATES, event_key
from apcore_a2a.storage.task_store import Page, Query, Record

Row = tuple[Any, ...]  # Any: what SQLite answers, in the order of `_COLUMNS`

_COLUMNS: Final = "number, owner, state, task.version, epoch, document.version, body, memo, run"
_TABLES: Final = "LEFT JOIN document ON document.task = number LEFT JOIN private ON private.task = number"
_LOAD: Final = f"SELECT {_COLUMNS} FROM task {_TABLES} WHERE id = ? AND owner = ?"


def find(database: sqlite3.Connection, task_id: str, owner: str) -> Row | None:
    """One task as it lies in the file: a single look-up by key."""
    row: Row | None = database.execute(_LOAD, (task_id, owner)).fetchone()
    return row


def is_whole(row: Row) -> bool:
    """Whether the document in a row is the task of today."""
    return bool(row[3] == row[5])


def to_record(row: Row, document: Document | None = None) -> Record:
    _, owner, state, version, epoch, _, body, memo, run = row
    return Record(
        document=document or Document(body),
        owner=owner,
        state=STATES[state],
        version=version,
        epoch=epoch,
        memo=memo or b"",
        run=run or b"",
    )


def load(database: sqlite3.Connection, task_id: str, owner: str) -> Record | None:
    """One task, rebuilt from its events if need be."""
    with Snapshot(database):
        row = find(database, task_id, owner)
        return None if row is None else _complete(database, row)


def events(database: sqlite3.Connection, task_id: str, owner: str, after: int) -> list[bytes] | None:
    with Snapshot(database):
        row = database.execute("SELECT number FROM task WHERE id = ? AND owner = ?", (task_id, owner)).fetchone()
        return None if row is None else _events(database, row[0], after)


def page(database: sqlite3.Connection, query: Query) -> Page:
    """One page of an owner's tasks, and how many there are.

    Raises:
        InvalidParamsError: the cursor is not one of ours.
    """
    order = "number DESC" if query.by_creation else "status_time DESC, number DESC"
    matching, parameters = _conditions(query)
    place, position = _place(query)
    # Without statistics SQLite cannot know that few tasks share a context.
    source = f"FROM task INDEXED BY {'task_context' if query.context_id else 'task_status'}"
    # The page is chosen by numbers alone, so that no document is read for a task that is not shown.
    chosen = f"SELECT number {source} WHERE {matching} AND {place} ORDER BY {order} LIMIT ?"
    if query.context_id or query.changed_since:
        count = f"SELECT count(*) {source} WHERE {matching}"
    else:
        count = f"SELECT coalesce(sum(tasks), 0) FROM tally WHERE {matching}"
    with Snapshot(database):
        total: int = database.execute(count, parameters).fetchone()[0]
        rows = database.execute(
            f"SELECT {_COLUMNS}, status_time FROM task {_TABLES} WHERE number IN ({chosen}) ORDER BY {order}",
            (*parameters, *position, query.limit + 1),
        ).fetchall()
        shown = rows[: query.limit]
        records = [_complete(database, row[:-1]) for row in shown]
    if len(rows) == len(shown):
        return Page(records, "", total)
    last = shown[-1]
    return Page(records, Cursor(query.by_creation, last[-1], last[0]).encode(), total)


class Snapshot:
    """Statements inside see the same state of the database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN")

    def __exit__(self, *_: object) -> None:
        self._database.execute("COMMIT")


def _complete(database: sqlite3.Connection, row: Row) -> Record:
    if is_whole(row):
        return to_record(row)
    number, version, body = row[0], row[5], row[6]
    events = _events(database, number, version or 0)
    task = decode_task(body) if body is not None else v1.decode_record(events.pop(0))[0]
    assert isinstance(task, Task)  # the first event of each
    v1.replay(task, events)
    return to_record(row, Document(encode(task), task))


def _events(database: sqlite3.Connection, number: int, after: int) -> list[bytes]:
    bounds = event_key(number, max(after, 0)), event_key(number + 1, 0)
    rows: Iterable[Row] = database.execute("SELECT body FROM event WHERE key > ? AND key < ? ORDER BY key", bounds)
    return [body for (body,) in rows]


def _conditions(query: Query) -> tuple[str, list[object]]:
    conditions: list[tuple[str, object]] = [("owner = ?", query.owner)]
    if query.context_id:
        conditions.append(("context_id = ?", query.context_id))
    if query.state is not None:
        conditions.append(("state = ?", CODES[query.state]))
    if query.changed_since:
        conditions.append(("status_time >= ?", query.changed_since))
    return " AND ".join(text for text, _ in conditions), [value for _, value in conditions]


def _place(query: Query) -> tuple[str, tuple[object, ...]]:
    """The condition that leaves out the earlier pages."""
    cursor = parse_cursor(query)
    if cursor is None:
        return "TRUE", ()
    if query.by_creation:
        return "number < ?", (cursor.number,)
    return "(status_time, number) < (?, ?)", (cursor.status_time, cursor.number)
