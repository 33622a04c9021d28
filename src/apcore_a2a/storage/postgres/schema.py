"""The tables and the steps that led to them.

Rule: steps are taken whole, by one replica at a time. A replica of the version before must be able to go on beside a
new one, so a step only adds; what it takes away, it takes from tables that nobody has read for a version (`OLDEST`).
"""

import re
import secrets
from typing import Final

import asyncpg

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.storage.cursor import KEY_SIZE
from apcore_a2a.storage.postgres.connection import Connection

LOCK: Final = 0x41324154  # "A2AT": whoever takes a step holds this advisory lock

# Two shapes follow from how PostgreSQL stores a row. An UPDATE writes the row anew, but not what is so large that it
# lies elsewhere (TOAST); so memo, run and document can stay in it. And an update that changes nothing that is indexed,
# as most events do, touches no index if there is room on the page: that is what `fillfactor` leaves.
#
# Two rules are triggers, so that no statement can forget them: what belongs to a task goes with it, and an event is
# owed to the webhooks of its task. A statement sees the webhooks that were there when it began; a trigger those that
# are there when it is called, also one that was saved while the statement waited for the row.
#
# A step, once released, is never changed: databases have taken it. A change of the tables is a new step at the end.
MIGRATIONS: Final = (
    """
    CREATE TABLE task (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id bytea NOT NULL UNIQUE,
        owner bytea NOT NULL,
        context_id bytea NOT NULL,
        key bytea NOT NULL,
        state smallint NOT NULL,
        status_time text COLLATE "C" NOT NULL,
        version integer NOT NULL,
        epoch integer NOT NULL,
        ended double precision,
        runner text,
        watchers text[] NOT NULL DEFAULT '{}',
        webhooks integer NOT NULL DEFAULT 0,
        memo bytea NOT NULL,
        run bytea NOT NULL,
        document bytea,
        document_version integer
    ) WITH (fillfactor = 75);
    CREATE UNIQUE INDEX task_key ON task (owner, key) WHERE key <> '';
    CREATE INDEX task_status ON task (owner, status_time, number, state);
    CREATE INDEX task_context ON task (owner, context_id);
    CREATE INDEX task_ended ON task (ended) WHERE ended IS NOT NULL;
    CREATE INDEX task_runner ON task (runner) WHERE runner IS NOT NULL;
    CREATE TABLE event (
        task bigint NOT NULL,
        sequence integer NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (task, sequence)
    );
    CREATE FUNCTION forget_task() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM event WHERE task = OLD.number;
        IF OLD.webhooks > 0 THEN
            DELETE FROM webhook WHERE task = OLD.number;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER task_removed AFTER DELETE ON task FOR EACH ROW EXECUTE FUNCTION forget_task();
    CREATE TABLE webhook (
        task bigint NOT NULL,
        id bytea NOT NULL,
        config bytea NOT NULL,
        a2a_version text NOT NULL,
        delivered integer NOT NULL,
        latest integer NOT NULL,
        since double precision NOT NULL,
        due double precision NOT NULL DEFAULT 0,
        claim integer NOT NULL DEFAULT 0,
        attempts integer NOT NULL DEFAULT 0,
        failed boolean NOT NULL DEFAULT FALSE,
        reason text NOT NULL DEFAULT '',
        PRIMARY KEY (task, id)
    );
    CREATE INDEX webhook_waiting ON webhook (due) WHERE NOT failed AND delivered < latest;
    CREATE INDEX webhook_failed ON webhook (task) WHERE failed;
    CREATE FUNCTION tell_webhooks() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE webhook SET latest = NEW.version,
            since = CASE WHEN delivered < latest THEN since ELSE extract(epoch FROM clock_timestamp()) END
        WHERE task = NEW.number;
        RETURN NULL;
    END $$;
    CREATE TRIGGER task_moved AFTER UPDATE OF version ON task FOR EACH ROW
        WHEN (NEW.webhooks > 0 AND NEW.version <> OLD.version) EXECUTE FUNCTION tell_webhooks();
    CREATE TABLE replica (
        name text PRIMARY KEY,
        until timestamptz NOT NULL,
        place text NOT NULL,
        is_dead boolean NOT NULL DEFAULT FALSE
    );
    CREATE TABLE command (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        replica text NOT NULL,
        sender text NOT NULL,
        task bytea NOT NULL,
        owner bytea NOT NULL,
        body bytea NOT NULL,
        is_taken boolean NOT NULL DEFAULT false,
        refusal text,
        since timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE INDEX command_replica ON command (replica);
    CREATE TABLE about (version integer NOT NULL, oldest integer NOT NULL, page_key bytea NOT NULL);
    """,
)
OLDEST: Final = 1  # the version whose replicas can go on beside these tables
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def check_name(schema: str) -> str:
    """The name of a schema that can stand in a statement as it is."""
    if not _NAME.fullmatch(schema):
        raise ValueError(f"schema must be lower-case letters, digits and underscores, not {schema!r}")
    return schema


async def prepare(connection: Connection, schema: str) -> bytes:
    """Make the tables, or bring them up to date; answers the key of page tokens.

    Raises:
        StoreUnavailableError: they are too new for this version of the package.
    """
    found = await _read_about(connection, schema)
    # Asked first without the lock: whoever may not make tables can use those that are there.
    if found is None or found["version"] < len(MIGRATIONS):
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            await _migrate(connection, schema)
        found = await _read_about(connection, schema)
        assert found is not None  # it has just been written
    if found["oldest"] > len(MIGRATIONS):
        raise StoreUnavailableError(
            f"The task store has schema {found['version']}, made by a newer apcore-a2a; "
            f"this one knows schemas up to {len(MIGRATIONS)}: upgrade it"
        )
    return bytes(found["page_key"])


async def _read_about(connection: Connection, schema: str) -> asyncpg.Record | None:
    # Not to_regclass, which remembers that something was not there.
    known = "SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'about'"
    if await connection.fetchval(known, schema) is None:
        return None
    return await connection.fetchrow(f"SELECT version, oldest, page_key FROM {schema}.about")


async def _migrate(connection: Connection, schema: str) -> None:
    found = await _read_about(connection, schema)  # again: another replica may have been quicker
    version = 0 if found is None else int(found["version"])
    if version >= len(MIGRATIONS):
        return
    is_there = "SELECT 1 FROM pg_namespace WHERE nspname = $1"
    if found is None and await connection.fetchval(is_there, schema) is None:
        await connection.execute(f"CREATE SCHEMA {schema}")
    for step in MIGRATIONS[version:]:
        await connection.execute(step)
    if found is None:
        key = secrets.token_bytes(KEY_SIZE)
        await connection.execute("INSERT INTO about VALUES ($1, $2, $3)", len(MIGRATIONS), OLDEST, key)
    else:
        await connection.execute("UPDATE about SET version = $1, oldest = $2", len(MIGRATIONS), OLDEST)
