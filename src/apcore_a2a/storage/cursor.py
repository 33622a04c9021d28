"""Pages of a listing: how much fits on one, and the opaque token that says where it ended.

Rule: any text from a client is a place in their own listing, or InvalidParams.

The token says where in the order the last task shown stands, not how many were shown: a listing that goes on from there
shows no task twice and misses none that was there all the while, however many come and go meanwhile.

That place holds a number that counts the tasks of all owners, which is nobody's business. So a token is *sealed* with a
key of the store: encrypted, and bound to its owner, so that it is of no use to another, and any change is noticed. The
form is that of a synthetic initialization vector (RFC 5297), made of the standard library's hashes: the tag is a keyed
hash of owner and place, and the place is covered by a stream that comes from the key and the tag.
"""

import hmac
import struct
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from hashlib import blake2b, shake_256
from heapq import nlargest
from typing import Final, NamedTuple, TypeVar

from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.storage.contract import Query

MAX_PAGE_BYTES: Final = 8 * 1024 * 1024  # of documents on one page; a page shows one task at least, however large
KEY_SIZE: Final = 32

_TAG_SIZE: Final = 16
_HEAD: Final = struct.Struct(">?Q")  # order and number: of one length, whatever the number

Place = tuple[str, int]  # status time and number; by creation, the time is "" for all
T = TypeVar("T")


class Cursor(NamedTuple):
    """The last task of a page: a listing goes on below (status_time, number), or by creation below number."""

    by_creation: bool
    status_time: str
    number: int
    """The place of the task in the order of creation: no two tasks share it."""

    @property
    def place(self) -> Place:
        return self.status_time, self.number


class PageTokens:
    """Makes the tokens of one store, and reads them again."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, cursor: Cursor | None, owner: str) -> str:
        """The token of the next page; empty if there is none."""
        if cursor is None:
            return ""
        plain = _HEAD.pack(cursor.by_creation, cursor.number) + cursor.status_time.encode()
        tag = self._tag(plain, owner)
        return urlsafe_b64encode(tag + self._cover(plain, tag)).decode()

    def parse(self, query: Query) -> Cursor | None:
        """Where to go on; None at the start.

        Raises:
            InvalidParamsError: not a token that this owner was given, for a listing in this order.
        """
        if not query.cursor:
            return None
        try:
            sealed = b64decode(query.cursor, altchars=b"-_", validate=True)
        except ValueError as error:
            raise _not_ours() from error
        tag = sealed[:_TAG_SIZE]
        plain = self._cover(sealed[_TAG_SIZE:], tag)
        if not hmac.compare_digest(tag, self._tag(plain, query.owner)):
            raise _not_ours()
        by_creation, number = _HEAD.unpack_from(plain)
        if by_creation != query.by_creation:
            raise _not_ours()
        return Cursor(by_creation, plain[_HEAD.size :].decode(), number)

    def _tag(self, plain: bytes, owner: str) -> bytes:
        name = owner.encode(errors="surrogatepass")
        # With the length of the name before it: no name can take a piece of the place for its own.
        text = len(name).to_bytes(8, "big") + name + plain
        return blake2b(text, key=self._key, digest_size=_TAG_SIZE).digest()

    def _cover(self, text: bytes, tag: bytes) -> bytes:
        """Cover a text, or uncover it: twice is as if it were not."""
        stream = shake_256(self._key + tag).digest(len(text))
        return bytes(a ^ b for a, b in zip(text, stream, strict=True))


class PageRoom:
    """How much still fits on a page."""

    def __init__(self, query: Query) -> None:
        self._tasks = query.limit
        self._bytes = MAX_PAGE_BYTES
        self._is_empty = True

    def takes(self, size: int) -> bool:
        """Whether one more task of this size is shown; after the first that is not, none is."""
        if not self._is_empty and (self._tasks <= 0 or size > self._bytes):
            return False
        self._is_empty = False
        self._tasks -= 1
        self._bytes -= size
        return True


def newest(matching: Iterable[T], place: Callable[[T], Place], query: Query, start: Cursor | None) -> list[T]:
    """What may be on a page, newest first, and one more: if it is there and not shown, there is a next page."""
    if start is not None:
        last_shown = start.place
        matching = (each for each in matching if place(each) < last_shown)
    # Nothing is sorted but what is shown.
    return nlargest(query.limit + 1, matching, key=place)


def _not_ours() -> InvalidParamsError:
    return InvalidParamsError("Invalid pageToken", [Violation("pageToken", "not a token of this listing")])
