"""Limits on the frames of an HTTP/2 connection that h2 does not have. Invariant: a frame is checked at its header.

h2 checks the length of a frame when it has arrived, which may be 16 MiB later, and answers any number of frames that
carry nothing. A client could send such frames forever, for 20 µs of processor time each. They are SETTINGS, PING,
PRIORITY, WINDOW_UPDATE, CONTINUATION, frames of unknown types, and DATA of a few bytes. Each takes one from a budget,
which requests, responses and time fill again. A budget of its own limits requests that the client resets.
"""

import time
from collections.abc import Callable
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME: Final = 16_384  # bytes of a payload: the smallest maximum that HTTP/2 allows
MAX_HEADERS: Final = 16 * 1024  # bytes of a request's headers. hpack needs milliseconds for more

FREE_FRAMES: Final = 400  # frames without content at once
FRAMES_PER_SECOND: Final = 100.0
FREE_RESETS: Final = 500  # at once: clients reset calls that time out, which may be many together
RESETS_PER_SECOND: Final = 200.0
SMALL: Final = 1024  # bytes of DATA that count as content
PER_REQUEST: Final = 6.0  # frames that the client of a request may send for it, besides its HEADERS
PER_BODY: Final = 2.0  # WINDOW_UPDATE frames for one piece of a response: of its stream, and of the connection

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
CONTINUATION: Final = 9
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4

PROTOCOL_ERROR: Final = 1
FRAME_SIZE_ERROR: Final = 6
ENHANCE_YOUR_CALM: Final = 11


class Flooded(Exception):
    """The client exceeds a limit. `code` is the error code of HTTP/2."""

    def __init__(self, reason: str, code: int = ENHANCE_YOUR_CALM) -> None:
        super().__init__(reason)
        self.code = code


class Budget:
    """A number of events that are free, and a rate at which they become free again.

    Example:
        >>> budget = Budget(2, per_second=1, clock=lambda: 0.0)
        >>> [budget.take(), budget.take(), budget.take()]
        [True, True, False]
    """

    __slots__ = ("_clock", "_full", "_left", "_per_second", "_seen_at")

    def __init__(self, full: int, *, per_second: float, clock: Callable[[], float]) -> None:
        self._full = float(full)
        self._per_second = per_second
        self._clock = clock
        self._left = self._full
        self._seen_at = clock()

    def take(self, cost: float = 1.0) -> bool:
        if self._left < cost:  # the clock is read only when it matters
            now = self._clock()
            self.earn((now - self._seen_at) * self._per_second)
            self._seen_at = now
            if self._left < cost:
                return False
        self._left -= cost
        return True

    def earn(self, amount: float) -> None:
        self._left = min(self._full, self._left + amount)


class FrameGuard:
    """Follows the frames in the bytes of a connection."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._frames = Budget(FREE_FRAMES, per_second=FRAMES_PER_SECOND, clock=clock)
        self._resets = Budget(FREE_RESETS, per_second=RESETS_PER_SECOND, clock=clock)
        self._preface_left = len(PREFACE)
        self._payload_left = 0
        self._kind = DATA
        self._header = b""  # the part of a frame's header that has arrived
        self._block = 0  # bytes of an incomplete header block

    @property
    def awaits_headers(self) -> bool:
        """Whether a header block, or the header of a frame, has begun and is not complete."""
        if self._block or self._header:
            return True
        return self._payload_left > 0 and self._kind in (HEADERS, CONTINUATION)

    def check(self, data: bytes) -> None:
        """Check the frames that begin in these bytes.

        Raises:
            Flooded: A frame is too large, or there are too many.
        """
        position = min(self._preface_left, len(data))
        begin = len(PREFACE) - self._preface_left
        if data[:position] != PREFACE[begin : begin + position]:
            raise Flooded("the preface is wrong", PROTOCOL_ERROR)
        self._preface_left -= position
        end = len(data)
        while position < end:
            if self._payload_left:
                step = min(self._payload_left, end - position)
                self._payload_left -= step
                position += step
                continue
            missing = 9 - len(self._header)
            header = self._header + data[position : position + missing]
            position += missing
            if len(header) < 9:
                self._header = header
                return
            self._header = b""
            self._payload_left = int.from_bytes(header[:3], "big")
            self._kind = header[3]
            self._check_frame(self._kind, header[4], self._payload_left)

    def refused(self) -> None:
        """Count a request that was refused or reset, because its headers cost as much as those of any other."""
        if not self._resets.take():
            raise Flooded("too many requests that are reset or refused")

    def served(self) -> None:
        """Allow frames for a request that was accepted."""
        self._frames.earn(PER_REQUEST)

    def wrote(self, size: int) -> None:
        """Allow frames for a piece of a response that was written completely."""
        self._frames.earn(PER_BODY + size / SMALL)

    def _check_frame(self, kind: int, flags: int, length: int) -> None:
        if length > MAX_FRAME:
            raise Flooded("a frame is too large", FRAME_SIZE_ERROR)
        cost = 1.0
        if kind == DATA:
            cost = 0.0
            if length < SMALL and not flags & END_STREAM:
                cost = 1.0 - length / SMALL
        elif kind == HEADERS:
            cost = 0.0
            self._add_to_block(0, length, flags)
        elif kind == CONTINUATION:
            self._add_to_block(self._block, length, flags)
        elif kind == RST_STREAM:
            cost = 0.0
            self.refused()
        if cost and not self._frames.take(cost):
            raise Flooded("too many frames without content")

    def _add_to_block(self, before: int, length: int, flags: int) -> None:
        block = before + length
        if block > MAX_HEADERS:
            raise Flooded("headers are too large")
        self._block = 0 if flags & END_HEADERS else max(block, 1)
