"""Server-sent events: a frame writer and an incremental decoder.

Invariant: bytes may be split anywhere, even inside a line end or a UTF-8 sequence. Neither the decoded events nor the
cost depend on it: each character is processed once.
"""

import codecs
from io import StringIO
from typing import Final

from msgspec import Struct

FRAME_END: Final = b"\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
RECONNECT: Final = b": this server leaves; the task goes on, so subscribe again\nretry: 500\n\n"
MAX_EVENT: Final = 32 * 1024 * 1024  # so that a peer cannot fill the memory with an event without an end
MAX_RETRY_DIGITS: Final = 9  # milliseconds: eleven days are enough, and int() of a million digits is slow


def frame(data: bytes, id: int) -> bytes:
    """Return one event with JSON data."""
    return b"id: %d\ndata: %b\n\n" % (id, one_line(data))


def frame_head(id: int) -> bytes:
    """Return the beginning of an event whose data is written in pieces. The event ends with `FRAME_END`."""
    return b"id: %d\ndata: " % id


def frame_only(data: bytes) -> bytes:
    """Return a stream of one event. It has no id, because there is nothing to resume."""
    return b"data: %b\n\n" % one_line(data)


def one_line(data: bytes) -> bytes:
    """Escape three characters in JSON that readers with `str.splitlines` take for line ends (a2a-sdk 1.x)."""
    if data.isascii():
        return data
    for end in "\x85\u2028\u2029":
        data = data.replace(end.encode(), b"\\u%04x" % ord(end))
    return data


class ServerSentEvent(Struct, frozen=True):
    """One event. `id` and `retry` (milliseconds) are the latest in the stream, from this event or an earlier one."""

    data: str
    id: str = ""
    event: str = "message"
    retry: int | None = None


class SSEDecoder:
    r"""An incremental decoder from pieces of a byte stream to events.

    Example:
        >>> SSEDecoder().feed(b"id: 7\ndata: hi\n\n")[0].data
        'hi'
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        # Incremental, because a chunk may end inside a character. With -sig it removes the byte order mark too.
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._max = max_event
        # The incomplete line. Not a str: appending copies a str, and a line of megabytes arrives in pieces.
        self._rest = StringIO()
        self._after_cr = False  # whether a following "\n" belongs to the same line end
        # The incomplete event, and its size.
        self._data: list[str] = []
        self._size = 0
        self._event = ""
        # Values that hold until the stream changes them.
        self._id = ""
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that `chunk` completes.

        Raises:
            ValueError: an event is larger than the limit.
        """
        text = self._utf8.decode(chunk)
        if not text:
            return []
        if self._after_cr:
            text = text.removeprefix("\n")
        self._after_cr = text.endswith("\r")
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if lines:
            lines[0] = self._rest.getvalue() + lines[0]
            self._rest = StringIO()
        events: list[ServerSentEvent] = []
        for line in lines:
            event = self._read_line(line)
            if event is not None:
                events.append(event)
        self._rest.write(rest)
        self._check_size(self._rest.tell())
        return events

    def _check_size(self, more: int) -> None:
        if self._size + more > self._max:
            raise ValueError("server-sent event too large")

    def _read_line(self, line: str) -> ServerSentEvent | None:
        """Add a line to the event. An empty line completes it."""
        if not line:
            return self._complete()
        self._check_size(len(line))
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:  # unknown fields are ignored. So are comments, whose name before the colon is empty
            case "data":
                self._data.append(value)
                self._size += len(value) + 1
            case "id" if "\0" not in value:  # the standard ignores an id with a NUL
                self._id = value
            case "event":
                self._event = value
            case "retry" if value.isascii() and value.isdigit() and len(value) <= MAX_RETRY_DIGITS:
                self._retry = int(value)
        return None

    def _complete(self) -> ServerSentEvent | None:
        data = self._data
        event = self._event or "message"
        self._data = []
        self._event = ""
        self._size = 0
        if not data:
            return None  # without data there is no event (WHATWG HTML §9.2.6), though its id and retry count
        return ServerSentEvent("\n".join(data), self._id, event, self._retry)
