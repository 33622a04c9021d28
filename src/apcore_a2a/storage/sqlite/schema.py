"""The database: its settings, its tables and the steps that led to them.

Rule: an older schema is brought up to date whole or not at all; a newer one is refused.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from apcore_a2a.errors import StoreUnavailableError

APPLICATION_ID: Final = 0x41324154  # "A2AT", in the file's header: tells our files from other SQLite databases

# Two shapes follow from how SQLite stores a row. An UPDATE rewrites the whole row, so what grows (document, private) is
# kept apart from the head that every event updates. And an event's key is (task number << 32 | sequence number) as one
# integer: the events of a task lie side by side without an index of their own. That what belongs to a task goes with it
# is a trigger, so that no statement can forget it.
#
# A step, once released, is never changed: files have taken it. A change of the tables is a new step at the end.
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
    # How many tasks an owner has in each state: to count a million of them takes a listing 60 ms.
    """
    CREATE TABLE tally (owner TEXT, state INTEGER, tasks INTEGER NOT NULL, PRIMARY KEY (owner, state)) WITHOUT ROWID;
    CREATE TRIGGER tally_empty AFTER UPDATE ON tally WHEN NEW.tasks = 0 BEGIN
        DELETE FROM tally WHERE owner = NEW.owner AND state = NEW.state;
    END;
    INSERT INTO tally SELECT owner, state, count(*) FROM task GROUP BY owner, state;
    """,
    # With which page tokens are sealed: kept, so that a listing goes on after a restart.
    """
    CREATE TABLE page_key (key BLOB NOT NULL);
    INSERT INTO page_key VALUES (randomblob(32));
    """,
    # Webhooks as readers of the events, each with its cursor: there is no second list of what is to be delivered.
    # Nothing was ever written to the tables that this replaces. `due` is on a clock of the process that has the file.
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
)


ConnectionClass = type[sqlite3.Connection]


def event_key(task: int, sequence: int) -> int:
    """The key of one event of the task with this number."""
    return task << 32 | sequence


def connect(path: Path, connection_class: ConnectionClass = sqlite3.Connection) -> sqlite3.Connection:
    """A connection without implicit transactions, for any thread (SQLite's own mutex guards it)."""
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
    """The one connection that writes; makes the tables, or brings them up to date."""
    writer = connect(path, connection_class)
    try:
        _reject_foreign_file(writer, path)
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute(f"PRAGMA synchronous={synchronous}")
        writer.execute("PRAGMA journal_size_limit=67108864")  # what a burst leaves of the log on disk
        writer.execute("PRAGMA wal_autocheckpoint=4000")  # pages: fewer syncs than with 1,000 take a sixth off a write
        writer.execute("PRAGMA cache_size=-32768")  # negative: kilobytes, not pages
        migrate(writer)
    except sqlite3.Error as error:
        writer.close()
        raise StoreUnavailableError(f"The task store {path} cannot be opened: {error}") from error
    except StoreUnavailableError:
        writer.close()
        raise
    return writer


def _reject_foreign_file(writer: sqlite3.Connection, path: Path) -> None:
    """Touch nothing that is not ours, and nothing that we might misread."""
    application = _pragma(writer, "application_id")
    version = _pragma(writer, "user_version")
    is_empty = not writer.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    if application != APPLICATION_ID and not is_empty:
        raise StoreUnavailableError(f"{path} is an SQLite database, but not a task store of apcore-a2a")
    if version > len(MIGRATIONS):
        raise StoreUnavailableError(
            f"The task store {path} has schema {version}, written by a newer apcore-a2a; "
            f"this one knows schemas up to {len(MIGRATIONS)}: upgrade it"
        )


def migrate(writer: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Take the steps that the file has not taken yet, in one transaction."""
    version = _pragma(writer, "user_version")  # the number of steps taken
    if version == len(migrations):
        return
    steps = "".join(migrations[version:])
    header = f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={len(migrations)};"
    try:
        writer.executescript(f"BEGIN IMMEDIATE; {steps} {header} COMMIT;")
    finally:
        roll_back(writer)  # after an error; a COMMIT leaves nothing to roll back


def read_page_key(database: sqlite3.Connection) -> bytes:
    (key,) = database.execute("SELECT key FROM page_key").fetchone()
    return bytes(key)


def roll_back(writer: sqlite3.Connection) -> None:
    """Roll back, unless SQLite has done so already, as it does when the disk is full."""
    if writer.in_transaction:
        writer.execute("ROLLBACK")


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return int(database.execute(f"PRAGMA {name}").fetchone()[0])
