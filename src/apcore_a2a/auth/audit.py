"""The audit log: callers, their requests and the outcomes, one JSON object per line, without message contents.

Invariant: no request waits for it. Lines go to a file through a thread and a bounded queue. Lines that do not
fit into the queue, or cannot be written to the file, are counted. The count is written as a line as soon as possible.
"""

import logging
import os
import queue
import threading
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final

import msgspec

from apcore_a2a.clean_text import clean_line
from apcore_a2a.ids_and_time import utc_now

logger = logging.getLogger(__name__)
audit_logger = logging.getLogger("apcore_a2a.audit")

TO_LOGGER: Final = "-"
MAX_LINES: Final = 10_000  # waiting for the disk
MAX_TEXT: Final = 512  # characters of a value
PRIVATE: Final = 0o600  # mode of the file: only its user reads and writes it


class AuditLog:
    """Writes lines to the file at `target`, or to the logger `apcore_a2a.audit` if that is "-".

    A file that is moved away, as logrotate does, is created again.

    Raises:
        ValueError: the file cannot be written. The text says why.
    """

    def __init__(self, target: str, *, max_lines: int = MAX_LINES) -> None:
        self._path = None if target == TO_LOGGER else Path(target)
        self._lines: queue.Queue[bytes | None] = queue.Queue(max_lines)
        # Lost lines. Each counter has one writer: the thread of the event loop the first, the log's thread the others.
        self._dropped = 0
        self._failed = 0
        self._reported = 0
        self._file: WatchedFileHandler | None = None
        self._thread: threading.Thread | None = None
        if self._path is not None:
            _create(self._path)

    def open(self) -> None:
        """Start the thread that writes the queued lines."""
        if self._path is None or self._thread is not None:
            return
        self._file = WatchedFileHandler(self._path, encoding="utf-8")
        self._thread = threading.Thread(target=self._write_lines, name="audit log", daemon=True)
        self._thread.start()

    def close(self, seconds: float = 5.0) -> None:
        """Write the queued lines, in bounded time, and stop the thread."""
        if self._thread is None or self._file is None:
            return
        try:
            self._lines.put(None, timeout=seconds)
            self._thread.join(seconds)
        except queue.Full:
            logger.error("audit log not written completely", extra={"lines": self._lines.qsize()})
        if not self._thread.is_alive():
            self._file.close()
        self._thread = None

    def write(self, event: str, **fields: str | int | None) -> None:
        """Add a line. Empty values are left out. Text from clients is sanitized and truncated."""
        entry: dict[str, str | int] = {"time": utc_now(), "event": event}
        for name, value in fields.items():
            if isinstance(value, str):
                # A lone surrogate cannot be encoded.
                value = clean_line(value, MAX_TEXT).encode(errors="replace").decode()
            if value not in (None, ""):
                entry[name] = value
        line = msgspec.json.encode(entry)
        if self._path is None:
            audit_logger.info(line.decode())
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    # ---- on the thread -----------------------------------------------------------------------------------------------

    def _write_lines(self) -> None:
        while True:
            line = self._lines.get()
            if line is None:
                return
            self._write_line(line)

    def _write_line(self, line: bytes) -> None:
        file = self._file
        assert file is not None and file.stream is not None  # set by `open`
        text = line.decode() + "\n"
        lost = self._dropped + self._failed - self._reported
        if lost:
            gap = msgspec.json.encode({"time": utc_now(), "event": "lines_lost", "count": lost})
            text = f"{gap.decode()}\n{text}"
        try:
            file.reopenIfNeeded()
            file.stream.write(text)
            file.flush()
            self._reported += lost
        except (OSError, ValueError):  # ValueError: the file was closed meanwhile
            self._failed += 1
            logger.exception("audit log not written")


def _create(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE))
    except OSError as error:
        raise ValueError(f"the audit log {path} cannot be written: {error.strerror}") from error
