"""The tables, and the migrations that create them.

Invariant: a migration is applied as a whole or not at all, by one replica at a time. A replica of the previous version
can use the new tables. So a migration removes only what the previous version does not read (`OLDEST`). A migration
waits for a lock, and so keeps others from the table, for `LOCK_TIME` at most.
"""

import asyncio
import logging
import re
import secrets
import time
from typing import Final

import asyncpg

from apcore_a2a.errors import StoreUnavailableError
from apcore_a2a.storage.cursor import KEY_SIZE
from apcore_a2a.storage.postgres.connection import Address, Connection, SessionSettings

logger = logging.getLogger(__name__)

LOCK: Final = 0x41324154  # "A2AT": the advisory lock that a replica holds while it migrates
LOCK_TIME: Final = 1.0  # seconds for which a migration waits for a lock, because all later statements wait behind it
LOCK_PATIENCE: Final = 60.0  # seconds for which it tries again: another replica migrates, or a transaction is forgotten
STATEMENT_TIME: Final = 60.0  # seconds that a statement of a migration may take, because it holds its locks meanwhile
INDEX_LOCK_TIME: Final = 10.0  # seconds for which the build of an index waits for a transaction, which delays no write

# Two design choices follow from how PostgreSQL stores a row. An UPDATE writes the whole row again, except values that
# are so large that they are stored apart (TOAST). So memo, run and document can stay in the row. And an update that
# changes no indexed column, as most events do, touches no index if the page has room. `fillfactor` leaves that room.
#
# Two rules are triggers, so that no statement can omit them: the removal of a task removes its events and webhooks, and
# an event is due to the webhooks of its task. A statement sees the webhooks that were saved before it began. A trigger
# also sees one that was saved while the statement waited for the row.
#
# A released migration never changes, because databases have applied it. A change of the tables is a new migration at
# the end.
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
    # The memory of a conversation in pieces (`contract.ConversationMemory`), removed with the context's last task.
    """
    CREATE TABLE conversation (
        owner bytea NOT NULL,
        context_id bytea NOT NULL,
        number integer NOT NULL,
        keep integer NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (owner, context_id, number)
    );
    CREATE OR REPLACE FUNCTION forget_task() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM event WHERE task = OLD.number;
        IF OLD.webhooks > 0 THEN
            DELETE FROM webhook WHERE task = OLD.number;
        END IF;
        DELETE FROM conversation WHERE owner = OLD.owner AND context_id = OLD.context_id
            AND NOT EXISTS (SELECT 1 FROM task WHERE owner = OLD.owner AND context_id = OLD.context_id);
        RETURN NULL;
    END $$;
    """,
    # The replica that has claimed a webhook, so that others deliver its events as soon as that replica is dead.
    """
    ALTER TABLE webhook ADD COLUMN holder text NOT NULL DEFAULT '';
    CREATE INDEX webhook_holder ON webhook (holder) WHERE holder <> '';
    """,
)
# Indexes that only make reads faster, by name. On tables with rows they are built while replicas write.
INDEXES: Final = {
    "task_changed": "task (status_time, number)",  # a listing of the tasks of all owners
    # Tasks that failed, wait or were canceled. A task that completes has no entry, so the index costs it nothing. The
    # numbers of SUBMITTED, WORKING and COMPLETED never change (`sql.CODES`).
    "task_rare_state": "task (state, status_time, number) WHERE state <> 1 AND state <> 2 AND state <> 3",
}
OLDEST: Final = 1  # the oldest version whose replicas work with these tables
_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")


def check_name(schema: str) -> str:
    """Return a schema name that can be written between quotes in a statement. It may be a keyword of SQL.

    Raises:
        ValueError: the name has other characters, or is reserved.
    """
    if not _NAME.fullmatch(schema):
        raise ValueError(
            f"schema must be lower-case letters, digits and underscores, and not begin with pg_, not {schema!r}"
        )
    return schema


async def prepare(connection: Connection, address: Address) -> bytes:
    """Create or migrate the tables. Return the key of page tokens.

    Raises:
        StoreUnavailableError: the tables are too new for this version of the package.
        asyncpg.LockNotAvailableError: another transaction locks them for too long.
    """
    schema = address.schema
    # Each step is a transaction, which begins with these settings, also where the connection has its own session.
    settings = SessionSettings(
        address._replace(shares_sessions=True),
        statement_timeout=f"{STATEMENT_TIME:.0f}s",
        lock_timeout=f"{LOCK_TIME * 1000:.0f}",
    )
    found = await settings.run(connection, _read_about, schema)
    # Checked first without the lock: a user without the right to create tables can use existing ones.
    if found is None or found["version"] < len(MIGRATIONS):
        found = await _migrate_patiently(connection, settings, schema)
    missing = await settings.run(connection, _find_missing, schema)
    if missing:
        await _build_indexes(connection, address, missing)
    if found["oldest"] > len(MIGRATIONS):
        raise StoreUnavailableError(
            f"The task store has schema {found['version']}, made by a newer apcore-a2a; "
            f"this one knows schemas up to {len(MIGRATIONS)}: upgrade it"
        )
    return bytes(found["page_key"])


async def _migrate_patiently(connection: Connection, settings: SessionSettings, schema: str) -> asyncpg.Record:
    begun = time.monotonic()
    while True:
        try:
            return await settings.run(connection, _migrate, schema)
        except asyncpg.LockNotAvailableError:
            if time.monotonic() - begun > LOCK_PATIENCE:
                raise
            await asyncio.sleep(LOCK_TIME)  # in which the statements that waited behind this one are executed


async def _read_about(connection: Connection, schema: str) -> asyncpg.Record | None:
    # Not to_regclass, which caches that a table is missing.
    known = "SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'about'"
    if await connection.fetchval(known, schema) is None:
        return None
    return await connection.fetchrow(f'SELECT version, oldest, page_key FROM "{schema}".about')


async def _migrate(connection: Connection, schema: str) -> asyncpg.Record:
    """Apply the missing migrations, and return the row of `about`."""
    await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
    found = await _read_about(connection, schema)  # again: another replica may have migrated meanwhile
    version = 0 if found is None else int(found["version"])
    find_schema = "SELECT 1 FROM pg_namespace WHERE nspname = $1"
    if found is None and await connection.fetchval(find_schema, schema) is None:
        await connection.execute(f'CREATE SCHEMA "{schema}"')
    for migration in MIGRATIONS[version:]:
        await connection.execute(migration)
    if found is None:
        for name, columns in INDEXES.items():
            await connection.execute(f"CREATE INDEX {name} ON {columns}")
        key = secrets.token_bytes(KEY_SIZE)
        await connection.execute("INSERT INTO about VALUES ($1, $2, $3)", len(MIGRATIONS), OLDEST, key)
    elif version < len(MIGRATIONS):
        await connection.execute("UPDATE about SET version = $1, oldest = $2", len(MIGRATIONS), OLDEST)
    about = await _read_about(connection, schema)
    assert about is not None  # it has just been written
    return about


async def _build_indexes(connection: Connection, address: Address, names: list[str]) -> None:
    """Build missing indexes while other replicas write. If that is not possible now, the next `migrate` does it."""
    for name in names:
        table, _, columns = INDEXES[name].partition(" ")
        try:
            # Not in a transaction, which CONCURRENTLY excludes. So a shared session has only the limit of this client.
            if not address.shares_sessions:
                await connection.execute(f"SET lock_timeout = '{INDEX_LOCK_TIME * 1000:.0f}'")
            limit = STATEMENT_TIME if address.shares_sessions else None
            # An index that could not be completed is built again.
            await connection.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{address.schema}".{name}', timeout=limit)
            build = f'CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON "{address.schema}".{table} {columns}'
            await connection.execute(build, timeout=limit)
        except (asyncpg.PostgresError, TimeoutError) as error:
            extra = {"index": name, "reason": type(error).__name__}
            logger.warning(
                "an index is missing: end old transactions (pg_stat_activity), and have the owner of the tables run "
                "apcore-a2a migrate",
                extra=extra,
            )


async def _find_missing(connection: Connection, schema: str) -> list[str]:
    """Return the names of the indexes that are missing or incomplete, and that no replica builds now."""
    statement = """
        SELECT relname FROM pg_class JOIN pg_index ON indexrelid = pg_class.oid
        WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND relname = ANY($2)
            AND (indisvalid OR indexrelid IN (SELECT index_relid FROM pg_stat_progress_create_index))
    """
    rows = await connection.fetch(statement, schema, list(INDEXES))
    known = {row["relname"] for row in rows}
    return [name for name in INDEXES if name not in known]
