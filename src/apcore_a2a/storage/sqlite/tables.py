"""What is written to the database, one method for each kind of change. Called in the writer thread, in a transaction.

Rule: a method refuses (StaleWriteError, OverloadedError) before it changes anything; it costs the size of its events.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from apcore_a2a.errors import OverloadedError, StaleWriteError
from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.sqlite.schema import CODES, event_key
from apcore_a2a.storage.task_store import Change, Webhook

MAX_DOCUMENT: Final = 64 * 1024  # a larger document is not written again: readers rebuild it from the events
PROBE_SIZE: Final = 1024 * 1024  # more than most writes: room for a few bytes is no room

# Whether a webhook of the task still waits for an event: then the task stays, though it has ended.
_OWES: Final = "EXISTS (SELECT 1 FROM webhook WHERE task = number AND failed = 0 AND delivered < latest)"
_RUNNING: Final = (CODES[TaskState.SUBMITTED], CODES[TaskState.WORKING])
_WAITING: Final = (CODES[TaskState.INPUT_REQUIRED], CODES[TaskState.AUTH_REQUIRED])


class ChangeSnapshot(Struct, frozen=True, kw_only=True, gc=False):
    """A `Change` as it was when it was handed over: the live task moves on before the thread gets to it."""

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
    webhook: Webhook | None = None


def take_snapshot(change: Change) -> ChangeSnapshot:
    """What of a change will be written."""
    task = change.task
    document = change.document
    body = None
    if document is not None and len(document.body) <= MAX_DOCUMENT:
        body = document.body
    return ChangeSnapshot(
        id=task.id,
        owner=change.owner,
        context_id=task.context_id,
        state=task.status.state,
        status_time=task.status.timestamp,
        expected=change.expected,
        version=change.version,
        epoch=change.epoch,
        events=tuple(change.events),
        document=body,
        memo=change.memo,
        run=change.run,
        webhook=change.webhook,
    )


class _CachedRow(Struct, gc=False):
    """What is known to be in the file about a running task, to write only what differs."""

    number: int
    state: int
    status_time: str
    has_webhooks: bool
    memo: bytes | None = None  # None: not known
    run: bytes | None = None


class AgeClock:
    """Tells how old a task is, and is not fooled when somebody sets the clock.

    The end of a task is stored in wall-clock time, because the file outlives the process. While the process runs, time
    passes for its tasks no faster than on the monotonic clock: were the clock set to next year, the tasks of a week
    would be gone at once. When it is set back, they are kept longer.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self._offset: float | None = None  # of the monotonic clock to what the wall clock said at first

    def now(self) -> float:
        wall = self.wall()
        monotonic = self.monotonic()
        if self._offset is None:
            self._offset = wall - monotonic
        return min(wall, monotonic + self._offset)


class Tables:
    """The tables, for the one thread that writes to them."""

    def __init__(self, database: sqlite3.Connection, *, ttl: float, max_tasks: int, clock: AgeClock) -> None:
        self.database = database
        self._ttl = ttl
        self._max_tasks = max_tasks
        self.clock = clock
        self._cache: dict[tuple[str, str], _CachedRow] = {}  # by id and owner: another owner finds nothing
        self._count: int | None = None  # of all tasks; None: not counted yet
        self._tally_changes: dict[tuple[str, int], int] = {}  # by owner and state: what the tally does not say yet

    def forget(self) -> None:
        """The transaction came to nothing: what was learnt in it may be wrong."""
        self._cache.clear()
        self._count = None
        self._tally_changes.clear()

    def write_tally(self) -> None:
        """Before the commit: bring the tally up to date, once for all writes of the transaction."""
        rows: list[tuple[str, int, int]] = []
        for (owner, state), difference in self._tally_changes.items():
            if difference:  # many tasks enter WORKING and leave it in one transaction
                rows.append((owner, state, difference))
        self.database.executemany(
            "INSERT INTO tally VALUES (?, ?, ?)"
            " ON CONFLICT (owner, state) DO UPDATE SET tasks = tasks + excluded.tasks",
            rows,
        )
        self._tally_changes.clear()

    def _change_tally(self, owner: str, state: int, difference: int) -> None:
        self._tally_changes[owner, state] = self._tally_changes.get((owner, state), 0) + difference

    def write_probe(self) -> None:
        """Write what a busy moment would, to see whether there is room for it; in transactions of its own."""
        # No task has the number 0, so nobody reads this row. Deleted after its commit: what is gone again before it
        # would not reach the disk.
        self.database.execute("REPLACE INTO document VALUES (0, 0, zeroblob(?))", (PROBE_SIZE,))
        self.database.execute("DELETE FROM document WHERE task = 0")

    def find_key(self, key: str, owner: str) -> str | None:
        found = self.database.execute("SELECT id FROM task WHERE owner = ? AND key = ?", (owner, key)).fetchone()
        if found is None:
            return None
        return str(found[0])

    def create(self, change: ChangeSnapshot, key: str) -> str | None:
        execute = self.database.execute
        if key:
            earlier = self.find_key(key, change.owner)
            if earlier is not None:
                return earlier
        self._make_room(change.id)
        code = CODES[change.state]
        values = (
            change.id,
            change.owner,
            change.context_id,
            key,
            code,
            change.status_time,
            change.version,
            change.epoch,
            self._time_of_end(change),
        )
        try:
            number = execute(
                "INSERT INTO task (id, owner, context_id, key, state, status_time, version, epoch, ended)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            ).lastrowid
        except sqlite3.IntegrityError as error:
            raise StaleWriteError from error  # the id is in use
        assert number is not None  # an INSERT has one
        self._count = self._task_count() + 1
        self._change_tally(change.owner, code, 1)
        if change.webhook is not None:
            self.add_webhook(number, change.webhook, delivered=0, latest=0)
        has_webhooks = change.webhook is not None
        self._write_contents(change, _CachedRow(number, code, change.status_time, has_webhooks, b"", b""))
        return None

    def add_webhook(self, number: int, webhook: Webhook, *, delivered: int, latest: int) -> None:
        config = webhook.config
        now = self.clock.wall()
        self.database.execute(
            "INSERT INTO webhook (task, id, config, a2a_version, delivered, latest, since)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, config.id, encode(config), webhook.a2a_version, delivered, latest, now),
        )

    def expect_webhooks(self, task_id: str, owner: str) -> None:
        """The task has got one, if it had none before: from now on its events are for it, too."""
        cached = self._cache.get((task_id, owner))
        if cached is not None:
            cached.has_webhooks = True

    def append(self, change: ChangeSnapshot) -> None:
        cached = self._cache.get((change.id, change.owner)) or self._find(change)
        code = CODES[change.state]
        values: tuple[object, ...] = (change.version, change.epoch)
        assignments = "version = ?, epoch = ?"
        # Most events are chunks, which change neither; then the indexes on them need no work.
        if code != cached.state or change.status_time != cached.status_time:
            assignments += ", state = ?, status_time = ?, ended = ?"
            values += (code, change.status_time, self._time_of_end(change))
        # The compare-and-set: it is refused if another has written since, or has claimed the task, or it has ended.
        updated = self.database.execute(
            f"UPDATE task SET {assignments} WHERE number = ? AND version = ? AND epoch <= ? AND ended IS NULL",
            (*values, cached.number, change.expected, change.epoch),
        )
        if updated.rowcount != 1:
            raise StaleWriteError
        if code != cached.state:
            self._change_tally(change.owner, cached.state, -1)
            self._change_tally(change.owner, code, 1)
        cached.state = code
        cached.status_time = change.status_time
        self._write_contents(change, cached)

    def _write_contents(self, change: ChangeSnapshot, cached: _CachedRow) -> None:
        """Write what is not in the task's row, which has been written: events, document, memo and run."""
        number = cached.number
        keys = range(event_key(number, change.expected + 1), event_key(number, change.version + 1))
        self.database.executemany(
            "INSERT INTO event (key, body) VALUES (?, ?)", list(zip(keys, change.events, strict=True))
        )
        if cached.has_webhooks and change.events:
            self._tell_webhooks(number, change.version)
        if change.document is not None:
            self.database.execute("REPLACE INTO document VALUES (?, ?, ?)", (number, change.version, change.document))
        if change.memo != cached.memo or change.run != cached.run:
            self._write_private(change, cached)
        if change.state in AT_REST:
            self._cache.pop((change.id, change.owner), None)  # nothing follows soon, if anything does
        else:
            self._cache[change.id, change.owner] = cached

    def _tell_webhooks(self, number: int, version: int) -> None:
        """There are events to be delivered: this is all that is written for that, in the transaction of the events."""
        self.database.execute(
            "UPDATE webhook SET latest = ?, since = iif(delivered < latest, since, ?) WHERE task = ?",
            (version, self.clock.wall(), number),
        )

    def _write_private(self, change: ChangeSnapshot, cached: _CachedRow) -> None:
        if not change.memo and not change.run:
            self.database.execute("DELETE FROM private WHERE task = ?", (cached.number,))
        else:
            # Column by column: a memo may be large, and is not written again because the run changes.
            if change.memo != cached.memo:
                self._write_private_column("memo", cached.number, change.memo)
            if change.run != cached.run:
                self._write_private_column("run", cached.number, change.run)
        cached.memo = change.memo
        cached.run = change.run

    def _write_private_column(self, column: str, number: int, value: bytes) -> None:
        self.database.execute(
            f"INSERT INTO private (task, {column}) VALUES (?, ?)"
            f" ON CONFLICT (task) DO UPDATE SET {column} = excluded.{column}",
            (number, value),
        )

    def _find(self, change: ChangeSnapshot) -> _CachedRow:
        found = self.database.execute(
            "SELECT number, state, status_time, EXISTS (SELECT 1 FROM webhook WHERE task = number)"
            " FROM task WHERE id = ? AND owner = ?",
            (change.id, change.owner),
        ).fetchone()
        if found is None:
            raise StaleWriteError
        number, state, status_time, has_webhooks = found
        return _CachedRow(number, state, status_time, bool(has_webhooks))

    def _time_of_end(self, change: ChangeSnapshot) -> float | None:
        if change.state in TERMINAL:
            return self.clock.wall()
        return None

    # ---- what leaves -------------------------------------------------------------------------------------------------

    def _task_count(self) -> int:
        if self._count is None:
            self._count = int(self.database.execute("SELECT coalesce(sum(tasks), 0) FROM tally").fetchone()[0])
        return self._count

    def _make_room(self, task_id: str) -> None:
        """Let ended tasks go until there is room for one more."""
        excess = self._task_count() - self._max_tasks + 1
        if excess <= 0:
            return
        # A write that will be refused must not cost another task its place.
        if self.database.execute("SELECT 1 FROM task WHERE id = ?", (task_id,)).fetchone() is not None:
            raise StaleWriteError
        # Two at most: a store that was opened with a lower limit comes down to it task by task, not in one long change.
        oldest = f"SELECT number, owner, state FROM task WHERE ended IS NOT NULL AND NOT {_OWES} ORDER BY ended, number"
        if not self._remove_ended(f"{oldest} LIMIT ?", min(excess, 2)):
            raise OverloadedError("The agent is at its limit of unfinished tasks; try again later", retry_after=5)

    def sweep(self, limit: int) -> bool:
        """Remove tasks that ended longer than the TTL ago, the oldest first; answer whether more may be left."""
        now = self.clock.now()
        # A webhook keeps its task as long again: were webhooks switched off, nobody would ever deliver.
        removed = self._remove_ended(
            "SELECT number, owner, state FROM task"
            f" WHERE ended <= ? AND (ended <= ? OR NOT {_OWES}) ORDER BY ended, number LIMIT ?",
            now - self._ttl,
            now - 2 * self._ttl,
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
        self._cache.pop((task_id, owner), None)
        self._remove(*found)
        return True

    def _remove(self, number: int, owner: str, state: int) -> None:
        # A trigger removes its events, document and the rest (`schema`).
        self.database.execute("DELETE FROM task WHERE number = ?", (number,))
        self._change_tally(owner, state, -1)
        if self._count is not None:
            self._count -= 1

    def claim_orphans(self) -> list[tuple[str, str]]:
        """Id and owner of each task that was running, which whoever ran it can now no longer write to."""
        # A task at rest is one only if there is something to run: an agent that waits for a login, or a message that
        # waits for its turn. Then `run` says what.
        orphans = self.database.execute(
            "SELECT number, id, owner FROM task LEFT JOIN private ON private.task = number"
            " WHERE ended IS NULL AND state IN (?, ?, ?, ?) AND (state IN (?, ?) OR run <> x'') ORDER BY number",
            (*_RUNNING, *_WAITING, *_RUNNING),
        ).fetchall()
        claimed: list[tuple[str, str]] = []
        for number, task_id, owner in orphans:
            self.database.execute("UPDATE task SET epoch = epoch + 1 WHERE number = ?", (number,))
            claimed.append((task_id, owner))
        return claimed
