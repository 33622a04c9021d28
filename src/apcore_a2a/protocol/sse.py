"""Server-sent events: a frame writer and an incremental decoder.

Rule: bytes may be cut anywhere, inside a line end or a UTF-8 sequence; the decoder's answer does not depend on where,
and its work does not either: each character is looked at once.
"""

import codecs
from io import StringIO
from typing import Final

from msgspec import Struct

FRAME_END: Final = b"\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
RECONNECT: Final = b": this server leaves; the task goes on, so subscribe again\nretry: 500\n\n"
MAX_EVENT: Final = 32 * 1024 * 1024  # a peer that never ends its event does not fill our memory
MAX_RETRY_DIGITS: Final = 9  # milliseconds: eleven days are enough, and int() of a million digits is slow


def frame(data: bytes, id: int) -> bytes:
    """One event, its data JSON."""
    return b"id: %d\ndata: %b\n\n" % (id, one_line(data))


def frame_head(id: int) -> bytes:
    """How an event begins whose data is written in pieces, and ends with `FRAME_END`."""
    return b"id: %d\ndata: " % id


def only(data: bytes) -> bytes:
    """A stream of one event. It has no id, for there is nothing to come back to."""
    return b"data: %b\n\n" % one_line(data)


def one_line(data: bytes) -> bytes:
    """JSON has no raw line ends, but readers that split as Python's `splitlines` does see three more (a2a-sdk 1.x)."""
    if data.isascii():
        return data
    for end in "\x85\u2028\u2029":
        data = data.replace(end.encode(), b"\\u%04x" % ord(end))
    return data


class ServerSentEvent(Struct, frozen=True):
    """One event. `id` and `retry` (milliseconds) are what the stream said last, with this event or before it."""

    data: str
    id: str = ""
    event: str = "message"
    retry: int | None = None


class SSEDecoder:
    r"""Turns pieces of a byte stream into events.

    Example:
        >>> SSEDecoder().feed(b"id: 7\ndata: hi\n\n")[0].data
        'hi'
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        # Incremental, because a chunk may end inside a character; with -sig it takes off the byte order mark, too.
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._max = max_event
        # The line that has not ended. Not a text: adding to a text copies it, and a line of megabytes comes in pieces.
        self._rest = StringIO()
        self._after_cr = False  # whether a "\n" that comes next is the other half of a line end
        # The event that has not ended, and how large it is.
        self._data: list[str] = []
        self._size = 0
        self._event = ""
        # What holds until the stream says otherwise.
        self._id = ""
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes.

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
        """Add a line to the event; an empty one completes it."""
        if not line:
            return self._complete()
        self._check_size(len(line))
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:  # an unknown field is ignored, and so is a comment: a line that begins with a colon has no name
            case "data":
                self._data.append(value)
                self._size += len(value) + 1
            case "id" if "\0" not in value:  # the standard ignores such an id
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
            return None  # an event without data is none (WHATWG HTML §9.2.6), though its id and retry count
        return ServerSentEvent("\n".join(data), self._id, event, self._retry)
