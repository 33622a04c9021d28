"""Where a page of a listing ended, as an opaque token. Rule: any text from a client is a place or InvalidParams.

The token says where in the order the last task shown stands, not how many were shown: a listing that goes on from there
shows no task twice and misses none that was there all the while, however many come and go meanwhile.
"""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from heapq import nlargest
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from apcore_a2a.errors import InvalidParamsError, Violation
from apcore_a2a.protocol.model import encode
from apcore_a2a.storage.task_store import Query

Place = tuple[str, int]  # status time and number; by creation, the time is "" for all
T = TypeVar("T")


# As an array it is short; a field that we do not know cannot be ours, so it is refused.
class Cursor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last task of a page: a listing goes on below (status_time, number), or by creation below number."""

    by_creation: bool
    status_time: str
    number: Annotated[int, Meta(ge=0, le=2**63 - 1)]  # what an SQLite integer holds
    """The place of the task in the order of creation: no two tasks share it."""

    @property
    def place(self) -> Place:
        return self.status_time, self.number

    def encode(self) -> str:
        return urlsafe_b64encode(encode(self)).decode()


_decode: Final = msgspec.json.Decoder(Cursor).decode


def parse_cursor(query: Query) -> Cursor | None:
    """Where to go on; None at the start.

    Raises:
        InvalidParamsError: not a token that a listing in this order has answered.
    """
    if not query.cursor:
        return None
    try:
        cursor = _decode(b64decode(query.cursor, altchars=b"-_", validate=True))
    except ValueError as error:  # of base64, of UTF-8, of JSON: all are one
        raise _not_ours() from error
    if cursor.by_creation != query.by_creation:
        raise _not_ours()
    return cursor


def cut_page(matching: Iterable[T], place: Callable[[T], Place], query: Query) -> tuple[list[T], str]:
    """What a page shows of all that matches a query, newest first, and the cursor of the next page."""
    start = parse_cursor(query)
    if start is not None:
        last_shown = start.place
        matching = (each for each in matching if place(each) < last_shown)
    # One more than is shown: if it is there, there is a next page. Nothing is sorted but what is shown.
    newest = nlargest(query.limit + 1, matching, key=place)
    shown = newest[: query.limit]
    if len(newest) == len(shown):
        return shown, ""
    status_time, number = place(shown[-1])
    return shown, Cursor(query.by_creation, status_time, number).encode()


def _not_ours() -> InvalidParamsError:
    return InvalidParamsError("Invalid pageToken", [Violation("pageToken", "not a token of this agent")])
