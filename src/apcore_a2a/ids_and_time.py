"""Ids and timestamps. Each message needs several of both, so they are optimized (figures are for one call)."""

import os
import time
from datetime import UTC, datetime
from typing import Final

_LENGTH: Final = len("2026-01-02T03:04:05.678Z")
_AHEAD: Final = 64  # ids that are created at once
_UUID: Final = b"xxxxxxxx-xxxx-4xxx-vxxx-xxxxxxxxxxxx "  # RFC 9562 §5.4: 4 is the version, v the variant
_PLACES: Final = [place for place, mark in enumerate(_UUID) if mark in b"x4v"]  # the indexes of the 32 digits
_VARIANTS: Final = bytes.maketrans(b"0123456789abcdef", b"89ab" * 4)  # the two bits of a variant are 10
_ids: Final[list[str]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.clear)  # forked processes must not return the same ids


def new_id() -> str:
    """Return a UUID version 4 as a string. It takes 0.3 µs (`uuid.uuid4` 2.6), because 64 are created at once."""
    try:
        return _ids.pop()
    except IndexError:
        first, *others = _make_ids()
        _ids.extend(others)
        return first


def _make_ids() -> list[str]:
    """Fill a template of 64 ids: the first digit of all ids in one step, then the second of all, and so on.

    That takes 32 steps for 64 ids, instead of 32 steps for each id.
    """
    digits = os.urandom(16 * _AHEAD).hex().encode()
    text = bytearray(_UUID * _AHEAD)
    for digit, place in enumerate(_PLACES):
        text[place :: len(_UUID)] = digits[digit::32]
    # The version and the variant replace random digits.
    text[14 :: len(_UUID)] = b"4" * _AHEAD
    text[19 :: len(_UUID)] = digits[16::32].translate(_VARIANTS)
    return text.decode().split()


def _format(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Clock:
    """Formats the time once per millisecond. So a call takes 0.13 µs instead of 1.6."""

    def __init__(self) -> None:
        self._at = 0  # the millisecond that `_text` shows
        self._text = ""

    def now(self) -> str:
        millisecond = time.time_ns() // 1_000_000
        if millisecond != self._at:
            self._text = _format(datetime.fromtimestamp(millisecond / 1000, UTC))
            self._at = millisecond
        return self._text


utc_now = _Clock().now
"""Return the time in the format of A2A: UTC, milliseconds, Z (1.0 §5.6.1)."""


def seconds_since(timestamp: str) -> float | None:
    """Return the seconds since a time in the format of A2A. 0 if it is in the future, None if it is not a time.

    Example:
        >>> seconds_since("9999-12-31T23:59:59.000Z"), seconds_since("yesterday")
        (0.0, None)
    """
    try:
        moment = datetime.fromisoformat(timestamp)
        return max(time.time() - moment.timestamp(), 0.0)
    except (ValueError, OverflowError):
        return None


def to_utc(timestamp: str) -> str:
    """Return a time of an agent in the format of A2A. A text that is not an ISO 8601 time becomes the present time."""
    if timestamp == "":
        return utc_now()
    try:
        moment = datetime.fromisoformat(timestamp)
        if timestamp[-1] == "Z" and len(timestamp) == _LENGTH:
            return timestamp
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return _format(moment.astimezone(UTC))
    except (ValueError, OverflowError):
        return utc_now()
