"""How the command line logs: one line a record, readable or JSON; what clients wrote cannot break a line."""

import json
import logging
import re
import time
from typing import Any, Final, Literal

LogFormat = Literal["text", "json"]

MAX_TEXT: Final = 1000
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_COLORS: Final = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "31"}


def clean(value: object) -> object:
    """A value that may stand in a log: numbers as they are, text without control characters and not without end."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = _CONTROL.sub("", str(value))
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: clean(value) for name, value in vars(record).items() if name not in _STANDARD}


class JSONFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean(record.getMessage()),
            **extras(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
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
        data = "".join(f" {name}={value}" for name, value in extras(record).items())
        said = f"{clean(record.getMessage())}{data}".replace("\n", " ")  # a record is one line
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level} {said}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(level: str, style: LogFormat, *, color: bool) -> None:
    """Set up logging for a process that we are the owner of."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter() if style == "json" else TextFormatter(color=color))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").setLevel("WARNING" if level == "info" else level.upper())
