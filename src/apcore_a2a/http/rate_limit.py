"""How many requests a second each caller may make, and all together.

A bucket holds `burst` tokens and gains `rate` of them a second; a request takes one. Instead of a level and a time, the
moment is kept at which the bucket will be full (the generic cell rate algorithm): one number for each caller, and a
caller whose moment has passed is as good as unknown.

Rule: memory is bounded. Of two callers, the one whose bucket is fuller is forgotten first, which can only be to their
good. The times lie in memory that forked processes share, so workers of one machine count together.
"""

import math
import mmap
import secrets
import struct
import time
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final, NamedTuple

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.agent import Caller
from apcore_a2a.engine.context import live_quota_key
from apcore_a2a.errors import LimitExceededError, OverloadedError, wire
from apcore_a2a.http.asgi import client_of, error_headers, refuse_early

# ---- buckets that processes share -----------------------------------------------------------------------------------
# A moment for each name, in memory that a process shares with those it forks: what one writes the others read.
#
# Rule: its size is fixed. A name has one of the eight places of its row; when they are taken, the one with the earliest
# moment is forgotten.
#
# No locks: should two processes write the same moment at the same time, one of the two is lost, which is a request that
# was not counted; a process that is killed in the middle leaves nobody waiting.

PLACES: Final = 8
_ROW: Final = struct.Struct(f"={PLACES}Q{PLACES}d")  # the tags of the names, then their times; a tag of 0 is nobody
_TAG: Final = struct.Struct("=Q")
_TIME: Final = struct.Struct("=d")
_HASH: Final = struct.Struct("=QQ")


class Slot(NamedTuple):
    """A place in the memory: in which row, which of its places, whose it is or will be; and its moment, 0 for none."""

    offset: int
    place: int
    tag: int
    full_at: float


class SharedBuckets:
    """Moments by name, as many as there are places."""

    def __init__(self, most: int) -> None:
        self._rows = max(most // PLACES, 1)
        self._memory = mmap.mmap(-1, self._rows * _ROW.size)  # only what is written to takes memory
        # Secret: nobody can choose names that share a row, or a tag, with somebody else's.
        self._key = secrets.token_bytes(16)

    def find(self, name: str) -> Slot:
        """Where the moment of a name is, or would be."""
        digest = blake2b(name.encode(errors="surrogatepass"), digest_size=_HASH.size, key=self._key).digest()
        number, tag = _HASH.unpack(digest)
        tag = tag or 1
        offset = number % self._rows * _ROW.size
        row = _ROW.unpack_from(self._memory, offset)
        tags = row[:PLACES]
        times = row[PLACES:]
        if tag in tags:
            place = tags.index(tag)
            return Slot(offset, place, tag, times[place])
        return Slot(offset, times.index(min(times)), tag, 0.0)

    def write(self, slot: Slot, full_at: float) -> None:
        _TIME.pack_into(self._memory, slot.offset + 8 * (PLACES + slot.place), full_at)
        _TAG.pack_into(self._memory, slot.offset + 8 * slot.place, slot.tag)


# ---- rate limit -----------------------------------------------------------------------------------------------------

MAX_CALLERS: Final = 100_000  # buckets kept: 1.6 MB
TOO_MANY_OF_YOURS: Final = "You are over your limit of requests; try again later"
TOO_MANY: Final = "The agent is over its limit of requests; try again later"
_ANONYMOUS: Final = Caller()
_ALL_CALLERS: Final = ""  # the name of the bucket that all share


class Rates(Struct, frozen=True, kw_only=True):
    """Requests a second; None is without a limit.

    `burst` is how many of one caller may come at once, None those of two seconds. All together may send those of two
    seconds at once in any case: else a caller who does as they may would have others refused.
    """

    per_caller: float | None = None
    per_anonymous: float | None = None
    total: float | None = None
    burst: int | None = None

    @property
    def are_limited(self) -> bool:
        return not (self.per_caller is None and self.per_anonymous is None and self.total is None)


def two_seconds(rate: float) -> int:
    """The requests of two seconds; one at least."""
    return max(1, math.ceil(2 * rate))


class TokenBuckets:
    """A bucket for each name, of the same size and rate.

    Example:
        >>> buckets = TokenBuckets(rate=1, burst=2, clock=lambda: 0.0)
        >>> [buckets.take("ada"), buckets.take("ada"), buckets.take("ada"), buckets.take("bob")]
        [0.0, 0.0, 1.0, 0.0]
    """

    def __init__(
        self,
        *,
        rate: float,
        burst: int | None = None,
        most: int = MAX_CALLERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if burst is None:
            burst = two_seconds(rate)
        self._interval = 1 / rate  # seconds in which a bucket gains one token
        self._tolerance = (burst - 1) * self._interval
        self._clock = clock
        self._buckets = SharedBuckets(most)

    def take(self, name: str) -> float:
        """Take a token: 0 if there was one; else nothing is taken, and the seconds until there is."""
        now = self._clock()
        slot = self._buckets.find(name)
        full_at = max(slot.full_at, now)
        missing = full_at - now - self._tolerance
        if missing > 1e-9:  # less than a nanosecond is how numbers are rounded
            return missing
        self._buckets.write(slot, full_at + self._interval)
        return 0.0


class RateLimit:
    """Lets requests through to `app` as long as their caller, and all together, ask no more often than they may.

    A caller over their own limit is answered 429 and takes nothing of what all share; over that, it is 503.
    """

    def __init__(self, rates: Rates, *, on_refused: Callable[[], None] | None = None) -> None:
        self._callers = _buckets(rates.per_caller, rates.burst)
        self._anonymous = _buckets(rates.per_anonymous, rates.burst)
        self._total = None
        if rates.total is not None:
            self._total = TokenBuckets(rate=rates.total, burst=max(rates.burst or 1, two_seconds(rates.total)))
        self._on_refused = on_refused

    def around(self, app: ASGIApp) -> ASGIApp:
        def limited(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            refused = self._refused(scope)
            if refused is None:
                return app(scope, receive, send)
            if self._on_refused is not None:
                self._on_refused()
            return refuse_early(scope, send, wire(refused).http, refused, error_headers(refused))

        return limited

    def _refused(self, scope: Scope) -> OverloadedError | None:
        caller = scope.get("a2a.caller", _ANONYMOUS)
        buckets = self._callers if caller.is_authenticated else self._anonymous
        if buckets is not None:
            wait = buckets.take(live_quota_key(caller, client_of(scope)))
            if wait:
                return LimitExceededError(TOO_MANY_OF_YOURS, retry_after=math.ceil(wait))
        if self._total is not None:
            wait = self._total.take(_ALL_CALLERS)
            if wait:
                return OverloadedError(TOO_MANY, retry_after=math.ceil(wait))
        return None


def _buckets(rate: float | None, burst: int | None) -> TokenBuckets | None:
    if rate is None:
        return None
    return TokenBuckets(rate=rate, burst=burst)
