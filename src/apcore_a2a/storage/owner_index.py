"""The tasks of one owner in memory, so that each is found by its context and a listing by what it shows.

Rule: what a task costs here does not depend on how many there are; a page of the newest costs about its own size.

Tasks that have not ended and tasks that have are kept apart. The latter lie in the order of their ends, so that the
newest are found from the back. Of the former there are few, and their times change: a listing looks at all of them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, takewhile
from math import inf

from msgspec import Struct

from apcore_a2a.protocol.lifecycle import TERMINAL
from apcore_a2a.protocol.model import Document, Task, TaskState, encode
from apcore_a2a.storage.contract import ALL_OWNERS, Query, Record
from apcore_a2a.storage.cursor import Cursor, PageRoom, Position, newest


# gc=False: there is one for each task, and a full collection would look at all of them. eq=False: compared by identity.
class StoredTask(Struct, gc=False, eq=False):
    """One task in memory: the engine's live object while it runs, its encoded bytes when it is at rest.

    Only the store writes to it.
    """

    id: str
    owner: str
    context_id: str
    key: str
    created: int
    state: TaskState = TaskState.UNSPECIFIED
    changed_at: str = ""
    version: int = 0
    epoch: int = 0
    task: Task | None = None
    body: bytes = b""
    memo: bytes = b""
    run: bytes = b""
    growth: int = 0
    """Bytes beside `body`: of the memo, and of a live object as JSON (its last document, and the events since)."""
    expires: float = inf
    """When it may go; for ever: it has not ended, or a webhook waits for its events."""

    @property
    def size(self) -> int:
        """The bytes that count against the limits."""
        return self.growth + len(self.body)

    def document(self) -> Document:
        if self.task is None:
            return Document(self.body)
        # The live task moves on: what is answered is a picture of it.
        return Document(encode(self.task))

    def record(self) -> Record:
        return Record(
            document=self.document(),
            owner=self.owner,
            state=self.state,
            version=self.version,
            epoch=self.epoch,
            memo=self.memo,
            run=self.run,
        )


class HeldBytes(Struct):
    """How many bytes of tasks are kept, of all owners or of one. Only the store writes to it."""

    all: int = 0
    ended: int = 0
    """Those of tasks that have ended, and may go to make room."""


class QuotaShare:
    """What one quota key has here, under all the tenants that it names. Only the store writes to it."""

    def __init__(self, quota_key: str) -> None:
        self.quota_key = quota_key
        self.tasks = 0
        self.unfinished = 0
        """Of the tasks, those that may not go: they have not ended, or a webhook waits for their events."""
        self.held = HeldBytes()
        # Those that may go, the first to have ended first; one that has gone, or may not go any more, is stale.
        self._ended: deque[StoredTask] = deque()

    def add(self) -> None:
        """There is one more task."""
        self.tasks += 1
        self.unfinished += 1

    def remove(self) -> None:
        """There is one task fewer, which was called back before if it might go."""
        self.tasks -= 1
        self.unfinished -= 1

    def allow_eviction(self, stored: StoredTask) -> None:
        """A task may go from now on."""
        self.unfinished -= 1
        self._ended.append(stored)
        # Swept when the stale are the majority, so that on average each costs one look.
        if len(self._ended) > 2 * self.tasks + 16:
            self._ended = deque(each for each in self._ended if each.expires < inf)

    def prevent_eviction(self) -> None:
        """A task that might go may not any more."""
        self.unfinished += 1

    def first_ended(self) -> StoredTask | None:
        """The task that ended first, of those that may go."""
        while self._ended:
            if self._ended[0].expires < inf:
                return self._ended[0]
            self._ended.popleft()
        return None


class OwnerIndex:
    """Which tasks an owner has: by context, and in an order from which the newest can be listed."""

    def __init__(self, share: QuotaShare) -> None:
        self.share = share
        self._unfinished: dict[str, StoredTask] = {}
        self._ended: dict[str, StoredTask] = {}
        # Whether the order of the ends is that of the status times. It is, unless an agent makes times up.
        self._in_order = True
        # Nearly every context has one task, so only one with more costs a dictionary.
        self._by_context: dict[str, StoredTask | dict[str, StoredTask]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._by_context

    def add(self, stored: StoredTask) -> None:
        """Take in a task that has not ended."""
        self._unfinished[stored.id] = stored
        same_context = self._by_context.setdefault(stored.context_id, stored)
        if isinstance(same_context, dict):
            same_context[stored.id] = stored
        elif same_context is not stored:
            self._by_context[stored.context_id] = {same_context.id: same_context, stored.id: stored}

    def move_to_ended(self, stored: StoredTask) -> None:
        """The task has just ended."""
        ended = self._ended
        if self._in_order and ended:
            last = ended[next(reversed(ended))]
            self._in_order = last.changed_at <= stored.changed_at
        del self._unfinished[stored.id]
        ended[stored.id] = stored

    def remove(self, stored: StoredTask) -> None:
        if stored.state in TERMINAL:
            del self._ended[stored.id]
        else:
            del self._unfinished[stored.id]
        same_context = self._by_context[stored.context_id]
        if isinstance(same_context, dict) and len(same_context) > 1:
            del same_context[stored.id]
        else:
            del self._by_context[stored.context_id]

    # ---- listings ----------------------------------------------------------------------------------------------------

    def page(self, query: Query, start: Cursor | None) -> tuple[list[StoredTask], Cursor | None, int]:
        """What a page shows, where it ends if there is a next one, and how many tasks match in all."""
        candidates: Iterable[StoredTask]
        if query.context_id or query.changed_since or query.state is not None:
            matching = self.matching(query)
            total = len(matching)
            candidates = matching
        else:
            total = len(self._unfinished) + len(self._ended)
            if self._in_order and not query.by_creation:
                candidates = self._newest(query, start)
            else:
                candidates = self._all()
        shown, last = _fill_page(candidates, query, start)
        return shown, last, total

    def matching(self, query: Query) -> list[StoredTask]:
        some: Iterable[StoredTask]
        if query.context_id:
            some = self._of_context(query.context_id)
        else:
            some = self._all(query.changed_since)
        matching: list[StoredTask] = []
        for stored in some:
            is_of_state = query.state is None or stored.state == query.state
            if is_of_state and stored.changed_at >= query.changed_since:
                matching.append(stored)
        return matching

    def _of_context(self, context_id: str) -> Iterable[StoredTask]:
        same_context = self._by_context.get(context_id)
        if same_context is None:
            return ()
        if isinstance(same_context, dict):
            return same_context.values()
        return (same_context,)

    def _all(self, since: str = "") -> Iterable[StoredTask]:
        """All tasks, save some that have not changed since then."""
        ended: Iterable[StoredTask] = reversed(self._ended.values())
        if since and self._in_order:
            ended = takewhile(lambda stored: stored.changed_at >= since, ended)
        return chain(self._unfinished.values(), ended)

    def _newest(self, query: Query, start: Cursor | None) -> Iterator[StoredTask]:
        """All tasks that can be on a page, and few others."""
        missing = query.limit + 1  # with the one that shows that there is a next page
        last = ""
        yield from self._unfinished.values()
        for stored in reversed(self._ended.values()):
            # Not as soon as there are enough: among those of one time the order is by number, and all must be seen.
            if missing <= 0 and stored.changed_at < last:
                return
            if start is None or _by_status(stored) < start.position:
                yield stored
                missing -= 1
                last = stored.changed_at


def _by_creation(stored: StoredTask) -> Position:
    return "", stored.created


def _by_status(stored: StoredTask) -> Position:
    return stored.changed_at, stored.created


def _fill_page(
    candidates: Iterable[StoredTask], query: Query, start: Cursor | None
) -> tuple[list[StoredTask], Cursor | None]:
    """What a page shows of those that may be on it, and where it ends if there is a next one."""
    position = _by_status
    if query.by_creation:
        position = _by_creation
    shown: list[StoredTask] = []
    room = PageRoom(query)
    for stored in newest(candidates, position, query, start):
        if not room.reserve(stored.size):
            return shown, Cursor(query.by_creation, *position(shown[-1]))
        shown.append(stored)
    return shown, None


def find_page(
    indexes: Mapping[str, OwnerIndex], query: Query, start: Cursor | None
) -> tuple[list[StoredTask], Cursor | None, int]:
    """What a page shows, where it ends if there is a next one, and how many tasks match in all."""
    if query.owner != ALL_OWNERS:
        index = indexes.get(query.owner)
        if index is None:
            return [], None, 0
        return index.page(query, start)
    # Each task is looked at: it is for administrators, who seldom ask.
    matching: list[StoredTask] = []
    for index in indexes.values():
        matching += index.matching(query)
    shown, last = _fill_page(matching, query, start)
    return shown, last, len(matching)
