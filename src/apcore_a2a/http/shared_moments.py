"""A moment for each name, in memory that a process shares with those it forks: what one writes the others read.

Rule: its size is fixed. A name has one of the eight places of its row; when they are taken, the one with the earliest
moment is forgotten.

No locks: should two processes write the same moment at the same time, one of the two is lost, which is a request that
was not counted; a process that is killed in the middle leaves nobody waiting.
"""

import mmap
import secrets
import struct
from hashlib import blake2b
from typing import Final, NamedTuple

PLACES: Final = 8
_ROW: Final = struct.Struct(f"={PLACES}Q{PLACES}d")  # the tags of the names, then their moments; a tag of 0 is nobody
_TAG: Final = struct.Struct("=Q")
_MOMENT: Final = struct.Struct("=d")
_HASH: Final = struct.Struct("=QQ")


class Found(NamedTuple):
    """A place in the memory: in which row, which of its places, whose it is or will be; and its moment, 0 for none."""

    offset: int
    place: int
    tag: int
    moment: float


class SharedMoments:
    """Moments by name, as many as there are places."""

    def __init__(self, most: int) -> None:
        self._rows = max(most // PLACES, 1)
        self._memory = mmap.mmap(-1, self._rows * _ROW.size)  # only what is written to takes memory
        # Secret: nobody can choose names that share a row, or a tag, with somebody else's.
        self._key = secrets.token_bytes(16)

    def find(self, name: str) -> Found:
        """Where the moment of a name is, or would be."""
        digest = blake2b(name.encode(errors="surrogatepass"), digest_size=_HASH.size, key=self._key).digest()
        number, tag = _HASH.unpack(digest)
        tag = tag or 1
        offset = number % self._rows * _ROW.size
        row = _ROW.unpack_from(self._memory, offset)
        tags = row[:PLACES]
        moments = row[PLACES:]
        if tag in tags:
            place = tags.index(tag)
            return Found(offset, place, tag, moments[place])
        return Found(offset, moments.index(min(moments)), tag, 0.0)

    def write(self, found: Found, moment: float) -> None:
        _MOMENT.pack_into(self._memory, found.offset + 8 * (PLACES + found.place), moment)
        _TAG.pack_into(self._memory, found.offset + 8 * found.place, found.tag)
