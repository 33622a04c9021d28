"""The roles of one replica among the processes that share a database: lease, claims on tasks, watch and requests.

Invariant: all times are measured by the server's clock. An expired lease can be renewed until another replica declares
its holder dead. That is final for this name. The tasks of a replica are claimed only after it was declared dead.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Sequence
from typing import Final

from apcore_a2a.storage.contract import (
    FollowedTask,
    Record,
    ReplicaRequest,
    RequestMailbox,
    TaskUpdate,
    TaskWatch,
    WakeUp,
)
from apcore_a2a.storage.postgres.connection import (
    ANSWER_TIME,
    Address,
    SessionSettings,
    close_quietly,
    connect,
    execute,
    fetch,
    fetch_value,
)
from apcore_a2a.storage.postgres.notifications import ORPHANS, channel_of_all
from apcore_a2a.storage.postgres.parts import OpenStore
from apcore_a2a.storage.postgres.reads import load
from apcore_a2a.storage.postgres.statements import to_bytes, to_text

MAX_EVENTS: Final = 2_000  # events in one read of updates
MAX_UPDATE_BYTES: Final = 8 * 1024 * 1024  # bytes of events in one read of updates, after the first event
KEPT_SECONDS: Final = 60.0  # age at which rows are deleted: those of dead replicas without tasks, and requests


class PostgresReplicas:
    """The roles of this replica: `Replicas` of `storage/contract.py`.

    Background work of the replica uses the connection `upkeep`, so that it never waits for the reads of clients.
    """

    def __init__(self, store: OpenStore, *, lease: float) -> None:
        self.lease = PostgresLease(store, lease)
        self.claims = PostgresClaims(store)
        self.watch: TaskWatch = PostgresWatch(store)
        self.mailbox: RequestMailbox = PostgresMailbox(store)


# ---- the lease -------------------------------------------------------------------------------------------------------

REGISTER: Final = """
    INSERT INTO replica (name, until, place) VALUES ($1, clock_timestamp() + make_interval(secs => $2), $3)
"""
# Returns the seconds until the next lease of another replica expires. Expired leases count only if their holder has
# tasks, or delivers events to webhooks.
RENEW: Final = """
    UPDATE replica SET until = clock_timestamp() + make_interval(secs => $2)
    WHERE name = $1 AND NOT is_dead RETURNING (
        SELECT coalesce(extract(epoch FROM min(other.until) - clock_timestamp())::float, 'Infinity')
        FROM replica AS other WHERE other.name <> $1
            AND (other.until > clock_timestamp()
                OR EXISTS (SELECT 1 FROM task WHERE runner = other.name)
                OR EXISTS (SELECT 1 FROM webhook WHERE holder = other.name AND holder <> ''))
    )
"""
LEAVE: Final = "UPDATE replica SET is_dead = TRUE, until = clock_timestamp() WHERE name = $1"
DECLARE_DEAD: Final = """
    UPDATE replica SET is_dead = TRUE, until = clock_timestamp() WHERE place = $1 AND NOT is_dead
"""
WAKE_FOR_ORPHANS: Final = "SELECT pg_notify($1, $2)"
DELETE_DEAD: Final = """
    DELETE FROM replica WHERE until < clock_timestamp() - make_interval(secs => $1)
        AND NOT EXISTS (SELECT 1 FROM task WHERE runner = name)
"""
# A replica that was suspended for longer than its row is kept may create a task before it learns that it was declared
# dead.
RESTORE_DELETED: Final = """
    INSERT INTO replica (name, until, place, is_dead)
    SELECT DISTINCT runner, clock_timestamp(), '', TRUE FROM task
    WHERE runner <> '' AND NOT EXISTS (SELECT 1 FROM replica WHERE name = runner)
    ON CONFLICT DO NOTHING
"""
DELETE_REQUESTS: Final = "DELETE FROM command WHERE since < clock_timestamp() - make_interval(secs => $1)"


class PostgresLease:
    """The row of this replica in the table `replica`: a `ReplicaLease`."""

    def __init__(self, store: OpenStore, seconds: float) -> None:
        self.seconds = seconds
        self._store = store
        # The same in all processes that are forked from this one. Hosts may have the same name, and the same processes.
        self._launch = secrets.token_hex(4)

    def place_of(self, pid: int) -> str:
        """Return the place of the replica in a process, unique among all hosts."""
        return f"{socket.gethostname()}:{pid}:{self._launch}"

    @property
    def name(self) -> str:
        return self._store.parts.writer.replica

    @property
    def down_at(self) -> float:
        return self._store.parts.upkeep.down_at

    async def join(self) -> None:
        """Become a replica under a name that no replica had before."""
        name = secrets.token_hex(8)
        parts = self._store.parts
        await parts.upkeep.call(execute, REGISTER, name, self.seconds, self.place_of(os.getpid()))
        parts.writer.replica = name
        parts.notifications.open(name)

    async def leave(self) -> None:
        """Declare this replica dead, so that the others claim its tasks at once."""
        await self._store.parts.upkeep.call(execute, LEAVE, self.name)

    async def renew(self) -> float | None:
        found: float | None = await self._store.parts.upkeep.call(fetch_value, RENEW, self.name, self.seconds)
        return found

    async def clean_up(self) -> None:
        upkeep = self._store.parts.upkeep
        await upkeep.call(execute, DELETE_DEAD, KEPT_SECONDS)
        await upkeep.call(execute, RESTORE_DELETED)
        await upkeep.call(execute, DELETE_REQUESTS, KEPT_SECONDS)


async def declare_dead(address: Address, place: str) -> None:
    """Declare the replica at a place dead, and wake the others. In bounded time, over connections of its own."""
    settings = SessionSettings(address)
    connection = await connect(address, settings)
    try:
        async with asyncio.timeout(ANSWER_TIME):
            is_declared = await settings.run(connection, execute, DECLARE_DEAD, place)
            if is_declared:
                await settings.run(connection, execute, WAKE_FOR_ORPHANS, channel_of_all(address.schema), ORPHANS)
    finally:
        await close_quietly(connection)


# ---- claims on tasks -------------------------------------------------------------------------------------------------

# A replica is marked as dead before its tasks are claimed. If it renews its lease at this moment, either its renewal
# waits for the mark and fails, or the lease is no longer expired and the replica is not in `dead`. SKIP LOCKED: several
# replicas may claim at once, and each task is claimed once. The webhooks that a dead replica has claimed are due again.
CLAIM_ORPHANS: Final = """
    WITH expired AS (
        UPDATE replica SET is_dead = TRUE WHERE NOT is_dead AND until < clock_timestamp() RETURNING name
    ), dead AS (
        SELECT name FROM expired UNION ALL SELECT name FROM replica WHERE is_dead
    ), released AS (
        UPDATE webhook SET due = 0, holder = '' WHERE holder <> '' AND holder IN (SELECT name FROM dead)
    )
    UPDATE task SET epoch = epoch + 1, runner = $1 WHERE number IN (
        SELECT number FROM task WHERE runner IN (SELECT name FROM dead)
        ORDER BY number LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING id, owner
"""
# The first task of each owner, then the second of each, and so on. The order of the owners is random, so that an owner
# with many waiting tasks is not always served first.
CLAIM_QUEUED: Final = """
    UPDATE task SET epoch = epoch + 1, runner = $1 WHERE number IN (
        SELECT number FROM task JOIN (
            SELECT number, row_number() OVER (PARTITION BY owner ORDER BY number) AS place
            FROM task WHERE runner = '' ORDER BY number LIMIT 10000
        ) AS waiting USING (number)
        WHERE runner = '' ORDER BY place, random() LIMIT $2 FOR UPDATE OF task SKIP LOCKED
    ) RETURNING id, owner
"""
COUNT_QUEUED: Final = "SELECT count(*) FROM (SELECT 1 FROM task WHERE runner = '' LIMIT $1) AS waiting"
CLAIM_ONE: Final = """
    UPDATE task SET epoch = epoch + 1, runner = $3 WHERE id = $1 AND owner = $2 AND ended IS NULL RETURNING TRUE
"""


class PostgresClaims:
    """Claims on tasks, in the column `runner` of their rows: a `TaskClaims`."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store

    @property
    def _name(self) -> str:
        return self._store.parts.writer.replica

    async def claim_orphans(self, limit: int) -> list[Record]:
        return await self._claim(CLAIM_ORPHANS, limit)

    async def claim_queued(self, limit: int) -> list[Record]:
        return await self._claim(CLAIM_QUEUED, limit)

    async def count_queued(self, limit: int) -> int:
        return int(await self._store.parts.database.call(fetch_value, COUNT_QUEUED, limit))

    async def _claim(self, statement: str, limit: int) -> list[Record]:
        upkeep = self._store.parts.upkeep
        claimed = await upkeep.call_once(fetch, statement, self._name, limit)
        records: list[Record] = []
        for row in claimed:
            record = await upkeep.call(load, to_text(row["id"]), to_text(row["owner"]))
            if record is not None and record.runner == self._name:
                records.append(record)
        return records

    async def claim(self, task_id: str, owner: str) -> Record | None:
        database = self._store.parts.database
        await database.call(execute, CLAIM_ONE, to_bytes(task_id), to_bytes(owner), self._name)
        record = await database.call(load, task_id, owner)
        return record

    async def own_tasks(self) -> list[tuple[str, str]]:
        rows = await self._store.parts.upkeep.call(fetch, "SELECT id, owner FROM task WHERE runner = $1", self._name)
        return [(to_text(row["id"]), to_text(row["owner"])) for row in rows]


# ---- followed tasks --------------------------------------------------------------------------------------------------

# A task that has ended gets no followers, because no event follows. A name that is in `watchers` is not added again,
# which would only write another version of the row. The names of deleted replicas are removed on this occasion.
FOLLOW: Final = """
    UPDATE task SET watchers = array_append(ARRAY(SELECT name FROM replica WHERE name = ANY(watchers)), $3)
    WHERE id = $1 AND owner = $2 AND ended IS NULL AND NOT watchers @> ARRAY[$3]
"""
UNFOLLOW: Final = "UPDATE task SET watchers = array_remove(watchers, $1) WHERE id = ANY($2) AND watchers @> ARRAY[$1]"
IS_FOLLOWED: Final = """
    SELECT TRUE FROM task WHERE id = $1 AND owner = $2 AND (webhooks > 0 OR EXISTS (
        SELECT FROM replica WHERE name = ANY(watchers) AND name <> $3 AND until > clock_timestamp()
    ))
"""
# A memo is returned with the first event of its task. `total` is the cumulative size of the events, as in `reads`.
READ_UPDATES: Final = """
    SELECT * FROM (
        SELECT followed.id AS id, number, version, epoch, runner, body,
            CASE WHEN next.sequence > after + 1 THEN NULL ELSE memo END AS memo,
            sum(length(body)) OVER (ORDER BY number, sequence) AS total
        FROM unnest($1::bytea[], $2::bytea[], $3::integer[]) AS followed (id, owner, after)
        LEFT JOIN task ON task.id = followed.id AND task.owner = followed.owner
        LEFT JOIN LATERAL (
            SELECT sequence, body FROM event WHERE event.task = number AND sequence > after ORDER BY sequence LIMIT $4
        ) AS next ON TRUE
        ORDER BY number, sequence LIMIT $4
    ) AS found WHERE body IS NULL OR total <= $5 OR total = length(body)
"""


class PostgresWatch:
    """Followed tasks, in the column `watchers` of their rows, and the wake-ups for them: a `TaskWatch`."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store

    @property
    def _name(self) -> str:
        return self._store.parts.writer.replica

    async def follow(self, task_id: str, owner: str) -> Record | None:
        database = self._store.parts.database
        # The entry is written before the task is read, so that each write after the read wakes this replica.
        await database.call(execute, FOLLOW, to_bytes(task_id), to_bytes(owner), self._name)
        return await database.call(load, task_id, owner)

    async def unfollow(self, task_ids: Sequence[str]) -> None:
        ids = [to_bytes(task_id) for task_id in task_ids]
        await self._store.parts.database.call(execute, UNFOLLOW, self._name, ids)

    async def is_followed_elsewhere(self, task_id: str, owner: str) -> bool:
        database = self._store.parts.database
        found = await database.call(fetch_value, IS_FOLLOWED, to_bytes(task_id), to_bytes(owner), self._name)
        return found is not None

    async def read_updates(self, followed: Sequence[FollowedTask]) -> list[TaskUpdate]:
        ids = [to_bytes(each.task_id) for each in followed]
        owners = [to_bytes(each.owner) for each in followed]
        versions = [each.version for each in followed]
        database = self._store.parts.database
        rows = await database.call(fetch, READ_UPDATES, ids, owners, versions, MAX_EVENTS, MAX_UPDATE_BYTES)
        updates: dict[bytes, TaskUpdate] = {}
        for row in rows:
            update = updates.get(row["id"])
            if update is None:
                update = TaskUpdate(
                    task_id=to_text(row["id"]),
                    number=row["number"],
                    version=row["version"],
                    epoch=row["epoch"],
                    runner=row["runner"],
                    memo=row["memo"],
                    events=[],
                )
                updates[row["id"]] = update
            if row["body"] is not None:
                update.events.append(row["body"])
        return list(updates.values())

    async def until_woken(self, seconds: float) -> WakeUp:
        return await self._store.parts.notifications.until_woken(seconds)

    def wake_here(self) -> None:
        self._store.parts.notifications.wake_here()


# ---- requests between replicas ---------------------------------------------------------------------------------------

# A request is posted once, even if the connection breaks and the statement is repeated, because each body is unique.
POST: Final = """
    WITH earlier AS (
        SELECT number FROM command WHERE replica = $3 AND sender = $5 AND body = $4
    ), posted AS (
        INSERT INTO command (replica, sender, task, owner, body)
        SELECT runner, $5, id, owner, $4 FROM task
        WHERE id = $1 AND owner = $2 AND runner = $3 AND ended IS NULL AND NOT EXISTS (SELECT 1 FROM earlier)
        RETURNING number
    )
    SELECT number FROM earlier UNION ALL SELECT number FROM posted
"""
# A request that is marked as taken, but unknown to this process, was lost with a broken connection. It is returned
# again.
TAKE: Final = """
    UPDATE command SET is_taken = TRUE WHERE number IN (
        SELECT number FROM command WHERE replica = $1 AND refusal IS NULL AND number <> ALL($2::bigint[])
        ORDER BY number LIMIT 100
    ) RETURNING number, task, owner, body
"""
FINISH: Final = "UPDATE command SET refusal = $2 WHERE number = $1 RETURNING sender"
ANSWER: Final = "SELECT refusal FROM command WHERE number = $1"
WITHDRAW: Final = "DELETE FROM command WHERE number = $1 AND NOT is_taken RETURNING TRUE"


class PostgresMailbox:
    """Requests between replicas, in the table `command`: a `RequestMailbox`."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._taken: set[int] = set()  # requests in progress, and those whose answer could not be written

    async def post(self, task_id: str, owner: str, runner: str, body: bytes) -> int | None:
        parts = self._store.parts
        key = to_bytes(task_id), to_bytes(owner)
        number = await parts.database.call(fetch_value, POST, *key, runner, body, parts.writer.replica)
        if number is None:
            return None
        parts.notifications.wake_for_request(runner)
        return int(number)

    async def take(self) -> list[ReplicaRequest]:
        parts = self._store.parts
        rows = await parts.upkeep.call(fetch, TAKE, parts.writer.replica, list(self._taken))
        self._taken.update(row["number"] for row in rows)
        return [ReplicaRequest(row["number"], to_text(row["task"]), to_text(row["owner"]), row["body"]) for row in rows]

    async def finish(self, number: int, rejection: str = "") -> None:
        parts = self._store.parts
        sender = await parts.upkeep.call(fetch_value, FINISH, number, rejection)
        self._taken.discard(number)
        if sender is not None:
            parts.notifications.wake_for_request(sender)

    async def answer(self, number: int) -> str | None:
        found: str | None = await self._store.parts.database.call(fetch_value, ANSWER, number)
        return found

    async def withdraw(self, number: int) -> bool:
        return await self._store.parts.database.call(fetch_value, WITHDRAW, number) is not None
