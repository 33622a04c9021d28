"""How much callers may keep in a store: tasks and bytes of one caller, bytes of all.

Rule: nothing is deleted to make room, so a store keeps what it promised; whoever has too much is refused what is new.

What a caller has is what the store says when it counts. That costs a look at each of their tasks, so it is asked every
few seconds at most, and then for one twentieth of the time at most, however long it takes; and nobody is refused by
what it said more than a second ago. What was begun here since is added. Other replicas are not seen in between: what a
caller sends to each of them within these seconds is what they can have above their limit; so is what tasks write that
were running when it was reached, and what was on its way to the store while it counted.
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

INTERVAL: Final = 5.0  # seconds for which a count is good enough to let somebody in
REFUSAL_INTERVAL: Final = 1.0  # and to refuse somebody
PAUSE: Final = 19  # times as long as counting took, before it is done again
MAX_KNOWN: Final = 10_000  # quota keys whose counts are remembered
RETRY_AFTER: Final = 60  # seconds: room comes when tasks expire

YOUR_TASKS: Final = "You are at your limit of stored tasks; try again when some have expired"
YOUR_BYTES: Final = "You are at your limit of stored bytes; try again when some tasks have expired"
NAMELESS: Final = "The agent is at its limit of what it stores for callers without a name; try again later"
ALL_BYTES: Final = "The agent is at its limit of stored bytes; try again later"


class _Count:
    """What the store said of a quota key, and what was begun here since."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # whoever else wants to know waits for the same answer
        self.told = Usage(0, 0)
        self.told_at = float("-inf")
        self.took = 0.0
        self.tasks = 0
        self.bytes = 0

    @property
    def total(self) -> Usage:
        return Usage(self.told.tasks + self.tasks, self.told.bytes + self.bytes)


class _Limit(Struct, frozen=True):
    """What one quota key may have; None is as much as it likes."""

    tasks: int | None
    bytes: int | None

    @property
    def is_given(self) -> bool:
        return self.tasks is not None or self.bytes is not None

    def takes(self, usage: Usage, *, is_new: bool) -> bool:
        """Whether there is room for a new task, or for a message to an old one."""
        if self.bytes is not None and usage.bytes >= self.bytes:
            return False
        return not is_new or self.tasks is None or usage.tasks < self.tasks


class StoredLimits:
    """Says whether there is room for what a caller wants to have stored."""

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
        self._counts: OrderedDict[str, _Count] = OrderedDict()  # by quota key, the latest to be asked for last

    async def check(self, owner: str, *, is_new: bool) -> None:
        """Refuse a new task, or a message to an old one, that its owner has no room for.

        Raises:
            LimitExceededError: it is the owner's own limit; OverloadedError if it is that of several.
        """
        quota_key = stored_quota_key(owner)
        if self._of_caller.is_given and not await self._has_room(quota_key, self._of_caller, is_new=is_new):
            self._refuse(quota_key)
        if self._of_all.is_given and not await self._has_room(ALL_OWNERS, self._of_all, is_new=is_new):
            self._observer.storage_refused(ALL_OWNERS)
            raise OverloadedError(ALL_BYTES, retry_after=RETRY_AFTER)

    def take(self, owner: str, request: SendMessage, *, is_new: bool) -> None:
        """Count a message that is about to be stored, if there is still room: others came while it was looked at.

        Raises:
            LimitExceededError: there is none; or OverloadedError, as in `check`.
        """
        quota_key = stored_quota_key(owner)
        if not self._of_caller.takes(self._count_of(quota_key).total, is_new=is_new):
            self._refuse(quota_key)
        self.add(owner, len(encode(request)), tasks=int(is_new))

    def add(self, owner: str, size: int, *, tasks: int = 0) -> None:
        """So much more is stored."""
        for quota_key in (stored_quota_key(owner), ALL_OWNERS):
            count = self._count_of(quota_key)
            count.tasks += tasks
            count.bytes += size

    def give_back(self, owner: str, request: SendMessage) -> None:
        """A new task that was counted by `take` is none."""
        size = len(encode(request))
        for quota_key in (stored_quota_key(owner), ALL_OWNERS):
            count = self._count_of(quota_key)
            # The store may have counted since, and what was counted before that is forgotten.
            count.tasks = max(0, count.tasks - 1)
            count.bytes = max(0, count.bytes - size)

    async def usage(self) -> Usage:
        """What is stored of everybody, as far as it is known."""
        count = await self._count(ALL_OWNERS, INTERVAL)
        return count.total

    def _refuse(self, quota_key: str) -> None:
        self._observer.storage_refused(quota_key)
        if quota_key == ANONYMOUS:  # it is the share of many
            raise OverloadedError(NAMELESS, retry_after=RETRY_AFTER)
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
        """What a quota key has, as the store said not longer ago than this."""
        count = self._count_of(quota_key)
        async with count.lock:
            begun = self._clock()
            if begun - count.told_at < max(interval, PAUSE * count.took):
                return count
            tasks = count.tasks
            size = count.bytes
            count.told = await self._store.usage(quota_key)
            # What came while it was counting may be in it or not; it is counted on.
            count.tasks -= tasks
            count.bytes -= size
            count.told_at = begun
            count.took = self._clock() - begun
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
    """The limits that the options set; None if they set none.

    Raises:
        TypeError: they do, and the store does not say what it keeps.
    """
    given = (options.max_stored_tasks_per_caller, options.max_stored_bytes_per_caller, options.max_stored_bytes)
    if given == (None, None, None):
        return None
    if not isinstance(store, ReportsUsage):
        raise TypeError(f"limits of what is stored need a store with usage(quota_key); {type(store).__name__} has none")
    return StoredLimits(store, options, observer=observer)
