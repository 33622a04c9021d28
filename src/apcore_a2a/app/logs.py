"""The log formats of the server: one line per record, as text or JSON. Text from clients cannot break a line.

Invariant: logging is set up here only for the command line, and for a process that calls `serve()` without having set
up logging itself.
"""

import json
import logging
import sys
import textwrap
import time
import traceback
from typing import Any, Final, Literal

from apcore_a2a.clean_text import clean_line, clean_text
from apcore_a2a.trace_context import continued_trace, ids_of

LogFormat = Literal["text", "json"]

MAX_TEXT: Final = 1000
# The attributes of every record. All others come from `extra`. A formatter or a newer Python sets some of them later,
# so an empty record lacks them. `color_message` is uvicorn's second copy of the message, with colours.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_COLORS: Final = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "31"}


def _is_plain(text: str) -> bool:
    """Return whether there is nothing to clean, as in nearly all log lines: this check halves the cost of a line."""
    return len(text) <= MAX_TEXT and text.isascii() and text.isprintable()


def clean_value(value: object) -> object:
    """Return a value for a log: numbers unchanged, text truncated and without control characters."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    if _is_plain(text):
        return text
    text = clean_text(text)
    if len(text) > MAX_TEXT:
        return text[:MAX_TEXT] + "…"
    return text


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the cleaned values of `extra`, and the ids of the trace in which the record is written."""
    fields = {}
    for name, value in vars(record).items():
        if name not in _STANDARD:
            fields[name] = clean_value(value)
    fields.update(ids_of(continued_trace()))
    return fields


def clean_exception(record: logging.LogRecord) -> str:
    """Return the cleaned traceback of a record, or an empty string. Exceptions often quote text from clients."""
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    # Each piece is a frame, or the text of one exception of the chain.
    pieces = traceback.TracebackException.from_exception(record.exc_info[1]).format()
    return "\n".join(str(clean_value(piece.rstrip("\n"))) for piece in pieces)


class JSONFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean_value(record.getMessage()),
            **extra_fields(record),
        }
        exception = clean_exception(record)
        if exception:
            entry["exception"] = exception
        # Values may contain line ends: JSON escapes them as \n, so the record is still one line.
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text: time, level, message, then the values of `extra`."""

    def __init__(self, *, color: bool) -> None:
        super().__init__()
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        if self._color:
            level = f"\x1b[{_COLORS.get(record.levelname, '0')}m{level}\x1b[0m"
        words = [str(clean_value(record.getMessage()))]
        for name, value in extra_fields(record).items():
            words.append(f"{name}={value}")
        # A line end in a value would start a line that looks like another record.
        text = " ".join(words)
        if not _is_plain(text):
            text = clean_line(text)
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level} {text}"
        exception = clean_exception(record)
        if exception:
            # A traceback on one line is not readable. Its lines are indented instead, so that none of them looks like a
            # record, whatever line ends a client has sent.
            line += "\n" + textwrap.indent(exception, "  ", lambda _: True)
        return line


# Loggers with a record for each check of a file or each iteration of the event loop, which do not help to debug agents.
_CHATTY: Final = ("watchfiles", "asyncio")


def configure(level: str, style: LogFormat, *, color: bool) -> None:
    """Set up logging for the process of the command line."""
    handler = logging.StreamHandler()
    if style == "json":
        handler.setFormatter(JSONFormatter())
    else:
        handler.setFormatter(TextFormatter(color=color))
    # `force`: a handler that an import has installed would write each record a second time, without cleaning.
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level == "debug":
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.INFO)


def configure_server(level: str) -> bool:
    """Log to standard error (our loggers and uvicorn's) in a program that has not set up logging.

    In a program that has, its handlers receive our records, and uvicorn logs as it does by default.

    Returns:
        Whether logging was set up here.
    """
    if logging.getLogger().handlers or logging.getLogger("apcore_a2a").handlers:
        return False
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter(color=sys.stderr.isatty()))
    for name in ("apcore_a2a", "uvicorn"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level.upper())
        logger.propagate = False  # a handler that the root gets later would write each record twice
    return True
