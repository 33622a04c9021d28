"""Limits of stored data: tasks and bytes of one account, bytes of all.

Invariant: nothing is deleted to make room, so a store keeps what it has acknowledged. Over the limit, new tasks and
messages are rejected.

The store counts the usage of a quota key. It reads each task of the key to do so, so a count is cached: for `INTERVAL`
seconds to accept a message, for `REFUSAL_INTERVAL` to reject one, and always for `PAUSE_FACTOR` times the time that
counting took. So counting takes at most one twentieth of the time. Messages accepted here since then are added.

Messages at other replicas are not added. So a caller can exceed its limit by three amounts: what it sends to other
replicas while a count is cached, what tasks write that were running when the limit was reached, and what was on its way
to the store while the store counted.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from apcore_a2a.agent import ANONYMOUS
from apcore_a2a.engine.context import EngineOptions, Observer
from apcore_a2a.errors import LimitExceededError, OverloadedError
from apcore_a2a.protocol.model import SendMessage, encode
from apcore_a2a.storage.contract import ALL_OWNERS, ReportsUsage, Store, Usage, stored_quota_key

INTERVAL: Final = 5.0  # seconds for which a count is recent enough to accept a message
REFUSAL_INTERVAL: Final = 1.0  # seconds for which a count is recent enough to reject a message
PAUSE_FACTOR: Final = 19  # the pause between two counts, as a multiple of the time that counting took
MAX_KNOWN: Final = 10_000  # quota keys whose counts are remembered
RETRY_AFTER: Final = 60  # seconds, in which tasks may expire and make room

YOUR_TASKS: Final = "You are at your limit of stored tasks; try again when some have expired"
YOUR_BYTES: Final = "You are at your limit of stored bytes; try again when some tasks have expired"
ANONYMOUS_FULL: Final = "The agent is at its limit of stored data for anonymous callers; try again later"
ALL_BYTES: Final = "The agent is at its limit of stored bytes; try again later"


class _Count:
    """The usage of a quota key as the store counted it, and what was accepted here since."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # concurrent requests wait for the same count
        self.counted = Usage(0, 0)
        self.counted_at = float("-inf")
        self.seconds = 0.0  # that the store took to count
        self.tasks = 0  # accepted here since
        self.bytes = 0  # of the messages and events since

    @property
    def total(self) -> Usage:
        return Usage(self.counted.tasks + self.tasks, self.counted.bytes + self.bytes)


class _Limit(Struct, frozen=True):
    """What one quota key may store. None means unlimited."""

    tasks: int | None
    bytes: int | None

    @property
    def is_given(self) -> bool:
        return self.tasks is not None or self.bytes is not None

    def takes(self, usage: Usage, *, is_new: bool) -> bool:
        """Return whether there is room for a new task, or for a message to an existing one."""
        if self.bytes is not None and usage.bytes >= self.bytes:
            return False
        return not is_new or self.tasks is None or usage.tasks < self.tasks


class StoredLimits:
    """Checks whether a caller may store more."""

    def __init__(
        self,
        store: ReportsUsage,
        options: EngineOptions,
        *,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._of_caller = _Limit(options.max_stored_tasks_per_caller, options.max_stored_bytes_per_caller)
        self._of_all = _Limit(None, options.max_stored_bytes)
        self._observer = observer
        self._clock = clock
        self._counts: OrderedDict[str, _Count] = OrderedDict()  # by quota key, the most recently used last

    async def check(self, owner: str, *, is_new: bool) -> None:
        """Reject a new task, or a message to an existing one, if its owner has no room for it.

        Raises:
            LimitExceededError: The owner's own limit is reached.
            OverloadedError: The limit of all owners, or of the anonymous callers, is reached.
        """
        quota_key = stored_quota_key(owner)
        if self._of_caller.is_given and not await self._has_room(quota_key, self._of_caller, is_new=is_new):
            self._refuse(quota_key)
        if self._of_all.is_given and not await self._has_room(ALL_OWNERS, self._of_all, is_new=is_new):
            self._observer.storage_refused(ALL_OWNERS)
            raise OverloadedError(ALL_BYTES, retry_after=RETRY_AFTER)

    def take(self, owner: str, request: SendMessage, *, is_new: bool) -> None:
        """Count a message that is about to be stored, if there is still room after the await since `check`.

        Raises:
            LimitExceededError: The owner has no room left.
            OverloadedError: The anonymous callers have no room left.
        """
        quota_key = stored_quota_key(owner)
        if not self._of_caller.takes(self._count_of(quota_key).total, is_new=is_new):
            self._refuse(quota_key)
        self.add(owner, len(encode(request)), tasks=int(is_new))

    def add(self, owner: str, size: int, *, tasks: int = 0) -> None:
        """Add to the usage of an owner and of all."""
        for quota_key in (stored_quota_key(owner), ALL_OWNERS):
            count = self._count_of(quota_key)
            count.tasks += tasks
            count.bytes += size

    def give_back(self, owner: str, request: SendMessage) -> None:
        """Undo `take` for a new task that was not created."""
        size = len(encode(request))
        for quota_key in (stored_quota_key(owner), ALL_OWNERS):
            count = self._count_of(quota_key)
            # If the store has counted since, the sums have begun at zero again.
            count.tasks = max(0, count.tasks - 1)
            count.bytes = max(0, count.bytes - size)

    async def usage(self) -> Usage:
        """Return the usage of all owners, as far as it is known."""
        count = await self._count(ALL_OWNERS, INTERVAL)
        return count.total

    def _refuse(self, quota_key: str) -> None:
        self._observer.storage_refused(quota_key)
        if quota_key == ANONYMOUS:  # anonymous callers share one quota key
            raise OverloadedError(ANONYMOUS_FULL, retry_after=RETRY_AFTER)
        total = self._count_of(quota_key).total
        if self._of_caller.bytes is not None and total.bytes >= self._of_caller.bytes:
            raise LimitExceededError(YOUR_BYTES, retry_after=RETRY_AFTER)
        raise LimitExceededError(YOUR_TASKS, retry_after=RETRY_AFTER)

    async def _has_room(self, quota_key: str, limit: _Limit, *, is_new: bool) -> bool:
        for interval in (INTERVAL, REFUSAL_INTERVAL):
            count = await self._count(quota_key, interval)
            if limit.takes(count.total, is_new=is_new):
                return True
        return False

    async def _count(self, quota_key: str, interval: float) -> _Count:
        """Return the usage of a quota key, counted by the store at most `interval` seconds ago."""
        count = self._count_of(quota_key)
        async with count.lock:
            begun = self._clock()
            if begun - count.counted_at < max(interval, PAUSE_FACTOR * count.seconds):
                return count
            tasks = count.tasks
            size = count.bytes
            count.counted = await self._store.usage(quota_key)
            # The count may or may not include what was accepted while the store counted, so that stays in the sums.
            count.tasks -= tasks
            count.bytes -= size
            count.counted_at = begun
            count.seconds = self._clock() - begun
        return count

    def _count_of(self, quota_key: str) -> _Count:
        count = self._counts.get(quota_key)
        if count is None:
            count = _Count()
            self._counts[quota_key] = count
            if len(self._counts) > MAX_KNOWN:
                self._counts.popitem(last=False)
        self._counts.move_to_end(quota_key)
        return count


def stored_limits_of(store: Store, options: EngineOptions, observer: Observer) -> StoredLimits | None:
    """Return the limits that the options set, or None if they set none.

    Raises:
        TypeError: The options set limits, but the store does not report its usage.
    """
    given = (options.max_stored_tasks_per_caller, options.max_stored_bytes_per_caller, options.max_stored_bytes)
    if given == (None, None, None):
        return None
    if not isinstance(store, ReportsUsage):
        kind = type(store).__name__
        raise TypeError(f"limits of stored data need a store with usage(quota_key), which {kind} does not have")
    return StoredLimits(store, options, observer=observer)
