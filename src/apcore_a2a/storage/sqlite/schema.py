"""The database: its connections, its tables and their migrations.

Invariant: an older schema is migrated atomically. A newer schema is rejected.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from apcore_a2a.errors import StoreUnavailableError

APPLICATION_ID: Final = 0x41324154  # "A2AT" in the file's header distinguishes our files from other SQLite databases

# The tables follow from how SQLite stores a row. An UPDATE rewrites the whole row, so columns that grow (document,
# private) are in other tables than the row that every event updates. The key of an event is (task number << 32 |
# sequence number) as one integer, so the events of a task are adjacent without an index of their own. A trigger removes
# the data of a task with the task, so that no statement can omit it.
#
# A released migration is never changed, because it has been applied to files. A change of the tables is a new migration
# at the end.
MIGRATIONS: Final = (
    """
    CREATE TABLE task (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        context_id TEXT NOT NULL,
        key TEXT NOT NULL,
        state INTEGER NOT NULL,
        status_time TEXT NOT NULL,
        version INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        ended REAL
    );
    CREATE UNIQUE INDEX task_key ON task (owner, key) WHERE key <> '';
    CREATE INDEX task_status ON task (owner, status_time, number, state);
    CREATE INDEX task_context ON task (owner, context_id);
    CREATE INDEX task_ended ON task (ended) WHERE ended IS NOT NULL;
    CREATE INDEX task_unfinished ON task (state) WHERE ended IS NULL;
    CREATE TABLE document (task INTEGER PRIMARY KEY, version INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE TABLE private (task INTEGER PRIMARY KEY, memo BLOB NOT NULL DEFAULT x'', run BLOB NOT NULL DEFAULT x'');
    CREATE TABLE event (key INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE push_config (task INTEGER, id TEXT, body BLOB NOT NULL, PRIMARY KEY (task, id)) WITHOUT ROWID;
    CREATE TABLE push_outbox (
        task INTEGER,
        config_id TEXT,
        sequence INTEGER,
        attempts INTEGER NOT NULL DEFAULT 0,
        due REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (task, config_id, sequence)
    ) WITHOUT ROWID;
    CREATE TRIGGER event_pushed AFTER INSERT ON event
    WHEN EXISTS (SELECT 1 FROM push_config WHERE task = NEW.key >> 32) BEGIN
        INSERT INTO push_outbox (task, config_id, sequence)
        SELECT task, id, NEW.key & 4294967295 FROM push_config WHERE task = NEW.key >> 32;
    END;
    CREATE TRIGGER task_removed AFTER DELETE ON task BEGIN
        DELETE FROM event WHERE key BETWEEN OLD.number << 32 AND OLD.number << 32 | 4294967295;
        DELETE FROM document WHERE task = OLD.number;
        DELETE FROM private WHERE task = OLD.number;
        DELETE FROM push_config WHERE task = OLD.number;
        DELETE FROM push_outbox WHERE task = OLD.number;
    END;
    """,
    # The number of tasks of an owner in each state, because counting a million tasks takes 60 ms per listing.
    """
    CREATE TABLE tally (owner TEXT, state INTEGER, tasks INTEGER NOT NULL, PRIMARY KEY (owner, state)) WITHOUT ROWID;
    CREATE TRIGGER tally_empty AFTER UPDATE ON tally WHEN NEW.tasks = 0 BEGIN
        DELETE FROM tally WHERE owner = NEW.owner AND state = NEW.state;
    END;
    INSERT INTO tally SELECT owner, state, count(*) FROM task GROUP BY owner, state;
    """,
    # The key of the page tokens, stored so that a listing can continue after a restart.
    """
    CREATE TABLE page_key (key BLOB NOT NULL);
    INSERT INTO page_key VALUES (randomblob(32));
    """,
    # Webhooks as readers of the events, each with its cursor: there is no second list of undelivered events. Nothing
    # was ever written to the tables that this migration replaces. `due` is on the monotonic clock of this process.
    """
    DROP TRIGGER event_pushed;
    DROP TRIGGER task_removed;
    DROP TABLE push_outbox;
    DROP TABLE push_config;
    CREATE TABLE webhook (
        task INTEGER,
        id TEXT,
        config BLOB NOT NULL,
        a2a_version TEXT NOT NULL,
        delivered INTEGER NOT NULL,
        latest INTEGER NOT NULL,
        since REAL NOT NULL,
        due REAL NOT NULL DEFAULT 0,
        claim INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0,
        failed INTEGER NOT NULL DEFAULT 0,
        reason TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (task, id)
    ) WITHOUT ROWID;
    CREATE INDEX webhook_waiting ON webhook (due) WHERE failed = 0 AND delivered < latest;
    CREATE INDEX webhook_failed ON webhook (task) WHERE failed = 1;
    CREATE TRIGGER task_removed AFTER DELETE ON task BEGIN
        DELETE FROM event WHERE key BETWEEN OLD.number << 32 AND OLD.number << 32 | 4294967295;
        DELETE FROM document WHERE task = OLD.number;
        DELETE FROM private WHERE task = OLD.number;
        DELETE FROM webhook WHERE task = OLD.number;
    END;
    """,
    # The memory of a conversation in pieces (`contract.ConversationMemory`), removed with the context's last task.
    """
    CREATE TABLE conversation (
        owner TEXT NOT NULL,
        context_id TEXT NOT NULL,
        number INTEGER NOT NULL,
        keep INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (owner, context_id, number)
    );
    DROP TRIGGER task_removed;
    CREATE TRIGGER task_removed AFTER DELETE ON task BEGIN
        DELETE FROM event WHERE key BETWEEN OLD.number << 32 AND OLD.number << 32 | 4294967295;
        DELETE FROM document WHERE task = OLD.number;
        DELETE FROM private WHERE task = OLD.number;
        DELETE FROM webhook WHERE task = OLD.number;
        DELETE FROM conversation WHERE owner = OLD.owner AND context_id = OLD.context_id
            AND NOT EXISTS (SELECT 1 FROM task WHERE owner = OLD.owner AND context_id = OLD.context_id);
    END;
    """,
)


ConnectionClass = type[sqlite3.Connection]


def event_key(task: int, sequence: int) -> int:
    """Return the key of one event of the task with this number."""
    return task << 32 | sequence


def connect(path: Path, connection_class: ConnectionClass = sqlite3.Connection) -> sqlite3.Connection:
    """Return a connection without implicit transactions. Any thread may use it: SQLite's own mutex guards it."""
    try:
        return sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False, factory=connection_class)
    except sqlite3.Error as error:
        raise StoreUnavailableError(f"The task store {path} cannot be opened: {error}") from error


def connect_reader(path: Path, connection_class: ConnectionClass = sqlite3.Connection) -> sqlite3.Connection:
    reader = connect(path, connection_class)
    reader.execute("PRAGMA query_only=ON")
    return reader


def connect_writer(
    path: Path, synchronous: str, connection_class: ConnectionClass = sqlite3.Connection
) -> sqlite3.Connection:
    """Return the only connection that writes, after creating or migrating the tables."""
    writer = connect(path, connection_class)
    try:
        _reject_foreign_file(writer, path)
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute(f"PRAGMA synchronous={synchronous}")
        writer.execute("PRAGMA journal_size_limit=67108864")  # truncate the log to this size after a burst of writes
        writer.execute("PRAGMA wal_autocheckpoint=4000")  # pages: fewer syncs than with 1,000 make a write 1/6 cheaper
        writer.execute("PRAGMA cache_size=-32768")  # a negative value is in kilobytes, not pages
        migrate(writer)
    except sqlite3.Error as error:
        writer.close()
        raise StoreUnavailableError(f"The task store {path} cannot be opened: {error}") from error
    except StoreUnavailableError:
        writer.close()
        raise
    return writer


def _reject_foreign_file(writer: sqlite3.Connection, path: Path) -> None:
    """Reject a database of another application or with a newer schema, before anything is written."""
    application = _pragma(writer, "application_id")
    version = _pragma(writer, "user_version")
    is_empty = not writer.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    if application != APPLICATION_ID and not is_empty:
        raise StoreUnavailableError(f"{path} is an SQLite database, but not a task store of apcore-a2a")
    if version > len(MIGRATIONS):
        raise StoreUnavailableError(
            f"The task store {path} has schema {version}, written by a newer apcore-a2a, but "
            f"this one supports schemas up to {len(MIGRATIONS)}. Upgrade apcore-a2a"
        )


def migrate(writer: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Apply the missing migrations in one transaction."""
    version = _pragma(writer, "user_version")  # the number of applied migrations
    if version == len(migrations):
        return
    steps = "".join(migrations[version:])
    header = f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={len(migrations)};"
    try:
        writer.executescript(f"BEGIN IMMEDIATE; {steps} {header} COMMIT;")
    finally:
        roll_back(writer)  # only after an error: after a COMMIT there is nothing to roll back


def read_page_key(database: sqlite3.Connection) -> bytes:
    (key,) = database.execute("SELECT key FROM page_key").fetchone()
    return bytes(key)


def roll_back(writer: sqlite3.Connection) -> None:
    """Roll back, unless SQLite has already done so, as it does when the disk is full."""
    if writer.in_transaction:
        writer.execute("ROLLBACK")


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return int(database.execute(f"PRAGMA {name}").fetchone()[0])
