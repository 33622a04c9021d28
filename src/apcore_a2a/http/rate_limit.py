"""Limits of requests per second, for each caller and for all callers together.

A bucket holds `burst` tokens and gains `rate` tokens a second. A request takes one. Instead of a level and a time, the
table stores the time at which the bucket will be full (generic cell rate algorithm). That is one number for each
caller, and a time in the past is the same as no entry.

Invariant: memory is bounded. Of two callers, the one with the fuller bucket is evicted first, which can only give that
caller more requests. Forked processes share the memory, so the workers of one machine count together.
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
# A fixed-size table of times, in memory that forked processes share: what one process writes, the others read.
#
# Invariant: the size is fixed. A name has one of the eight places of its row. If all are taken, the one with the
# earliest time is evicted.
#
# There are no locks. If two processes write the same time at once, one write is lost, so one request is not counted. A
# process that is killed in the middle of a write blocks no other.

PLACES: Final = 8
_ROW: Final = struct.Struct(f"={PLACES}Q{PLACES}d")  # the tags of the names, then their times. Tag 0 is free
_TAG: Final = struct.Struct("=Q")
_TIME: Final = struct.Struct("=d")
_HASH: Final = struct.Struct("=QQ")


class Slot(NamedTuple):
    """A place in the table: the offset of its row, its number there, the tag of its name, and its time, 0 for none."""

    offset: int
    place: int
    tag: int
    full_at: float


class SharedBuckets:
    """A fixed-size table of the times at which buckets are full, by name, shared between forked workers."""

    def __init__(self, most: int) -> None:
        self._rows = max(most // PLACES, 1)
        self._memory = mmap.mmap(-1, self._rows * _ROW.size)  # only written pages take memory
        # Secret, so that a caller cannot choose a name with the row or the tag of another caller.
        self._key = secrets.token_bytes(16)

    def find(self, name: str) -> Slot:
        """Return the slot of a name, or the slot that it would get."""
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
_ALL_CALLERS: Final = ""  # the name of the bucket that all callers share


class Rates(Struct, frozen=True, kw_only=True):
    """Requests per second. None means no limit.

    `burst` is how many requests of one caller may arrive at once. None means the requests of two seconds. All callers
    together may send at least the requests of two seconds at once, so that the burst of one caller does not cause
    rejections of others.
    """

    per_caller: float | None = None
    per_anonymous: float | None = None
    total: float | None = None
    burst: int | None = None

    @property
    def are_limited(self) -> bool:
        return not (self.per_caller is None and self.per_anonymous is None and self.total is None)


def two_seconds(rate: float) -> int:
    """Return the number of requests of two seconds, at least one."""
    return max(1, math.ceil(2 * rate))


class TokenBuckets:
    """Token buckets by name, of the same size and rate.

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
        """Take a token and return 0. If there is none, return the seconds until there is one."""
        now = self._clock()
        slot = self._buckets.find(name)
        full_at = max(slot.full_at, now)
        missing = full_at - now - self._tolerance
        if missing > 1e-9:  # a smaller difference is a rounding error
            return missing
        self._buckets.write(slot, full_at + self._interval)
        return 0.0


class RateLimit:
    """Rejects requests over the rate of their caller, or over the rate of all callers together.

    A caller over its own limit gets 429, and takes nothing from the shared limit. Over the shared limit, it gets 503.
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
