"""What is wrong with the file, if anything: for health, and for the log. Rule: nothing goes wrong in silence.

Kinds of trouble differ in how they end, and each ends in one way only, so that health does not swing to and fro:

- GONE and DAMAGED end with the process: a file does not come back or heal by itself, and the operator must look.
- LOCKED ends with the next transaction that begins.
- FULL and FAILING end when a probe succeeds. A write that succeeds proves little: on a nearly full disk some small ones
  do. The probe writes a megabyte, in the writer thread, every few seconds, and only while there is such trouble.
"""

import logging
import sqlite3
import threading
import time
from enum import Enum
from typing import Final

from apcore_a2a.errors import StoreUnavailableError

logger = logging.getLogger(__name__)

LOG_INTERVAL: Final = 60.0  # seconds for which one kind of trouble is logged once
PROBE_INTERVAL: Final = 5.0  # seconds between probes


class Trouble(Enum):
    """What can be wrong, in words that anybody may read: they name no path, and none of SQLite's texts."""

    GONE = "the file of the task store was removed, moved or replaced: restart the agent"
    DAMAGED = "the file of the task store is damaged"
    FULL = "the disk of the task store is full"
    FAILING = "the disk of the task store cannot be read or written"
    LOCKED = "another program keeps the task store locked"


# By SQLite's primary result code. What is not here (a value too large, a bug of ours) is not the file's trouble.
BY_CODE: Final = {
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
_PROBED: Final = (Trouble.FULL, Trouble.FAILING)


class Condition:
    """What the last reads and writes have shown of the file. The writer thread and all readers report here."""

    def __init__(self) -> None:
        self.is_gone = False
        self._writing: Trouble | None = None  # why the last write failed
        self._is_damaged = False  # whether any read has found damage: writes may go on elsewhere in the file
        self._next_probe = 0.0
        self._logged: dict[Trouble, float] = {}  # when each kind was logged last
        self._log_guard = threading.Lock()

    def tell(self) -> str:
        """What is wrong, for everybody to see; empty when all is well."""
        if self._writing is not None:
            return self._writing.value
        if self._is_damaged:
            return Trouble.DAMAGED.value
        return ""

    def check(self) -> None:
        """Raise if a write would fail now, as far as the last ones tell."""
        if self._writing is not None:
            raise StoreUnavailableError

    # ---- reports -----------------------------------------------------------------------------------------------------

    def file_is_gone(self, name: str) -> None:
        self.is_gone = True
        self._writing = Trouble.GONE
        self._log(Trouble.GONE, name)

    def write_failed(self, error: sqlite3.Error) -> StoreUnavailableError:
        """Remember why; the error for whoever asked."""
        trouble = self._classify(error)
        # What does not end is not forgotten for what does.
        if trouble is not None and self._writing not in (Trouble.GONE, Trouble.DAMAGED):
            self._writing = trouble
        return _unavailable(error)

    def read_failed(self, error: sqlite3.Error) -> StoreUnavailableError:
        if self._classify(error) is Trouble.DAMAGED:
            self._is_damaged = True
        return _unavailable(error)

    def transaction_began(self) -> None:
        if self._writing is Trouble.LOCKED:
            self._recover()

    # ---- the probe ---------------------------------------------------------------------------------------------------

    @property
    def needs_probe(self) -> bool:
        return self._writing in _PROBED

    def take_probe(self) -> bool:
        """Whether a probe is due now; the next one is then due later."""
        now = time.monotonic()
        if not self.needs_probe or now < self._next_probe:
            return False
        self._next_probe = now + PROBE_INTERVAL
        return True

    def probe_succeeded(self) -> None:
        self._recover()

    def _recover(self) -> None:
        logger.info("task store works again")
        self._writing = None

    # ---- the log -----------------------------------------------------------------------------------------------------

    def _classify(self, error: sqlite3.Error) -> Trouble | None:
        code = getattr(error, "sqlite_errorcode", 0)  # an error of Python's own module has none
        trouble = BY_CODE.get(code & 0xFF)  # the low byte is the primary code
        if trouble is None:
            logger.error("task store refused a statement", exc_info=error)
        else:
            self._log(trouble, str(error))
        return trouble

    def _log(self, trouble: Trouble, detail: str) -> None:
        now = time.monotonic()
        with self._log_guard:
            if now < self._logged.get(trouble, -LOG_INTERVAL) + LOG_INTERVAL:
                return
            self._logged[trouble] = now
        # In the message itself: it is one of five, and many a logging setup shows nothing of what is in `extra`.
        logger.error("task store in trouble: %s", trouble.value, extra={"detail": detail})


def _unavailable(error: sqlite3.Error) -> StoreUnavailableError:
    unavailable = StoreUnavailableError()
    unavailable.__cause__ = error
    return unavailable
