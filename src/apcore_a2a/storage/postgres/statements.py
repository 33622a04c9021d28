"""Writes of any number of tasks as one SQL statement.

Invariant: a write is rejected, alone and without effect, if its version or epoch is stale, if the task has ended, if
another replica runs it, or if it belongs to another owner. The cost of a write is proportional to the size of its
events.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from apcore_a2a.protocol.lifecycle import AT_REST, TERMINAL
from apcore_a2a.protocol.model import TaskState, encode
from apcore_a2a.storage.contract import Change, ConversationWrite, Webhook
from apcore_a2a.storage.sql import CODES

MAX_DOCUMENT: Final = 64 * 1024  # bytes of a document; larger ones are not stored: readers rebuild them from the events
_RUNNING: Final = frozenset({TaskState.SUBMITTED, TaskState.WORKING})

# `given` has a row for each write, numbered by `place`, and `logs` one for each event. A new task whose id or key is in
# use is not created. An existing task that does not match is not updated. Neither is in `done`, and only tasks in
# `done` get their events. `id = ANY` is for the planner: with it, the tasks are always found by their index, however
# they are joined. If any replica may run a new task (`runner = ''`), this replica follows it, because its client waits
# for the task. A NULL for memo or run means unchanged: a memo may be large, and is not sent again with each event.
WRITE: Final = """
    WITH given AS (
        SELECT * FROM unnest(
            $1::boolean[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bytea[], $6::smallint[], $7::text[],
            $8::integer[], $9::integer[], $10::integer[], $11::boolean[], $12::text[],
            $13::bytea[], $14::bytea[], $15::bytea[]
        ) WITH ORDINALITY AS given (
            is_new, id, owner, context_id, key, state, status_time,
            expected, version, epoch, is_end, runner,
            memo, run, document, place
        )
    ), created AS (
        INSERT INTO task (id, owner, context_id, key, state, status_time, version, epoch, ended,
                          runner, memo, run, document, document_version, webhooks, watchers)
        SELECT id, owner, context_id, key, state, status_time, version, epoch,
               CASE WHEN is_end THEN coalesce($19, extract(epoch FROM clock_timestamp())) END,
               runner, memo, run, document, CASE WHEN document IS NOT NULL THEN version END,
               CASE WHEN place = ANY($21::bigint[]) THEN 1 ELSE 0 END,
               CASE WHEN runner = '' THEN ARRAY[$20] ELSE '{}' END
        FROM given WHERE is_new ORDER BY place
        ON CONFLICT DO NOTHING
        RETURNING number, id
    ), updated AS (
        UPDATE task SET
            state = given.state,
            status_time = given.status_time,
            version = given.version,
            epoch = given.epoch,
            ended = CASE WHEN is_end THEN coalesce($19, extract(epoch FROM clock_timestamp())) END,
            runner = given.runner,
            memo = coalesce(given.memo, task.memo),
            run = coalesce(given.run, task.run),
            document = coalesce(given.document, task.document),
            document_version = CASE WHEN given.document IS NULL THEN document_version ELSE given.version END
        FROM given
        WHERE NOT is_new AND task.id = ANY($2) AND task.id = given.id AND task.owner = given.owner
            AND task.version = given.expected AND task.epoch <= given.epoch
            AND task.ended IS NULL AND (task.runner IS NULL OR task.runner = $20)
        RETURNING place, number, watchers
    ), done AS (
        SELECT place, number, '{}'::text[] AS watchers FROM created JOIN given USING (id) WHERE is_new
        UNION ALL
        SELECT place, number, watchers FROM updated
    ), hooked AS (
        INSERT INTO webhook (task, id, config, a2a_version, delivered, latest, since)
        SELECT number, hooks.id, config, a2a_version, 0, version,
               coalesce($19, extract(epoch FROM clock_timestamp()))
        FROM unnest($21::bigint[], $22::bytea[], $23::bytea[], $24::text[]) AS hooks (place, id, config, a2a_version)
        JOIN done USING (place) JOIN given USING (place)
    ), logged AS (
        INSERT INTO event (task, sequence, body)
        SELECT number, sequence, body
        FROM unnest($16::bigint[], $17::integer[], $18::bytea[]) AS logs (place, sequence, body)
        JOIN done USING (place)
    ), remembered AS (
        INSERT INTO conversation (owner, context_id, number, keep, body)
        SELECT given.owner, given.context_id, last + 1, keep, body
        FROM unnest($25::bigint[], $26::integer[], $27::integer[], $28::bytea[]) AS memory (place, base, keep, body)
        JOIN done USING (place) JOIN given USING (place), LATERAL (
            SELECT coalesce(max(number), 0) AS last FROM conversation
            WHERE conversation.owner = given.owner AND conversation.context_id = given.context_id
        ) AS stored
        WHERE base IS NULL OR base = last
        ON CONFLICT DO NOTHING
        RETURNING owner, context_id, number, keep
    ), replaced AS (
        DELETE FROM conversation USING remembered
        WHERE remembered.keep = 0 AND conversation.owner = remembered.owner
            AND conversation.context_id = remembered.context_id AND conversation.number < remembered.number
    )
    SELECT place, number, watchers FROM done
"""

# The tasks of these that another transaction has locked, or one of whose webhooks it has locked.
FIND_LOCKED: Final = """
    WITH free AS MATERIALIZED (
        SELECT number, webhooks FROM task WHERE id = ANY($1::bytea[]) FOR NO KEY UPDATE SKIP LOCKED
    ), free_webhook AS MATERIALIZED (
        SELECT task FROM webhook WHERE task = ANY(ARRAY(SELECT number FROM free WHERE webhooks > 0))
        FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT id FROM task WHERE id = ANY($1::bytea[]) AND number <> ALL(ARRAY(
        SELECT number FROM free WHERE webhooks <= (SELECT count(*) FROM free_webhook WHERE task = number)
    ))
"""
# After a broken connection: whether a write that is rejected now was committed before. Its last event identifies it.
FIND_WRITTEN: Final = """
    SELECT event.body FROM task JOIN event ON event.task = number AND sequence = $3 WHERE id = $1 AND owner = $2
"""
FIND_KEY: Final = "SELECT id FROM task WHERE owner = $1 AND key = $2"
# Whether a webhook of the task still waits for an event. Then the ended task is stored longer, but at most for twice
# the TTL, because webhooks may have been disabled meanwhile.
_WEBHOOK_WAITS: Final = """(webhooks > 0 AND EXISTS (
    SELECT 1 FROM webhook WHERE webhook.task = number AND NOT failed AND delivered < latest
))"""
# SKIP LOCKED: tasks that another replica is removing are left to it. The subqueries are an array and a scalar, not
# joins, so that rows are found by index although `writer.PLANNING` disables some joins, and tasks that stay are not
# read.
REMOVE_EXPIRED: Final = f"""
    WITH clock AS (SELECT coalesce($1::double precision, extract(epoch FROM clock_timestamp())::float) AS now)
    DELETE FROM task WHERE number = ANY(ARRAY(
        SELECT number FROM task
        WHERE ended <= (SELECT now FROM clock) - $2::double precision
            AND (ended <= (SELECT now FROM clock) - 2 * $2::double precision OR NOT {_WEBHOOK_WAITS})
        ORDER BY ended, number LIMIT $3 FOR UPDATE SKIP LOCKED
    ))
"""
REMOVE_OLDEST: Final = f"""
    DELETE FROM task WHERE number = ANY(ARRAY(
        SELECT number FROM task WHERE ended IS NOT NULL AND NOT {_WEBHOOK_WAITS}
        ORDER BY ended, number LIMIT $1 FOR UPDATE SKIP LOCKED
    ))
"""


def to_bytes(text: str) -> bytes:
    """Return a text of a client as it is stored. JSON may contain lone surrogates."""
    return text.encode(errors="surrogatepass")


def to_text(stored: bytes) -> str:
    """Return a text that was stored by `to_bytes`."""
    return stored.decode(errors="surrogatepass")


class Write(Struct, kw_only=True, gc=False):
    """One or more changes of one task, copied when they were submitted, because the live task changes later."""

    is_new: bool
    id: bytes
    owner: bytes
    context_id: bytes
    key: bytes
    state: TaskState
    status_time: str
    expected: int
    version: int
    epoch: int
    memo: bytes
    run: bytes
    hand_on: bool
    document: bytes | None
    webhook: Webhook | None
    conversation: ConversationWrite | None
    events: list[bytes]
    futures: "list[asyncio.Future[Any]]"  # Any: the result of a creation is the id of an earlier task, or None
    is_repeated: bool = False
    """Whether an earlier attempt may have been committed."""
    locked_since: float = 0.0
    """When an attempt first waited for a lock in vain, by the monotonic clock."""
    locks: int = 0
    """The number of these attempts."""

    @property
    def is_end(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_rest(self) -> bool:
        return self.state in AT_REST

    def runner(self, replica: str) -> str | None:
        """Return the runner of the task after this write: this replica, "" for any replica with capacity, or None."""
        if self.state not in _RUNNING and not self.run:
            return None
        if self.hand_on:
            return ""
        return replica

    def can_merge(self, later: "Write") -> bool:
        """Return whether a later write starts exactly where this one ends, so that both can be one."""
        if self.is_new or later.is_new or self.is_end or later.expected != self.version:
            return False
        if self.is_repeated:  # it is recognized by its last event
            return False
        if self.conversation is not None and later.conversation is not None:
            return False  # the later piece is based on the earlier one
        return later.owner == self.owner and later.epoch == self.epoch

    def merge(self, later: "Write") -> None:
        """Add a later write for which `can_merge` is true."""
        self.state = later.state
        self.status_time = later.status_time
        self.version = later.version
        self.memo = later.memo
        self.run = later.run
        self.hand_on = later.hand_on
        self.document = later.document
        self.conversation = self.conversation or later.conversation
        self.events += later.events
        self.futures += later.futures


def make_write(change: Change, future: "asyncio.Future[Any]", *, is_new: bool, key: str = "") -> Write:
    """Return the write of a change."""
    task = change.task
    document = None
    if change.document is not None and len(change.document.body) <= MAX_DOCUMENT:
        document = change.document.body
    return Write(
        is_new=is_new,
        id=to_bytes(task.id),
        owner=to_bytes(change.owner),
        context_id=to_bytes(task.context_id),
        key=to_bytes(key),
        state=task.status.state,
        status_time=task.status.timestamp,
        expected=change.expected,
        version=change.version,
        epoch=change.epoch,
        memo=change.memo,
        run=change.run,
        hand_on=change.hand_on,
        document=document,
        webhook=change.webhook,
        conversation=change.conversation,
        events=list(change.events),
        futures=[future],
    )


class LastWritten(Struct, gc=False):
    """The memo and run that this replica wrote last for a running task, so that they are not sent again."""

    memo: bytes
    run: bytes


def arguments(writes: Sequence[Write], known: dict[bytes, LastWritten], replica: str, now: float | None) -> list[Any]:
    """Return the parameters of `WRITE`. Any: a list for each column, and two values."""
    columns: list[list[Any]] = [[] for _ in range(18)]
    for place, write in enumerate(writes, 1):
        memo: bytes | None = write.memo
        run: bytes | None = write.run
        last = known.get(write.id)
        if last is not None and not write.is_new:
            memo = None if last.memo == memo else memo
            run = None if last.run == run else run
        row = (
            write.is_new,
            write.id,
            write.owner,
            write.context_id,
            write.key,
            CODES[write.state],
            write.status_time,
            write.expected,
            write.version,
            write.epoch,
            write.is_end,
            write.runner(replica),
            memo,
            run,
            write.document,
        )
        for column, value in zip(columns, row, strict=False):
            column.append(value)
        columns[15] += [place] * len(write.events)
        columns[16] += range(write.version - len(write.events) + 1, write.version + 1)
        columns[17] += write.events
    return [*columns, now, replica, *_webhook_columns(writes), *_conversation_columns(writes)]


def _conversation_columns(writes: Sequence[Write]) -> list[list[Any]]:
    """Return the columns of the pieces of conversations. Any: the values of one column each."""
    columns: list[list[Any]] = [[], [], [], []]
    for place, write in enumerate(writes, 1):
        piece = write.conversation
        if piece is not None:
            for column, value in zip(columns, (place, piece.base, piece.keep, piece.tail), strict=True):
                column.append(value)
    return columns


def _webhook_columns(writes: Sequence[Write]) -> list[list[Any]]:
    """Return the columns of the webhooks of new tasks, most of which have none. Any: the values of one column each."""
    columns: list[list[Any]] = [[], [], [], []]
    for place, write in enumerate(writes, 1):
        if write.webhook is not None:
            config = write.webhook.config
            row = (place, to_bytes(config.id), encode(config), write.webhook.a2a_version)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    return columns
