"""Ids and times. Both are made several times for each message, so both are made the cheap way (figures: one call)."""

import os
import time
from datetime import UTC, datetime
from typing import Final

_VARIANTS: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_ids: Final[list[str]] = []  # made ahead, 64 for one look at the system's random source
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.clear)  # two processes never give out the same ones


def new_id() -> str:
    """A UUID version 4, as text; 0.6 µs instead of uuid's 2.6."""
    try:
        return _ids.pop()
    except IndexError:
        digits = os.urandom(64 * 16).hex()
        _ids.extend([_uuid(digits[start : start + 32]) for start in range(32, len(digits), 32)])
        return _uuid(digits)


def _uuid(digits: str) -> str:
    variant = _VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


class _Clock:
    """The time as text, made once a millisecond; 0.13 µs instead of 1.6."""

    def __init__(self) -> None:
        self._at = 0
        self._text = ""

    def now(self) -> str:
        millisecond = time.time_ns() // 1_000_000
        if millisecond != self._at:
            moment = datetime.fromtimestamp(millisecond / 1000, UTC)
            self._text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            self._at = millisecond
        return self._text


utc_now = _Clock().now
"""The time as A2A writes it: UTC, milliseconds, Z (1.0 §5.6.1)."""
