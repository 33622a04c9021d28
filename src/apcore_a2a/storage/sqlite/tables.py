"""What is written to the database, one method for each kind of write. Called in the writer thread, in a transaction.

Rule: a method refuses (StaleWriteError, OverloadedError) before it changes anything; it costs the size of its events.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from apcore_a2a.errors import OverloadedError, StaleWriteError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import TaskState
from apcore_a2a.storage.sqlite.schema import CODES, MIGRATIONS, event_key
from apcore_a2a.storage.task_store import Change

MAX_DOCUMENT: Final = 64 * 1024  # a larger document is not written again: readers rebuild it from the events

_RUNNING: Final = (CODES[TaskState.SUBMITTED], CODES[TaskState.WORKING], CODES[TaskState.AUTH_REQUIRED])


class Write(Struct, frozen=True, kw_only=True, gc=False):
    """A `Change` as it was when it was handed over: the live task moves on, this does not."""

    id: str
    owner: str
    context_id: str
    state: TaskState
    status_time: str
    expected: int
    version: int
    epoch: int
    events: Sequence[bytes]
    document: bytes | None
    memo: bytes
    run: bytes


def freeze(change: Change) -> Write:
    """Take from a change what will be written."""
    task, document = change.task, change.document
    return Write(
        id=task.id,
        owner=change.owner,
        context_id=task.context_id,
        state=task.status.state,
        status_time=task.status.timestamp,
        expected=change.expected,
        version=change.version,
        epoch=change.epoch,
        events=tuple(change.events),
        document=None if document is None or len(document.body) > MAX_DOCUMENT else document.body,
        memo=change.memo,
        run=change.run,
    )


class _Head(Struct, gc=False):
    """What is known to be in the file about a running task, to write only what differs."""

    number: int
    state: int
    status_time: str
    memo: bytes | None = None
    run: bytes | None = None


class Tables:
    """The tables, for the one thread that writes to them."""

    def __init__(self, database: sqlite3.Connection, *, ttl: float, max_tasks: int, clock: Callable[[], float]) -> None:
        self.database = database
        self._ttl, self._max_tasks, self._clock = ttl, max_tasks, clock
        self._heads: dict[tuple[str, str], _Head] = {}  # by id and owner: another owner finds nothing
        self._count: int | None = None
        self._moves: dict[tuple[str, int], int] = {}  # by owner and state: what the tally does not say yet

    def forget(self) -> None:
        """The transaction came to nothing: what was learnt in it may be wrong."""
        self._heads.clear()
        self._count = None
        self._moves.clear()

    def settle(self) -> None:
        """Before the commit: bring the tally up to date, once for all writes of the transaction."""
        self.database.executemany(
            "INSERT INTO tally VALUES (?, ?, ?)"
            " ON CONFLICT (owner, state) DO UPDATE SET tasks = tasks + excluded.tasks",
            [(*place, tasks) for place, tasks in self._moves.items() if tasks],
        )
        self._moves.clear()

    def _move(self, owner: str, state: int, tasks: int) -> None:
        self._moves[owner, state] = self._moves.get((owner, state), 0) + tasks

    def check(self) -> None:
        """Write something that changes nothing."""
        self.database.execute(f"PRAGMA user_version={len(MIGRATIONS)}")

    def create(self, write: Write, key: str) -> str | None:
        execute = self.database.execute
        if key:
            earlier = execute("SELECT id FROM task WHERE owner = ? AND key = ?", (write.owner, key)).fetchone()
            if earlier is not None:
                return str(earlier[0])
        self._make_room(write.id)
        code = CODES[write.state]
        values = (write.id, write.owner, write.context_id, key, code, write.status_time, write.version, write.epoch)
        try:
            number = execute(
                "INSERT INTO task (id, owner, context_id, key, state, status_time, version, epoch, ended)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, self._end(write)),
            ).lastrowid
        except sqlite3.IntegrityError as error:
            raise StaleWriteError from error  # the id is in use
        assert number is not None  # an INSERT has one
        self._count = self._tasks() + 1
        self._move(write.owner, code, 1)
        self._fill(write, _Head(number, code, write.status_time, b"", b""))
        return None

    def append(self, write: Write) -> None:
        head = self._heads.get((write.id, write.owner)) or self._find(write)
        code = CODES[write.state]
        values: tuple[object, ...] = (write.version, write.epoch)
        assignments = "version = ?, epoch = ?"
        if (code, write.status_time) != (head.state, head.status_time):  # else the indexes on them need no work
            assignments += ", state = ?, status_time = ?, ended = ?"
            values += (code, write.status_time, self._end(write))
        updated = self.database.execute(
            f"UPDATE task SET {assignments} WHERE number = ? AND version = ? AND epoch <= ? AND ended IS NULL",
            (*values, head.number, write.expected, write.epoch),
        )
        if updated.rowcount != 1:
            raise StaleWriteError
        if code != head.state:
            self._move(write.owner, head.state, -1)
            self._move(write.owner, code, 1)
        head.state, head.status_time = code, write.status_time
        self._fill(write, head)

    def _fill(self, write: Write, head: _Head) -> None:
        """All that goes with a head which has been written."""
        number = head.number
        keys = range(event_key(number, write.expected + 1), event_key(number, write.version + 1))
        self.database.executemany(
            "INSERT INTO event (key, body) VALUES (?, ?)", list(zip(keys, write.events, strict=True))
        )
        if write.document is not None:
            self.database.execute("REPLACE INTO document VALUES (?, ?, ?)", (number, write.version, write.document))
        if (write.memo, write.run) != (head.memo, head.run):
            self._keep_private(write, head)
        if write.state in AT_REST:
            self._heads.pop((write.id, write.owner), None)
        else:
            self._heads[write.id, write.owner] = head

    def _keep_private(self, write: Write, head: _Head) -> None:
        if not (write.memo or write.run):
            self.database.execute("DELETE FROM private WHERE task = ?", (head.number,))
        for column, new, old in (("memo", write.memo, head.memo), ("run", write.run, head.run)):
            if (write.memo or write.run) and new != old:
                self.database.execute(
                    f"INSERT INTO private (task, {column}) VALUES (?, ?)"
                    f" ON CONFLICT (task) DO UPDATE SET {column} = excluded.{column}",
                    (head.number, new),
                )
        head.memo, head.run = write.memo, write.run

    def _find(self, write: Write) -> _Head:
        found = self.database.execute(
            "SELECT number, state, status_time FROM task WHERE id = ? AND owner = ?", (write.id, write.owner)
        ).fetchone()
        if found is None:
            raise StaleWriteError
        return _Head(*found)

    def _end(self, write: Write) -> float | None:
        return self._clock() if write.state in TERMINAL else None

    # ---- what leaves -------------------------------------------------------------------------------------------------

    def _tasks(self) -> int:
        if self._count is None:
            self._count = int(self.database.execute("SELECT coalesce(sum(tasks), 0) FROM tally").fetchone()[0])
        return self._count

    def _make_room(self, task_id: str) -> None:
        excess = self._tasks() - self._max_tasks + 1
        if excess <= 0:
            return
        if self.database.execute("SELECT 1 FROM task WHERE id = ?", (task_id,)).fetchone() is not None:
            raise StaleWriteError
        # Two at most: a store that was opened with a lower limit comes down to it task by task, not in one long write.
        oldest = "SELECT number, owner, state FROM task WHERE ended IS NOT NULL ORDER BY ended, number LIMIT ?"
        if not self._remove_ended(oldest, min(excess, 2)):
            raise OverloadedError("The agent is at its limit of unfinished tasks; try again later", retry_after=5)

    def sweep(self, limit: int) -> bool:
        """Remove tasks that ended longer than the TTL ago, the oldest first; answer whether more may be left."""
        removed = self._remove_ended(
            "SELECT number, owner, state FROM task WHERE ended <= ? ORDER BY ended, number LIMIT ?",
            self._clock() - self._ttl,
            limit,
        )
        return removed == limit

    def _remove_ended(self, query: str, *parameters: float) -> int:
        ended = self.database.execute(query, parameters).fetchall()
        for row in ended:
            self._remove(*row)
        return len(ended)

    def remove(self, task_id: str, owner: str) -> bool:
        found = self.database.execute(
            "SELECT number, owner, state FROM task WHERE id = ? AND owner = ?", (task_id, owner)
        ).fetchone()
        if found is None:
            return False
        self._heads.pop((task_id, owner), None)
        self._remove(*found)
        return True

    def _remove(self, number: int, owner: str, state: int) -> None:
        self.database.execute("DELETE FROM task WHERE number = ?", (number,))
        self._move(owner, state, -1)
        if self._count is not None:
            self._count -= 1

    def claim_orphans(self) -> list[tuple[str, str]]:
        """Id and owner of each task that was running, which whoever ran it can now no longer write to."""
        orphans = self.database.execute(
            "SELECT number, id, owner FROM task LEFT JOIN private ON private.task = number"
            " WHERE ended IS NULL AND state IN (?, ?, ?) AND (state <> ? OR run <> x'') ORDER BY number",
            (*_RUNNING, CODES[TaskState.AUTH_REQUIRED]),
        ).fetchall()
        self.database.executemany("UPDATE task SET epoch = epoch + 1 WHERE number = ?", [row[:1] for row in orphans])
        return [(task_id, owner) for _, task_id, owner in orphans]
