"""Indexes of the tasks in memory by owner and context, and the listings that use them.

Invariant: adding, moving and removing a task takes constant time. The cost of a page of the newest tasks is
proportional to the size of the page.

Unfinished and ended tasks are indexed separately. Ended tasks are in the order of their ends, so that the newest are
found from the back. Unfinished tasks are few, and their times change, so a listing reads all of them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, takewhile
from math import inf

from msgspec import Struct

from apcore_a2a.protocol.lifecycle import TERMINAL, document_of
from apcore_a2a.protocol.model import Document, Task, TaskState
from apcore_a2a.storage.contract import ALL_OWNERS, ConversationMemory, Query, Record
from apcore_a2a.storage.cursor import Cursor, PageRoom, Position, newest


# gc=False: there is one per task, and a full garbage collection would scan all of them. eq=False: compared by identity.
class StoredTask(Struct, gc=False, eq=False):
    """One task in memory: the engine's live object while it runs, or its encoded bytes while it is at rest.

    Only the store writes to it.
    """

    id: str
    owner: str
    context_id: str
    key: str
    created: int
    """The position of the task in the order of creation, unique among all tasks."""
    state: TaskState = TaskState.UNSPECIFIED
    changed_at: str = ""
    version: int = 0
    epoch: int = 0
    task: Task | None = None
    body: bytes = b""
    memo: bytes = b""
    run: bytes = b""
    conversation: ConversationMemory | None = None
    """The agent's memory of the context, at one task of it: usually the one that wrote it last."""
    extra_bytes: int = 0
    """Bytes in addition to `body`: the memo, the memory of the conversation, and a live object as JSON (its last
    document and the events since)."""
    expires: float = inf
    """The time of expiry. Infinite while the task is not evictable."""

    @property
    def size(self) -> int:
        """The bytes that count against the limits."""
        return self.extra_bytes + len(self.body)

    def document(self) -> Document:
        if self.task is None:
            return Document(self.body)
        # The live task changes later, so the document is a snapshot.
        return document_of(self.task)

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
    """The size of the stored tasks in bytes, of all owners or of one quota key. Only the store writes to it."""

    all: int = 0
    ended: int = 0
    """Bytes of the tasks that can be evicted."""


class QuotaShare:
    """The tasks and bytes of one quota key, in all its tenants. Only the store writes to it."""

    def __init__(self, quota_key: str) -> None:
        self.quota_key = quota_key
        self.tasks = 0
        self.unfinished = 0
        """Number of tasks that cannot be evicted: they have not ended, or a webhook waits for their events."""
        self.held = HeldBytes()
        # Evictable tasks, in the order of their ends. The entry of a task that was removed, or that is no longer
        # evictable, is stale.
        self._ended: deque[StoredTask] = deque()

    def add(self) -> None:
        """Count one more task, which is not evictable."""
        self.tasks += 1
        self.unfinished += 1

    def remove(self) -> None:
        """Count one task fewer. The caller has made it non-evictable before."""
        self.tasks -= 1
        self.unfinished -= 1

    def allow_eviction(self, stored: StoredTask) -> None:
        """Make a task evictable."""
        self.unfinished -= 1
        self._ended.append(stored)
        # Stale entries are removed when they are the majority, so that each costs a constant time on average.
        if len(self._ended) > 2 * self.tasks + 16:
            self._ended = deque(each for each in self._ended if each.expires < inf)

    def prevent_eviction(self) -> None:
        """Make an evictable task non-evictable again."""
        self.unfinished += 1

    def first_ended(self) -> StoredTask | None:
        """Return the evictable task that ended first, or None."""
        while self._ended:
            if self._ended[0].expires < inf:
                return self._ended[0]
            self._ended.popleft()
        return None


class OwnerIndex:
    """The tasks of one owner, by context and in an order from which the newest can be listed."""

    def __init__(self, share: QuotaShare) -> None:
        self.share = share
        self._unfinished: dict[str, StoredTask] = {}
        self._ended: dict[str, StoredTask] = {}
        # Whether the order of the ends is the order of the status times. It is, unless an agent sets these times.
        self._in_order = True
        # Nearly every context has one task, so a dictionary is created only for a context with more.
        self._by_context: dict[str, StoredTask | dict[str, StoredTask]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._by_context

    def add(self, stored: StoredTask) -> None:
        """Add a task that has not ended."""
        self._unfinished[stored.id] = stored
        same_context = self._by_context.setdefault(stored.context_id, stored)
        if isinstance(same_context, dict):
            same_context[stored.id] = stored
        elif same_context is not stored:
            self._by_context[stored.context_id] = {same_context.id: same_context, stored.id: stored}

    def move_to_ended(self, stored: StoredTask) -> None:
        """Move a task that has just ended to the ended tasks."""
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

    def any_of(self, context_id: str) -> StoredTask | None:
        """Return a task of a context, or None."""
        same_context = self._by_context.get(context_id)
        if isinstance(same_context, dict):
            return next(iter(same_context.values()))
        return same_context

    # ---- listings ----------------------------------------------------------------------------------------------------

    def page(self, query: Query, start: Cursor | None) -> tuple[list[StoredTask], Cursor | None, int]:
        """Return the tasks on a page, the cursor of the next page if there is one, and the number of matching tasks."""
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
        """Return all tasks that have changed since this time, and possibly others."""
        ended: Iterable[StoredTask] = reversed(self._ended.values())
        if since and self._in_order:
            ended = takewhile(lambda stored: stored.changed_at >= since, ended)
        return chain(self._unfinished.values(), ended)

    def _newest(self, query: Query, start: Cursor | None) -> Iterator[StoredTask]:
        """Return the tasks that may be on the page, and few others, in an order that `newest` completes."""
        missing = query.limit + 1  # one more, which shows that there is a next page
        last = ""
        yield from self._unfinished.values()
        for stored in reversed(self._ended.values()):
            # Do not stop as soon as there are enough: tasks of the same time are ordered by number, so all are needed.
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
    """Return those candidates that fit on a page, and the cursor of the next page if there is one."""
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
    """Return the tasks on a page, the cursor of the next page if there is one, and the number of matching tasks."""
    if query.owner != ALL_OWNERS:
        index = indexes.get(query.owner)
        if index is None:
            return [], None, 0
        return index.page(query, start)
    # A listing of all owners reads each task. It is for administrators, and rare.
    matching: list[StoredTask] = []
    for index in indexes.values():
        matching += index.matching(query)
    shown, last = _fill_page(matching, query, start)
    return shown, last, len(matching)
