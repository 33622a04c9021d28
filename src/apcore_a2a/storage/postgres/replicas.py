"""What several processes on one database need of it: to know who lives, to take over, to wake, to ask.

Rule: time is the server's. A lease that is over can still be renewed, until somebody takes the replica for dead; then
it is dead for good, under that name, and only then are its tasks claimed.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import asyncpg

from apcore_a2a.storage.contract import Command, Followed, Hint, News, Record
from apcore_a2a.storage.postgres.connection import (
    FAILURES,
    Address,
    Connection,
    Database,
    ServerCondition,
    close_quietly,
    connect,
)
from apcore_a2a.storage.postgres.reads import load
from apcore_a2a.storage.postgres.statements import to_bytes, to_text
from apcore_a2a.storage.postgres.writer import ALL_OWNERS, PostgresWriter

logger = logging.getLogger(__name__)

RECONNECT_PAUSE: Final = 1.0  # seconds between attempts to listen again
WORDS_AT_ONCE: Final = 350  # numbers of tasks in one NOTIFY: the server takes 7,999 characters
COMMAND: Final = "command"
QUEUED: Final = "queued"
READ_AT_ONCE: Final = 2_000  # events of one look at what others wrote
NEWS_BYTES: Final = 8 * 1024 * 1024  # of these, after the first
KEPT_DEAD: Final = 60.0  # seconds for which the row of a dead replica is kept, when no task is its any more

REGISTER: Final = """
    INSERT INTO replica (name, until, place) VALUES ($1, clock_timestamp() + make_interval(secs => $2), $3)
"""
# Answers in how many seconds the next of the others' leases is over: of those that live, and of those that left tasks.
BEAT: Final = """
    UPDATE replica SET until = clock_timestamp() + make_interval(secs => $2)
    WHERE name = $1 AND NOT is_dead RETURNING (
        SELECT coalesce(extract(epoch FROM min(other.until) - clock_timestamp())::float, 'Infinity')
        FROM replica AS other WHERE other.name <> $1
            AND (other.until > clock_timestamp() OR EXISTS (SELECT 1 FROM task WHERE runner = other.name))
    )
"""
LEAVE: Final = "UPDATE replica SET is_dead = TRUE, until = clock_timestamp() WHERE name = $1"
# First the mark, then the claim: whoever is renewing its lease at this moment either waits for the mark, and learns
# that it is dead, or is not in `dead`. SKIP LOCKED: several replicas may look at once, and each task is claimed by one.
CLAIM_DEAD: Final = """
    WITH dead AS (
        UPDATE replica SET is_dead = TRUE WHERE NOT is_dead AND until < clock_timestamp() RETURNING name
    )
    UPDATE task SET epoch = epoch + 1, runner = $1 WHERE number IN (
        SELECT number FROM task
        WHERE runner IN (SELECT name FROM dead UNION ALL SELECT name FROM replica WHERE is_dead)
        ORDER BY number LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING id, owner
"""
# One of each owner, then the second of each, and so on; by chance among the first, so that whoever has many that wait
# is not always the first to be served.
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
FORGET_DEAD: Final = """
    DELETE FROM replica WHERE until < clock_timestamp() - make_interval(secs => $1)
        AND NOT EXISTS (SELECT 1 FROM task WHERE runner = name)
"""
# A replica that stood still for longer than its row is kept may have made a task before it learned that it was dead.
BURY_FORGOTTEN: Final = """
    INSERT INTO replica (name, until, place, is_dead)
    SELECT DISTINCT runner, clock_timestamp(), '', TRUE FROM task
    WHERE runner <> '' AND NOT EXISTS (SELECT 1 FROM replica WHERE name = runner)
    ON CONFLICT DO NOTHING
"""
FORGET_COMMANDS: Final = "DELETE FROM command WHERE since < clock_timestamp() - make_interval(secs => $1)"
# Not for a task that has ended: nothing follows. Nor twice: it would only be another version of the row. The names of
# replicas that are gone leave on this occasion.
FOLLOW: Final = """
    UPDATE task SET watchers = array_append(ARRAY(SELECT name FROM replica WHERE name = ANY(watchers)), $3)
    WHERE id = $1 AND owner = $2 AND ended IS NULL AND NOT watchers @> ARRAY[$3]
"""
UNFOLLOW: Final = "UPDATE task SET watchers = array_remove(watchers, $1) WHERE id = ANY($2) AND watchers @> ARRAY[$1]"
IS_WATCHED: Final = """
    SELECT TRUE FROM task WHERE id = $1 AND owner = $2 AND (webhooks > 0 OR EXISTS (
        SELECT FROM replica WHERE name = ANY(watchers) AND name <> $3 AND until > clock_timestamp()
    ))
"""
# A memo comes with the first event of its task; `total` is how much there is up to an event, as in `reads`.
NEWS: Final = """
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
# Once, also when the connection broke after it was posted, and it is posted again: no two bodies are the same.
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
# What was taken and is not known here was lost with a connection, on its way.
TAKE: Final = """
    UPDATE command SET is_taken = TRUE WHERE number IN (
        SELECT number FROM command WHERE replica = $1 AND refusal IS NULL AND number <> ALL($2::bigint[])
        ORDER BY number LIMIT 100
    ) RETURNING number, task, owner, body
"""
FINISH: Final = "UPDATE command SET refusal = $2 WHERE number = $1 RETURNING sender"
ANSWER: Final = "SELECT refusal FROM command WHERE number = $1"
WITHDRAW: Final = "DELETE FROM command WHERE number = $1 AND NOT is_taken RETURNING TRUE"
NOTIFY: Final = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS told (channel, payload)"


class Signals:
    """Wakes other replicas, and is woken: one connection that listens and notifies.

    A wake-up names tasks by their numbers, or says COMMAND. It may get lost while there is no connection, so whoever
    waits does not wait long.
    """

    def __init__(self, address: Address, condition: ServerCondition) -> None:
        self._address = address
        self._condition = condition
        self._channel = ""
        self._connection: Connection | None = None
        self._outbox: dict[str, set[str]] = {}  # by replica: what to tell it
        self._to_send = asyncio.Event()
        self._woken = asyncio.Event()
        self._heard: set[str] = set()
        self._missed = True  # whether something may have been said while nobody listened
        self._work: asyncio.Task[None] | None = None

    def open(self, name: str) -> None:
        """Listen under a name, from now on."""
        self._channel = self._channel_of(name)
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._run(), name="postgres signals")
        elif self._connection is not None:
            self._connection.terminate()  # `_run` makes a new one, on the new channel

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work}, timeout=2)
        await close_quietly(self._connection)

    def wake(self, replica: str, word: str) -> None:
        self._outbox.setdefault(replica, set()).add(word)
        self._to_send.set()

    def wake_watchers(self, watched: Mapping[str, Iterable[int]]) -> None:
        for replica, numbers in watched.items():
            words = {QUEUED} if replica == ALL_OWNERS else set(map(str, numbers))
            self._outbox.setdefault(replica, set()).update(words)
        self._to_send.set()

    async def until_woken(self, seconds: float) -> Hint:
        """Wait for a wake-up, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return Hint(everything=True, commands=True, queue=True)
        self._woken.clear()
        heard = self._heard
        missed = self._missed
        self._heard = set()
        self._missed = False
        numbers = frozenset(int(word) for word in heard if word.isdecimal())
        return Hint(
            everything=missed, commands=missed or COMMAND in heard, queue=missed or QUEUED in heard, tasks=numbers
        )

    def wake_here(self) -> None:
        """As if everybody had said something."""
        self._missed = True
        self._woken.set()

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._listen()
                while not connection.is_closed():
                    await self._to_send.wait()
                    self._to_send.clear()
                    await self._send(connection)
            except FAILURES as error:
                self._condition.failed(error)
                await asyncio.sleep(RECONNECT_PAUSE)

    async def _listen(self) -> Connection:
        # A notification is not worth a sync of the disk.
        connection = await connect(self._address, synchronous_commit="off")
        self._connection = connection
        connection.add_termination_listener(self._lost)
        await connection.add_listener(self._channel, self._hear)
        await connection.add_listener(self._channel_of(ALL_OWNERS), self._hear)
        self.wake_here()
        return connection

    def _channel_of(self, replica: str) -> str:
        # Names are nobody's twice, but "everybody" is those of one schema.
        return f"a2a_{replica}" if replica else f"a2a_all_{self._address.schema}"[:63]

    def _hear(self, connection: object, pid: int, channel: str, payload: object) -> None:
        self._heard.update(str(payload).split())
        self._woken.set()

    def _lost(self, *_: object) -> None:
        self._to_send.set()  # so that `_run` sees it

    async def _send(self, connection: Connection) -> None:
        outbox = self._outbox
        self._outbox = {}
        channels: list[str] = []
        payloads: list[str] = []
        for replica, words in outbox.items():
            told = sorted(words)
            for start in range(0, len(told), WORDS_AT_ONCE):
                channels.append(self._channel_of(replica))
                payloads.append(" ".join(told[start : start + WORDS_AT_ONCE]))
        if channels:
            await connection.execute(NOTIFY, channels, payloads)


class PostgresReplicas:
    """This replica among the others: `Replicas` of `storage/contract.py`, over a database.

    What it does by itself, again and again, goes by `upkeep`, and waits for no client; the rest is what clients want.
    """

    def __init__(
        self, database: Database, signals: Signals, writer: PostgresWriter, *, upkeep: Database, lease: float
    ) -> None:
        self.lease = lease
        self._database = database
        self._upkeep = upkeep
        self._signals = signals
        self._writer = writer
        self._taken: set[int] = set()  # commands that are being obeyed, and those whose answer could not be written

    @property
    def name(self) -> str:
        return self._writer.replica

    @property
    def down_at(self) -> float:
        return self._upkeep.down_at

    async def join(self) -> None:
        """Be one of them, under a name that nobody had before."""
        name = secrets.token_hex(8)
        place = f"{socket.gethostname()}:{os.getpid()}"
        await self._upkeep.ask(_execute, REGISTER, name, self.lease, place)
        self._writer.replica = name
        self._signals.open(name)

    async def leave(self) -> None:
        """Be dead at once: what is left is taken over."""
        await self._upkeep.ask(_execute, LEAVE, self.name)

    async def beat(self) -> float | None:
        found: float | None = await self._upkeep.ask(_fetch_value, BEAT, self.name, self.lease)
        return found

    async def tidy(self) -> None:
        await self._upkeep.ask(_execute, FORGET_DEAD, KEPT_DEAD)
        await self._upkeep.ask(_execute, BURY_FORGOTTEN)
        await self._upkeep.ask(_execute, FORGET_COMMANDS, KEPT_DEAD)

    # ---- taking over -------------------------------------------------------------------------------------------------

    async def claim_dead(self, limit: int) -> list[Record]:
        return await self._claim(CLAIM_DEAD, limit)

    async def claim_queued(self, limit: int) -> list[Record]:
        return await self._claim(CLAIM_QUEUED, limit)

    async def count_queued(self, limit: int) -> int:
        return int(await self._database.ask(_fetch_value, COUNT_QUEUED, limit))

    async def _claim(self, statement: str, limit: int) -> list[Record]:
        claimed = await self._upkeep.ask_once(_fetch, statement, self.name, limit)
        records: list[Record] = []
        for row in claimed:
            record = await self._upkeep.ask(load, to_text(row["id"]), to_text(row["owner"]))
            if record is not None and record.runner == self.name:
                records.append(record)
        return records

    async def claim(self, task_id: str, owner: str) -> Record | None:
        """Take one task over, whoever runs it."""
        key = to_bytes(task_id), to_bytes(owner)
        await self._database.ask(_execute, CLAIM_ONE, *key, self.name)
        record = await self._database.ask(load, task_id, owner)
        return record

    async def own_tasks(self) -> list[tuple[str, str]]:
        rows = await self._upkeep.ask(_fetch, "SELECT id, owner FROM task WHERE runner = $1", self.name)
        return [(to_text(row["id"]), to_text(row["owner"])) for row in rows]

    # ---- watching ----------------------------------------------------------------------------------------------------

    async def follow(self, task_id: str, owner: str) -> Record | None:
        # First the interest, then the look: whatever is written after the look wakes us.
        await self._database.ask(_execute, FOLLOW, to_bytes(task_id), to_bytes(owner), self.name)
        return await self._database.ask(load, task_id, owner)

    async def unfollow(self, task_ids: Sequence[str]) -> None:
        await self._database.ask(_execute, UNFOLLOW, self.name, [to_bytes(task_id) for task_id in task_ids])

    async def is_watched(self, task_id: str, owner: str) -> bool:
        key = to_bytes(task_id), to_bytes(owner)
        return await self._database.ask(_fetch_value, IS_WATCHED, *key, self.name) is not None

    async def news(self, followed: Sequence[Followed]) -> list[News]:
        ids = [to_bytes(each.task_id) for each in followed]
        owners = [to_bytes(each.owner) for each in followed]
        versions = [each.version for each in followed]
        rows = await self._database.ask(_fetch, NEWS, ids, owners, versions, READ_AT_ONCE, NEWS_BYTES)
        found: dict[bytes, News] = {}
        for row in rows:
            news = found.get(row["id"])
            if news is None:
                news = News(
                    task_id=to_text(row["id"]),
                    number=row["number"],
                    version=row["version"],
                    epoch=row["epoch"],
                    runner=row["runner"],
                    memo=row["memo"],
                    events=[],
                )
                found[row["id"]] = news
            if row["body"] is not None:
                news.events.append(row["body"])
        return list(found.values())

    async def until_woken(self, seconds: float) -> Hint:
        return await self._signals.until_woken(seconds)

    def wake_here(self) -> None:
        self._signals.wake_here()

    # ---- asking ------------------------------------------------------------------------------------------------------

    async def post(self, task_id: str, owner: str, runner: str, body: bytes) -> int | None:
        key = to_bytes(task_id), to_bytes(owner)
        number = await self._database.ask(_fetch_value, POST, *key, runner, body, self.name)
        if number is None:
            return None
        self._signals.wake(runner, COMMAND)
        return int(number)

    async def take(self) -> list[Command]:
        rows = await self._upkeep.ask(_fetch, TAKE, self.name, list(self._taken))
        self._taken.update(row["number"] for row in rows)
        return [Command(row["number"], to_text(row["task"]), to_text(row["owner"]), row["body"]) for row in rows]

    async def finish(self, number: int, refusal: str = "") -> None:
        sender = await self._upkeep.ask(_fetch_value, FINISH, number, refusal)
        self._taken.discard(number)
        if sender is not None:
            self._signals.wake(sender, COMMAND)

    async def answer(self, number: int) -> str | None:
        found: str | None = await self._database.ask(_fetch_value, ANSWER, number)
        return found

    async def withdraw(self, number: int) -> bool:
        return await self._database.ask(_fetch_value, WITHDRAW, number) is not None


async def _execute(connection: Connection, statement: str, *values: object) -> None:
    await connection.execute(statement, *values)


async def _fetch(connection: Connection, statement: str, *values: object) -> list[asyncpg.Record]:
    return await connection.fetch(statement, *values)


async def _fetch_value(connection: Connection, statement: str, *values: object) -> Any:
    return await connection.fetchval(statement, *values)  # Any: of the one column, whatever it is
