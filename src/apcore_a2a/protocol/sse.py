"""Server-sent events: a frame writer and an incremental decoder.

Rule: bytes may be cut anywhere, inside a line end or a UTF-8 sequence; the decoder's answer does not depend on where,
and its work does not either: each character is looked at once.
"""

import codecs
from io import StringIO
from typing import Final

from msgspec import Struct

KEEP_ALIVE: Final = b": keep-alive\n\n"
MAX_EVENT: Final = 32 * 1024 * 1024  # a peer that never ends its event does not fill our memory
MAX_RETRY_DIGITS: Final = 9


def frame(data: bytes, id: int) -> bytes:
    """One event, its data JSON."""
    return b"id: %d\ndata: %b\n\n" % (id, _one_line(data))


def only(data: bytes) -> bytes:
    """A stream of one event, to which nobody can come back."""
    return b"data: %b\n\n" % _one_line(data)


def _one_line(data: bytes) -> bytes:
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
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")  # it takes off the byte order mark, too
        self._max = max_event
        self._rest = StringIO()  # the line that has not ended
        self._after_cr = False
        self._data: list[str] = []
        self._size = 0
        self._event = ""
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
            text = text.removeprefix("\n")  # the other half of a CRLF
        self._after_cr = text.endswith("\r")
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if lines:
            lines[0] = self._rest.getvalue() + lines[0]
            self._rest = StringIO()
        events = [event for line in lines if (event := self._take(line)) is not None]
        self._rest.write(rest)
        self._check(self._rest.tell())
        return events

    def _check(self, more: int) -> None:
        if self._size + more > self._max:
            raise ValueError("server-sent event too large")

    def _take(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        self._check(len(line))
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
                self._size += len(value) + 1
            case "id" if "\0" not in value:
                self._id = value
            case "event":
                self._event = value
            case "retry" if value.isascii() and value.isdigit() and len(value) <= MAX_RETRY_DIGITS:
                self._retry = int(value)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, event = self._data, self._event
        self._data, self._event, self._size = [], "", 0
        if not data:
            return None
        return ServerSentEvent("\n".join(data), self._id, event or "message", self._retry)
