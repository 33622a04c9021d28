"""The database file: its lock, and its condition.

Invariant: one process per file, whatever path leads to it. A write is acknowledged only if the path still leads to the
file.
"""

import logging
import os
import sqlite3
import sys
import threading
import time
from contextlib import suppress
from enum import Enum
from math import inf
from pathlib import Path
from typing import Final

from msgspec import Struct

from apcore_a2a.errors import StoreUnavailableError

logger = logging.getLogger(__name__)

# **The lock is on the file itself** (`_FileLock`): `flock` on an open descriptor of the database. It belongs to the
# kernel, so it ends with the process, however the process ends, and there is no lock file that could be removed. Every
# path that leads to the file, by a symbolic or a hard link, leads to the same lock. SQLite's own locks are of another
# kind (`fcntl`), and on Linux the two kinds are independent, so other programs can read the database.
#
# Two consequences are not obvious:
#
# - Closing *any* descriptor of a file releases all `fcntl` locks that the process has on it, including SQLite's.
#   Therefore the descriptor is opened before SQLite's connections and closed after them. A second store in this
#   process must be rejected before it opens the file, so the process records which files it has locked (`_held`).
# - A forked child shares the descriptor, and would keep the lock after the end of its parent. Therefore the child
#   closes the descriptor.
#
# **On other systems the lock is on a file beside the database** (`_SideLock`): on BSD and macOS the two kinds of locks
# exclude each other, and Windows has no `flock`. There, removing `….lock` would undo the lock, so that file is watched
# like the database.

if sys.platform != "win32":  # Windows has no fcntl, and uses `_SideLock`
    import fcntl

Identity = tuple[int, int]  # device and inode, which identify a file whatever its path


class SQLiteTuning(Struct, frozen=True, kw_only=True):
    """Intervals (in seconds) and limits of a store. Only tests use other values than the defaults."""

    probe_interval: float = 5.0
    """Interval between probes of a disk that could not be written."""
    log_interval: float = 60.0
    """Interval in which one kind of trouble is logged once."""
    side_file_interval: float = 1.0
    """Interval between checks of the files beside the database."""
    sweep_interval: float = 60.0
    """Interval between searches for expired tasks while nothing is written."""
    max_swept: int = 1_000
    """Expired tasks removed in one interval while nothing is written, so that a wrong clock can be noticed in time."""
    max_waiting: int = 20_000
    """Writes in the queue. With more, the disk does not keep up, and further writes are rejected."""
    locks_file_itself: bool = sys.platform == "linux"
    """Whether to lock the database file: possible where flock(2) and SQLite's fcntl(2) locks are independent."""
    connection_class: type[sqlite3.Connection] = sqlite3.Connection


class DatabaseFile:
    """The file that a path leads to, locked for this process until `close`."""

    def __init__(self, path: Path, tuning: SQLiteTuning) -> None:
        # Absolute, so that changing the working directory has no effect. Not resolved, so that a change of a symbolic
        # link is noticed.
        self._named = os.path.abspath(path)
        self.path = Path(os.path.realpath(path))
        """The resolved path. SQLite stores its log in the same directory."""
        if not self.path.parent.is_dir():
            raise StoreUnavailableError(f"The task store cannot be opened: there is no directory {self.path.parent}")
        self._lock: _FileLock | _SideLock
        if tuning.locks_file_itself:
            self._lock = _FileLock(self.path)
        else:
            self._lock = _SideLock(self.path)
        self._side_file_interval = tuning.side_file_interval
        self._identity: Identity | None = None
        self._side_files: dict[str, Identity | None] = {}  # the files beside it, which must stay there
        self._next_side_file_check = 0.0

    def watch(self) -> None:
        """Record the identities of the files. Called when SQLite has opened them.

        Raises:
            StoreUnavailableError: the file was replaced while it was opened.
        """
        self._identity = _identify(self._named)
        self._side_files = {name: _identify(name) for name in (f"{self.path}-wal", self._lock.name)}
        if self._side_files[self._lock.name] != self._lock.identity:
            raise StoreUnavailableError(
                f"The task store {self._named} was replaced while it was opened. Restart the agent"
            )

    def check_side_files_next(self) -> None:
        self._next_side_file_check = 0.0

    def find_missing(self) -> str:
        """Return a path that no longer names the open file, because it was removed, moved or replaced, or "".

        The database itself is checked on each call, which costs 3 µs after every commit. The files beside it are
        checked at an interval or on request: SQLite's log, which contains the last commits, and the lock file if there
        is one.
        """
        if _identify(self._named) != self._identity:
            return self._named
        now = time.monotonic()
        if now >= self._next_side_file_check:
            self._next_side_file_check = now + self._side_file_interval
            for name, identity in self._side_files.items():
                if _identify(name) != identity:
                    return name
        return ""

    def close(self) -> None:
        """Release the lock. Called after SQLite's connections are closed."""
        self._lock.close()


def _identify(name: str) -> Identity | None:
    """Return the identity of the file that a path names, or None if no file can be found under the path."""
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ---- the lock --------------------------------------------------------------------------------------------------------

# The descriptors of the files that this process has locked, by identity. A module variable, because `fcntl` locks
# belong to the process: closing a second descriptor would release them, as described above.
_held: Final[dict[Identity, int]] = {}
_guard: Final = threading.Lock()  # stores are opened in threads


def _close_in_child() -> None:
    for descriptor in _held.values():
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class _FileLock:
    """A lock on the database itself."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        with _guard:
            if _identify(self.name) in _held:
                raise _in_use(path)
            try:
                # Opened for writing, so that an overlay file system opens the file that will be written. Only the user
                # of the process can read a new file, because it contains conversations and secrets of webhooks.
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise _cannot_open(path, error) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise _in_use(path) from error
            except OSError as error:
                os.close(descriptor)
                raise _cannot_open(path, error) from error
            found = os.fstat(descriptor)
            self.identity = (found.st_dev, found.st_ino)
            _held[self.identity] = descriptor

    def close(self) -> None:
        with _guard:
            descriptor = _held.pop(self.identity, None)
            if descriptor is not None:  # None in a forked child, which has nothing to close
                os.close(descriptor)


class _SideLock:
    """SQLite's own lock on an empty file beside the database, for systems where `_FileLock` would exclude SQLite."""

    def __init__(self, path: Path) -> None:
        self.name = f"{path}.lock"
        try:
            path.touch(mode=0o600)
        except OSError as error:
            raise _cannot_open(path, error) from error
        try:
            self._connection = sqlite3.connect(self.name, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"The task store {path} cannot be opened: {error}") from error
        try:
            self._connection.execute("PRAGMA journal_mode=MEMORY")  # without a journal file, as nothing is ever written
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            self._connection.close()
            raise _in_use(path) from error
        self.identity = _identify(self.name)

    def close(self) -> None:
        self._connection.close()


def _in_use(path: Path) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"The task store {path} is in use by another process. Stop that process, or use another file"
    )


def _cannot_open(path: Path, error: OSError) -> StoreUnavailableError:
    return StoreUnavailableError(f"The task store {path} cannot be opened: {error.strerror}")


# ---- condition ------------------------------------------------------------------------------------------------------
# The trouble with the file, for the health check and the log. Invariant: every failure is reported.
#
# Each kind of trouble ends in exactly one way, so that the health check does not flap:
#
# - GONE and DAMAGED end with the process: a file does not return or repair itself, so the operator must act.
# - LOCKED ends when the next transaction begins.
# - FULL and FAILING end when a probe succeeds. A successful write proves little, because on a nearly full disk some
#   small writes succeed. The probe writes a megabyte in the writer thread, at an interval, only during such trouble.


class Trouble(Enum):
    """Kinds of trouble. The values are public reasons: they contain no path and no text of SQLite."""

    GONE = "the file of the task store was removed, moved or replaced: restart the agent"
    DAMAGED = "the file of the task store is damaged"
    FULL = "the disk of the task store is full"
    FAILING = "the disk of the task store cannot be read or written"
    LOCKED = "another program has locked the task store"


# By SQLite's primary result code. Other codes (a value that is too large, a bug of this package) are not trouble of the
# file.
TROUBLE_BY_CODE: Final = {
    sqlite3.SQLITE_FULL: Trouble.FULL,
    sqlite3.SQLITE_CORRUPT: Trouble.DAMAGED,
    sqlite3.SQLITE_NOTADB: Trouble.DAMAGED,
    sqlite3.SQLITE_IOERR: Trouble.FAILING,
    sqlite3.SQLITE_READONLY: Trouble.FAILING,
    sqlite3.SQLITE_CANTOPEN: Trouble.FAILING,
    sqlite3.SQLITE_PERM: Trouble.FAILING,
    sqlite3.SQLITE_BUSY: Trouble.LOCKED,
    sqlite3.SQLITE_LOCKED: Trouble.LOCKED,
}
MAX_CHECKED_AT_START: Final = 256 * 1024 * 1024  # bytes of a file that is read as a whole at the start: about a second
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PROBED: Final = (Trouble.FULL, Trouble.FAILING)


def find_damage(reader: sqlite3.Connection, path: Path) -> str:
    """Return the first damage of the file that SQLite finds. Empty if there is none, or if the file is large."""
    try:
        if path.stat().st_size > MAX_CHECKED_AT_START:
            return ""
        (found,) = reader.execute("PRAGMA quick_check(1)").fetchone()
    except OSError:  # the file has just been removed, which the store notices itself
        return ""
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return str(error) if code in _DAMAGE else ""
    return "" if found == "ok" else str(found)


class FileCondition:
    """The condition of the file, as the writer thread and the readers have reported it."""

    def __init__(self, tuning: SQLiteTuning) -> None:
        self.is_gone = False
        self._tuning = tuning
        self._writing: Trouble | None = None  # why the last write failed
        self._is_damaged = False  # whether any read has found damage: writes to other pages may still succeed
        self._next_probe = 0.0
        self._logged: dict[Trouble, float] = {}  # the time when each kind was last logged
        self._log_guard = threading.Lock()

    def describe(self) -> str:
        """Return the public reason for which the store is unhealthy, or ""."""
        if self._writing is not None:
            return self._writing.value
        if self._is_damaged:
            return Trouble.DAMAGED.value
        return ""

    def check(self) -> None:
        """Raise StoreUnavailableError if a write would fail now, judging by the last writes."""
        if self._writing is not None:
            raise StoreUnavailableError

    # ---- reports -----------------------------------------------------------------------------------------------------

    def file_is_gone(self, name: str) -> None:
        self.is_gone = True
        self._writing = Trouble.GONE
        self._log(Trouble.GONE, name)

    def write_failed(self, error: sqlite3.Error) -> StoreUnavailableError:
        """Record the reason, and return the error for the caller."""
        trouble = self._classify(error)
        # Trouble that ends by itself does not replace trouble that does not.
        if trouble is not None and self._writing not in (Trouble.GONE, Trouble.DAMAGED):
            self._writing = trouble
        return _unavailable(error)

    def read_failed(self, error: sqlite3.Error) -> StoreUnavailableError:
        if self._classify(error) is Trouble.DAMAGED:
            self._is_damaged = True
        return _unavailable(error)

    def damage_found(self, detail: str) -> None:
        self._is_damaged = True
        self._log(Trouble.DAMAGED, detail)

    def transaction_began(self) -> None:
        if self._writing is Trouble.LOCKED:
            self._recover()

    # ---- the probe ---------------------------------------------------------------------------------------------------

    @property
    def needs_probe(self) -> bool:
        return self._writing in _PROBED

    def start_probe(self) -> bool:
        """Return whether a probe is due now, and if so, schedule the next one."""
        now = time.monotonic()
        if not self.needs_probe or now < self._next_probe:
            return False
        self._next_probe = now + self._tuning.probe_interval
        return True

    def probe_succeeded(self) -> None:
        self._recover()

    def _recover(self) -> None:
        logger.info("task store recovered")
        self._writing = None

    # ---- the log -----------------------------------------------------------------------------------------------------

    def _classify(self, error: sqlite3.Error) -> Trouble | None:
        code = getattr(error, "sqlite_errorcode", 0)  # errors raised by the Python module itself have none
        trouble = TROUBLE_BY_CODE.get(code & 0xFF)  # the low byte is the primary code
        if trouble is None:
            logger.error("SQLite rejected a statement of the task store", exc_info=error)
        else:
            self._log(trouble, str(error))
        return trouble

    def _log(self, trouble: Trouble, detail: str) -> None:
        now = time.monotonic()
        with self._log_guard:
            if now < self._logged.get(trouble, -inf) + self._tuning.log_interval:
                return
            self._logged[trouble] = now
        # The trouble is part of the message: there are five kinds, and many logging setups do not show `extra`.
        logger.error("task store unhealthy: %s", trouble.value, extra={"detail": detail})


def _unavailable(error: sqlite3.Error) -> StoreUnavailableError:
    unavailable = StoreUnavailableError()
    unavailable.__cause__ = error
    return unavailable
