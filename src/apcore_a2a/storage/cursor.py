"""Pages of a listing: the maximum size of a page, and the opaque token of the next page.

Invariant: any token from a client is either a position in the client's own listing or an InvalidParamsError.

The token contains the position of the last task shown, not the number of tasks shown. A listing that continues from it
shows no task twice and skips no task that existed all the time, however many tasks are created or removed meanwhile.

The position contains a number that counts the tasks of all owners, which must stay secret. Therefore the token is
*sealed* with a key of the store: it is encrypted, bound to its owner, and protected against modification. The
construction is a synthetic initialization vector (RFC 5297) made of hashes from the standard library: the tag is a
keyed hash of owner and position, and the position is encrypted with a key stream derived from the key and the tag.
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

MAX_PAGE_BYTES: Final = 8 * 1024 * 1024  # total size of the documents on one page, unless the first one is larger
KEY_SIZE: Final = 32

_TAG_SIZE: Final = 16
_HEAD: Final = struct.Struct(">?Q")  # order and number, in a fixed length, so that the length reveals nothing

Position = tuple[str, int]  # status time and number; in the order of creation the time is always ""
T = TypeVar("T")


class Cursor(NamedTuple):
    """The position of the last task of a page. The next page contains only lower positions."""

    by_creation: bool
    status_time: str
    number: int
    """The position of the task in the order of creation, unique among all tasks."""

    @property
    def position(self) -> Position:
        return self.status_time, self.number


class PageTokens:
    """Encrypts and decrypts the page tokens of one store."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, cursor: Cursor | None, owner: str) -> str:
        """Return the token of the next page, or "" if there is no next page."""
        if cursor is None:
            return ""
        plain = _HEAD.pack(cursor.by_creation, cursor.number) + cursor.status_time.encode()
        tag = self._tag(plain, owner)
        return urlsafe_b64encode(tag + self._apply_key_stream(plain, tag)).decode()

    def parse(self, query: Query) -> Cursor | None:
        """Return the position at which the listing continues, or None for the first page.

        Raises:
            InvalidParamsError: the token was not issued to this owner for a listing in this order.
        """
        if not query.cursor:
            return None
        try:
            sealed = b64decode(query.cursor, altchars=b"-_", validate=True)
        except ValueError as error:
            raise _invalid_token() from error
        tag = sealed[:_TAG_SIZE]
        plain = self._apply_key_stream(sealed[_TAG_SIZE:], tag)
        if not hmac.compare_digest(tag, self._tag(plain, query.owner)):
            raise _invalid_token()
        by_creation, number = _HEAD.unpack_from(plain)
        if by_creation != query.by_creation:
            raise _invalid_token()
        return Cursor(by_creation, plain[_HEAD.size :].decode(), number)

    def _tag(self, plain: bytes, owner: str) -> bytes:
        name = owner.encode(errors="surrogatepass")
        # The length prefix separates the name from the position, so that no other pair hashes to the same text.
        text = len(name).to_bytes(8, "big") + name + plain
        return blake2b(text, key=self._key, digest_size=_TAG_SIZE).digest()

    def _apply_key_stream(self, text: bytes, tag: bytes) -> bytes:
        """Return the text XOR the key stream: the same call encrypts and decrypts."""
        stream = shake_256(self._key + tag).digest(len(text))
        return bytes(a ^ b for a, b in zip(text, stream, strict=True))


class PageRoom:
    """The remaining space on a page."""

    def __init__(self, query: Query) -> None:
        self._tasks = query.limit
        self._bytes = MAX_PAGE_BYTES
        self._is_empty = True

    def reserve(self, size: int) -> bool:
        """Reserve space for a task of this size and return True, or return False if it does not fit.

        The first task always fits. The caller ends the page at the first task that does not.
        """
        if not self._is_empty and (self._tasks <= 0 or size > self._bytes):
            return False
        self._is_empty = False
        self._tasks -= 1
        self._bytes -= size
        return True


def newest(matching: Iterable[T], position: Callable[[T], Position], query: Query, start: Cursor | None) -> list[T]:
    """Return the newest tasks for a page and one more, newest first. If there is one more, there is a next page."""
    if start is not None:
        last_shown = start.position
        matching = (each for each in matching if position(each) < last_shown)
    # Sorts only the tasks that are shown, not all matching ones.
    return nlargest(query.limit + 1, matching, key=position)


def _invalid_token() -> InvalidParamsError:
    return InvalidParamsError("Invalid pageToken", [Violation("pageToken", "not a token of this listing")])
