"""Tokens that were checked a moment ago: most callers show the same one many times.

Rule: a token is remembered by its digest, for a minute at most and never longer than it lives.
"""

import hashlib
from typing import Final

from msgspec import Struct

from apcore_a2a.agent import Caller

MAX_SECONDS: Final = 60.0
MAX_CHARACTERS: Final = 4 * 1024 * 1024  # of all remembered tokens together; a caller takes about as much as its token


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class _Checked(Struct, frozen=True):
    caller: Caller
    until: float
    size: int


class CheckedTokens:
    """Who the bearer of a token is, by the token's digest. The oldest is forgotten when there are too many."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._checked: dict[bytes, _Checked] = {}  # in the order in which they came
        self._characters = 0
        self._max_characters = max_characters
        self._generation = 0

    def find(self, digest: bytes, now: float, generation: int) -> Caller | None:
        """The bearer, if the token was checked a moment ago and with the keys of this generation."""
        if generation != self._generation:  # a key may be gone; what it signed is nothing any more
            self._checked.clear()
            self._characters = 0
            self._generation = generation
            return None
        checked = self._checked.get(digest)
        if checked is None:
            return None
        if checked.until <= now:
            self._forget(digest)
            return None
        return checked.caller

    def add(self, digest: bytes, caller: Caller, *, until: float, now: float, size: int) -> None:
        """Remember who the bearer of a token is; `size` is that of the token."""
        if size > self._max_characters:
            return
        if digest in self._checked:
            self._forget(digest)
        self._checked[digest] = _Checked(caller, min(until, now + MAX_SECONDS), size)
        self._characters += size
        while self._characters > self._max_characters:
            self._forget(next(iter(self._checked)))

    def _forget(self, digest: bytes) -> None:
        self._characters -= self._checked.pop(digest).size
