"""How a server of ours logs: one line a record, readable or JSON; what clients wrote cannot break a line.

Rule: only a process that is ours has its logging set up here: that of the command line, or one that calls `serve()` and
has set up none.
"""

import json
import logging
import sys
import textwrap
import time
import traceback
from typing import Any, Final, Literal

from apcore_a2a.clean_text import clean_line, clean_text

LogFormat = Literal["text", "json"]

MAX_TEXT: Final = 1000
# What every record has; all other attributes came in through `extra`. Some are set late, by a formatter or by newer
# Pythons, so an empty record does not show them; `color_message` is uvicorn's second copy of the message, with colours.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_COLORS: Final = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "31"}


def _is_plain(text: str) -> bool:
    """Whether there is nothing to clean, as in nearly all that is logged: with this look, a line costs half."""
    return len(text) <= MAX_TEXT and text.isascii() and text.isprintable()


def clean_value(value: object) -> object:
    """A value that may stand in a log: numbers as they are, text without control characters and not without end."""
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
    """What was logged in `extra`, cleaned."""
    fields = {}
    for name, value in vars(record).items():
        if name not in _STANDARD:
            fields[name] = clean_value(value)
    return fields


def clean_exception(record: logging.LogRecord) -> str:
    """The traceback of a record, or nothing. An exception often says what a client wrote: cut and cleaned, too."""
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    # Each piece is a frame, or all that one exception of the chain says.
    pieces = traceback.TracebackException.from_exception(record.exc_info[1]).format()
    return "\n".join(str(clean_value(piece.rstrip("\n"))) for piece in pieces)


class JSONFormatter(logging.Formatter):
    """One JSON object a line."""

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
        # Line ends may stay in the values: JSON writes them as \n, so the record is one line all the same.
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """A line for a person: time, level, message, then what belongs to it."""

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
        # Here a line end in a value would begin what looks like a record of ours.
        text = " ".join(words)
        if not _is_plain(text):
            text = clean_line(text)
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level} {text}"
        exception = clean_exception(record)
        if exception:
            # The exception to one line a record: a traceback on one line could not be read. Each line is indented, and
            # so none of them looks like a record, whatever line ends a client has sent.
            line += "\n" + textwrap.indent(exception, "  ", lambda _: True)
        return line


# They tell each look at a file and each turn of a loop, which nobody wants who asks what an agent does.
_CHATTY: Final = ("watchfiles", "asyncio")


def configure(level: str, style: LogFormat, *, color: bool) -> None:
    """Set up logging for a process that we are the owner of."""
    handler = logging.StreamHandler()
    if style == "json":
        handler.setFormatter(JSONFormatter())
    else:
        handler.setFormatter(TextFormatter(color=color))
    # `force`: a handler that some import has put there would write each record a second time, uncleaned.
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level == "debug":
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.INFO)


def configure_server(level: str) -> bool:
    """Set up the log of a server in a program that has set up none: ours and uvicorn's, on standard error.

    In a program that has, its handlers get our records as they get all others, and uvicorn writes as it always does.

    Returns:
        Whether it was set up here.
    """
    if logging.getLogger().handlers or logging.getLogger("apcore_a2a").handlers:
        return False
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter(color=sys.stderr.isatty()))
    for name in ("apcore_a2a", "uvicorn"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level.upper())
        logger.propagate = False  # the root has no handler, and whoever gives it one later would read it all twice
    return True
